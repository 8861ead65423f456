"""What the operations of the OpenAPI document are made of: answers, headers, parameters, links."""

from __future__ import annotations

from typing import Any, Final

from edge.openapi_payloads import HEX64, ref
from edge.problems import PROBLEM_TYPE
from shared.runid import RUN_ID_PATTERN

Part = dict[str, Any]

_MEANINGS: Final = {
    400: "The request cannot be read",
    404: "No such thing here",
    408: "The body was too slow to come",
    410: "The run is lost or has expired",
    413: "The body is too large",
    415: "The body is not JSON in UTF-8",
    422: "The request holds a value that it must not",
    429: "Too many requests",
    431: "The headers are too large",
    500: "The service failed",
    502: "The service gave no answer",
    503: "What this route needs is down",
}
_GATEWAY: Final = (400, 408, 413, 429, 431, 500, 502, 503)
"""Any route may meet these before its request comes to the service, or after it has run out of time."""

_OF_BOTH: Final = (500, 503)
"""Of those the service may give these too."""


def text_header(description: str) -> Part:
    """Returns a header that an answer may have."""
    return {"schema": {"type": "string"}, "description": description}


def always(headers: Part) -> Part:
    """Returns headers, by name, as ones that an answer has without fail."""
    return {name: {**header, "required": True} for name, header in headers.items()}


RETRY_AFTER: Final[Part] = {
    "Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}, "description": "Seconds"}
}
LINK: Final[Part] = {"Link": text_header("Where the receipt is stored, if it is (RFC 8288)")}
FRESH: Final[Part] = always({"Cache-Control": text_header("RFC 9111")})
CACHED: Final[Part] = {**FRESH, **always({"ETag": text_header("RFC 9110 section 8.8.3")})}
_PROBLEM_HEADERS: Final[Part] = {"Cache-Control": text_header("`no-store`, if it is the service's")}
NOT_MODIFIED: Final[Part] = {"description": "What the caller keeps is what there is", "headers": CACHED}
RECEIPT_NOT_MODIFIED: Final[Part] = {**NOT_MODIFIED, "headers": {**CACHED, **always(LINK)}}

IF_NONE_MATCH: Final[Part] = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "ETag of what the caller keeps",
}
RUN_ID: Final[Part] = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": RUN_ID_PATTERN},
}
DIGEST: Final[Part] = {
    "name": "digest",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": HEX64},
    "description": "SHA3-256 of a payload, in hex",
}


def operation(
    name: str,
    summary: str,
    answers: dict[int, Part],
    problems: tuple[int, ...] = (),
    *,
    gateway_5xx: bool = False,
    **more: Any,
) -> Part:
    """Returns an operation; what any of them may meet is added.

    Args:
        name: Its `operationId`.
        summary: What it is for.
        answers: Its good answers by status.
        problems: Statuses of the service's own that not every route has.
        gateway_5xx: Whether a 5xx can only be the gateway's, because the service itself gives none here.
        more: Parameters and the like.
    """
    responses = {str(status): answer for status, answer in answers.items()}
    for status in sorted({*problems, *_GATEWAY}):
        service = status in problems or (status in _OF_BOTH and not gateway_5xx)
        responses[str(status)] = _problem(status, service)
    return {"operationId": name, "summary": summary, **more, "responses": responses}


def _problem(status: int, service: bool) -> Part:
    told = content(ref("Problem"), PROBLEM_TYPE) if service else {}
    if status in _GATEWAY:
        told |= content(ref("GatewayMessage"))
    headers = {**(_PROBLEM_HEADERS if service else {}), **(RETRY_AFTER if status in (429, 503) else {})}
    return {"description": _MEANINGS[status], **({"headers": headers} if headers else {}), "content": told}


def content(schema: Part, media_type: str = "application/json") -> Part:
    """Returns the content of an answer of one media type."""
    return {media_type: {"schema": schema}}


def answer_of(schema: str, description: str, headers: Part, links: Part | None = None) -> Part:
    """Returns an answer whose body is of a schema."""
    answer = {"description": description, "headers": headers, "content": content(ref(schema))}
    return {**answer, "links": links} if links else answer


def links_to_receipt() -> Part:
    """Returns where a receipt is to be had again, if it is stored."""
    digest = {"digest": "$response.body#/payload_sha3_256"}
    return {
        name: {"operationId": name, "parameters": digest, "description": "If the receipt is stored"}
        for name in ("receipt", "receipt_payload")
    }


def links_to_run() -> Part:
    """Returns what can be done with a run that goes on."""
    run_id = {"run_id": "$response.body#/payload/run_id"}
    return {name: {"operationId": name, "parameters": run_id} for name in ("run_status", "run_cancel")}


def query(name: str, schema: Part, description: str) -> Part:
    """Returns a query parameter."""
    return {"name": name, "in": "query", "schema": schema, "description": description}
