"""How every answer is written: JSON as it was hashed, headers for browsers and caches, HEAD, 304."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from aws_lambda_powertools.event_handler import Response

from edge.problems import PROBLEM_TYPE, Problem

FOR_EVER: Final = "public, max-age=31536000, immutable"
"""What has a digest for a name never changes."""

NO_STORE: Final = "no-store"
"""Most answers tell the state of now, and some hold a salt: nobody in between should keep them."""

PREFLIGHT_S: Final = 600

SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Strict-Transport-Security": "max-age=31536000",
    # The API is public and takes no credentials, so any page may call it (Fetch standard, section 3.3).
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "ETag, Link, Location, Preference-Applied, Retry-After",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
"""On every answer."""

_ASKED: Final = "Content-Type, Idempotency-Key, If-None-Match, Prefer"


def json_answer(
    status: int,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> Response[str]:
    """Return an answer whose numbers are those that were hashed."""
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    return Response(status, content_type, text, {"Cache-Control": NO_STORE, **(headers or {})})


def problem_answer(problem: Problem) -> Response[str]:
    """Return an error as a problem document."""
    return json_answer(problem.status, problem.document(), problem.headers, PROBLEM_TYPE)


def result_of(answer: Response[str]) -> dict[str, Any]:
    """Return an answer in API Gateway's payload format 2.0, where powertools has no part in it."""
    headers = {"Content-Type": answer.content_type, **answer.headers}
    return {
        "statusCode": answer.status_code,
        "headers": headers,
        "body": answer.body,
        "isBase64Encoded": False,
        "cookies": [],
    }


def options_answer(allow: str) -> Response[str]:
    """Return what a path takes; for browsers, too, that ask before they send (Fetch standard, section 4.8)."""
    headers = {
        "Allow": allow,
        "Access-Control-Allow-Methods": allow,
        "Access-Control-Allow-Headers": _ASKED,
        "Access-Control-Max-Age": str(PREFLIGHT_S),
        "Cache-Control": NO_STORE,
    }
    return Response(204, None, "", headers)


def etag(text: str) -> str:
    """Return a tag for a body whose bytes alone tell whether it has changed (RFC 9110 section 8.8.3)."""
    return f'"{hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]}"'


def finish(method: str, headers: Mapping[str, str], result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with what every answer carries, cut down to what the method and the caller's cache need.

    Args:
        method: The request's, HEAD included.
        headers: The request's, under lower-case names.
        result: In API Gateway's payload format 2.0.
    """
    own = result["headers"]
    tag = own.get("ETag")
    if result["statusCode"] == 200 and tag and _matches(headers.get("if-none-match", ""), tag):
        # A browser takes these in place of what it has kept (RFC 9111 section 3.2), so the page keeps its own policy.
        named = ("ETag", "Cache-Control", "Link", "Content-Security-Policy")
        kept = {name: own[name] for name in named if name in own}
        return {**result, "statusCode": 304, "headers": {**SAFE_HEADERS, **kept}, "body": ""}
    body = "" if method == "HEAD" else result["body"]
    return {**result, "headers": {**SAFE_HEADERS, **own}, "body": body}


def _matches(condition: str, tag: str) -> bool:
    """Whether If-None-Match names a tag; weakly, as RFC 9110 section 13.1.2 asks."""
    named = {part.strip().removeprefix("W/") for part in condition.split(",")}
    return "*" in named or tag.removeprefix("W/") in named
