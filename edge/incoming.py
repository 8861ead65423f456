"""Events as they come: refused unless they are API Gateway's, and put straight for what powertools does not know.

Whoever may invoke the function can send it anything; what is no event of an HTTP API is told so, not met by a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from edge.problems import Problem
from edge.routes import KNOWN_METHODS, find

OTHER: Final = "OTHER"
"""Stands for every method that the edge does not know."""

route: Final = lru_cache(maxsize=256)(find)
"""See `edge.routes.find`."""


def refusal(event: object) -> Problem | None:
    """Return what is wrong with an event that is not of API Gateway's HTTP APIs (payload format 2.0), None if nothing.

    Only types are looked at, of what is read here; texts may still hold anything.
    """
    context = event.get("requestContext") if isinstance(event, dict) else None
    http = context.get("http") if isinstance(context, dict) else None
    if isinstance(event, dict) and isinstance(http, dict) and _is_sound(event, http):
        return None
    return Problem(
        400, "This function answers events of an API Gateway HTTP API, in payload format 2.0, alone."
    )


def normalised(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event, which must be a sound one, with what powertools does not know put straight.

    HEAD becomes GET, and `isHead` says so; the path loses the stage's name and a trailing slash; header names are in
    lower case.
    """
    context = event["requestContext"]
    http = context["http"]
    stage = context.get("stage", "$default")
    path = event["rawPath"] if stage == "$default" else event["rawPath"].removeprefix(f"/{stage}")
    path = path.rstrip("/")
    # Powertools knows no case of methods, and its patterns let a path end in a line feed; here both are refused.
    method = http["method"] if http["method"] in KNOWN_METHODS else OTHER
    return {
        **event,
        "isHead": method == "HEAD",
        "rawPath": path if path.isprintable() and route(path) else "/",
        "headers": {str(name).lower(): str(value) for name, value in (event.get("headers") or {}).items()},
        "requestContext": {
            **context,
            "stage": "$default",
            "http": {
                **http,
                "method": "GET" if method == "HEAD" else method,
                "sourceIp": http.get("sourceIp") or "",
            },
        },
    }


def _is_sound(event: Mapping[str, Any], http: Mapping[str, Any]) -> bool:
    required = (http.get("method"), event.get("rawPath"))
    # What may be absent may be null, too.
    address, *optional = (
        "" if text is None else text
        for text in (http.get("sourceIp"), event.get("rawQueryString"), event.get("body"))
    )
    return (
        all(isinstance(text, str) for text in (*required, address, *optional))
        and address.isascii()
        and isinstance(event.get("headers") or {}, dict)
    )
