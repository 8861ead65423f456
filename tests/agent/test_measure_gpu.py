"""Tests of `agent.measure` for a pair on a GPU: real decoding, metered by the real pynvml over a stub of known power.

The decoding itself is the processor's, as there is no GPU; nothing here looks at where it happens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from agent import gpu, measure
from agent.decode import CacheError
from agent.device import Device
from agent.energy import measure_energy
from agent.errors import Cancelled
from agent.gpu import choose_gpu
from agent.measure import LoadedPair, RunOutcome, load_pair, run
from agent.pairs import choose_pair
from shared import labels
from shared.checks import check_measurement
from shared.checks_energy import check_energy
from shared.schemas import Energy, Measurement, RunRequest
from tests.agent.nvml_stub.stub import Stub

ENERGY: TypeAdapter[Any] = TypeAdapter(Energy)
WATTS = 120.0


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A GPU that takes 120 W, in use in this process; few windows and few pairs, to be quick."""
    it = Stub(tmp_path, refresh_ms=20, power_mw=1000 * WATTS)
    it.here(monkeypatch)
    gpu.close()
    monkeypatch.setattr(measure, "TIMING_S", 0.0)
    monkeypatch.setattr(measure, "measure_energy", functools.partial(measure_energy, pairs=2))
    yield it
    gpu.close()


@pytest.fixture
def pair(stub: Stub) -> Iterator[LoadedPair]:
    """The embedded pair, said to be on that GPU with all layers."""
    it = load_pair(choose_pair(embedded=True), n_ctx=256, threads=1)
    it.device = Device("gpu", "for the test", choose_gpu().uuid)
    for weights in (it.draft_weights, it.target_weights):
        weights.offloaded = (12, 12)
    yield it
    it.close()


REQUEST = RunRequest(prompt="And it came to pass", n=12, ignore_eos=True).model_dump()


def parts(outcome: RunOutcome) -> tuple[Measurement, Any]:
    """The measurement and the energy, both of the right form and free of contradictions."""
    measurement = Measurement.model_validate(outcome.measurement)
    energy = ENERGY.validate_python(outcome.energy)
    assert check_measurement(measurement) == [] and check_energy(energy, measurement) == []
    return measurement, energy


@pytest.mark.slow
def test_joules_per_token(pair: LoadedPair) -> None:
    """Energy is the known power times the seconds of each window, and the run says which GPU it was."""
    measurement, energy = parts(run(pair, REQUEST, idle=(18.0, 30.0)))
    assert energy.label == labels.MEASURED and energy.method == "total_energy_counter"
    for window in energy.windows:
        assert window.joules == pytest.approx(WATTS * window.seconds, rel=0.01)
    for mode in ("speculative", "target_only"):
        windows = [window for window in energy.windows if window.mode == mode]
        seconds, tokens = sum(w.seconds for w in windows), sum(w.tokens for w in windows)
        assert getattr(energy.joules_per_token, mode) == pytest.approx(WATTS * seconds / tokens, rel=0.01)
    assert all(window.tokens % measurement.emitted == 0 for window in energy.windows)
    assert energy.idle_watts == 18.0
    assert measurement.gpu is not None and energy.gpu is not None
    assert measurement.gpu.uuid == energy.gpu.uuid == pair.device.uuid
    assert measurement.gpu.own_process_seen and measurement.gpu.foreign_processes == 0
    assert not set(measurement.verdict.reasons) & {
        labels.GPU_THROTTLED,
        labels.GPU_SHARED,
        labels.GPU_UNWATCHED,
    }


def test_another_program(pair: LoadedPair, stub: Stub) -> None:
    """Beside another program nothing is metered, and the verdict says why the run is not valid."""
    stub.set(compute_pids="self,31337")
    measurement, energy = parts(run(pair, REQUEST))
    assert (energy.label, energy.code) == ("UNAVAILABLE", "FOREIGN_PROCESS")
    assert labels.GPU_SHARED in measurement.verdict.reasons and not measurement.verdict.valid
    assert measurement.speedup != labels.UNAVAILABLE


