"""The API's OpenAPI 3.1 document: each route, each status it can give, and the shape of each body."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from edge.intake import MAX_KEY_LENGTH
from edge.openapi_schemas import HEX64, ref, schemas
from edge.problems import PROBLEM_TYPE
from edge.routes import ROUTES
from edge.settings import EdgeSettings
from shared.labels import BASE_PATH, DEFAULT_ALPHAS, PUBLIC_BASE
from shared.runid import RUN_ID_PATTERN

VERSION: Final = "1.0.0"
"""Of the API, not of the program."""

_RETRY_AFTER: Final = {
    "Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}, "description": "Seconds"}
}
_LINK: Final = {
    "Link": {"schema": {"type": "string"}, "description": "Where the receipt is stored, if it is (RFC 8288)"}
}
_CACHED: Final = {"ETag": {"schema": {"type": "string"}}, "Cache-Control": {"schema": {"type": "string"}}}
_MEANINGS: Final = {
    400: "The request cannot be read",
    404: "No such thing here",
    410: "The run is lost or has expired",
    413: "The body is too large",
    415: "The body is not JSON in UTF-8",
    422: "The request holds a value that it must not",
    429: "Too many requests",
    431: "The headers are too large",
    500: "The service failed",
    503: "What this route needs is down",
}


def document(settings: EdgeSettings) -> dict[str, Any]:
    """Returns the document for an edge with these settings, whose defaults it states."""
    return _document(settings.k, settings.cost_ratio)


@cache
def _document(k: int, cost_ratio: float) -> dict[str, Any]:
    operations = {
        "": {"get": _page()},
        "/health": {"get": _health()},
        "/curve": {"get": _curve(k, cost_ratio)},
        "/run": {"post": _run(k)},
        "/runs/{run_id}": {"get": _run_status(), "delete": _run_cancel()},
        "/receipts/{digest}": {"get": _stored_receipt()},
        "/receipts/{digest}/payload": {"get": _stored_payload()},
        "/keys": {"get": _keys()},
        "/openapi.json": {"get": _openapi()},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Governed speculative decoding",
            "version": VERSION,
            "summary": "Does speculative decoding pay on this tower, with the output unchanged?",
            "description": "Each number says what it is: MODELED, MEASURED or UNAVAILABLE. Each answer of /curve and "
            "of the run routes is a receipt whose digest and signature can be checked offline.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [
            {"url": f"{PUBLIC_BASE}{BASE_PATH}"},
            {"url": BASE_PATH, "description": "Where this is served"},
        ],
        # In the order of the routes; one that is not described would be a KeyError in every test.
        "paths": {route.template or "/": operations[route.template] for route in ROUTES},
        "components": {"schemas": schemas()},
    }


def _operation(
    name: str, summary: str, answers: dict[int, dict[str, Any]], problems: tuple[int, ...] = (), **more: Any
) -> dict[str, Any]:
    """Returns an operation; what any of them may meet is added."""
    responses = {str(status): answer for status, answer in answers.items()}
    for status in sorted({*problems, 429, 431, 500, 503}):
        responses[str(status)] = _problem(status)
    return {"operationId": name, "summary": summary, **more, "responses": responses}


def _problem(status: int) -> dict[str, Any]:
    content = {
        PROBLEM_TYPE: {"schema": ref("Problem")},
        "application/json": {"schema": ref("GatewayMessage")},
    }
    if status == 431:
        del content[PROBLEM_TYPE]
    headers = {"headers": _RETRY_AFTER} if status in (429, 503) else {}
    return {"description": _MEANINGS[status], **headers, "content": content}


def _json(schema: str, description: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": description,
        "content": {"application/json": {"schema": ref(schema)}},
    }
    if headers:
        answer["headers"] = headers
    return answer


_NOT_MODIFIED: Final = {"description": "What the caller keeps is what there is", "headers": _CACHED}
_IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "ETag of what the caller keeps",
}


def _page() -> dict[str, Any]:
    page = {
        "description": "The page",
        "headers": _CACHED,
        "content": {"text/html": {"schema": {"type": "string"}}},
    }
    return _operation(
        "page", "A page for people", {200: page, 304: _NOT_MODIFIED}, parameters=[_IF_NONE_MATCH]
    )


def _health() -> dict[str, Any]:
    return _operation(
        "health",
        "Is a same-family pair live on the tower?",
        {200: _json("Health", "Always, while the edge lives")},
    )


def _curve(k: int, cost_ratio: float) -> dict[str, Any]:
    parameters = [
        _query("k", {"type": "integer", "minimum": 0, "maximum": 64, "default": k}, "Draft tokens per step"),
        _query(
            "cost_ratio",
            {"type": "number", "minimum": 0, "maximum": 10, "default": cost_ratio},
            "One draft step in target passes",
        ),
        _query(
            "alpha",
            {
                "type": "array",
                "items": {"type": "number", "minimum": 0, "maximum": 1},
                "minItems": 1,
                "maxItems": 64,
                "default": list(DEFAULT_ALPHAS),
            },
            "Chance that a draft token is accepted; may repeat",
        ),
        _query(
            "verify_cost",
            {"type": "number", "minimum": 1, "maximum": 100, "default": 1.0},
            "The verifying pass in target passes of one token",
        ),
        _query(
            "store", {"type": "integer", "enum": [0, 1], "default": 0}, "Whether the receipt is to be stored"
        ),
        _IF_NONE_MATCH,
    ]
    curve = _json("CurveReceipt", "The modeled curve", {**_CACHED, **_LINK})
    return _operation(
        "curve",
        "The modeled speedup curve (Leviathan et al. 2023)",
        {200: curve, 304: _NOT_MODIFIED},
        (400, 422),
        parameters=parameters,
    )


def _query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _run(k: int) -> dict[str, Any]:
    parameters = [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "schema": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_KEY_LENGTH,
                "pattern": "^[!-~]([ -~]*[!-~])?$",
            },
            "description": "The same key with the same body, from the same address, is the same run",
        },
        {
            "name": "Prefer",
            "in": "header",
            "schema": {"type": "string"},
            "description": "RFC 7240: `wait=N` seconds at most, or `respond-async`",
            "examples": {"wait": {"value": "wait=5"}, "asynchronous": {"value": "respond-async"}},
        },
    ]
    applied = {"Preference-Applied": {"schema": {"type": "string"}}}
    body = {
        "required": True,
        "content": {
            "application/json": {
                "schema": ref("RunRequest"),
                "examples": {"usual": {"value": {"prompt": "Once upon a time", "k": k, "n": 50}}},
            }
        },
    }
    return _operation(
        "run",
        "A run on the tower",
        {
            200: _json(
                "RunReceipt",
                "Measured; or nothing was, and `roadmap` says why",
                {**_LINK, **applied, **_RETRY_AFTER},
            ),
            202: _running(applied),
        },
        (400, 413, 415, 422),
        parameters=parameters,
        requestBody=body,
    )


def _running(headers: dict[str, Any]) -> dict[str, Any]:
    where = {"Location": {"schema": {"type": "string"}, "description": "Where to ask after the run"}}
    return _json(
        "RunReceipt", "The tower has the run and is not done with it", {**where, **_RETRY_AFTER, **headers}
    )


_RUN_ID: Final = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": RUN_ID_PATTERN},
}
_DIGEST: Final = {
    "name": "digest",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": HEX64},
    "description": "SHA3-256 of a payload, in hex",
}


def _run_status() -> dict[str, Any]:
    answers = {200: _json("RunReceipt", "The run has ended", _LINK), 202: _running({})}
    return _operation("run_status", "How a run is doing", answers, (404, 410), parameters=[_RUN_ID])


def _run_cancel() -> dict[str, Any]:
    answers = {200: _json("RunReceipt", "The run has ended", _LINK), 202: _running({})}
    return _operation("run_cancel", "Take a run back", answers, (404, 410), parameters=[_RUN_ID])


def _stored_receipt() -> dict[str, Any]:
    answers = {200: _json("Receipt", "The receipt", {**_CACHED, **_LINK}), 304: _NOT_MODIFIED}
    return _operation("receipt", "A stored receipt", answers, (404,), parameters=[_DIGEST, _IF_NONE_MATCH])


def _stored_payload() -> dict[str, Any]:
    payload = {
        "description": "The exact bytes that the digest is of",
        "headers": _CACHED,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    return _operation(
        "receipt_payload",
        "A stored receipt's payload",
        {200: payload, 304: _NOT_MODIFIED},
        (404,),
        parameters=[_DIGEST, _IF_NONE_MATCH],
    )


def _keys() -> dict[str, Any]:
    answers = {200: _json("Keys", "Public keys of this edge and its tower", _CACHED), 304: _NOT_MODIFIED}
    return _operation("keys", "The keys that receipts are signed by", answers, parameters=[_IF_NONE_MATCH])


def _openapi() -> dict[str, Any]:
    this = {
        "description": "This document",
        "headers": _CACHED,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    return _operation(
        "openapi", "This document", {200: this, 304: _NOT_MODIFIED}, parameters=[_IF_NONE_MATCH]
    )
