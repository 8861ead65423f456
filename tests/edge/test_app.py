"""Routing, the modeled curve, and the safety net."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from shared.curve import expected_speedup, expected_tokens
from tests.edge.support import PROMPT, assert_problem, client, make_event

EDGE = client()


def test_curve_is_a_receipt_with_the_published_numbers() -> None:
    """The defaults give the seed's table, under a label that says MODELED."""
    reply = EDGE.get("/curve")
    payload = reply.payload
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    assert payload["label"] == "SPEC-DECODE MODELED"
    assert payload["measured"] == "UNAVAILABLE"
    assert payload["accounting_modeled"] == {
        "label": "MODELED (acceptance-rejection accounting curve, not a measurement)",
        "k": 4,
        "cost_ratio": 0.2,
        "verify_cost": 1.0,
        "expected_tokens_per_step_at_alpha": {"0.5": 1.9375, "0.7": 2.7731, "0.9": 4.0951},
        "expected_speedup_at_alpha": {"0.5": 1.0764, "0.7": 1.5406, "0.9": 2.2751},
    }
    assert reply.json["signature"]["status"] == "DSSE_PLACEHOLDER"


def test_curve_takes_repeated_alphas() -> None:
    """Each alpha given is answered, under the repr of its float."""
    query = "k=2&alpha=0&alpha=1&alpha=0.25&alpha=1e-3&alpha=.5&cost_ratio=0.1&verify_cost=1.5"
    reply = EDGE.get("/curve", query.replace("&alpha=.5", ""))
    accounting = reply.payload["accounting_modeled"]
    alphas = [0.0, 1.0, 0.25, 0.001]
    assert accounting["expected_tokens_per_step_at_alpha"] == {
        repr(alpha): round(expected_tokens(alpha, 2), 4) for alpha in alphas
    }
    assert accounting["expected_speedup_at_alpha"] == {
        repr(alpha): round(expected_speedup(alpha, 2, 0.1, 1.5), 4) for alpha in alphas
    }


def test_curve_ignores_the_joined_parameters() -> None:
    """What API Gateway joins with commas is not read; the raw query is."""
    event = make_event("GET", "/curve", query="alpha=0.5&alpha=0.7")
    event["queryStringParameters"] = {"alpha": "0.5,0.7"}
    assert set(EDGE.send(event).payload["accounting_modeled"]["expected_speedup_at_alpha"]) == {"0.5", "0.7"}


def test_curve_defaults_come_from_the_settings() -> None:
    """The configured k and cost ratio are the defaults of the curve."""
    accounting = client(k="6", cost_ratio="0.1").get("/curve").payload["accounting_modeled"]
    assert (accounting["k"], accounting["cost_ratio"]) == (6, 0.1)


def test_curve_without_drafts_gains_nothing() -> None:
    """k=0 is plain decoding: one token a step, no speedup."""
    accounting = EDGE.get("/curve", "k=0").payload["accounting_modeled"]
    assert set(accounting["expected_tokens_per_step_at_alpha"].values()) == {1.0}
    assert set(accounting["expected_speedup_at_alpha"].values()) == {1.0}


@pytest.mark.parametrize("path", ["/curve", "/curve/", "/health", "/health/"])
def test_head_is_get_without_a_body(path: str) -> None:
    """HEAD gives the status and headers of GET, and a trailing slash is tolerated."""
    reply = EDGE.send(make_event("HEAD", path))
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.text == ""


