"""Tests of `agent.meters`: how well energy is known at any moment, with clocks and counters that are known exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import gpu
from agent.gpu import choose_gpu
from agent.meters import COUNTER, FEWEST_TICKS, SAMPLED, STUCK_S, CounterMeter, Edge, PowerMeter, meter_of
from agent.nvml import NvmlError
from tests.agent.nvml_stub.stub import Stub
from tests.agent.support import PATIENCE


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The stub, in use in this process."""
    made = Stub(tmp_path)
    made.here(monkeypatch)
    gpu.close()
    yield made
    gpu.close()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        """Start at some time."""
        self.now = 100.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


def counted(
    energy: Callable[[float], float], *, refresh: float = 0.1, poll: float = 0.001, seconds: float = 3.0
) -> CounterMeter:
    """A meter that has read, for some seconds, a counter of the energy [mJ] refreshed now and then."""
    clock = Clock()
    meter = CounterMeter(
        lambda: int(energy(math.floor(clock.now / refresh + 1e-9) * refresh)), clock=clock, poll_s=poll
    )
    for reading in range(round(seconds / poll)):
        clock.now = 100 + reading * poll
        meter.poll()
    return meter


def edge_at(meter: CounterMeter | PowerMeter, at: float) -> Edge:
    """The edge that a meter tells."""
    edge = meter.edge(at)
    assert edge is not None
    return edge


def test_constant_power() -> None:
    """Under constant power the energy of any stretch is exact but for the readings' spacing, whatever the refresh."""
    for refresh in (0.02, 0.1):
        meter = counted(lambda t: 50_000 * t, refresh=refresh)
        assert meter.ready and meter.refresh_s == pytest.approx(refresh, rel=1e-3)
        for began, ended in ((100.5, 102.5), (100.513, 101.71), (101.0, 102.0499)):
            joules = edge_at(meter, ended).joules - edge_at(meter, began).joules
            assert joules == pytest.approx(50 * (ended - began), abs=50 * 0.001)


@settings(deadline=None)
@given(
    at=st.floats(101.0, 102.0),
    before=st.floats(60_000, 100_000),
    after=st.floats(60_000, 100_000),
    later=st.floats(0, 0.3),
)
def test_doubt_bounds_the_error(at: float, before: float, after: float, later: float) -> None:
    """Where power steps by up to half its mean anywhere near an edge, the edge is wrong by no more than its doubt."""
    step = at - 0.15 + later

    def energy(t: float) -> float:
        return before * min(t, step) + after * max(0.0, t - step)

    edge = edge_at(counted(energy, seconds=2.5), at)
    assert edge.doubt is not None
    assert abs(edge.joules - energy(at) / 1000) <= edge.doubt + 0.002  # two readings in whole millijoules
    assert at <= edge.until < at + 0.11


def test_doubt_grows_with_the_spacing() -> None:
    """A counter that is refreshed or read less often leaves more doubt, as much as the module says."""
    sharp, coarse = counted(lambda t: 80_000 * t, refresh=0.02), counted(lambda t: 80_000 * t, refresh=0.1)
    assert edge_at(sharp, 101.111).doubt == pytest.approx(80 * (0.02 / 8 + 0.0005), rel=0.1)
    assert edge_at(coarse, 101.111).doubt == pytest.approx(80 * (0.1 / 8 + 0.0005), rel=0.1)
    rarely = counted(lambda t: 80_000 * t, refresh=0.1, poll=0.05)
    assert edge_at(rarely, 101.111).doubt == pytest.approx(80 * (0.1 / 8 + 0.025), rel=0.1)


def test_a_tick_that_was_seen_late() -> None:
    """Where the reader was held up at a tick, the ticks beside it tell the energy better."""
    clock = Clock()
    meter = CounterMeter(lambda: int(80_000 * math.floor(clock.now / 0.02 + 1e-9) * 0.02), clock=clock)
    for reading in range(1000):
        if (
            not 500 <= reading < 517
        ):  # held up from 100.500 to 100.516, and so over no tick but that of 100.500
            clock.now = 100 + reading * 0.001
            meter.poll()
    edge = edge_at(meter, 100.51)
    assert edge.doubt == pytest.approx(80 * (0.04 / 8 + 0.0005), rel=0.05)
    assert edge.joules == pytest.approx(80 * 100.51, abs=80 * 0.0006)


