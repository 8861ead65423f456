"""The Lambda function: routes in, receipts and problem documents out.

Powertools does the routing. Bodies and queries are read by `edge.intake`, so that every error has one
clear sentence; answers are written with `json.dumps`, so that the numbers sent are the numbers hashed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from edge.credentials import token_source
from edge.deadline import Budget, Deadline
from edge.health import Prober, health
from edge.intake import lower_headers, parse_curve, parse_idempotency_key, parse_preference, parse_run
from edge.issuer import Issuer, open_store
from edge.keyring import Keyring
from edge.problems import PROBLEM_TYPE, Problem
from edge.runs import Answer, Runs, receipt_link
from edge.settings import EdgeSettings
from edge.signing import SigningFailed
from edge.store import payload_bytes
from edge.tower import Tower
from shared import settings as shared_settings
from shared.labels import BASE_PATH
from shared.runid import RunKeys

logger = logging.getLogger("edge")

# Kept back from the function's timeout for building an answer, beside what signing and storing it may take.
RESERVE_S = 1.0

# What has a digest for a name never changes.
FOR_EVER = "public, max-age=31536000, immutable"

_DIGEST = re.compile("[0-9a-f]{64}")

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]

# Path below the base, and what it takes; HEAD goes wherever GET does.
_ROUTES = [
    (re.compile(r"/health"), ("GET",)),
    (re.compile(r"/curve"), ("GET",)),
    (re.compile(r"/run"), ("POST",)),
    (re.compile(r"/runs/[^/]+"), ("GET", "DELETE")),
    (re.compile(r"/receipts/[^/]+(/payload)?"), ("GET",)),
    (re.compile(r"/keys"), ("GET",)),
]


def create_handler(settings: EdgeSettings) -> Handler:
    """Build a Lambda handler for these settings."""
    app = APIGatewayHttpResolver(debug=False)
    tower = Tower(settings.tower_url, token_source(settings), settings.tower_ca)
    keys = RunKeys(settings.run_secret.get_secret_value().encode()) if settings.run_secret else None
    prober = Prober(tower)
    keyring = Keyring(settings)
    issuer = Issuer(keyring, open_store(settings))
    runs = Runs(settings, keys, tower, issuer, keyring.tower_keys)

    def budget() -> Budget:
        """Return when this invocation must be done with waiting, and when it must have its answer."""
        left_s = app.lambda_context.get_remaining_time_in_millis() / 1000 - RESERVE_S
        return Budget(Deadline.after(max(0.0, left_s - issuer.worst_s)), Deadline.after(max(0.0, left_s)))

    @app.get(f"{BASE_PATH}/health")
    def get_health() -> Response[str]:
        return _json(200, health(prober.capability(), runs_configured=keys is not None))

    @app.get(f"{BASE_PATH}/curve")
    def get_curve() -> Response[str]:
        query, store = parse_curve(app.current_event.raw_event, settings.k, settings.cost_ratio)
        usual = not app.current_event.raw_event.get("rawQueryString")
        receipt, stored = issuer.curve(query, budget().answer_by, store=store, usual=usual)
        return _json(200, receipt, _link(receipt) if stored else {})

    @app.post(f"{BASE_PATH}/run")
    def post_run() -> Response[str]:
        event = app.current_event.raw_event
        headers = lower_headers(event)
        idempotency_key = parse_idempotency_key(headers)
        limit = budget()
        preference = parse_preference(headers, round(limit.wait_until.remaining()))
        answer = runs.submit(
            parse_run(event, settings.k),
            client=event["requestContext"]["http"].get("sourceIp", ""),
            idempotency_key=idempotency_key,
            wait_s=settings.wait_s if preference.wait_s is None else preference.wait_s,
            budget=limit,
        )
        if preference.applied:
            answer.headers["Preference-Applied"] = preference.applied
        return _answer(answer)

    @app.get(f"{BASE_PATH}/runs/<run_id>")
    def get_run(run_id: str) -> Response[str]:
        return _answer(runs.status(run_id, budget()))

    @app.delete(f"{BASE_PATH}/runs/<run_id>")
    def delete_run(run_id: str) -> Response[str]:
        return _answer(runs.cancel(run_id, budget()))

    @app.get(f"{BASE_PATH}/receipts/<digest>")
    def get_receipt(digest: str) -> Response[str]:
        receipt = issuer.stored(_digest(digest))
        return _json(200, receipt, {**_link(receipt), **_kept(receipt)})

    @app.get(f"{BASE_PATH}/receipts/<digest>/payload")
    def get_payload(digest: str) -> Response[str]:
        receipt = issuer.stored(_digest(digest))
        headers = {"Cache-Control": FOR_EVER, "ETag": f'"{digest}"'}
        return Response(200, "application/json", payload_bytes(receipt).decode("utf-8"), headers)

    @app.get(f"{BASE_PATH}/keys")
    def get_keys() -> Response[str]:
        try:
            answer = keyring.answer()
        except SigningFailed:
            raise Problem(503, "The edge's public key cannot be had now.", {"Retry-After": "20"}) from None
        return _json(200, answer, {"Cache-Control": "public, max-age=300"})

    def on_problem(problem: Problem) -> Response[str]:
        return _problem(problem)

    def on_bug(error: Exception) -> Response[str]:
        # The type only: messages and frames may hold the prompt.
        logger.error("unhandled %s", type(error).__name__)
        return _problem(Problem(500, "The service failed; nothing was measured."))

    app.exception_handler(Problem)(on_problem)
    app.exception_handler(Exception)(on_bug)

    @app.not_found
    def on_unknown(_: Exception) -> Response[str]:
        return _problem(_no_route(app.current_event.http_method, app.current_event.path))

    def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
        started = time.monotonic()
        method = event["requestContext"]["http"]["method"]
        response = app.resolve(_normalised(event), context)
        if method == "HEAD":
            response["body"] = ""
        logger.info("%s %d %.0f ms", method, response["statusCode"], 1000 * (time.monotonic() - started))
        return response

    return handle


def _normalised(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event with HEAD as GET and without a trailing slash, neither of which powertools knows."""
    context = event["requestContext"]
    http = context["http"]
    if http["method"] == "HEAD":
        context = {**context, "http": {**http, "method": "GET"}}
    return {**event, "requestContext": context, "rawPath": event["rawPath"].rstrip("/") or "/"}


