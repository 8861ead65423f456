"""Every file in events/ is replayed against the handler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from edge.routes import ROUTES, find
from shared.labels import BASE_PATH
from tests.edge.fake_tower import FakeTower
from tests.edge.support import Client, Reply, assert_problem, assert_roadmap, client

EVENTS = Path(__file__).parents[2] / "events"
# The run id in the events was made with this secret.
RUN_SECRET = "golden-run-secret"

MEASURED = "SPEC-DECODE MEASURED"
EXPECTED: dict[str, tuple[int, str | None]] = {
    # What a problem says first, what label a receipt has, or what else tells the answer from others.
    "page": (200, "<!doctype html>"),
    "page_not_modified": (304, None),
    "health": (200, MEASURED),
    "health_head": (200, None),
    "health_trailing_slash": (200, MEASURED),
    "curve": (200, "0.5 0.7 0.9"),
    "curve_plain": (200, "0.5 0.7 0.9"),
    "curve_store": (200, "0.5 0.7 0.9"),
    "curve_bad_alpha": (422, "alpha must be 1 to 64 numbers, each from 0 to 1."),
    "curve_unknown_parameter": (422, "beta is not a known field."),
    "run": (200, MEASURED),
    "run_all_fields": (200, MEASURED),
    "run_idempotent": (200, MEASURED),
    "run_wait": (200, MEASURED),
    "run_prefer_unknown": (200, MEASURED),
    "run_base64": (200, MEASURED),
    "run_async": (202, "RUNNING"),
    # The tower of these tests measures a fixed k whatever it is asked, which the edge refuses to sign.
    "run_auto_k": (200, "REPLY_REFUSED"),
    "run_empty": (400, "The body is empty; send a JSON object with a prompt."),
    "run_not_json": (400, "The body cannot be read: "),
    "run_not_utf8": (400, "The body cannot be read: "),
    "run_bad_idempotency_key": (400, "Idempotency-Key must be 1 to 255 printable ASCII characters."),
    "run_text_plain": (415, "The body must be sent with Content-Type: application/json."),
    "run_bad_k": (422, 'k must be an integer from 1 to 16, or "auto".'),
    "run_unknown_field": (422, "stream is not a known field."),
    "run_status": (410, "This run is lost or has expired; "),
    "run_status_foreign": (404, "This is not a run id of this service."),
    "run_cancel": (410, "This run is lost or has expired; "),
    "run_cancel_foreign": (404, "This is not a run id of this service."),
    "stored_receipt_unknown": (404, "No receipt with this payload digest is stored here."),
    "stored_receipt_bad_digest": (404, "A receipt is named by the 64 hex digits of its payload's SHA3-256."),
    "stored_payload_unknown": (404, "No receipt with this payload digest is stored here."),
    "stored_receipt_delete": (405, "This path takes GET, HEAD, OPTIONS only."),
    "keys": (200, "keys"),
    "openapi": (200, "openapi"),
    "preflight": (204, "POST, OPTIONS"),
    "method_not_allowed": (405, "This path takes POST, OPTIONS only."),
    "not_found": (404, f"There is nothing here; the service lives under {BASE_PATH}/."),
}


def _event(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text("utf-8"))
    return event


def test_every_event_is_expected() -> None:
    """No event lies about unreplayed."""
    assert {path.stem for path in EVENTS.glob("*.json")} == set(EXPECTED)


def test_events_ask_for_everything() -> None:
    """They reach all routes with all their methods, HEAD, OPTIONS, and what is none."""
    asked: set[tuple[str, str | None]] = set()
    for name in EXPECTED:
        event = _event(name)
        route = find(event["rawPath"].rstrip("/"))
        asked.add((event["requestContext"]["http"]["method"], route.template if route else None))
    assert asked >= {(method, route.template) for route in ROUTES for method in route.methods}
    assert asked >= {("HEAD", "/health"), ("OPTIONS", "/run"), ("GET", None)}


@pytest.mark.parametrize("name", EXPECTED)
def test_event_agrees_with_itself(name: str) -> None:
    """What API Gateway says twice in an event is said alike (developer guide, payload format 2.0)."""
    event = _event(name)
    context, path = event["requestContext"], event["rawPath"]
    assert (context["http"]["path"], context["routeKey"]) == (path, event["routeKey"])
    assert context["domainName"] == event["headers"]["host"]
    assert context["http"]["sourceIp"] == event["headers"]["x-forwarded-for"]
    assert context["http"]["userAgent"] == event["headers"]["user-agent"]
    assert (context["time"], context["timeEpoch"]) == ("30/Nov/2026:00:00:00 +0000", 1795996800000)
    below = path.removeprefix(f"{BASE_PATH}/")
    greedy = {"proxy": below} if below != path else None
    assert event.get("pathParameters") == greedy
    assert event["routeKey"] == f"ANY {BASE_PATH}" + ("/{proxy+}" if greedy else "")
    joined: dict[str, str] = {}
    for key, value in parse_qsl(event["rawQueryString"]):
        joined[key] = f"{joined[key]},{value}" if key in joined else value
    assert event.get("queryStringParameters", {}) == joined
    assert all(header == header.lower() for header in event["headers"])


@pytest.mark.parametrize("name", EXPECTED)
def test_event_gives_its_answer(name: str, tmp_path: Path) -> None:
    """An event as API Gateway sends it gives the documented status, shape and words."""
    status, words = EXPECTED[name]
    folder = {"signing_key_file": str(tmp_path / "key.pem"), "receipts_dir": str(tmp_path / "receipts")}
    with FakeTower() as tower:
        edge: Client = client(tower.url, run_secret=RUN_SECRET, signer="file", **folder)
        reply = edge.send(_event(name))
    assert reply.status == status
    if words is None:
        assert reply.text == ""
    elif status >= 400:
        detail = assert_problem(reply, status)
        assert detail.startswith(words) if words.endswith(" ") else detail == words
    else:
        _check(name, reply, words)


def _check(name: str, reply: Reply, words: str) -> None:
    """Check an answer that is no problem."""
    if name == "preflight":
        assert reply.headers["Access-Control-Allow-Methods"] == words
        assert "Idempotency-Key" in reply.headers["Access-Control-Allow-Headers"]
    elif name == "page":
        assert reply.text.startswith(words)
    elif name in ("keys", "openapi"):
        assert words in reply.json
    elif name.startswith("health"):
        assert (reply.json["status"], reply.json["label"]) == ("LIVE", words)
    elif name.startswith("curve"):
        curve = reply.payload["accounting_modeled"]["expected_speedup_at_alpha"]
        assert " ".join(curve) == words
        assert ("Link" in reply.headers) == (name == "curve_store")
    else:
        _check_run(name, reply, words)


def _check_run(name: str, reply: Reply, words: str) -> None:
    payload = reply.payload
    assert payload["accounting_modeled"]["k"] == 4
    assert "prompt_salt" in reply.json
    assert ("output" in reply.json) == (name == "run_all_fields")
    applied = {"run_all_fields": "wait=10", "run_async": "respond-async", "run_wait": "wait=5"}
    assert reply.headers.get("Preference-Applied") == applied.get(name)
    if words == MEASURED:
        assert (payload["label"], payload["measured"]) == (MEASURED, "MEASURED")
        assert reply.json["signature"]["signed"]
    else:
        assert_roadmap(reply, words)
