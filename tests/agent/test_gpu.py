"""Tests of `agent.gpu`: which GPU it is, what state it is in, and what a watch over it sees."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import gpu
from agent.gpu import Gpu, GpuWatch, choose_gpu, event_words, find_gpu, list_gpus
from agent.nvml import NvmlError
from shared import labels
from shared.schemas import GpuWatched
from tests.agent.nvml_stub.stub import Stub
from tests.agent.support import PATIENCE

OWN = {os.getpid()}


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The stub, in use in this process."""
    made = Stub(tmp_path)
    made.here(monkeypatch)
    gpu.close()
    yield made
    gpu.close()


def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_choice(stub: Stub) -> None:
    """A GPU is chosen by UUID, in any case, or by index; else the one with most memory, the first of equals."""
    stub.set({"count": 3, "memory": 8, "memory.1": 16, "memory.2": 16, "memory_used": 0, "uuid.2": "GPU-ab"})
    assert [(each.index, each.memory_total) for each in list_gpus()] == [(0, 8), (1, 16), (2, 16)]
    assert choose_gpu().index == 1
    assert choose_gpu("2").index == choose_gpu("GPU-AB").index == choose_gpu("gpu-ab").index == 2
    assert choose_gpu("0").uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert (find_gpu("3").code, find_gpu("3").reason) == ("NO_GPU", "no GPU has this UUID or index")


def test_no_gpu(stub: Stub) -> None:
    """A machine whose driver knows no GPU has none."""
    stub.set(count=0)
    assert (find_gpu().gpu, find_gpu().code, find_gpu().reason) == (
        None,
        "NO_GPU",
        "there is no NVIDIA GPU",
    )
    with pytest.raises(NvmlError):
        choose_gpu()


def test_a_lost_gpu_hides_no_other(stub: Stub) -> None:
    """A GPU that cannot be reached is left out; where it is the only one, the reason is its own."""
    stub.set({"count": 2, "unreachable": 1})
    assert [each.index for each in list_gpus()] == [1]
    stub.set({"unreachable.1": 1})
    assert (find_gpu().code, find_gpu().reason) == (
        "GPU_LOST",
        "the GPU: the GPU has fallen off the bus or cannot be reached",
    )


def test_nvml_is_opened_anew_after_a_failure(stub: Stub) -> None:
    """A driver that was away for a while is found again without a restart."""
    assert find_gpu().gpu
    stub.set({"return.nvmlDeviceGetCount_v2": 999})
    assert find_gpu().code == "NVML_ERROR"
    stub.set({"return.nvmlDeviceGetCount_v2": 0, "return.nvmlInitWithFlags": 9})
    assert find_gpu().code == "NO_GPU", "it was not opened anew"
    stub.set({"return.nvmlInitWithFlags": 0})
    assert find_gpu().gpu


def test_state(stub: Stub) -> None:
    """A state holds clocks, temperature, power, memory, what holds clocks down, and counts of processes."""
    stub.set(
        memory=1000, memory_used=300, events="0x44", compute_pids="1,2", graphics_pids="3", limit_mw=120_500
    )
    state = choose_gpu().state()
    assert (state.sm_clock_mhz, state.memory_clock_mhz, state.p_state, state.temperature_c) == (
        2535,
        9001,
        2,
        61,
    )
    assert state.power_watts == pytest.approx(100, abs=0.01) and state.power_limit_watts == 120.5
    assert (state.memory_used, state.memory_free) == (300, 700)
    assert state.events == ["power_cap", "hw_thermal"]
    assert (state.compute_processes, state.graphics_processes) == (2, 1)