def _no_route(method: str, path: str) -> Problem:
    if path.startswith(BASE_PATH):
        for pattern, methods in _ROUTES:
            # A method that the path takes comes here with a parameter that no route takes.
            if pattern.fullmatch(path.removeprefix(BASE_PATH)) and method not in methods:
                allow = ", ".join(methods + ("HEAD",) * ("GET" in methods))
                return Problem(405, f"This path takes {allow} only.", {"Allow": allow})
    return Problem(404, f"There is nothing here; the service lives under {BASE_PATH}/.")


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise Problem(404, "A receipt is named by the 64 hex digits of its payload's SHA3-256.")
    return text


def _link(receipt: Mapping[str, Any]) -> dict[str, str]:
    return {"Link": receipt_link(receipt)}


def _kept(receipt: Mapping[str, Any]) -> dict[str, str]:
    """How long a stored receipt may be kept by others: for ever once it is signed."""
    return {"Cache-Control": FOR_EVER if receipt["signature"]["signed"] else "no-cache"}


def _answer(answer: Answer) -> Response[str]:
    return _json(answer.status, answer.body, answer.headers)


def _problem(problem: Problem) -> Response[str]:
    return _json(problem.status, problem.document(), problem.headers, PROBLEM_TYPE)


def _json(
    status: int,
    body: dict[str, Any],
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> Response[str]:
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    # Answers tell the state of now, and some hold a salt: nobody in between should keep them.
    return Response(status, content_type, text, {"Cache-Control": "no-store", **(headers or {})})


# A wrong setting stops start-up here, with one line that names it.
lambda_handler: Handler = create_handler(shared_settings.load(EdgeSettings, os.environ))