def test_the_usual_doubt() -> None:
    """What edges are usually wrong by is told in seconds of mean power, once enough ticks are known."""
    assert counted(lambda t: 80_000 * t).doubt_s == pytest.approx(0.1 / 8 + 0.0005, rel=1e-3)
    assert counted(lambda t: 80_000 * t, poll=0.05).doubt_s == pytest.approx(0.1 / 8 + 0.025, rel=1e-3)
    assert counted(lambda t: 80_000 * t, seconds=0.3).doubt_s == 0
    assert sampled(lambda t: 5000).doubt_s == 0


def test_edges_need_readings_around_them() -> None:
    """Before the first tick and after the last one nothing is told."""
    meter = counted(lambda t: 50_000 * t, seconds=1.0)
    assert meter.edge(100.05) is None and meter.edge(100.96) is None
    assert meter.edge(100.5) is not None


def test_the_refresh_period_needs_ticks() -> None:
    """Until some ticks have been seen the refresh period is not known, and the meter not ready."""
    few = counted(lambda t: 50_000 * t, seconds=0.1 * FEWEST_TICKS - 0.01)
    assert not few.ready and few.refresh_s is None
    assert counted(lambda t: 50_000 * t, seconds=0.1 * FEWEST_TICKS + 0.01).ready


def test_one_long_gap_does_not_change_the_period() -> None:
    """The median of the gaps is told, so that one tick that was missed does not count."""
    meter = counted(lambda t: 50_000 * (t if t < 101 or t > 101.35 else 101.0))
    assert meter.refresh_s == pytest.approx(0.1, rel=1e-3)


def test_a_counter_that_goes_back() -> None:
    """A counter never goes back; one that does was reset, and nothing it says is used."""
    clock, counts = Clock(), iter([5, 5, 6, 4])
    meter = CounterMeter(lambda: next(counts), clock=clock)
    for _ in range(3):
        meter.poll()
    with pytest.raises(NvmlError, match="the energy counter went back") as caught:
        meter.poll()
    assert caught.value.energy_code == "COUNTER_WENT_BACK"


def test_a_counter_that_stands_still() -> None:
    """A counter that is read and does not change for some seconds is stuck; one that is not read need not be."""
    clock = Clock()
    meter = CounterMeter(lambda: 5, clock=clock)
    meter.check()
    meter.poll()
    clock.now += STUCK_S + 1
    meter.check()
    meter.poll()
    with pytest.raises(NvmlError, match="the energy counter does not change") as caught:
        meter.check()
    assert caught.value.energy_code == "COUNTER_STUCK"


def sampled(power: Callable[[float], float], *, averaged: bool = False, seconds: float = 4.0) -> PowerMeter:
    """A meter that has sampled a power [mW] for some seconds."""
    clock = Clock()
    meter = PowerMeter(lambda: round(power(clock.now)), averaged=averaged, clock=clock)
    for reading in range(round(seconds / 0.02)):
        clock.now = 100 + reading * 0.02
        meter.poll()
    return meter


def test_sampled_power() -> None:
    """Power is added up by the trapezoid rule, exactly where it changes evenly, edges between samples included."""
    meter = sampled(lambda t: 1000 * (t - 90))
    for began, ended in ((100.5, 103.0), (101.111, 101.117), (101.0, 102.333)):
        joules = edge_at(meter, ended).joules - edge_at(meter, began).joules
        assert joules == pytest.approx(((ended - 90) ** 2 - (began - 90) ** 2) / 2, abs=1e-6)
    assert meter.ready and meter.refresh_s == pytest.approx(0.02)
    assert edge_at(meter, 101.111).doubt is None
    assert meter.edge(99.99) is None and meter.edge(104) is None


