"""Whether an energy follows from its own windows, and whether a verdict says what happened to the GPU."""

from __future__ import annotations

import math
import statistics
from typing import Final

from shared import labels
from shared.closeness import close
from shared.estimators import median_interval
from shared.schemas import (
    EnergyMeasured,
    EnergyRatio,
    EnergyUnavailable,
    EnergyWindow,
    GpuWatched,
    Measurement,
)

WINDOW_S: Final = 1.0
POWER_WINDOW_S: Final = 5.0
"""Least seconds of a window, by the energy counter and by sampled power, which may be the mean of a second."""

REFRESHES: Final = 20
"""... and least number of the meter's refresh periods in one."""

OVER_LIMIT: Final = 1.1
"""A window's mean power may exceed the limit in force by this factor: sensors are good to some 5 %."""

MIN_WINDOW_PAIRS: Final = 2
"""Fewest pairs of windows, one of each way: with one alone, whatever drifts would count for the second."""


def check_energy(energy: EnergyMeasured | EnergyUnavailable, measurement: Measurement) -> list[str]:
    """Check an energy against its windows and against the measurement beside it.

    Args:
        energy: The energy, as a model; one that is UNAVAILABLE has nothing to check.
        measurement: The measurement of the same run.

    Returns:
        One sentence per contradiction, each starting with the field's name; empty when everything fits. An energy
        that gives no windows at all, as the shortest form does, is believed.
    """
    if not isinstance(energy, EnergyMeasured):
        return []
    findings = []
    if measurement.engine.gpu_layers == 0:
        findings.append("label is MEASURED, yet nothing of the models was on a GPU")
    if energy.gpu and measurement.gpu and energy.gpu.uuid != measurement.gpu.uuid:
        findings.append("gpu is not the one that decoded")
    if energy.windows is None:
        if energy.method or energy.ratio or energy.refresh_s:
            findings.append("windows are missing, and method, ratio and refresh_s need them")
        return findings
    return findings + _windows(energy, energy.windows)


def _windows(energy: EnergyMeasured, windows: list[EnergyWindow]) -> list[str]:
    pairs = [{first.mode, second.mode} for first, second in zip(windows[::2], windows[1::2], strict=False)]
    if len(pairs) < MIN_WINDOW_PAIRS or len(windows) % 2 or any(len(modes) < 2 for modes in pairs):
        return [f"windows must be {MIN_WINDOW_PAIRS} or more pairs, each of both ways of decoding"]
    if energy.method is None or energy.refresh_s is None:
        return ["method and refresh_s must stand beside windows"]
    findings = []
    least = WINDOW_S if energy.method == "total_energy_counter" else POWER_WINDOW_S
    least = max(least, REFRESHES * energy.refresh_s)
    if any(window.seconds < least for window in windows):
        findings.append("windows are too short for their method and refresh_s")
    limit = energy.power_limit_watts
    if limit is not None and any(w.joules / w.seconds > OVER_LIMIT * limit for w in windows):
        findings.append("windows have more power than power_limit_watts")
    ours, alone = ([w for w in windows if w.mode == mode] for mode in ("speculative", "target_only"))
    given = energy.joules_per_token
    if not close(given.speculative, joules_per_token(ours)) or not close(
        given.target_only, joules_per_token(alone)
    ):
        findings.append("joules_per_token is not what windows give")
    if energy.ratio is not None and not _is_ratio(energy.ratio, ours, alone):
        findings.append("ratio is not what windows give")
    return findings


def _is_ratio(given: EnergyRatio, ours: list[EnergyWindow], alone: list[EnergyWindow]) -> bool:
    costs = [(joules_per_token([b]), joules_per_token([a])) for a, b in zip(ours, alone, strict=True)]
    ratios = [b / a for b, a in costs if a]  # the energy of a token may be too small for a float
    if len(ratios) < len(costs) or not all(map(math.isfinite, ratios)):
        return False
    interval = median_interval(ratios)
    if given.ci95 is None or interval is None:
        fits = given.ci95 is None and interval is None
    else:
        fits = all(map(close, given.ci95, interval[1:]))
    return fits and given.pairs == len(ratios) and close(given.median, statistics.median(ratios))


def joules_per_token(windows: list[EnergyWindow]) -> float:
    """All joules of some windows by all their tokens."""
    return sum(window.joules for window in windows) / sum(window.tokens for window in windows)


def check_gpu(measurement: Measurement) -> list[str]:
    """Check that a verdict is not valid when the GPU was throttled, shared or out of sight."""
    gpu = measurement.gpu
    if gpu is None or not measurement.verdict.valid:
        return []
    doubts = []
    if throttled(gpu):
        doubts.append("the GPU was throttled")
    if gpu.foreign_processes:
        doubts.append("another program computed on the GPU")
    if gpu.trouble is not None:
        doubts.append("the GPU could not be watched to the end")
    return [f"verdict.valid cannot be true when {doubt}" for doubt in doubts]


def throttled(gpu: GpuWatched) -> bool:
    """Whether heat, a power brake or the hardware itself held the clocks down."""
    return bool(labels.THROTTLES & set(gpu.events or ()) or gpu.violation_thermal_ns)
