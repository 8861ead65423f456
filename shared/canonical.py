"""JSON in and out: one byte string per value, and a reader that refuses what such bytes could not hold.

Canonical bytes are `json.dumps(..., sort_keys=True, separators=(",", ":"), ensure_ascii=False,
allow_nan=False)` in UTF-8. Integers stay within +-(2**53 - 1), where every JSON reader agrees on them
(RFC 8259 section 6). Floats print as Python's shortest round-trip `repr`, which some other languages print
differently; that is why a receipt also carries its exact bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, Final, NoReturn

from shared.errors import SpecdecError

MAX_SAFE_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 32

# A string (closed or running to the end) or one bracket. The possessive quantifiers keep this linear.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class CanonicalError(SpecdecError):
    """The value or text has no canonical form."""


def canonical_bytes(payload: Any) -> bytes:
    """Return the one byte string that stands for `payload`.

    Args:
        payload: JSON value: dicts with string keys, lists or tuples, strings, finite floats, integers
            within +-(2**53 - 1), booleans, None; nested at most 32 deep.

    Raises:
        CanonicalError: If any part of it is something else.
    """
    _check(payload, 0)
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        _refuse("BAD_TEXT", "a string holds a lone surrogate")


def sha3_256_hex(data: bytes) -> str:
    """SHA3-256 (FIPS 202) of `data`, 64 lower-case hex digits."""
    return hashlib.sha3_256(data).hexdigest()


def sha256_hex(data: bytes) -> str:
    """SHA-256 (FIPS 180-4) of `data`, 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def strict_loads(text: str | bytes, max_depth: int = MAX_DEPTH) -> Any:
    """Parse JSON that has one meaning everywhere.

    Refused: bytes that are not UTF-8, NaN and Infinity (also as `1e999`), duplicate keys, nesting deeper
    than `max_depth`, integers beyond +-(2**53 - 1), lone surrogates. Depth is counted before parsing, so
    no input reaches the parser's recursion limit. No error repeats any of the input.

    Raises:
        CanonicalError: On any of the above, or if `text` is not JSON at all.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            _refuse("BAD_TEXT", "the text is not UTF-8")
    _check_depth(text, max_depth)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except ValueError:
        raise CanonicalError("BAD_JSON", "the text is not JSON") from None
    if not text.isascii() or _SURROGATE_ESCAPE.search(text):
        _check_text(value)
    return value


def _refuse(code: str, cause: str) -> NoReturn:
    raise CanonicalError(code, cause) from None


def _check(value: Any, depth: int) -> None:
    if isinstance(value, dict | list | tuple):
        if value and depth == MAX_DEPTH:
            _refuse("TOO_DEEP", f"the value is nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):  # json.dumps would turn 1 and True into "1" and "true"
                    _refuse("BAD_KEY", "an object key is not a string")
            value = value.values()
        for item in value:
            if not isinstance(item, str):
                _check(item, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            _refuse("NOT_FINITE", "a number is not finite")
    elif isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            _refuse("TOO_LARGE", "an integer lies beyond 2^53 - 1")
    elif value is not None and not isinstance(value, str):
        _refuse("NOT_JSON", f"a {type(value).__name__} is not a JSON value")


def _check_depth(text: str, max_depth: int) -> None:
    if text.count("[") + text.count("{") <= max_depth:
        return  # too few brackets to be nested deeper, wherever they stand
    depth = 0
    for match in _TOKEN.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > max_depth:
                _refuse("TOO_DEEP", f"the JSON is nested deeper than {max_depth}")
        elif first in "]}":
            depth -= 1


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        _refuse("BAD_TEXT", "a string holds a lone surrogate")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        _refuse("DUPLICATE_KEY", "an object names a key twice")
    return value


def _integer(digits: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > MAX_SAFE_INTEGER:
        _refuse("TOO_LARGE", "an integer lies beyond 2^53 - 1")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        _refuse("NOT_FINITE", "a number is not finite")
    return value


def _constant(_: str) -> NoReturn:
    _refuse("NOT_FINITE", "NaN and Infinity are not JSON")