@pytest.mark.parametrize("path", ["/nothing", "/runs", "/runs/", "/runs/a/b", "/curve/x", "/openapiXjson"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
def test_unknown_path_is_404(method: str, path: str) -> None:
    """What is not a route is not found."""
    reply = EDGE.send(make_event(method, path))
    assert reply.status == 404
    if method != "HEAD":
        assert_problem(reply, 404)


def test_path_outside_the_base_is_404() -> None:
    """The service answers under its base path only."""
    event = make_event("GET", "/health")
    event["rawPath"] = "/health"
    assert_problem(EDGE.send(event), 404)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/health", "GET, HEAD, OPTIONS"),
        ("DELETE", "/curve", "GET, HEAD, OPTIONS"),
        ("GET", "/run", "POST, OPTIONS"),
        ("HEAD", "/run", "POST, OPTIONS"),
        ("PUT", "/run/", "POST, OPTIONS"),
        ("POST", "/runs/x", "GET, DELETE, HEAD, OPTIONS"),
        ("PATCH", "/health", "GET, HEAD, OPTIONS"),
        ("TRACE", "/health", "GET, HEAD, OPTIONS"),
        ("POST", "/", "GET, HEAD, OPTIONS"),
        ("POST", "/openapi.json", "GET, HEAD, OPTIONS"),
        ("GET ", "/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_wrong_method_is_405_with_allow(method: str, path: str, allow: str) -> None:
    """A known path says what it takes."""
    reply = EDGE.send(make_event(method, path))
    assert reply.status == 405
    assert reply.headers["Allow"] == allow
    if method != "HEAD":
        assert_problem(reply, 405)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("run_id", ["\0", "\r\nx: y", "\ufffd", "\U0001f600"])
def test_run_id_that_no_route_takes_is_404(method: str, run_id: str) -> None:
    """A method that the path takes is not refused because of what stands in the path."""
    assert EDGE.send(make_event(method, f"/runs/{run_id}")).status == 404


def test_stage_prefix_is_not_part_of_the_path() -> None:
    """A named stage puts its name before the path; the routes are the same."""
    event = make_event("GET", "/curve")
    event["rawPath"] = "/live" + event["rawPath"]
    event["requestContext"]["stage"] = "live"
    assert EDGE.send(event).status == 200


def test_bug_becomes_a_plain_500(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A bug is answered without details, and logged by its type alone."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(PROMPT)

    monkeypatch.setattr("edge.intake.parse_run", fail)
    assert_problem(EDGE.post({"prompt": PROMPT}), 500)
    assert "unhandled RuntimeError" in caplog.text
    assert "zeppelins" not in caplog.text


@pytest.mark.parametrize("path", ["/health", "/run", "/runs/x", "/nothing"])
def test_answers_are_not_cached(path: str) -> None:
    """A salt, a state of now or a problem must not be kept by anyone in between."""
    reply = EDGE.run() if path == "/run" else EDGE.get(path)
    assert reply.headers["Cache-Control"] == "no-store"
    assert "ETag" not in reply.headers


def test_curve_may_be_kept_while_it_is_the_same() -> None:
    """Equal questions get equal payloads within the hour, so caches may answer them for some minutes."""
    first, again = EDGE.get("/curve", "k=3"), EDGE.get("/curve", "k=3")
    assert first.headers["ETag"] == f'W/"{first.json["payload_sha3_256"]}"' == again.headers["ETag"]
    assert re.fullmatch("public, max-age=([0-9]{1,2}|[12][0-9]{2}|300)", first.headers["Cache-Control"])
    event = make_event("GET", "/curve", query="k=3", headers={"If-None-Match": first.headers["ETag"]})
    unchanged = EDGE.send(event)
    assert (unchanged.status, unchanged.text) == (304, "")
    assert unchanged.headers["ETag"] == first.headers["ETag"]


def test_page_is_for_people() -> None:
    """The base path gives a page that asks nobody else for anything."""
    reply = EDGE.get("/")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
    assert len(reply.text.encode("utf-8")) <= 150_000
    assert "<h1>Governed speculative decoding</h1>" in reply.text
    assert not re.search(r'(src|href)="(https?:)?//', reply.text)
    assert EDGE.get("").text == reply.text


@pytest.mark.parametrize("path", ["/", "/health", "/curve", "/run", "/runs/x", "/keys", "/openapi.json"])
def test_options_says_what_a_path_takes(path: str) -> None:
    """A browser that asks first is told that it may; there is nothing in it but headers."""
    reply = EDGE.send(make_event("OPTIONS", path))
    assert (reply.status, reply.text) == (204, "")
    assert reply.headers["Allow"].endswith("OPTIONS")
    assert reply.headers["Access-Control-Allow-Methods"] == reply.headers["Allow"]
    assert reply.headers["Access-Control-Allow-Origin"] == "*"
    assert "Idempotency-Key" in reply.headers["Access-Control-Allow-Headers"]
    assert "Content-Type" not in reply.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/health", 200), ("POST", "/run", 415), ("GET", "/nothing", 404), ("PUT", "/run", 405)],
)
def test_every_answer_is_safe_for_browsers(method: str, path: str, status: int) -> None:
    """Pages of any origin may read every answer, none can frame it, run it or guess its type."""
    reply = EDGE.send(make_event(method, path))
    assert reply.status == status
    assert reply.headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in reply.headers
    assert "Retry-After" in reply.headers["Access-Control-Expose-Headers"]
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert reply.headers["Strict-Transport-Security"] == "max-age=31536000"


_IMPORT = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"agent", "llama_cpp", "numpy", "pynvml", "boto3", "uvicorn", "httpx"}:
            raise ImportError(name + " is not on Lambda")

sys.meta_path.insert(0, Blocked())
from edge.app import lambda_handler
from tests.edge.support import FakeContext, make_event

for path in ("/health", "/curve"):
    status = lambda_handler(make_event("GET", path), FakeContext())["statusCode"]
    # Powertools imports the bare package botocore, which costs a millisecond; its parts are the SDK.
    unwanted = {"boto3", "botocore.session", "botocore.client", "websockets", "cryptography"}
    print(status, *unwanted & set(sys.modules), file=sys.stderr)
"""


def _python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "SPECDEC_TOWER_URL": "ws://127.0.0.1:9/", **environ},
    )


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SPECDEC_TOWER_TOKEN": "token", "SPECDEC_TOWER_TOKEN_SECRET": "name"},
        {"SPECDEC_TOWER_TOKEN_SECRET": "name"},
    ],
    ids=["no token", "token and secret", "secret"],
)
def test_edge_needs_nothing_that_lambda_lacks(environ: dict[str, str]) -> None:
    """Import, health and curve work without the agent's packages, and load neither an AWS SDK nor what runs need."""
    done = _python(_IMPORT, **environ)
    assert done.stderr.split() == ["200", "200"]


@pytest.mark.parametrize(
    "environ",
    [
        {"SPECDEC_K": "0"},
        {"SPECDEC_K": "four"},
        {"SPECDEC_COST_RATIO": "nan"},
        {"SPECDEC_WAIT_S": "-1"},
        {"SPECDEC_TOWER_URL": "http://tower"},
        {"SPECDEC_TOWER_URL": "wss://"},
        {"SPECDEC_TOWER_URL": "wss://tower:port/"},
        {"SPECDEC_RUN_SECRET": "short"},
        {"SPECDEC_TOWER_TOKEN": "two words"},
    ],
)
def test_wrong_setting_stops_start_up(environ: dict[str, str]) -> None:
    """The last line names the variable, and never a secret's value."""
    done = _python("import edge.app", **environ)
    ((name, value),) = environ.items()
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert name in last
    assert "SECRET" not in name and "TOKEN" not in name or value not in last


def test_body_is_exactly_what_was_hashed() -> None:
    """Numbers in the HTTP body parse to the very payload whose digest is stated."""
    reply = EDGE.get("/curve", "alpha=0.1&alpha=0.30000000000000004&cost_ratio=1e-7")
    assert "0.30000000000000004" in reply.payload["accounting_modeled"]["expected_speedup_at_alpha"]
    assert json.loads(reply.text) == reply.json
