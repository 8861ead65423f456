"""An API Gateway event sent as the request that it stands for, and both kinds of answers in one form."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.edge.support import SCALE

OF_THE_CONNECTION = frozenset({"content-length", "date", "transfer-encoding"})
"""Headers that the server adds, not the edge."""


@dataclass(frozen=True)
class Answer:
    """Status, headers under lower-case names in order of name, and body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        """Return a header that is there once."""
        (value,) = (value for one, value in self.headers if one == name)
        return value


def from_lambda(result: Mapping[str, Any]) -> Answer:
    """Return what API Gateway makes of a result in payload format 2.0."""
    headers = [(name.lower(), value) for name, value in result["headers"].items()]
    headers += [("set-cookie", cookie) for cookie in result.get("cookies") or []]
    body = result["body"]
    data = base64.b64decode(body) if result["isBase64Encoded"] else body.encode("utf-8")
    return Answer(result["statusCode"], sorted(headers), data)


def send(url: str, event: Mapping[str, Any]) -> Answer:
    """Send the event's request, its headers and no others, over a connection of its own."""
    query = event["rawQueryString"]
    body = event.get("body", "")
    data = base64.b64decode(body) if event["isBase64Encoded"] else body.encode("utf-8")
    method = event["requestContext"]["http"]["method"]
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60 * SCALE)
    try:
        connection.putrequest(
            method,
            event["rawPath"] + (f"?{query}" if query else ""),
            skip_host=True,
            skip_accept_encoding=True,
        )
        for name, value in event["headers"].items():
            connection.putheader(name, value)
        if data or method == "POST":
            connection.putheader("content-length", str(len(data)))
        connection.endheaders(data or None)
        got = connection.getresponse()
        headers = [(name.lower(), value) for name, value in got.getheaders()]
        kept = sorted(pair for pair in headers if pair[0] not in OF_THE_CONNECTION)
        return Answer(got.status, kept, got.read())
    finally:
        connection.close()
