"""``/health``: quick, honest, and without an AWS SDK."""

from __future__ import annotations

import time
from contextlib import nullcontext

import pytest

from edge import health as health_module
from edge.tower import Tower
from tests.edge.fake_tower import CAPABILITY, FakeTower, black_hole, closed_port, failed, say, says_nothing
from tests.edge.support import SCALE, client

UNREACHABLE = {"found": False, "reason": "tower unreachable"}


def test_health_with_a_live_pair() -> None:
    """A pair on a reachable tower is what makes the label MEASURED."""
    with FakeTower() as tower:
        body = client(tower.url).get("/health").json
    assert body["status"] == "LIVE"
    assert body["label"] == "SPEC-DECODE MEASURED"
    assert body["same_family_pair"] == CAPABILITY["same_family_pair"]
    assert body["measured_run_possible"] is True
    assert body["tower_reachable"] is True
    assert body["models"] == CAPABILITY["models"]
    assert body["queue"] == CAPABILITY["queue"]
    assert body["energy"] == CAPABILITY["energy"]
    assert body["doctrine"]["label"] == "STATED (not checked here)"
    assert body["endpoints"]["run"] == "POST /api/a11oy/v1/specdec/run"
    assert "signature" not in body


@pytest.mark.parametrize("place", [lambda: nullcontext(closed_port()), black_hole], ids=["down", "silent"])
def test_health_without_a_tower(place: object) -> None:
    """Tower down or silent: the seed's words, within two seconds."""
    assert callable(place)
    with place() as url:
        reply = client(url).get("/health")
    assert reply.status == 200
    assert reply.seconds < 2 * SCALE
    assert reply.json["status"] == "LIVE"
    assert reply.json["label"] == "SPEC-DECODE ROADMAP (no same-family pair)"
    assert reply.json["same_family_pair"] == UNREACHABLE
    assert reply.json["measured_run_possible"] is False
    assert reply.json["tower_reachable"] is False
    assert reply.json["models"] == []
    assert reply.json["queue"] is reply.json["energy"] is None


def test_health_of_a_websocket_that_says_nothing() -> None:
    """A tower that completes the handshake and then hangs is given up on in time, too."""
    with FakeTower(says_nothing) as tower:
        reply = client(tower.url).get("/health")
        tower.stopped.set()
    assert reply.seconds < 2 * SCALE
    assert reply.json["same_family_pair"] == UNREACHABLE


def test_health_without_a_pair() -> None:
    """A tower without a pair is reachable, and says what differs."""
    pair = {"found": False, "reason": "the vocabularies differ at token 128000"}
    with FakeTower(lambda _, ws, __: say(ws, {**CAPABILITY, "same_family_pair": pair})) as tower:
        body = client(tower.url).get("/health").json
    assert body["label"] == "SPEC-DECODE ROADMAP (no same-family pair)"
    assert body["same_family_pair"] == pair
    assert body["tower_reachable"] is True
    assert body["measured_run_possible"] is False


def test_health_with_a_tower_that_answers_wrongly() -> None:
    """A capability that claims a pair without naming it is not believed."""
    pair = {"found": True, "reason": "trust me"}
    with FakeTower(lambda _, ws, __: say(ws, {**CAPABILITY, "same_family_pair": pair})) as tower:
        body = client(tower.url).get("/health").json
    assert body["label"] == "SPEC-DECODE ROADMAP (no same-family pair)"
    assert body["same_family_pair"]["found"] is False


def test_health_with_a_tower_that_fails_the_probe() -> None:
    """A frame of another kind is no answer to a probe."""
    with FakeTower(lambda _, ws, __: say(ws, failed({"run_id": None}, "BAD_MESSAGE", "what?"))) as tower:
        body = client(tower.url).get("/health").json
    assert body["same_family_pair"] == {"found": False, "reason": "the tower did not answer the probe"}


def test_probe_is_reused_for_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health checks do not hammer the tower, yet news get through."""
    with FakeTower() as tower:
        edge = client(tower.url)
        edge.get("/health")
        edge.get("/health")
        assert len(tower.frames) == 1
        monkeypatch.setattr(health_module, "KEEP_S", 0.0)
        edge.get("/health")
        assert len(tower.frames) == 2


def test_probe_does_not_pay_for_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new instance loads before it can ask is not taken off the tower's time to answer."""
    monkeypatch.setattr(health_module, "PROBE_TIMEOUT_S", 1.0 * SCALE)

    def load(_: Tower) -> None:
        time.sleep(1.5 * SCALE)

    monkeypatch.setattr(Tower, "_tls", property(load))
    with FakeTower() as tower:
        assert client(tower.url).get("/health").json["tower_reachable"] is True