def test_averaged_power() -> None:
    """The mean of a second is taken for the power half a second ago, and relies on a second around it."""
    meter = sampled(lambda t: 1000 * (t - 0.5 - 90), averaged=True)  # the mean of t - 1 to t of what is above
    joules = edge_at(meter, 103.0).joules - edge_at(meter, 101.0).joules
    assert joules == pytest.approx((13**2 - 11**2) / 2, abs=1e-6)
    edge = edge_at(meter, 101.111)
    assert edge.until == pytest.approx(101.62)
    assert not sampled(lambda t: 1000 * t, averaged=True, seconds=0.9).ready
    assert sampled(lambda t: 1000 * t, averaged=True, seconds=1.1).ready


def test_power_is_refreshed_less_often_than_it_is_read() -> None:
    """The refresh period of sampled power is that of the driver's figure, not of our reading."""
    meter = sampled(lambda t: 50_000 + 1000 * (int(t / 0.1) % 7), seconds=4.0)
    assert meter.refresh_s == pytest.approx(0.1, abs=0.021)
    assert not sampled(lambda t: 50_000 + int(t / 0.1), seconds=0.5).ready


def test_power_that_does_not_change() -> None:
    """A power reading that stays the same to the milliwatt for seconds of work is stuck, and never tells a period."""
    meter = sampled(lambda t: 50_000, seconds=STUCK_S - 0.1)
    meter.check()
    assert not meter.ready and meter.refresh_s is None
    with pytest.raises(NvmlError, match="the power reading does not change") as failure:
        sampled(lambda t: 50_000, seconds=STUCK_S + 0.1).check()
    assert failure.value.energy_code == "COUNTER_STUCK"


def test_a_power_of_zero() -> None:
    """No GPU that works takes no power: such a reading is none."""
    with pytest.raises(NvmlError, match="the driver states no power") as caught:
        sampled(lambda t: 0)
    assert caught.value.energy_code == "NOT_SUPPORTED"


def test_the_thread_reads_until_the_end(stub: Stub) -> None:
    """A meter reads by itself, once more at its end, and tells what went wrong meanwhile."""
    stub.set(refresh_ms=1)
    device = choose_gpu().device
    with CounterMeter(device.energy) as meter:
        deadline = time.monotonic() + PATIENCE
        while not meter.ready:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        meter.check()
    stub.set({"return.nvmlDeviceGetTotalEnergyConsumption": 999})
    with CounterMeter(device.energy) as meter:
        pass
    assert meter.failure is not None
    with pytest.raises(NvmlError, match="the total-energy counter: the driver reports an unknown error"):
        meter.check()


def test_the_best_meter_is_taken(stub: Stub) -> None:
    """The counter, else instantaneous power, else power that is averaged by some architectures, else none."""
    device = choose_gpu().device
    kinds = []
    for change in (
        {},
        {"return.nvmlDeviceGetTotalEnergyConsumption": 3},
        {"instant_result": 3},
        {"architecture": 6},
    ):
        stub.set(dict(change))
        meter = meter_of(device)
        kinds.append((meter.method, meter.averaged))
    assert kinds == [(COUNTER, None), (SAMPLED, False), (SAMPLED, True), (SAMPLED, False)]
    stub.set({"power_mw": 0})
    with pytest.raises(NvmlError, match="neither an energy counter nor a power reading"):
        meter_of(device)
    stub.set({"return.nvmlDeviceGetPowerUsage": 3})
    with pytest.raises(NvmlError, match="neither an energy counter nor a power reading") as caught:
        meter_of(device)
    assert caught.value.energy_code == "NOT_SUPPORTED"


@pytest.mark.parametrize("function", ["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"])
def test_another_failure_is_no_reason_to_take_the_next_meter(stub: Stub, function: str) -> None:
    """A counter that may not be read is not replaced by something worse in silence."""
    if function.endswith("Usage"):
        stub.set({"return.nvmlDeviceGetTotalEnergyConsumption": 3, "instant_result": 3})
    stub.set({f"return.{function}": 4})
    with pytest.raises(NvmlError) as caught:
        meter_of(choose_gpu().device)
    assert caught.value.energy_code == "NO_PERMISSION"
