"""SnapStart: sandboxes that begin as copies of one initialised handler share nothing that must differ.

A fork has the memory that a restored snapshot has: what the handler made while it was initialised is the same in both,
the kernel's random numbers are not. Firecracker itself, and its clocks, cannot be had here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.edge.fake_tower import FakeTower
from tests.edge.sam import ROOT
from tests.edge.sandboxes import START_S
from tests.edge.support import PROMPT, RUN_SECRET, SCALE, TOKEN, make_event

PRELOADED = {"boto3", "websockets.sync.client", "edge.runs", "edge.issuer", "edge.openapi", "edge.session"}
"""What first calls would load otherwise."""


def event(method: str, path: str, request_id: str, **more: Any) -> dict[str, Any]:
    """Return an event with the gateway's id."""
    made = make_event(method, path, headers={"content-type": "application/json"}, **more)
    made["requestContext"]["requestId"] = request_id
    return made


def run_event(request_id: str) -> dict[str, Any]:
    """Return the event of a run, which is the same in all sandboxes but for its id."""
    return event("POST", "/run", request_id, body=json.dumps({"prompt": PROMPT}))


class Snapshot:
    """A handler that is initialised and has answered nothing."""

    def __init__(self, url: str) -> None:
        """Initialise it."""
        given = {
            "SPECDEC_TOWER_URL": url,
            "SPECDEC_TOWER_TOKEN": TOKEN,
            "SPECDEC_RUN_SECRET": RUN_SECRET,
            "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.edge.sandboxes"],
            cwd=ROOT,
            env={**kept, **given},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.holds = json.loads(self._process.stdout.readline())

    def restore(
        self,
        after: list[list[dict[str, Any]]],
        before: list[dict[str, Any]] | None = None,
        clocks: list[float] | None = None,
    ) -> list[dict[str, Any]]:
        """Return what each sandbox answered and logged."""
        running: list[float | None] = [None] * len(after)
        told = {"before": before or [], "after": after, "clocks": clocks or running}
        out, _ = self._process.communicate(json.dumps(told) + "\n", timeout=60 * SCALE)
        assert self._process.returncode == 0
        return [json.loads(line) for line in out.splitlines()]


def body(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of an answer."""
    assert reply["statusCode"] == 200, reply
    found: dict[str, Any] = json.loads(reply["body"])
    return found


def test_sandboxes_of_one_snapshot_differ() -> None:
    """Run ids, nonces, salts and ids in the log are each sandbox's own; nothing was said to the tower before."""
    with FakeTower() as tower:
        snapshot = Snapshot(tower.url)
        assert tower.requests == []
        ids = [[f"health-{number}=", f"run-{number}="] for number in range(2)]
        told = snapshot.restore(
            [[event("GET", "/health", first), run_event(second)] for first, second in ids]
        )
        assert [frame["type"] for frame in tower.frames] == ["probe", "run", "probe", "run"]
        runs = [frame for frame in tower.frames if frame["type"] == "run"]
        assert [request["X-Correlation-Id"] for request in tower.requests] == [*ids[0], *ids[1]]
    receipts = [body(sandbox["replies"][1]) for sandbox in told]
    for name in ("run_id", "nonce", "prompt_commitment"):
        values = {frame[name] for frame in runs}
        assert len(values) == 2, name
        assert values == {receipt["payload"][name] for receipt in receipts}
    assert len({receipt["prompt_salt"] for receipt in receipts}) == 2
    assert len({receipt["payload_sha3_256"] for receipt in receipts}) == 2
    for number, sandbox in enumerate(told):
        lines = [json.loads(line) for line in sandbox["log"].splitlines() if "_aws" not in line]
        assert [line["correlation_id"] for line in lines] == ids[number]
        assert [line["cold_start"] for line in lines] == [True, False]


@pytest.mark.parametrize("clocks", [[START_S + 4.9, START_S + 5.0]])
def test_probe_from_before_the_snapshot_is_kept_no_longer(clocks: list[float]) -> None:
    """Even an answer that was had before the snapshot, as none is, would be reused for five seconds and no more."""
    with FakeTower() as tower:
        health = event("GET", "/health", "h")
        told = Snapshot(tower.url).restore([[health], [health]], before=[health], clocks=clocks)
        assert len(tower.frames) == 2  # before the snapshot, and in the second sandbox
    assert [body(sandbox["replies"][0])["tower_reachable"] for sandbox in told] == [True, True]


def test_initialising_keeps_nothing_that_goes_stale() -> None:
    """An initialised handler has loaded what runs need, and has neither a connection nor a thread."""
    with FakeTower() as tower:
        snapshot = Snapshot(tower.url)
        (told,) = snapshot.restore([[run_event("run=")]])
        assert len(tower.requests) == 1
    assert (snapshot.holds["threads"], snapshot.holds["sockets"]) == (1, [])
    assert "edge.app" in snapshot.holds["modules"]
    assert set(snapshot.holds["modules"]) >= PRELOADED
    assert body(told["replies"][0])["payload"]["label"] == "SPEC-DECODE MEASURED"
    assert told["random"] == []