def test_a_gpu_that_says_little(stub: Stub) -> None:
    """Whatever a GPU does not say is None, a power of zero included; without memory of its own it has 0 bytes."""
    stub.set({f"return.nvmlDeviceGet{name}": 3 for name in SAID}, power_mw=0, limit_mw=0)
    device = choose_gpu()
    assert (device.name, device.memory_total, device.memory_free()) == (device.uuid, 0, None)
    state = vars(device.state())
    assert all(value is None for value in state.values()), state
    facts = device.facts()
    assert {name for name, value in facts.items() if value is not None} == {
        "uuid",
        "name",
        "index",
        "driver",
        "nvml",
    }
    assert device.describe() == f"{device.uuid}, driver 550.54.14"


SAID = (
    *("Name", "MemoryInfo", "ClockInfo", "PerformanceState", "Temperature", "CurrentClocksEventReasons"),
    *("CurrentClocksThrottleReasons", "ComputeRunningProcesses_v3", "ComputeRunningProcesses_v2"),
    *("GraphicsRunningProcesses_v3", "GraphicsRunningProcesses_v2", "VbiosVersion", "Architecture"),
    *("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "PersistenceMode", "ComputeMode"),
    "PowerManagementDefaultLimit",
)


def test_description(stub: Stub) -> None:
    """An operator gets one line, which says so once the GPU is lost; ids of processes are not in it."""
    stub.set(compute_pids="987654321", memory=16 * 2**30, memory_used=2**30)
    device = choose_gpu()
    assert device.describe() == (
        "NVIDIA GeForce RTX 4060 Ti, driver 550.54.14, 16,384 MiB, 15,360 MiB free, 165 W limit, "
        "61 degrees C, 1 compute processes"
    )
    stub.set(lost=1)
    assert device.describe().endswith(": the GPU has fallen off the bus or cannot be reached")
    assert device.memory_free() is None


def test_event_words() -> None:
    """Each bit of NVML's has a word, the schema knows all of them, and a bit of the future is "other"."""
    words = event_words(0x7FF)
    assert len(words) == 11 and "other" not in words
    assert event_words(0) == [] and event_words(1 << 20) == ["other"]
    GpuWatched.model_validate({"uuid": "GPU-1", "name": "n", "events": [*words, "other"]})
    assert set(words) > labels.THROTTLES and labels.POWER_CAP in words


def watched(stub: Stub, change: Callable[[], None] = lambda: None) -> GpuWatch:
    """A watch that is over, during which `change` was called."""
    with GpuWatch(choose_gpu(), OWN, every_s=0.002) as watch:
        change()
    return watch


def test_a_quiet_watch(stub: Stub) -> None:
    """A run that nothing disturbed gives a whole measurement of its GPU and no reason to doubt it."""
    stub.set(ecc=0, mig=0)
    watch = watched(stub)
    measured = watch.measurement()
    assert watch.reasons() == []
    assert GpuWatched.model_validate(measured).model_dump(mode="json") == measured
    assert (measured["driver"], measured["vbios"], measured["architecture"]) == (
        "550.54.14",
        "95.06.25.00.01",
        "Ada",
    )
    assert (measured["ecc"], measured["mig"]) == (False, False)
    assert measured["before"]["sm_clock_mhz"] == measured["after"]["sm_clock_mhz"] == 2535
    assert (measured["events"], measured["violation_power_ns"], measured["violation_thermal_ns"]) == (
        [],
        0,
        0,
    )
    assert (measured["own_process_seen"], measured["foreign_processes"], measured["trouble"]) == (
        True,
        0,
        None,
    )
    assert measured["samples"] >= 2
    with GpuWatch(choose_gpu(), OWN, every_s=10 * PATIENCE) as rarely:
        pass
    assert rarely.measurement()["samples"] == 2


@pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80])
def test_throttling_is_seen(stub: Stub, bit: int) -> None:
    """Heat, a power brake or a hardware slow-down that came and went between start and end is a reason for doubt."""
    watch = GpuWatch(choose_gpu(), OWN, every_s=0.002)
    with watch:
        stub.set(events=hex(bit))
        until(lambda: watch.measurement()["events"])
        stub.set(events="0x0")
    measured = watch.measurement()
    assert measured["events"] == event_words(bit)
    assert measured["before"]["events"] == measured["after"]["events"] == []
    assert watch.reasons() == [labels.GPU_THROTTLED]


