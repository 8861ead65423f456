"""Tests of `make soak`: its short form, and that it sees what it is there to see."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.wire import ErrorCode, FailedFrame
from tools import soak
from tools.soak import Soak, children, growth, main, weigh, worker_growth, zombies
from tools.stack import PATIENCE_S


@pytest.mark.timeout(1200)
def test_hundred_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred runs with clients that vanish, killed workers, changed tokens and models that come and go: no fault."""
    status = main(["--runs", "100"])
    told = json.loads(capsys.readouterr().out)
    assert told["faults"] == []
    assert status == 0
    assert told["runs"] == sum(told["ended"].values()) == 100
    assert told["done"].keys() == {
        "stay",
        "leave",
        "cancel",
        "worker killed",
        "token changed",
        "store changed",
    }
    assert told["ended"]["OK"] >= 50


@pytest.mark.parametrize(
    ("samples", "grown"),
    [([100] * 9, 1.0), ([300, 300, 300, 100, 100, 100, 110, 110, 110], 1.1), ([7], 1.0), ([9, 10, 20], 2.0)],
)
def test_growth(samples: list[int], grown: float) -> None:
    """Growth is the last third over the middle one; what the start takes does not count."""
    assert growth(samples) == grown


def test_growth_of_the_fewest() -> None:
    """What comes and goes is told from what stays by the fewest there were."""
    assert growth([9, 9, 12, 14, 15, 12, 16, 16, 16], min) == 16 / 12
    assert growth([9, 9, 12, 14, 15, 12, 16, 12, 16], min) == 1.0


def test_growth_of_workers(tmp_path: Path) -> None:
    """The worker that grew most counts, unless it did not live long enough to tell."""
    it = soaking(tmp_path)
    assert worker_growth(it) == 1.0
    it.workers = {7: [100] * 80 + [120] * 40, 8: [100] * 120, 9: [1, 1, 9] * 30}
    assert worker_growth(it) == 1.2


def soaking(tmp_path: Path) -> Soak:
    """Returns a soak of this very process, which no run is asked of."""
    return Soak("ws://unused", os.getpid(), tmp_path, tmp_path / "t", tmp_path / "l", random.Random(1), ["a"])


@pytest.mark.parametrize(
    ("code", "disturbed", "faults"),
    [
        (ErrorCode.INTERNAL, 0, 1),
        (ErrorCode.INTERNAL, 1, 1),
        (ErrorCode.NO_PAIR, 0, 1),
        (ErrorCode.NO_PAIR, 1, 0),
        (ErrorCode.WORKER_DIED, 1, 1),
    ],
)
def test_unexplained_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, disturbed: int, faults: int
) -> None:
    """A run that fails with nothing to explain it is a fault, and so is a worker that dies unless it was killed."""

    async def fail(soak: Soak, frame: Any, behaviour: str) -> FailedFrame:
        return FailedFrame(run_id=frame.run_id, code=code, detail="it failed")

    monkeypatch.setattr(soak, "followed", fail)
    it = soaking(tmp_path)
    it.disturbed = disturbed
    asyncio.run(soak.one_run(it, 1))
    assert len(it.faults) == faults


def test_stuck_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that never ends is a fault."""

    async def hang(*_: object) -> FailedFrame:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(soak, "followed", hang)
    monkeypatch.setattr(soak, "STUCK_S", 0.01)
    it = soaking(tmp_path)
    asyncio.run(soak.one_run(it, 7))
    assert it.faults[0].startswith("run 7 is stuck") and it.outcomes == {}


def test_processes_are_seen() -> None:
    """Children are seen, those that have ended and were not waited for are told from others, and memory is weighed."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()  # so that it has begun
        assert child.pid in children(os.getpid()) and child.pid not in zombies(os.getpid())
        resident, descriptors = weigh(child.pid)
        assert resident > 1_000_000 and descriptors >= 3
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert zombies(os.getpid()) == [child.pid]
        assert child.wait(PATIENCE_S) in (0, 1)
    assert zombies(os.getpid()) == []
