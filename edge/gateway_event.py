"""API Gateway HTTP API events (payload format 2.0) from ASGI requests, and HTTP answers from results.

Source: the AWS developer guide, "Create AWS Lambda proxy integrations for HTTP APIs". Header names are lower
case, repeats are joined with commas, cookies travel apart, and what is not text is Base64.
"""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

MAX_HEADER_BYTES = 10_240
MAX_PAYLOAD_BYTES = 10_000_000

_ABSOLUTE = re.compile("https?://([^/?#]*)", re.IGNORECASE)
_TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/xml")


def header_bytes(scope: Mapping[str, Any]) -> int:
    """Return the size of request line and headers, which API Gateway limits together."""
    line = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"]) + len("  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])


def is_ambiguous(scope: Mapping[str, Any]) -> bool:
    """Whether another reader, such as a proxy, might see this request's end elsewhere (RFC 9112 section 6.1).

    That is so for a length beside chunks, for chunks in HTTP/1.0, and for versions that are not HTTP/1 at all.
    """
    names = {name.lower() for name, _ in scope["headers"]}
    chunked, version = b"transfer-encoding" in names, scope["http_version"]
    return version not in ("1.0", "1.1") or (chunked and (version == "1.0" or b"content-length" in names))


def build_event(scope: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    """Return the event that API Gateway would send for this request."""
    headers: dict[str, str] = {}
    cookies: list[str] = []
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name == "cookie":
            cookies += [cookie.strip() for cookie in value.split(";") if cookie.strip()]
        else:
            headers[name] = f"{headers[name]},{value}" if name in headers else value
    path = scope["path"]
    if absolute := _ABSOLUTE.match(path):  # RFC 9112 section 3.2.2: its host is the request's
        path, headers["host"] = path[absolute.end() :] or "/", absolute[1]
    query = scope["query_string"].decode("latin-1")
    client_host = (scope.get("client") or ("127.0.0.1", 0))[0]
    now = time.time()
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": "000000000000",
            "apiId": "local",
            "domainName": headers.get("host", "localhost"),
            "domainPrefix": "local",
            "http": {
                "method": scope["method"],
                "path": path,
                "protocol": f"HTTP/{scope['http_version']}",
                "sourceIp": client_host,
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": str(uuid.uuid4()),
            "routeKey": "$default",
            "stage": "$default",
            "time": datetime.fromtimestamp(now, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000"),
            "timeEpoch": int(now * 1000),
        },
        "isBase64Encoded": False,
    }
    if cookies:
        event["cookies"] = cookies
    if query:
        event["queryStringParameters"] = _joined_query(query)
    if body:
        event["body"], event["isBase64Encoded"] = _encoded(body, headers.get("content-type", ""))
    return event


def http_answer(result: Mapping[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body of a handler's result.

    Raises:
        KeyError, TypeError, ValueError: If the result is not in payload format 2.0.
    """
    text = result.get("body") or ""
    body = base64.b64decode(text) if result.get("isBase64Encoded") else text.encode("utf-8")
    headers = [(name.lower(), str(value)) for name, value in (result.get("headers") or {}).items()]
    headers += [("set-cookie", cookie) for cookie in result.get("cookies") or []]
    return (
        int(result["statusCode"]),
        [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        body,
    )


def _joined_query(query: str) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined


def _encoded(body: bytes, content_type: str) -> tuple[str, bool]:
    if content_type.strip().lower().startswith(_TEXT_TYPES):
        try:
            return body.decode("utf-8"), False
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode("ascii"), True
