"""The API's OpenAPI 3.1 document: each route, each status it can give, and the shape of each answer."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from edge.intake import MAX_KEY_LENGTH
from edge.openapi_parts import (
    CACHED,
    DIGEST,
    FRESH,
    IF_NONE_MATCH,
    LINK,
    NOT_MODIFIED,
    RECEIPT_NOT_MODIFIED,
    RETRY_AFTER,
    RUN_ID,
    always,
    answer_of,
    content,
    links_to_receipt,
    links_to_run,
    operation,
    query,
    text_header,
)
from edge.openapi_payloads import ref
from edge.openapi_schemas import schemas
from edge.routes import ROUTES
from edge.settings import EdgeSettings
from shared.labels import BASE_PATH, DEFAULT_ALPHAS, PUBLIC_BASE

VERSION: Final = "1.0.0"
"""Of the API, not of the program."""


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
            "of the run routes is a receipt whose digest and signature can be checked offline. HEAD is taken wherever "
            "GET is, OPTIONS everywhere; any other method is 405.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [
            {"url": f"{PUBLIC_BASE}{BASE_PATH}"},
            {"url": BASE_PATH, "description": "Where this is served"},
        ],
        # In the order of the routes; one that is not described would be a KeyError in every test.
        "paths": {route.template or "/": operations[route.template] for route in ROUTES},
        "components": {"schemas": schemas(k)},
    }


def _page() -> dict[str, Any]:
    page = {"description": "The page", "headers": CACHED, "content": content({"type": "string"}, "text/html")}
    return operation("page", "A page for people", {200: page, 304: NOT_MODIFIED}, parameters=[IF_NONE_MATCH])


def _health() -> dict[str, Any]:
    answer = answer_of("Health", "Always, while the edge lives", FRESH)
    return operation("health", "Is a same-family pair live on the tower?", {200: answer}, gateway_5xx=True)


def _curve(k: int, cost_ratio: float) -> dict[str, Any]:
    alphas = {
        "type": "array",
        "items": {"type": "number", "minimum": 0, "maximum": 1},
        "minItems": 1,
        "maxItems": 64,
        "default": list(DEFAULT_ALPHAS),
    }
    parameters = [
        query("k", {"type": "integer", "minimum": 0, "maximum": 64, "default": k}, "Draft tokens per step"),
        query(
            "cost_ratio",
            {"type": "number", "minimum": 0, "maximum": 10, "default": cost_ratio},
            "One draft step in target passes",
        ),
        query("alpha", alphas, "Chance that a draft token is accepted; may repeat"),
        query(
            "verify_cost",
            {"type": "number", "minimum": 1, "maximum": 100, "default": 1.0},
            "The verifying pass in target passes of one token",
        ),
        query(
            "store",
            {"type": "integer", "enum": [0, 1], "default": 0},
            "Whether the receipt is to be stored; of an hour's curves only so many are (then 429)",
        ),
        IF_NONE_MATCH,
    ]
    headers = {**FRESH, "ETag": text_header("Unless it is stored, or should be signed and is not"), **LINK}
    curve = answer_of("CurveReceipt", "The modeled curve", headers, links_to_receipt())
    return operation(
        "curve",
        "The modeled speedup curve (Leviathan et al. 2023)",
        {200: curve, 304: NOT_MODIFIED},
        (400, 422, 429),
        gateway_5xx=True,
        parameters=parameters,
    )


def _run(k: int) -> dict[str, Any]:
    key = {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_KEY_LENGTH,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    }
    parameters = [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "schema": key,
            "description": "The same key with the same body, from the same address, is the same run",
        },
        {
            "name": "Prefer",
            "in": "header",
            "schema": {"type": "string"},
            "description": "RFC 7240: `wait=N` seconds at most, or `respond-async`; anything else is ignored",
            "examples": {"wait": {"value": "wait=5"}, "asynchronous": {"value": "respond-async"}},
        },
    ]
    applied = {"Preference-Applied": text_header("What of Prefer was understood")}
    body = {
        "required": True,
        "content": {
            "application/json": {
                "schema": ref("RunRequest"),
                "examples": {"usual": {"value": {"prompt": "Once upon a time", "k": k, "n": 50}}},
            }
        },
    }
    return operation(
        "run",
        "A run on the tower",
        {200: _ended({**applied}), 202: _running(applied)},
        (400, 413, 415, 422, 429),
        gateway_5xx=True,
        parameters=parameters,
        requestBody=body,
    )


def _ended(headers: dict[str, Any]) -> dict[str, Any]:
    return answer_of(
        "RunReceipt",
        "Measured; or nothing was, and `roadmap` says why",
        {**FRESH, **LINK, **RETRY_AFTER, **headers},
        links_to_receipt(),
    )


def _running(headers: dict[str, Any]) -> dict[str, Any]:
    return answer_of(
        "RunningReceipt",
        "The tower has the run and is not done with it",
        {
            **FRESH,
            **always({"Location": text_header("Where to ask after the run")}),
            **always(RETRY_AFTER),
            **headers,
        },
        links_to_run(),
    )


def _run_status() -> dict[str, Any]:
    answers = {200: _ended({}), 202: _running({})}
    return operation("run_status", "How a run is doing", answers, (404, 410), parameters=[RUN_ID])


def _run_cancel() -> dict[str, Any]:
    answers = {200: _ended({}), 202: _running({})}
    return operation(
        "run_cancel",
        "Take a run back; how it ended can still be asked",
        answers,
        (404, 410),
        parameters=[RUN_ID],
    )


def _stored_receipt() -> dict[str, Any]:
    headers = {**FRESH, "ETag": text_header("If the receipt is signed"), **always(LINK)}
    answers = {200: answer_of("Receipt", "The receipt", headers), 304: RECEIPT_NOT_MODIFIED}
    return operation("receipt", "A stored receipt", answers, (404,), parameters=[DIGEST, IF_NONE_MATCH])


def _stored_payload() -> dict[str, Any]:
    answers = {
        200: answer_of("Payload", "The exact bytes that the digest is of", CACHED),
        304: NOT_MODIFIED,
    }
    return operation(
        "receipt_payload",
        "A stored receipt's payload",
        answers,
        (404,),
        parameters=[DIGEST, IF_NONE_MATCH],
    )


def _keys() -> dict[str, Any]:
    answers = {
        200: answer_of("Keys", "Public keys of this edge and its tower", CACHED),
        304: NOT_MODIFIED,
    }
    return operation("keys", "The keys that receipts are signed by", answers, parameters=[IF_NONE_MATCH])


def _openapi() -> dict[str, Any]:
    answers = {200: answer_of("Document", "This document", CACHED), 304: NOT_MODIFIED}
    return operation("openapi", "This document", answers, parameters=[IF_NONE_MATCH])
