"""Further headers for the tower's door, such as Cloudflare Access's service token; and secrets that hold some."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.settings import is_token

MAX_HEADERS = 16
MAX_CHARACTERS = 4096
"""Of a value: servers take lines of 8 KiB."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")  # RFC 9110 section 5.6.2
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
# The handshake's own, and those that would change how its request is read.
_OURS = re.compile(
    "authorization|host|upgrade|connection|origin|content-length|transfer-encoding|expect|te|trailer|sec-websocket-.*"
)


@dataclass(frozen=True)
class Credentials:
    """What the tower is shown."""

    token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse_headers(text: str) -> dict[str, str]:
    """Return the headers that a JSON object names.

    Raises:
        ValueError: It is something else, or names a header that cannot be set; the message holds no value.
    """
    return _headers(_object(text))


def parse_secret(text: str) -> Credentials:
    """Return what a secret holds: a token, or a JSON object of `token` and `headers`.

    Raises:
        ValueError: It holds neither; the message holds no value.
    """
    text = text.strip()
    if not text.startswith("{"):
        if not is_token(text):
            raise ValueError("must be visible ASCII without spaces")
        return Credentials(text)
    fields = _object(text)
    if not fields.keys() <= {"token", "headers"}:
        raise ValueError("must have no fields but token and headers")
    token, headers = fields.get("token"), fields.get("headers", {})
    if not isinstance(token, str) or not is_token(token):
        raise ValueError("must have a token of visible ASCII without spaces")
    if not isinstance(headers, dict):
        raise ValueError("must have headers that are a JSON object")
    return Credentials(token, _headers(headers))


def _object(text: str) -> dict[str, Any]:
    try:
        # A name given twice would leave open which value counts.
        value = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        value = None
    except json.JSONDecodeError:
        raise ValueError("must be JSON") from None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name.lower() for name, _ in pairs}) < len(pairs):
        raise ValueError("must name nothing twice")
    return dict(pairs)


def _headers(fields: Mapping[str, Any]) -> dict[str, str]:
    if len(fields) > MAX_HEADERS:
        raise ValueError(f"must name at most {MAX_HEADERS} headers")
    for name, value in fields.items():
        if not _NAME.fullmatch(name):
            raise ValueError("must have names of headers for names")
        if _OURS.fullmatch(name.lower()):
            raise ValueError(f"must leave {name} alone")
        if not isinstance(value, str) or len(value) > MAX_CHARACTERS or not _VALUE.fullmatch(value):
            raise ValueError(f"must have visible ASCII for {name}")
    return dict(fields)
