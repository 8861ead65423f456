"""Tests of `agent.energy`: the stub replays a known power, so joules are known, and each rule has a run that breaks it.

What a tower can meet is measured in a process of its own, in which pynvml finds the stub library by its name; rarer
things in this one. Blocks are pauses, so that processes that measure side by side do not disturb each other: the long
ones are started together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from agent import gpu, meters
from agent.energy import (
    WORST,
    OutOfTime,
    Recorded,
    Window,
    measure_energy,
    measured,
    probe,
    refresh_period,
    unavailable,
    window_seconds,
)
from agent.gpu import choose_gpu
from agent.meters import Meter, Method
from agent.nvml import NvmlDevice
from shared import labels
from shared.checks_energy import check_energy
from shared.schemas import Energy, Measurement
from tests.agent.nvml_stub.child import carry_out
from tests.agent.nvml_stub.stub import Stub
from tests.shared.build import example_measurement

ENERGY: TypeAdapter[Any] = TypeAdapter(Energy)
VARYING = {"power_mw": 90_000, "amplitude_mw": 45_000, "period_ms": 730}

# The real defaults once; elsewhere fewer pairs, which the shared checks allow too.
ACCURACY: dict[str, tuple[dict[str, float | str], dict[str, Any]]] = {
    "constant, 20 ms": ({"power_mw": 120_000, "refresh_ms": 20}, {"pairs": 4}),
    "varying, 20 ms": ({**VARYING, "refresh_ms": 20}, {}),
    "constant, 100 ms": ({"power_mw": 120_000, "refresh_ms": 100}, {"pairs": 4}),
    "varying, 100 ms": ({**VARYING, "refresh_ms": 100}, {"pairs": 4}),
    "instantaneous power": (
        {**VARYING, "return.nvmlDeviceGetTotalEnergyConsumption": 3},
        {"pairs": 2},
    ),
    "averaged power": (  # the mean of a second cannot follow power that varies more in less
        {
            **VARYING,
            "amplitude_mw": 15_000,
            "return.nvmlDeviceGetTotalEnergyConsumption": 3,
            "instant_result": 3,
        },
        {"pairs": 2},
    ),
}
BRIEF = {"pairs": 2, "window_s": 0.2, "worst": 0.5, "speculative_s": 0.05, "target_only_s": 0.05}
SAMPLED = ("instantaneous power", "averaged power")


@pytest.fixture(scope="module")
def accurate(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[Stub, Future[dict[str, Any]]]]]:
    """The measurements of `ACCURACY`, under way side by side."""
    with ThreadPoolExecutor(len(ACCURACY)) as pool:
        begun = {}
        for name, (keys, task) in ACCURACY.items():
            stub = Stub(tmp_path_factory.mktemp("energy"))
            stub.set(keys)
            begun[name] = stub, pool.submit(stub.meter, idle=[11.5, 30.0], **task)
        yield begun


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    """The stub, for processes of their own."""
    return Stub(tmp_path, refresh_ms=5)


@pytest.fixture
def here(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The stub, in use in this process."""
    stub.here(monkeypatch)
    gpu.close()
    yield stub
    gpu.close()


def on_gpu() -> Measurement:
    """A measurement of a pair that is on a GPU."""
    measurement = example_measurement()
    measurement["engine"]["gpu_layers"] = 33
    return Measurement.model_validate(measurement)


def brief(stub: Stub, **task: Any) -> dict[str, Any]:
    """A measurement in a process of its own, its windows too short for a receipt, for what is not about accuracy."""
    return stub.meter(**{**BRIEF, "keys": stub.keys, **task})


def brief_here(stub: Stub, **task: Any) -> dict[str, Any]:
    """The same in this process."""
    gpu.close()
    return carry_out({**BRIEF, "keys": stub.keys, **task})


