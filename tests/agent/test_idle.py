"""Tests of `agent.idle`: what counts as idle, and what a GPU takes then."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import gpu
from agent.gpu import choose_gpu
from agent.idle import LATEST_S, IdleMeter
from agent.nvml import NvmlError
from tests.agent.nvml_stub.stub import Stub
from tests.agent.support import PATIENCE


class Clock:
    """A clock that is set by hand; the stub's counter goes with it."""

    def __init__(self, stub: Stub, watts: float) -> None:
        """Start at zero with a counter at zero."""
        self.now, self.stub, self.watts, self.millijoules = 0.0, stub, watts, 0.0
        self.wait(0)

    def __call__(self) -> float:
        """Tell the time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.millijoules += 1000 * self.watts * seconds
        self.stub.set(stuck_at_mj=self.millijoules)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The stub, in use in this process."""
    made = Stub(tmp_path)
    made.here(monkeypatch)
    gpu.close()
    yield made
    gpu.close()


def meter(clock: Clock) -> IdleMeter:
    """A meter by that clock."""
    return IdleMeter(choose_gpu(), {os.getpid()}, clock=clock)


def look(idle: IdleMeter, clock: Clock, seconds: int) -> None:
    """Look once a second."""
    for _ in range(seconds):
        clock.wait(1)
        idle.look()


def test_idle_power(stub: Stub) -> None:
    """After some seconds to settle, the mean power of what follows is told, once that is long enough."""
    clock = Clock(stub, watts=40)
    idle = meter(clock)
    look(idle, clock, 5)
    clock.watts = 12.5
    look(idle, clock, 5)
    assert idle.watts() is None
    look(idle, clock, 1)
    assert idle.watts() == (12.5, 5.0)
    look(idle, clock, 30)
    assert idle.watts() == (12.5, 35.0)


def test_only_the_last_minute_counts(stub: Stub) -> None:
    """A GPU that cools down for hours is told as it is now."""
    clock = Clock(stub, watts=30)
    idle = meter(clock)
    look(idle, clock, 40)
    clock.watts = 10
    look(idle, clock, 70)
    assert idle.watts() == (10.0, 60.0)


@pytest.mark.parametrize(
    ("busy", "quiet"),
    [
        ({"utilization": 3}, {"utilization": 0}),
        ({"compute_pids": "self,4"}, {"compute_pids": "self"}),
        ({"return.nvmlDeviceGetUtilizationRates": 3}, {"return.nvmlDeviceGetUtilizationRates": 0}),
    ],
)
def test_a_gpu_at_work_is_not_idle(
    stub: Stub, busy: dict[str, float | str], quiet: dict[str, float | str]
) -> None:
    """What was metered before it worked, another program was there, or it did not say, is forgotten."""
    clock = Clock(stub, watts=20)
    idle = meter(clock)
    look(idle, clock, 20)
    assert idle.watts() is not None
    stub.set(busy)
    look(idle, clock, 1)
    assert idle.watts() is None
    stub.set(quiet)
    look(idle, clock, 10)
    assert idle.watts() is None
    look(idle, clock, 1)
    assert idle.watts() == (20.0, 5.0)


def test_readings_of_long_ago(stub: Stub) -> None:
    """Where looking has ended, what was metered before is not told as if it were of now."""
    clock = Clock(stub, watts=20)
    idle = meter(clock)
    look(idle, clock, 30)
    clock.wait(LATEST_S)
    assert idle.watts() == (20.0, 24.0)
    clock.wait(1)
    assert idle.watts() is None


def test_a_counter_that_stands_still(stub: Stub) -> None:
    """An idle power of zero is no reading."""
    clock = Clock(stub, watts=0)
    idle = meter(clock)
    look(idle, clock, 20)
    assert idle.watts() is None


def test_without_a_counter(stub: Stub) -> None:
    """A GPU without a counter gives an error to who looks, and nothing to who only asks."""
    stub.set({"return.nvmlDeviceGetTotalEnergyConsumption": 3})
    with pytest.raises(NvmlError):
        meter(Clock(stub, watts=1)).look()
    with IdleMeter(choose_gpu(), {os.getpid()}, look_s=0.001) as idle:
        pass
    assert idle.watts() is None


def test_it_looks_by_itself(stub: Stub) -> None:
    """Between two runs it looks in a thread, and forgets everything if the GPU is lost."""
    stub.set(power_mw=15_000, refresh_ms=1)
    with IdleMeter(choose_gpu(), {os.getpid()}, look_s=0.01, settle_s=0.02, least_s=0.2) as idle:
        deadline = time.monotonic() + PATIENCE
        while (told := idle.watts()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert told[0] == pytest.approx(15, rel=0.02)
        assert "idle-meter" in running()
        stub.set(lost=1)
        while idle.watts() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_it_stops_when_told(stub: Stub) -> None:
    """Once a run begins, nothing of it goes on, however rarely it looks; what was metered is still told."""
    stub.set(power_mw=15_000, refresh_ms=1)
    with IdleMeter(choose_gpu(), {os.getpid()}, look_s=10 * PATIENCE):
        assert "idle-meter" in running()
    assert "idle-meter" not in running()


def running() -> set[str]:
    """The names of this process's threads."""
    return {thread.name for thread in threading.enumerate()}
