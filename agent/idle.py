"""What the GPU takes while it waits for the next run.

It is reported beside a run's joules and never subtracted from them: a GPU with two models in memory takes more than an
empty one, and who switches it on for this pays for that too. `IdleMeter` costs no run any time, as it looks while there
is none: from the end of one run to the start of the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from agent.gpu import Gpu
from agent.nvml import NvmlError
from agent.threads import Repeated

LOOK_S = 1.0
"""Seconds between two looks."""

SETTLE_S = 5.0
"""What is left out at the beginning: clocks come down some seconds after the last work."""

LEAST_S = 5.0
"""Shorter than this nothing is told."""

LATEST_S = 60.0
"""Longer ago than this nothing counts."""


class IdleMeter(Repeated):
    """Meters a GPU that has nothing to do; a context manager around the time between two runs."""

    def __init__(
        self,
        gpu: Gpu,
        own_pids: Collection[int],
        *,
        look_s: float = LOOK_S,
        settle_s: float = SETTLE_S,
        least_s: float = LEAST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Meters `gpu`; the times are for tests."""
        super().__init__(look_s, "idle-meter")
        self._gpu, self._own = gpu, frozenset(own_pids)
        self._settle_s, self._least_s, self._clock = settle_s, least_s, clock
        self._readings: list[tuple[float, float]] = []  # time and joules, since the GPU was last busy
        self._quiet_since: float | None = None

    def step(self) -> bool:
        """Looks once; without a counter, or a GPU any more, nothing is told."""
        try:
            self.look()
        except NvmlError:
            self._readings.clear()
            return False
        return True

    def look(self) -> None:
        """Looks once; what was metered before a moment at which the GPU worked is forgotten.

        Raises:
            NvmlError: If the GPU has no counter, or does not tell who computes on it.
        """
        device, now = self._gpu.device, self._clock()
        joules = device.energy() / 1000
        if device.utilization() != 0 or device.compute_pids() - self._own:
            self._readings.clear()
            self._quiet_since = None
            return
        if self._quiet_since is None:
            self._quiet_since = now
        if now - self._quiet_since >= self._settle_s:
            self._readings.append((now, joules))
            while self._readings[0][0] < now - LATEST_S:
                del self._readings[0]

    def watts(self) -> tuple[float, float] | None:
        """Returns the mean power while nothing ran, watts, and for how long that was, seconds; None if not known."""
        readings = list(self._readings)
        if not readings:
            return None
        (began, before), (ended, after) = readings[0], readings[-1]
        if self._clock() - ended > LATEST_S:
            return None
        if ended - began < self._least_s or after <= before:
            return None
        return (after - before) / (ended - began), ended - began
