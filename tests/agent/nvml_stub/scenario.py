"""The stub's scenario file, and the energy that it stands for."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

Value = float | str


def write(scenario: Path, keys: Mapping[str, Value]) -> None:
    """Replace a scenario at once: who replays it sees the old one or the new."""
    new = scenario.with_suffix(".new")
    new.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    os.replace(new, scenario)


def energy(keys: Mapping[str, Value], at: float) -> float:
    """Return the joules used by a moment of the monotonic clock: the integral of power, as the C source has it."""
    base, amplitude = float(keys.get("power_mw", 100_000)), float(keys.get("amplitude_mw", 0))
    turn = 2 * math.pi / (float(keys.get("period_ms", 1000)) / 1000)
    return (base * at + amplitude / turn * (1 - math.cos(turn * at))) / 1000
