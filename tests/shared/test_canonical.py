"""Canonical bytes, digests and the strict reader."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.canonical import CanonicalError, canonical_bytes, sha3_256_hex, sha256_hex, strict_loads
from tests.shared.build import golden

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53 - 1), 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("case", golden("receipts")["cases"], ids=lambda case: case["name"])
def test_golden_bytes_and_digests(case: dict[str, Any]) -> None:
    """Every golden payload has exactly the golden bytes and both golden digests."""
    data = canonical_bytes(case["payload"])
    assert data == base64.b64decode(case["canonical_base64"])
    assert sha3_256_hex(data) == case["sha3_256"]
    assert sha256_hex(data) == case["sha256"]


@given(JSON)
def test_round_trip(value: Any) -> None:
    """What canonical bytes say, the strict reader reads, and it has the same canonical bytes."""
    data = canonical_bytes(value)
    assert strict_loads(data) == value
    assert canonical_bytes(strict_loads(data)) == data


@given(JSON)
def test_same_as_the_published_one_liner(value: Any) -> None:
    """The published `json.dumps` one-liner gives the same bytes."""
    line = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert canonical_bytes(value) == line.encode("utf-8")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (math.nan, "NOT_FINITE"),
        ([math.inf], "NOT_FINITE"),
        ({"a": 2**53}, "TOO_LARGE"),
        (-(2**53), "TOO_LARGE"),
        ({1: "a"}, "BAD_KEY"),
        ({None: "a"}, "BAD_KEY"),
        ("\ud800", "BAD_TEXT"),
        ({"\udfff": 1}, "BAD_TEXT"),
        ({"a": {1, 2}}, "NOT_JSON"),
        (b"bytes", "NOT_JSON"),
    ],
)
def test_values_without_canonical_form(value: Any, code: str) -> None:
    """A value that JSON cannot hold, or not everywhere alike, is refused with its own code."""
    with pytest.raises(CanonicalError) as refused:
        canonical_bytes(value)
    assert refused.value.code == code


def test_nesting_limit_when_writing() -> None:
    """32 levels have canonical bytes, a value deeper than that or one that holds itself has none."""
    value: Any = 0
    for _ in range(32):
        value = [value]
    assert canonical_bytes(value) == b"[" * 32 + b"0" + b"]" * 32
    loop: list[Any] = []
    loop.append(loop)
    for deep in ([value], loop):
        with pytest.raises(CanonicalError, match="nested deeper than 32"):
            canonical_bytes(deep)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("NaN", "NOT_FINITE"),
        ("[-Infinity]", "NOT_FINITE"),
        ("1e999", "NOT_FINITE"),
        ('{"a":1,"a":1}', "DUPLICATE_KEY"),
        ('{"a":{"b":1,"\\u0062":2}}', "DUPLICATE_KEY"),
        ("9007199254740992", "TOO_LARGE"),
        ("-9007199254740992", "TOO_LARGE"),
        ("9" * 100_000, "TOO_LARGE"),
        ('"\\ud800"', "BAD_TEXT"),
        ('{"\\uDFFF":1}', "BAD_TEXT"),
        ('"\ud800"', "BAD_TEXT"),
        (b"\xff", "BAD_TEXT"),
        ("", "BAD_JSON"),
        ("{", "BAD_JSON"),
        ("'a'", "BAD_JSON"),
        ("1 2", "BAD_JSON"),
        ("\ufeff1", "BAD_JSON"),
        ("[" * 33 + "]" * 33, "TOO_DEEP"),
        ("[" * 100_000, "TOO_DEEP"),
        ('{"a":' * 100_000, "TOO_DEEP"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_texts_refused(text: str | bytes, code: str) -> None:
    """Text with no or more than one meaning is refused with its own code."""
    with pytest.raises(CanonicalError) as refused:
        strict_loads(text)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740991", 2**53 - 1),
        ('"[[[[{{{{"', "[[[[{{{{"),
        ('"\\"[\\\\"', '"[\\'),
        ('"\\ud83d\\ude00"', "😀"),
        ("[" * 32 + "]" * 32, None),
        (' {"a" : [1, 2.0, true, null]}\n', {"a": [1, 2.0, True, None]}),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_texts_accepted(text: str, value: Any) -> None:
    """Brackets in strings are no nesting, surrogate pairs are characters, limits are inclusive."""
    assert strict_loads(text) == (value if value is not None else json.loads(text))


def test_own_depth_limit() -> None:
    """The caller may set a lower limit."""
    assert strict_loads("[[]]", max_depth=2) == [[]]
    with pytest.raises(CanonicalError, match="nested deeper than 1"):
        strict_loads("[[]]", max_depth=1)


def test_errors_never_repeat_the_text() -> None:
    """No refusal holds a part of what was refused."""
    for text in ('{"hidden":1,"hidden":2}', "hidden", '["hidden", NaN]', '["hidden\\ud800"]'):
        with pytest.raises(CanonicalError) as refused:
            strict_loads(text)
        assert "hidden" not in str(refused.value) and "hidden" not in repr(refused.value)


@given(st.text(st.sampled_from('"\\[]{}:,a1 \ud800'), max_size=40) | st.binary(max_size=40))
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    """No text makes the reader raise anything but its own error."""
    try:
        canonical_bytes(strict_loads(text))
    except CanonicalError:
        pass


def test_hostile_quotes_stay_linear() -> None:
    """A quarter megabyte of escaped quotes is refused at once: the depth scan does not go quadratic."""
    with pytest.raises(CanonicalError, match="not JSON"):
        strict_loads('"' + '\\"' * 131_072)
