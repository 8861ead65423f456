"""Every file in events/ is replayed against the handler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.edge.fake_tower import FakeTower
from tests.edge.support import Client, assert_problem, client

EVENTS = Path(__file__).parents[2] / "events"
# The run id in the events was made with this secret.
RUN_SECRET = "golden-run-secret"

EXPECTED = {
    "health": 200,
    "curve": 200,
    "curve_bad_alpha": 422,
    "run": 200,
    "run_all_fields": 200,
    "run_async": 202,
    "run_base64": 200,
    "run_empty": 400,
    "run_not_json": 400,
    "run_not_utf8": 400,
    "run_text_plain": 415,
    "run_bad_k": 422,
    "run_unknown_field": 422,
    "run_status": 410,
    "run_status_foreign": 404,
    "run_cancel": 410,
    "method_not_allowed": 405,
    "not_found": 404,
}


def _event(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text("utf-8"))
    return event


def test_every_event_is_expected() -> None:
    """No event lies about unreplayed."""
    assert {path.stem for path in EVENTS.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize(("name", "status"), EXPECTED.items())
def test_event_gives_its_status(name: str, status: int) -> None:
    """An event as API Gateway sends it gives the documented status and shape."""
    with FakeTower() as tower:
        edge: Client = client(tower.url, run_secret=RUN_SECRET)
        reply = edge.send(_event(name))
    assert reply.status == status
    if status >= 400:
        assert_problem(reply, status)
    elif name == "health":
        assert reply.json["status"] == "LIVE"
    else:
        assert reply.payload["accounting_modeled"]["k"] == 4
        assert ("prompt_salt" in reply.json) == name.startswith("run")
        assert ("output" in reply.json) == (name == "run_all_fields")