def test_lost_gpu(pair: LoadedPair, stub: Stub) -> None:
    """A GPU whose driver no longer answers costs the energy, not the run; the verdict says that nobody watched."""

    def lose(phase: str, done: int, total: int) -> None:
        if phase == "metering":
            stub.set(lost=1)

    measurement, energy = parts(run(pair, REQUEST, on_progress=lose))
    assert (energy.label, energy.code) == ("UNAVAILABLE", "GPU_LOST")
    assert measurement.n == REQUEST["n"]
    assert labels.GPU_UNWATCHED in measurement.verdict.reasons


def test_throttled(pair: LoadedPair, stub: Stub) -> None:
    """A GPU that slows itself down against heat is metered, and its run is not valid."""
    stub.set(events=0x40)
    measurement, energy = parts(run(pair, REQUEST))
    assert energy.label == labels.MEASURED
    assert labels.GPU_THROTTLED in measurement.verdict.reasons and not measurement.verdict.valid


def test_repeats_that_differ(pair: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where repeats of a generation differ, no two windows would compare, so there is no energy."""
    real = measure._Run._again

    def other(self: Any, first: Any, timed: Any, calibration: Any) -> float:
        seconds = real(self, first, timed, calibration)
        timed.repeatable = False
        return seconds

    monkeypatch.setattr(measure._Run, "_again", other)
    measurement, energy = parts(run(pair, REQUEST))
    assert (energy.label, energy.code) == ("UNAVAILABLE", "NOT_REPEATABLE")
    assert labels.REPEATS_DIFFER in measurement.verdict.reasons


def test_deadline_while_metering(pair: LoadedPair) -> None:
    """Time that runs out while metering costs the energy alone."""
    late: list[float] = []

    def slow(phase: str, done: int, total: int) -> None:
        if phase == "metering" and not late:
            late.append(1.0)
            it.deadline = 0.0

    it = measure._Run(pair, REQUEST, slow, lambda: None, float("inf"))
    measurement, energy = parts(it.outcome(None))
    assert (energy.label, energy.code) == ("UNAVAILABLE", "TOO_SHORT")
    assert late and measurement.speedup != labels.UNAVAILABLE


def test_decoding_that_fails_while_metering(pair: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode that fails while it is metered costs the energy alone."""
    phases: list[str] = []

    real = pair.target.forward

    def forward(tokens: Any, rows: int) -> Any:
        if "metering" in phases:
            raise CacheError("llama.cpp could not decode 5 tokens after 17 (code -3)")
        return real(tokens, rows)

    monkeypatch.setattr(pair.target, "forward", forward)
    outcome = run(pair, REQUEST, on_progress=lambda phase, done, total: phases.append(phase))
    measurement, energy = parts(outcome)
    assert (energy.label, energy.code) == ("UNAVAILABLE", "DECODE_FAILED")
    assert measurement.speedup != labels.UNAVAILABLE


def test_cancel_while_metering(pair: LoadedPair) -> None:
    """A run that is cancelled while it is metered is cancelled."""
    phases: list[str] = []
    with pytest.raises(Cancelled):
        run(
            pair,
            REQUEST,
            on_progress=lambda phase, done, total: phases.append(phase),
            should_stop=lambda: "cancelled" if "metering" in phases else None,
        )
    assert phases[-1] == "metering"


def test_processor(stub: Stub, pair: LoadedPair) -> None:
    """A run on the processor has no energy, whatever a GPU's meter says, and no GPU in its measurement."""
    pair.device = Device("cpu", "the operator chose the processor")
    for weights in (pair.draft_weights, pair.target_weights):
        weights.offloaded = None
    measurement, energy = parts(run(pair, REQUEST))
    assert (energy.label, energy.code) == ("UNAVAILABLE", "ON_CPU")
    assert measurement.gpu is None
