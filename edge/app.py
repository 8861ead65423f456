"""The Lambda function: routes in, receipts and problem documents out.

Powertools does the routing. Bodies and queries are read by `edge.intake`, so that every error has one clear sentence;
answers are written by `edge.answers`, so that the numbers sent are the numbers hashed. What a route alone needs is
imported by its first call: a cold start of `/health` pays for nothing else.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from edge import observe
from edge.answers import FOR_EVER, etag, finish, json_answer, options_answer, problem_answer, result_of
from edge.credentials import token_source
from edge.deadline import Budget, Deadline
from edge.health import Prober, health
from edge.incoming import normalised, refusal, route
from edge.parts import Parts, receipt_link
from edge.problems import Problem
from edge.routes import KNOWN_METHODS
from edge.settings import EdgeSettings
from edge.tower import Tower
from shared import settings as shared_settings
from shared.labels import BASE_PATH

if TYPE_CHECKING:
    from edge.issuer import Issuer
    from edge.runs import Answer

logger = observe.logger

INIT_MOST_S = 2.0
"""At most so much of an instance's start counts as its first caller's wait; longer ago, nobody waited for it."""

_LOADED_AT = time.monotonic()

# Kept back from the function's timeout for building an answer, beside what signing and storing it may take.
RESERVE_S = 1.0

CURVE_KEPT_S = 300

_DIGEST = re.compile("[0-9a-f]{64}")

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]


def create_handler(settings: EdgeSettings) -> Handler:
    """Build a Lambda handler for these settings."""
    app = APIGatewayHttpResolver(debug=False)
    tower = Tower(settings.tower_url, token_source(settings), settings.tower_ca)
    prober = Prober(tower)
    parts = Parts(settings, tower)
    init_s: float | None = None

    def budget() -> Budget:
        """Return when this invocation must be done with waiting, and when it must have its answer."""
        worst_s = parts.issuer.worst_s  # first, as it may have to be imported
        left_s = app.lambda_context.get_remaining_time_in_millis() / 1000 - RESERVE_S - (init_s or 0.0)
        return Budget(Deadline.after(max(0.0, left_s - worst_s)), Deadline.after(max(0.0, left_s)))

    @app.get(BASE_PATH)
    def get_page() -> Response[str]:
        return _page()

    @app.get(f"{BASE_PATH}/health")
    def get_health() -> Response[str]:
        return json_answer(200, health(prober.capability(), runs_configured=settings.run_secret is not None))

    @app.get(f"{BASE_PATH}/curve")
    def get_curve() -> Response[str]:
        from edge.intake import parse_curve

        query, store = parse_curve(app.current_event.raw_event, settings.k, settings.cost_ratio)
        store = store and not app.current_event.raw_event["isHead"]  # a safe method leaves nothing behind
        usual = not app.current_event.raw_event.get("rawQueryString")
        receipt, stored = parts.issuer.curve(query, budget().answer_by, store=store, usual=usual)
        if store:
            return json_answer(200, receipt, _link(receipt) if stored else {})
        return json_answer(200, receipt, _kept_a_while(receipt, parts.issuer))

    @app.post(f"{BASE_PATH}/run")
    def post_run() -> Response[str]:
        from edge.intake import parse_idempotency_key, parse_preference, parse_run

        event = app.current_event.raw_event
        idempotency_key = parse_idempotency_key(event["headers"])
        limit = budget()
        # No longer a wait is promised than there will be; a moment has passed since `budget`.
        preference = parse_preference(event["headers"], math.floor(limit.wait_until.remaining() + 0.05))
        answer = parts.runs.submit(
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
        return _answer(parts.runs.status(run_id, budget()))

    @app.delete(f"{BASE_PATH}/runs/<run_id>")
    def delete_run(run_id: str) -> Response[str]:
        return _answer(parts.runs.cancel(run_id, budget()))

    @app.get(f"{BASE_PATH}/receipts/<digest>")
    def get_receipt(digest: str) -> Response[str]:
        receipt = parts.issuer.stored(_digest(digest))
        return json_answer(200, receipt, {**_link(receipt), **_kept(receipt)})

    @app.get(f"{BASE_PATH}/receipts/<digest>/payload")
    def get_payload(digest: str) -> Response[str]:
        from edge.store import payload_bytes

        receipt = parts.issuer.stored(_digest(digest))
        headers = {"Cache-Control": FOR_EVER, "ETag": f'"{digest}"'}
        return Response(200, "application/json", payload_bytes(receipt).decode("utf-8"), headers)

    @app.get(f"{BASE_PATH}/keys")
    def get_keys() -> Response[str]:
        return _tagged(parts.keys(), "public, max-age=300")

    @app.get(rf"{BASE_PATH}/openapi\.json")
    def get_openapi() -> Response[str]:
        from edge.openapi import document

        return _tagged(document(settings), "public, max-age=3600")

    def on_problem(problem: Problem) -> Response[str]:
        return problem_answer(problem)

    def on_bug(error: Exception) -> Response[str]:
        # The type only: messages and frames may hold the prompt.
        logger.error("unhandled %s", type(error).__name__)
        return problem_answer(Problem(500, "The service failed; nothing was measured."))

    app.exception_handler(Problem)(on_problem)
    app.exception_handler(Exception)(on_bug)

    @app.not_found
    def on_unknown(_: Exception) -> Response[str]:
        return _no_route(app.current_event.http_method, app.current_event.path)

    def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
        if (wrong := refusal(event)) is not None:
            with observe.invocation({"requestContext": {}}, context):
                observe.answered("other", "none", wrong.status)
                return finish("", {}, result_of(problem_answer(wrong)))
        nonlocal init_s
        init_s = _init_s() if init_s is None else 0.0
        method = event["requestContext"]["http"]["method"]
        with observe.invocation(event, context):
            asked = normalised(event)
            result = finish(method, asked["headers"], app.resolve(asked, context))
            found = route(asked["rawPath"])
            observe.answered(
                method if method in KNOWN_METHODS else "other",
                found.template if found else "none",
                result["statusCode"],
            )
        return result

    return handle


def _init_s() -> float:
    """Return how long the first caller has waited for this instance: the function's 29 s begin after that, its own not.

    Elsewhere than on Lambda, nothing.
    """
    if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") != "on-demand":
        return 0.0
    return min(INIT_MOST_S, time.monotonic() - _LOADED_AT)


def _page() -> Response[str]:
    from edge.page import KEPT_S, page

    made = page()
    headers = {
        "Cache-Control": f"public, max-age={KEPT_S}",
        "ETag": etag(made.text),
        "Content-Security-Policy": made.policy,
    }
    return Response(200, "text/html; charset=utf-8", made.text, headers)


def _no_route(method: str, path: str) -> Response[str]:
    found = route(path)
    if found is not None and method == "OPTIONS":
        return options_answer(found.allow)
    # A method that the path takes comes here with a parameter that no route takes.
    if found is not None and method not in found.methods:
        return problem_answer(Problem(405, f"This path takes {found.allow} only.", {"Allow": found.allow}))
    return problem_answer(Problem(404, f"There is nothing here; the service lives under {BASE_PATH}/."))


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise Problem(404, "A receipt is named by the 64 hex digits of its payload's SHA3-256.")
    return text


def _link(receipt: Mapping[str, Any]) -> dict[str, str]:
    return {"Link": receipt_link(receipt)}


def _kept(receipt: Mapping[str, Any]) -> dict[str, str]:
    """How long a stored receipt may be kept by others: for ever once it is signed."""
    if not receipt["signature"]["signed"]:
        return {"Cache-Control": "no-cache"}
    return {"Cache-Control": FOR_EVER, "ETag": f'"{receipt["payload_sha3_256"]}"'}


def _kept_a_while(receipt: Mapping[str, Any], issuer: Issuer) -> dict[str, str]:
    """How long a curve may be kept: while equal questions get equal payloads, if it is signed as it should be."""
    if issuer.signs and not receipt["signature"]["signed"]:
        return {}
    kept = f"public, max-age={min(CURVE_KEPT_S, issuer.period_left_s())}"
    # Weak, as the signatures of two instances differ and say the same.
    return {"Cache-Control": kept, "ETag": f'W/"{receipt["payload_sha3_256"]}"'}


def _tagged(body: Mapping[str, Any], kept: str) -> Response[str]:
    answer = json_answer(200, body, {"Cache-Control": kept})
    answer.headers["ETag"] = etag(answer.body or "")
    return answer


def _answer(answer: Answer) -> Response[str]:
    payload = answer.body["payload"]
    observe.outcome(payload["label"], payload.get("roadmap", {}).get("code"))
    return json_answer(answer.status, answer.body, answer.headers)


def _preload() -> None:
    """Import what first calls would: a snapshot is taken after this, and instances made from it wait for none of it."""
    from importlib import import_module, util

    for name in (
        "edge.intake",
        "edge.issuer",
        "edge.limits_dynamodb",
        "edge.openapi",
        "edge.runs",
        "edge.session",
    ):
        import_module(name)
    if util.find_spec("boto3"):
        import_module("boto3")


if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start":
    _preload()

# A wrong setting stops start-up here, with one line that names it.
lambda_handler: Handler = create_handler(shared_settings.load(EdgeSettings, os.environ))
