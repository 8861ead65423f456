"""Reading a request without trusting it: body, query, headers.

Everything here ends in a checked model or a `Problem`. No message repeats what the caller sent.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError

from edge.problems import Problem
from shared.canonical import CanonicalError, strict_loads
from shared.schemas import CurveQuery, RunRequest, explain

MAX_BODY_BYTES = 128 * 1024
MAX_QUERY_PARAMETERS = 128
MAX_KEY_LENGTH = 255

_WAIT = re.compile(r'wait\s*=\s*"?([0-9]{1,6})"?', re.IGNORECASE)


@dataclass(frozen=True)
class Preference:
    """What the caller asked for in ``Prefer`` (RFC 7240).

    Attributes:
        wait_s: Seconds the caller is willing to wait; None when it did not say.
        applied: Value for ``Preference-Applied``, or None.
    """

    wait_s: float | None = None
    applied: str | None = None


def parse_run(event: Mapping[str, Any], default_k: int) -> RunRequest:
    """Read the body of ``POST /run``."""
    body = _json_object(event)
    body.setdefault("k", default_k)
    try:
        return RunRequest.model_validate(body)
    except ValidationError as error:
        raise Problem(422, explain(error) + ".") from None


def parse_curve(
    event: Mapping[str, Any], default_k: int, default_cost_ratio: float
) -> tuple[CurveQuery, bool]:
    """Read the query of ``GET /curve``, and whether its receipt is to be stored (``store=1``).

    API Gateway joins repeated parameters with commas in ``queryStringParameters``; ``rawQueryString`` holds
    what was sent.
    """
    pairs = _query_pairs(str(event.get("rawQueryString") or ""))
    store = [value for name, value in pairs if name == "store"]
    if len(store) > 1 or store[:1] not in ([], ["0"], ["1"]):
        raise Problem(422, "store must be 0 or 1, once.")
    asked = [pair for pair in pairs if pair[0] != "store"]
    try:
        query = CurveQuery.from_pairs(asked, k=default_k, cost_ratio=default_cost_ratio)
        return query, store == ["1"]
    except ValidationError as error:
        raise Problem(422, explain(error) + ".") from None


def parse_preference(headers: Mapping[str, str], longest_s: int) -> Preference:
    """Read ``Prefer``; as RFC 7240 asks, what is not understood is ignored.

    Args:
        headers: The request's, under lower-case names.
        longest_s: A longer wait is cut to this, and said to be.
    """
    wait: int | None = None
    asynchronous = False
    for item in headers.get("prefer", "").split(","):
        if item.strip().lower() == "respond-async":
            asynchronous = True
        elif (match := _WAIT.fullmatch(item.strip())) and wait is None:
            wait = min(int(match[1]), longest_s)
    applied = ["respond-async"] * asynchronous + [f"wait={wait}"] * (wait is not None)
    if wait is None and asynchronous:
        wait = 0
    return Preference(None if wait is None else float(wait), ", ".join(applied) or None)


def parse_idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Read ``Idempotency-Key``."""
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not re.fullmatch(rf"[ -~]{{1,{MAX_KEY_LENGTH}}}", key) or not key.strip():
        raise Problem(400, f"Idempotency-Key must be 1 to {MAX_KEY_LENGTH} printable ASCII characters.")
    return key.strip()


def _json_object(event: Mapping[str, Any]) -> dict[str, Any]:
    _check_content_type(event["headers"])
    body = _body_bytes(event)
    if not body.strip():
        raise Problem(400, "The body is empty; send a JSON object with a prompt.")
    try:
        value = strict_loads(body)
    except CanonicalError as error:
        raise Problem(400, f"The body cannot be read: {error}.") from None
    if not isinstance(value, dict):
        raise Problem(422, "The body must be a JSON object.")
    return value


def _check_content_type(headers: Mapping[str, str]) -> None:
    media_type, _, parameters = headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise Problem(415, "The body must be sent with Content-Type: application/json.")
    charset = re.search(r'charset\s*=\s*"?([^\s";]*)', parameters, re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8"):
        raise Problem(415, "The body must be in UTF-8.")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(415, "The body must be sent without Content-Encoding.")


def _body_bytes(event: Mapping[str, Any]) -> bytes:
    body = event.get("body") or ""
    if len(body) > MAX_BODY_BYTES * 2:  # Base64 grows by a third; do not decode what is too large anyhow.
        raise _too_large()
    try:
        if event.get("isBase64Encoded"):
            data = base64.b64decode(body, validate=True)
        else:
            data = body.encode("utf-8")
    except (binascii.Error, UnicodeError, ValueError):
        raise Problem(400, "The body could not be decoded.") from None
    if len(data) > MAX_BODY_BYTES:
        raise _too_large()
    return data


def _too_large() -> Problem:
    return Problem(413, f"The body is too large; the limit is {MAX_BODY_BYTES // 1024} KiB.")


def _query_pairs(raw: str) -> list[tuple[str, str]]:
    if not raw:
        return []
    try:
        return parse_qsl(
            raw,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_QUERY_PARAMETERS,
        )
    except ValueError:
        raise Problem(400, "The query string is malformed or has too many parameters.") from None
