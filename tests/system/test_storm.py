"""The storm: its short form on a whole system, and that it sees what it is there to see."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from edge.answers import SAFE_HEADERS
from shared.keyfile import load_or_create
from shared.labels import BASE_PATH
from tests.edge.fake_tower import FakeTower
from tests.edge.support import PROMPT, Client, Reply, client
from tools import storm
from tools.storm_checks import RUN_S, Storm, judge
from tools.storm_clients import MARK, Seen

RUN = {"prompt": PROMPT, "k": 4, "n": 50, "temperature": 0.0, "seed": 0, "key": None}
CURVE = {"k": 4, "cost_ratio": 0.2, "alphas": [0.5], "store": False}
CURVE_QUERY = "k=4&cost_ratio=0.2&alpha=0.5"


@pytest.mark.timeout(1200)
def test_short_storm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dozen clients, an agent killed twice and a worker once: every answer is right, no receipt is lost."""
    status = storm.main(["--clients", "12", "--seconds", "12", "--state", str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    faults = [fault for fault in told["faults"] if "took its worker" not in fault]  # bench tells of speed
    assert faults == []
    assert status == (1 if told["faults"] else 0)
    assert len(told["agent_down_s"]) == 2
    assert told["workers_killed"] == 1
    assert told["measured"] >= 1
    assert told["receipts_stored"] >= 1
    # On a slow machine few of the other deeds come up in so short a time.
    assert {"run", "keys"} <= told["by_kind"].keys()
    assert told["answers"] >= 12


class Scene:
    """An edge that signs and stores, and what a storm would have kept of its answers."""

    def __init__(self, folder: Path, url: str) -> None:
        """Starts with a storm in which nothing has failed yet."""
        key = load_or_create(folder / "key.pem", "P-256")
        changes = {"signer": "file", "signing_key_file": str(folder / "key.pem")}
        changes |= {"receipts_dir": str(folder / "receipts"), "signing_keyid": key.keyid}
        self.edge: Client = client(url, **changes)
        self.storm = Storm(self.edge.get("/keys").text.encode())

    def seen(self, kind: str, asked: Mapping[str, Any], reply: Reply, **changes: Any) -> Seen:
        """Returns an answer as a storm keeps it, with some of it changed."""
        headers = {name.lower(): value for name, value in reply.headers.items()}
        whole = {"status": reply.status, "headers": headers, "body": reply.text.encode(), "began": 100.0}
        return Seen(kind, asked, **{**whole, "ended": 101.0, **changes})

    def curve(self, **changes: Any) -> Seen:
        """Returns the answer to a question for a curve."""
        asked = changes.pop("asked", CURVE)
        return self.seen("curve", asked, self.edge.get("/curve", CURVE_QUERY), **changes)


@pytest.fixture
def down(tmp_path: Path) -> Scene:
    """An edge whose tower is down."""
    return Scene(tmp_path, "ws://127.0.0.1:9/specdec")


def test_good_answers_have_no_fault(down: Scene) -> None:
    """Curves, health, keys, what is wrong with a question, and a run while the agent is down."""
    down.storm.down.append((99.0, 100.5))
    answers = [
        down.curve(),
        down.seen("health", {}, down.edge.get("/health")),
        down.seen("keys", {}, down.edge.get("/keys")),
        down.seen("page", {}, down.edge.get("")),
        down.seen("bad", {"status": 404}, down.edge.get("/nothing")),
        down.seen("run", RUN, down.edge.run()),
    ]
    assert judge(down.storm, answers) == []


def _without(name: str) -> Callable[[Seen], dict[str, Any]]:
    return lambda one: {"headers": {key: value for key, value in one.headers.items() if key != name}}


def _body(change: Callable[[dict[str, Any]], Any]) -> Callable[[Seen], dict[str, Any]]:
    def changed(one: Seen) -> dict[str, Any]:
        value = json.loads(one.body)
        change(value)
        return {"body": json.dumps(value).encode()}

    return changed


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda _: {"status": 0, "body": b"ReadError"}, "no answer: ReadError"),
        (lambda _: {"status": 500}, "500 is not documented"),
        (lambda _: {"status": 502}, "502 is not documented"),
        (lambda _: {"status": 429}, "429 without Retry-After"),
        (_without(next(iter(SAFE_HEADERS)).lower()), f"200 without {next(iter(SAFE_HEADERS))}"),
        (lambda one: {"body": one.body[:-1]}, "200 with a body that is not JSON"),
        (lambda one: {"body": one.body.replace(b"}", b', "x": NaN}', 1)}, "200 with a body that is not JSON"),
        (lambda one: {"body": one.body.replace(b"MODELED", MARK.encode(), 1)}, "the answer holds the prompt"),
        (lambda _: {"asked": {**CURVE, "k": 5}}, "another curve than the one that was asked for"),
        (lambda _: {"asked": {**CURVE, "store": True}}, "Link is not where it belongs"),
        (_body(lambda value: value["payload"].update(label="SPEC-DECODE MEASURED")), "label: the label says"),
        (_body(lambda value: value.pop("signature")), "200 without what must be in it (KeyError)"),
        (_body(lambda value: value.update(payload_sha3_256="0" * 64)), "digest: payload_sha3_256 is not"),
        (_body(lambda value: value["signature"].update(signed=False, note="lazy")), "unsigned: lazy"),
        (
            _body(lambda value: value["payload"]["accounting_modeled"].update(k=3)),
            "modeled: expected_speedup_at_alpha is not what the formula gives",
        ),
    ],
)
def test_faults_of_a_curve_are_seen(
    down: Scene, change: Callable[[Seen], dict[str, Any]], fault: str
) -> None:
    """Whatever is wrong with an answer is named."""
    found = judge(down.storm, [down.curve(**change(down.curve()))])
    assert any(f"curve: {fault}" in line for line in found), found