def code(report: dict[str, Any]) -> str:
    """The code of an energy that is not there; its form is right, and it has a sentence."""
    energy = report["energy"]
    assert ENERGY.validate_python(energy).model_dump(mode="json") == energy
    assert (
        energy["label"] == "UNAVAILABLE"
        and energy["code"] in labels.ENERGY_CODES
        and len(energy["reason"]) > 15
    )
    return str(energy["code"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCURACY)
def test_joules_are_right(name: str, accurate: dict[str, tuple[Stub, Future[dict[str, Any]]]]) -> None:
    """Under constant and varying power, at any refresh and by either meter, joules are right to 1 %.

    They are compared with the integral of the stub's power over the very windows that were metered; and what is
    reported passes every check that edge and verifier make of it.
    """
    stub, future = accurate[name]
    report = future.result()
    energy = report["energy"]
    assert energy["label"] == "MEASURED", energy
    for mode in ("speculative", "target_only"):
        windows = [window for window in report["windows"] if window[0] == mode]
        exact = sum(stub.joules(began, ended) for _, began, ended, _, _ in windows)
        assert sum(joules for *_, joules, _ in windows) == pytest.approx(exact, rel=0.01)
        tokens = sum(window["tokens"] for window in energy["windows"] if window["mode"] == mode)
        assert energy["joules_per_token"][mode] == pytest.approx(exact / tokens, rel=0.01)
    for _, began, ended, joules, doubt in report["windows"]:
        exact = stub.joules(began, ended)
        assert joules == pytest.approx(exact, rel=WORST)
        assert doubt is None or abs(joules - exact) <= doubt
    assert energy["method"] == ("sampled_power" if name in SAMPLED else "total_energy_counter")
    assert report["probe"]["method"] == energy["method"] and report["probe"]["code"] == "PER_RUN"
    assert ("for want of an energy counter" in report["probe"]["reason"]) == (name in SAMPLED)
    assert energy["averaged"] is {"instantaneous power": False, "averaged power": True}.get(name)
    assert (energy["idle_watts"], energy["idle_seconds"], energy["power_limit_watts"]) == (11.5, 30.0, 165.0)
    assert energy["gpu"]["driver"] == "550.54.14" and energy["scope"] == labels.ENERGY_SCOPE
    assert ENERGY.validate_python(energy).model_dump(mode="json") == energy
    assert check_energy(ENERGY.validate_python(energy), on_gpu()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCURACY)
def test_windows_are_long_enough(name: str, accurate: dict[str, tuple[Stub, Future[dict[str, Any]]]]) -> None:
    """Windows last a second and 20 refresh periods, or 5 s of sampled power, and alternate A B B A."""
    energy = accurate[name][1].result()["energy"]
    refresh = ACCURACY[name][0].get("refresh_ms")
    if refresh is not None:
        assert energy["refresh_s"] == pytest.approx(float(refresh) / 1000, rel=0.1)
        assert 0 < energy["edge_error"] <= WORST
    else:
        assert energy["edge_error"] is None
    least = 5.0 if refresh is None else max(1.0, 20 * energy["refresh_s"])
    assert all(window["seconds"] >= least for window in energy["windows"])
    order = [window["mode"][0] for window in energy["windows"]]
    assert all(set(pair) == {"s", "t"} for pair in zip(order[::2], order[1::2], strict=True))
    pairs = ACCURACY[name][1].get("pairs", 6)
    if len(order) == 2 * pairs:  # none was left out
        assert "".join(order) == ("sttsstts" * 2)[: 2 * pairs]
    assert (energy["ratio"]["ci95"] is not None) == (energy["ratio"]["pairs"] >= 6)


def test_real_decoding(stub: Stub) -> None:
    """With the embedded pair decoding in Python beside it, the meter still reads often enough for 1 %."""
    stub.set(refresh_ms=20)
    report = stub.meter(real=True, pairs=3, worst=0.1)
    assert report["energy"]["label"] == "MEASURED", report["energy"]
    exact = sum(stub.joules(began, ended) for _, began, ended, _, _ in report["windows"])
    assert sum(joules for *_, joules, _ in report["windows"]) == pytest.approx(exact, rel=0.01)


def test_measured(here: Stub) -> None:
    """Joules per token are all joules by all tokens; the ratio is the median over pairs, with few pairs no interval."""
    ways = ("speculative", "target_only", "target_only", "speculative")
    joules, tokens = (10.0, 24.0, 18.0, 30.0), (5, 6, 6, 10)
    windows = [
        Window(way, i, i + 2.0, count, energy, energy / 100)
        for i, (way, energy, count) in enumerate(zip(ways, joules, tokens, strict=True))
    ]
    made = measured(
        Recorded(windows, "total_energy_counter", None, 0.1, None, {"uuid": "GPU-1", "name": "n"})
    )
    assert made["joules_per_token"] == {"speculative": 40 / 15, "target_only": 42 / 12}
    assert made["ratio"] == {"median": (4 / 2 + 3 / 3) / 2, "ci95": None, "pairs": 2}
    assert made["edge_error"] == pytest.approx(0.01) and made["idle_watts"] is None
    three = measured(
        Recorded(windows * 3, "total_energy_counter", None, 0.1, None, {"uuid": "GPU-1", "name": "n"})
    )
    assert three["ratio"] == {"median": 1.5, "ci95": [1.0, 2.0], "pairs": 6}


def test_no_permission(stub: Stub) -> None:
    """A driver that lets nobody in, or does not let anyone read the counter, gives NO_PERMISSION before and in runs."""
    for function in ("nvmlInitWithFlags", "nvmlDeviceGetTotalEnergyConsumption"):
        stub.keys.clear()
        stub.set({f"return.{function}": 4})
        report = brief(stub)
        assert code(report) == report["probe"]["code"] == "NO_PERMISSION"
        assert "may not read it" in report["energy"]["reason"]
        assert report["blocks"] == 0


def test_nothing_to_read(stub: Stub) -> None:
    """A GPU with neither counter nor power gives NOT_SUPPORTED, before any block is decoded."""
    stub.set(
        {f"return.nvmlDeviceGet{name}": 3 for name in ("TotalEnergyConsumption", "PowerUsage", "FieldValues")}
    )
    report = brief(stub)
    assert code(report) == report["probe"]["code"] == "NOT_SUPPORTED"
    assert report["energy"]["reason"] == "this GPU has neither an energy counter nor a power reading"
    assert report["blocks"] == 0


def test_probe(here: Stub) -> None:
    """Before any run energy is UNAVAILABLE: not yet, by which meter, or why it will stay so."""
    told = probe(choose_gpu())
    assert (told["label"], told["code"], told["method"]) == ("UNAVAILABLE", "PER_RUN", "total_energy_counter")
    assert ENERGY.validate_python(told).model_dump(mode="json") == told
    assert probe(None) == unavailable("NO_GPU", "the GPU that decodes is not among those that NVML knows")
    here.set(mig=1)
    assert probe(choose_gpu())["code"] == "NOT_SUPPORTED"
    here.set({"mig": 0, "return.nvmlDeviceGetComputeRunningProcesses_v3": 4})
    assert probe(choose_gpu())["code"] == "NO_PERMISSION"
    here.set(count=0)
    assert probe(None) == unavailable("NO_GPU", "there is no NVIDIA GPU")
    assert measure_energy(None, lambda: 1, lambda: 1, own_pids=()) == probe(None)


def test_the_refresh_period_of_a_gpu(here: Stub) -> None:
    """An operator is told how often the counter is refreshed; nothing where there is none or it stands still."""
    assert refresh_period(choose_gpu()) == pytest.approx(0.005, rel=0.3)
    here.set(stuck_at_mj=5)
    assert refresh_period(choose_gpu(), patience_s=0.05) is None
    here.set({"return.nvmlDeviceGetTotalEnergyConsumption": 3})
    assert refresh_period(choose_gpu()) is None


def test_a_counter_that_never_changes(here: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that stands still from the beginning is found before any window."""
    monkeypatch.setattr(meters, "STUCK_S", 0.2)
    here.set(stuck_at_mj=123_456)
    report = brief_here(here)
    assert code(report) == "COUNTER_STUCK"
    assert report["windows"] == []


# What changes before the 12th block: after the first pair of windows, before the last.
MIDWAY: dict[str, tuple[dict[str, float | str], str]] = {
    "the counter stops": ({"stuck_at_mj": 10**15}, "COUNTER_STUCK"),
    "the counter goes back": ({"back_mj": 1_000_000}, "COUNTER_WENT_BACK"),
    "the GPU is lost": ({"lost": 1}, "GPU_LOST"),
    "another program comes": ({"compute_pids": "self,31337"}, "FOREIGN_PROCESS"),
}
RARELY: dict[str, tuple[dict[str, float | str], str]] = {
    "the counter is reset": ({"stuck_at_mj": 0}, "COUNTER_WENT_BACK"),
    "the GPU needs a reset": ({"return.nvmlDeviceGetTotalEnergyConsumption": 16}, "GPU_LOST"),
    "the driver fails": ({"return.nvmlDeviceGetTotalEnergyConsumption": 999}, "NVML_ERROR"),
    "the GPU is another": ({"uuid": "GPU-11111111-2222-3333-4444-555555555555"}, "GPU_CHANGED"),
    "the driver is another": ({"driver": "570.1"}, "GPU_CHANGED"),
    "the GPU is partitioned": ({"mig": 1}, "NOT_SUPPORTED"),
    "processes are no longer told": (
        {f"return.nvmlDeviceGetComputeRunningProcesses_v{version}": 3 for version in (2, 3)},
        "NOT_SUPPORTED",
    ),
}


@pytest.mark.parametrize("name", MIDWAY)
def test_what_happens_midway(stub: Stub, name: str) -> None:
    """Whatever breaks a rule midway makes energy UNAVAILABLE with its code; the process goes on and ends well."""
    change, expected = MIDWAY[name]
    report = brief(stub, changes={"12": change})
    assert code(report) == expected
    assert report["blocks"] >= 12 and report["windows"] == []


@pytest.mark.parametrize("name", RARELY)
def test_what_rarely_happens_midway(here: Stub, name: str) -> None:
    """The same of what few towers will ever meet."""
    change, expected = RARELY[name]
    report = brief_here(here, changes={"12": change})
    assert code(report) == expected
    assert report["blocks"] >= 12 and report["windows"] == []


def test_a_lost_gpu_ends_the_measurement(stub: Stub) -> None:
    """Once the GPU is lost no further window is made; the watch over the run says so, too."""
    stub.set(lost_after_calls=60)
    report = brief(stub, pairs=60)
    assert code(report) == "GPU_LOST" and report["blocks"] < 100
    assert report["reasons"] == [labels.GPU_UNWATCHED] and report["gpu"]["trouble"] == "GPU_LOST"


@pytest.mark.parametrize("pids", ["self,31337", "31337"])
def test_a_foreign_process_from_the_beginning(here: Stub, pids: str) -> None:
    """Beside another program nothing is metered, and no time is lost with it; its id is told to nobody."""
    here.set(compute_pids=pids)
    report = brief_here(here)
    assert code(report) == "FOREIGN_PROCESS" and report["blocks"] == 1
    assert report["reasons"] == [labels.GPU_SHARED] and report["gpu"]["foreign_processes"] == 1
    assert "31337" not in str(report)


def test_a_foreign_process_that_draws(here: Stub) -> None:
    """A desktop on the same GPU is counted, and is no reason for doubt."""
    here.set(graphics_pids="31337")
    report = brief_here(here)
    assert report["energy"]["label"] == "MEASURED" and report["reasons"] == []
    assert report["gpu"]["before"]["graphics_processes"] == 1


def test_our_own_process_must_be_seen(here: Stub) -> None:
    """A list that does not even hold our own process proves nothing about others."""
    here.set(compute_pids="")
    report = brief_here(here)
    assert code(report) == "NOT_SUPPORTED" and "lacks the agent's own" in report["energy"]["reason"]


def test_a_pair_on_several_gpus(here: Stub) -> None:
    """Where our process is on a second GPU, the meter of one does not tell the energy of both."""
    here.set({"count": 2, "memory.1": 5, "compute_pids.1": "self"})
    report = brief_here(here)
    assert code(report) == "NOT_SUPPORTED" and "several GPUs" in report["energy"]["reason"]
    here.set({"compute_pids.1": "31337"})
    assert brief_here(here)["energy"]["label"] == "MEASURED"


def test_more_power_than_there_can_be(here: Stub) -> None:
    """A mean power of more than the limit in force and a tenth is a fault of the meter; less than that is not."""
    here.set(power_mw=120_000, limit_mw=106_000)
    assert code(brief_here(here)) == "OVER_POWER_LIMIT"
    here.set(limit_mw=113_000)
    assert brief_here(here)["energy"]["power_limit_watts"] == 113
    here.set({"return.nvmlDeviceGetEnforcedPowerLimit": 3})
    assert brief_here(here)["energy"]["power_limit_watts"] is None


def test_throttled_by_heat(stub: Stub) -> None:
    """A GPU that slows down against heat is metered all the same, and the verdict on the run says what happened."""
    stub.set(events="0x40")
    report = brief(stub)
    assert report["energy"]["label"] == "MEASURED"
    assert report["reasons"] == [labels.GPU_THROTTLED]
    assert report["gpu"]["events"] == ["hw_thermal"]


LONG = {"speculative_s": 0.21, "target_only_s": 0.21}  # each block fills a window


@pytest.mark.parametrize("how", ["blocks", "raises_at"])
def test_time_runs_out(here: Stub, how: str) -> None:
    """What was metered until time ran out counts, asked between blocks or told by one: two pairs, or TOO_SHORT."""
    assert code(brief_here(here, **{how: 0})) == "TOO_SHORT"
    assert brief_here(here, **LONG, pairs=3, **{how: 1 + 5})["energy"]["ratio"]["pairs"] == 2
    assert code(brief_here(here, **LONG, **{how: 1 + 3})) == "TOO_SHORT"


def test_a_long_measurement_is_cut(here: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where blocks are long, two pairs must do: no run is kept waiting for an interval."""
    monkeypatch.setattr("agent.energy.LONGEST_S", 0.3)
    assert brief_here(here, pairs=9)["energy"]["ratio"]["pairs"] == 2


def test_no_window_ends_in_an_idle_gpu(here: Stub) -> None:
    """A window that ends with the last block does not count: nothing was read after it while the GPU was busy."""
    assert code(brief_here(here, **LONG, blocks=1 + 4)) == "TOO_SHORT"
    assert code(brief_here(here, **LONG, raises_at=1 + 4, raises_after_s=0.1)) == "TOO_SHORT"
    whole = brief_here(here, **LONG)
    assert whole["blocks"] == 1 + 4 + 1 and whole["energy"]["ratio"]["pairs"] == 2


@pytest.mark.parametrize(("worst", "label"), [(0.05, "UNAVAILABLE"), (5.0, "MEASURED")])
def test_a_window_with_doubtful_ends(
    here: Stub, monkeypatch: pytest.MonkeyPatch, worst: float, label: str
) -> None:
    """A window whose ends are not known well does not count, as where the driver is slow to answer for a while."""
    read, blocks, made = NvmlDevice.energy, iter(range(1000)), 0

    def slowly(device: NvmlDevice) -> int:
        if made > 8:
            time.sleep(0.1)
        return read(device)

    def block() -> int:
        nonlocal made
        made = next(blocks)
        time.sleep(0.05)
        return 1

    monkeypatch.setattr(NvmlDevice, "energy", slowly)
    monkeypatch.setattr("agent.energy.WORST", worst)
    told = measure_energy(choose_gpu(), block, block, own_pids={os.getpid()}, pairs=2, window_s=0.2)
    assert told["label"] == label, told


@pytest.mark.parametrize(
    ("kind", "refresh_s", "doubt_s", "least_s"),
    [
        ("total_energy_counter", None, 0.0, 1.0),
        ("total_energy_counter", 0.02, 0.0035, 1.0),
        ("total_energy_counter", 0.1, 0.0135, 2.2),
        ("total_energy_counter", 0.02, 0.02, 3.0),
        ("sampled_power", 0.02, 0.0, 5.0),
        ("sampled_power", 0.5, 0.0, 11.0),
    ],
)
def test_window_lengths(kind: Method, refresh_s: float | None, doubt_s: float, least_s: float) -> None:
    """A window lasts 1 s, or 5 s of sampled power, or longer for a slow counter or a driver that is slow to answer."""
    assert window_seconds(Known(kind, refresh_s, doubt_s)) == pytest.approx(least_s)
    assert window_seconds(Known(kind, None, 0.0), 0.25) == 0.25


class Known(Meter):
    """A meter that is known already."""

    def __init__(self, method: Method, refresh_s: float | None, doubt_s: float) -> None:
        """Keep what is known."""
        super().__init__(0.0, lambda: 0.0)
        self.method = method
        self._known = refresh_s, doubt_s

    @property
    def refresh_s(self) -> float | None:
        """Seconds between two refreshes."""
        return self._known[0]

    @property
    def doubt_s(self) -> float:
        """What an edge is usually wrong by."""
        return self._known[1]


def test_what_a_block_raises_is_passed_on(here: Stub) -> None:
    """A run that is cancelled while its energy is metered is cancelled."""

    class Cancelled(Exception):
        pass

    def cancelled() -> int:
        raise Cancelled

    with pytest.raises(Cancelled):
        measure_energy(choose_gpu(), cancelled, lambda: 1, own_pids=())


def test_a_block_may_say_that_time_is_over(here: Stub) -> None:
    """The very first block included."""

    def over() -> int:
        raise OutOfTime

    assert measure_energy(choose_gpu(), over, over, own_pids=())["code"] in ("TOO_SHORT", "FOREIGN_PROCESS")
