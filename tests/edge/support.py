"""What several tests of the edge share: events, a context, a handler, a clock that forgives slow machines."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any

from edge.app import Handler, create_handler
from edge.settings import EdgeSettings
from shared.labels import BASE_PATH
from shared.settings import load

SCALE = float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))
RUN_SECRET = "a-run-secret-for-tests"
TOKEN = "a-tower-token"
PROMPT = "Marmalade and zeppelins: a prompt nobody else would write"
# Honest towers answer at once, so a long wait costs nothing; tests that sit a wait out use SHORT_WAIT_S.
WAIT_S = 20.0
SHORT_WAIT_S = 1.0


@dataclass(frozen=True)
class FakeContext:
    """A Lambda context with a fixed time left."""

    remaining_ms: int = 29_000

    def get_remaining_time_in_millis(self) -> int:
        """Return the time left."""
        return self.remaining_ms


@dataclass(frozen=True)
class Reply:
    """A handler's result, decoded."""

    status: int
    headers: dict[str, str]
    text: str
    seconds: float

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)

    @property
    def payload(self) -> dict[str, Any]:
        """The payload of the receipt, after checking its digest as the seed's quickstart does."""
        payload: dict[str, Any] = self.json["payload"]
        canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert hashlib.sha3_256(canonical).hexdigest() == self.json["payload_sha3_256"]
        assert base64.b64decode(self.json["payload_canonical_base64"], validate=True) == canonical
        return payload


def make_event(
    method: str,
    path: str,
    *,
    query: str = "",
    body: str | bytes | None = None,
    headers: dict[str, str] | None = None,
    source_ip: str = "192.0.2.1",
) -> dict[str, Any]:
    """Return an API Gateway v2 event; bytes as a body are sent in Base64."""
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": BASE_PATH + path,
        "rawQueryString": query,
        "headers": headers or {},
        "requestContext": {
            "stage": "$default",
            "http": {"method": method, "path": BASE_PATH + path, "sourceIp": source_ip},
        },
        "isBase64Encoded": isinstance(body, bytes),
    }
    if body is not None:
        event["body"] = base64.b64encode(body).decode() if isinstance(body, bytes) else body
    return event


@dataclass
class Client:
    """Calls one handler as API Gateway would."""

    handler: Handler
    context: FakeContext = field(default_factory=FakeContext)

    def send(self, event: dict[str, Any]) -> Reply:
        """Send an event; the handler must leave it as it was."""
        before = copy.deepcopy(event)
        started = time.monotonic()
        result = self.handler(event, self.context)
        seconds = time.monotonic() - started
        assert event == before
        assert not result["isBase64Encoded"]
        return Reply(result["statusCode"], result["headers"], result["body"], seconds)

    def get(self, path: str, query: str = "") -> Reply:
        """GET a path below the base."""
        return self.send(make_event("GET", path, query=query))

    def delete(self, path: str) -> Reply:
        """DELETE a path below the base."""
        return self.send(make_event("DELETE", path))

    def post(self, body: Any, headers: dict[str, str] | None = None, source_ip: str = "192.0.2.1") -> Reply:
        """POST a JSON value to /run; str and bytes are sent as they are."""
        text = body if isinstance(body, str | bytes) else json.dumps(body)
        sent = {"content-type": "application/json", **(headers or {})}
        return self.send(make_event("POST", "/run", body=text, headers=sent, source_ip=source_ip))

    def run(self, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
        """POST the usual prompt with these fields."""
        return self.post({"prompt": PROMPT, **fields}, headers)


def settings(url: str = "ws://127.0.0.1:9/specdec", **changes: str) -> EdgeSettings:
    """Return settings for a tower, as the environment would give them."""
    environ = {
        "SPECDEC_TOWER_URL": url,
        "SPECDEC_TOWER_TOKEN": TOKEN,
        "SPECDEC_RUN_SECRET": RUN_SECRET,
        "SPECDEC_WAIT_S": str(WAIT_S),
    }
    environ.update({f"SPECDEC_{name.upper()}": value for name, value in changes.items()})
    return load(EdgeSettings, environ)


def client(url: str = "ws://127.0.0.1:9/specdec", **changes: str) -> Client:
    """Return a client of a fresh handler for a tower."""
    return Client(create_handler(settings(url, **changes)))


def assert_problem(reply: Reply, status: int) -> str:
    """Check that a reply is a problem document with one sentence, and return the sentence."""
    assert reply.status == status, reply.text
    assert reply.headers["Content-Type"] == "application/problem+json"
    problem = reply.json
    assert set(problem) == {"type", "title", "status", "detail"}
    assert problem["type"] == "about:blank"
    assert problem["status"] == status
    detail: str = problem["detail"]
    assert detail.endswith(".")
    assert ". " not in detail
    assert len(detail) < 300
    assert PROMPT[:12] not in reply.text
    return detail


def assert_roadmap(reply: Reply, code: str) -> dict[str, Any]:
    """Check that a reply is an honest receipt without a measurement, and return its payload."""
    payload = reply.payload
    assert payload["label"] == "SPEC-DECODE ROADMAP"
    assert payload["measured"] == "UNAVAILABLE"
    assert payload["quality_delta"] == "UNAVAILABLE"
    assert payload["energy"]["label"] == "UNAVAILABLE"
    assert payload["roadmap"]["code"] == code, payload["roadmap"]
    assert payload["roadmap"]["reason"]
    assert payload["roadmap"]["runbook"]
    assert payload["doctrine"]["label"] == "STATED (not checked here)"
    assert "accepted_rate" not in payload
    assert "measurement" not in payload
    assert PROMPT[:12] not in reply.text
    return payload