@pytest.mark.parametrize("bit", [0x1, 0x2, 0x4, 0x10, 0x100])
def test_what_is_no_throttling(stub: Stub, bit: int) -> None:
    """The power cap, idling, sync boost and clocks that were set are recorded, and are no reason for doubt."""
    stub.set(events=hex(bit))
    watch = watched(stub)
    assert watch.measurement()["events"] == event_words(bit)
    assert watch.reasons() == []


def test_time_lost_to_heat(stub: Stub) -> None:
    """Heat that no look has seen is found in the driver's own sum; time lost to the power cap is only told."""
    stub.set(violation_power_ns=100, violation_thermal_ns=50)
    watch = watched(stub, lambda: stub.set(violation_power_ns=175))
    assert (watch.measurement()["violation_power_ns"], watch.measurement()["violation_thermal_ns"]) == (75, 0)
    assert watch.reasons() == []
    watch = watched(stub, lambda: stub.set(violation_thermal_ns=51))
    assert watch.measurement()["violation_thermal_ns"] == 1
    assert watch.reasons() == [labels.GPU_THROTTLED]
    stub.set({"return.nvmlDeviceGetViolationStatus": 3})
    assert watched(stub).measurement()["violation_thermal_ns"] is None


def test_foreign_processes_are_seen(stub: Stub) -> None:
    """A program that computed for a while is counted, once, and its id is told to nobody."""
    watch = GpuWatch(choose_gpu(), OWN, every_s=0.002)
    with watch:
        stub.set(compute_pids="self,987654321")
        until(lambda: watch.foreign)
        stub.set(compute_pids="self")
    measured = watch.measurement()
    assert measured["foreign_processes"] == 1 and measured["after"]["compute_processes"] == 1
    assert watch.foreign == {987654321} and "987654321" not in str(measured)
    assert watch.reasons() == [labels.GPU_SHARED]


def test_processes_that_are_not_told(stub: Stub) -> None:
    """Where NVML lists no processes, or not our own, the measurement does not say that there were no others."""
    stub.set(compute_pids="")
    assert watched(stub).measurement()["own_process_seen"] is False
    for version in ("_v2", "_v3"):
        stub.set({f"return.nvmlDeviceGetComputeRunningProcesses{version}": 3})
    measured = watched(stub).measurement()
    assert (measured["own_process_seen"], measured["foreign_processes"]) == (None, None)


def test_a_gpu_lost_while_watched(stub: Stub) -> None:
    """A GPU that is lost during a run ends the watch with a reason, keeps what was seen, and raises nothing."""
    watch = GpuWatch(choose_gpu(), OWN, every_s=0.002)
    with watch:
        stub.set(lost=1)
        until(lambda: watch.trouble)
    measured = watch.measurement()
    assert GpuWatched.model_validate(measured).model_dump(mode="json") == measured
    assert measured["trouble"] == "GPU_LOST" and measured["before"] and measured["after"] is None
    assert measured["violation_thermal_ns"] is None
    assert watch.reasons() == [labels.GPU_UNWATCHED]


def test_a_gpu_lost_before(stub: Stub) -> None:
    """A GPU that is lost already gives a measurement of its name and trouble alone."""
    device = choose_gpu()
    stub.set(lost=1)
    with GpuWatch(device, OWN) as watch:
        pass
    measured = watch.measurement()
    GpuWatched.model_validate(measured)
    assert (measured["uuid"], measured["name"], measured["before"]) == (device.uuid, device.name, None)
    assert watch.reasons() == [labels.GPU_UNWATCHED]


def test_equal_gpus(stub: Stub) -> None:
    """What is needed of a GPU to tell it from others is read once."""
    device: Gpu = choose_gpu()
    stub.set(name="another")
    assert device.name == "NVIDIA GeForce RTX 4060 Ti"