def test_what_only_a_failure_explains(down: Scene) -> None:
    """That the tower is down, or a run lost, is believed only if the agent was down then."""
    health = down.seen("health", {}, down.edge.get("/health"))
    run = down.seen("run", RUN, down.edge.run())
    lost = json.dumps({"type": "about:blank", "title": "Gone", "status": 410, "detail": "Lost."})
    gone = Reply(410, {**SAFE_HEADERS, "Content-Type": "application/problem+json"}, lost, 0.1)
    poll = down.seen("poll", {**RUN, "run_id": "any", "since": 90.0}, gone)
    found = judge(down.storm, [health, run, poll])
    assert [line.partition(" (")[0].partition(": the tower refused")[0] for line in found] == [
        "poll: a run was lost, though the agent lived",
        "run: nothing explains TOWER_UNREACHABLE",
    ]
    assert down.storm.silences == 1  # nobody refused, as far as `/health` tells
    down.storm.down.append((99.0, 102.0))
    assert judge(down.storm, [health, run, poll]) == []
    assert down.storm.silences == 1


def test_a_killed_worker_explains_one_lost_answer(down: Scene) -> None:
    """It held one question; two answers that were lost are one too many, and so is one at another time."""
    lost = down.curve(status=502, body=b'{"message": "Bad Gateway"}')
    down.storm.workers_killed.append((100.5, 100.6))
    assert judge(down.storm, [lost]) == []
    down.storm.losses = 0
    assert "2 answers were lost, and 1 workers were killed (1 times)" in judge(down.storm, [lost, lost])
    down.storm.losses, down.storm.workers_killed = 0, [(200.0, 200.1)]
    assert "502 is not documented" in judge(down.storm, [lost])[0]


@pytest.mark.parametrize(
    ("asked", "change", "fault"),
    [
        ({}, lambda _: {}, None),
        ({}, lambda _: {"ended": 100.0 + RUN_S + 1}, f"200 after more than {RUN_S:.0f} s"),
        ({"seed": 7}, lambda _: {}, "another request than the one that was made"),
        ({"prompt": "another"}, lambda _: {}, "the salt does not open the commitment to the prompt"),
        ({"run_id": "another"}, lambda _: {}, "another run than the one that was asked for"),
        ({}, _without("link"), "a measurement that is not stored"),
        ({}, lambda _: {"kind": "poll"}, "the salt goes to somebody who has not sent the prompt"),
        ({}, lambda _: {"status": 202}, "a measurement that is not final"),
    ],
)
def test_faults_of_a_run_are_seen(
    tmp_path: Path, asked: dict[str, Any], change: Callable[[Seen], dict[str, Any]], fault: str | None
) -> None:
    """A measurement must be signed, stored, in time, and the one that this client asked for."""
    with FakeTower() as tower:
        scene = Scene(tmp_path, tower.url)
        one = scene.seen("run", {**RUN, **asked}, scene.edge.run())
    changes = change(one)
    one = Seen(**{**vars(one), **changes})
    # This tower's key is not pinned, which a storm's is.
    found = [line for line in judge(scene.storm, [one]) if "not known to have signed" not in line]
    assert bool(found) == bool(fault), found
    assert fault is None or any(fault in line for line in found), found


def test_two_clients_with_one_run(tmp_path: Path) -> None:
    """A run that is given to two who asked for different ones is nobody's own."""
    with FakeTower() as tower:
        scene = Scene(tmp_path, tower.url)
        reply = scene.edge.run()
    ours, theirs = (scene.seen("run", {**RUN, "seed": seed}, reply) for seed in (0, 1))
    assert any("two clients have one run" in line for line in judge(scene.storm, [ours, theirs]))


def test_receipts_are_those_that_were_asked_for(down: Scene) -> None:
    """Another digest's receipt, or other bytes than the payload's, are faults."""
    stored = down.edge.get("/curve", "store=1")
    digest = stored.json["payload_sha3_256"]
    assert stored.headers["Link"].startswith(f"<{BASE_PATH}/receipts/{digest}")
    for kind, path in (("receipt", f"/receipts/{digest}"), ("payload", f"/receipts/{digest}/payload")):
        reply = down.edge.get(path)
        assert judge(down.storm, [down.seen(kind, {"digest": digest}, reply)]) == []
        assert judge(down.storm, [down.seen(kind, {"digest": "0" * 64}, reply)]) != []


def test_logs_and_memory_are_judged(tmp_path: Path) -> None:
    """A prompt or a traceback in a log, a slow worker and memory that grows are faults."""
    (tmp_path / "edge.log").write_text(f'{{"ms": 9e9, "route": "/health"}}\n{MARK}\n')
    (tmp_path / "agent.log").write_text("Traceback (most recent call last):\n")
    assert storm._logs(tmp_path) == [
        "edge.log holds a prompt",
        "agent.log holds a traceback",
        "/health took its worker 9000000000 ms",
    ]
    service = storm.Service(tmp_path, {})
    service.memory = {"edge": [100] * 60, "agent": [100] * 40 + [120] * 20}
    service.worker = {1: [100] * 59, 2: [50] * 30 + [70] * 10}
    assert storm._memory(service) == ["the memory of agent grew to 1.2 times what it was"]
    service.worker[3] = [50] * 40 + [70] * 20
    assert "worker" in storm._memory(service)[1]
