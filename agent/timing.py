"""Interleaved timing: what repeating one generation with and without the draft has shown."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared import labels
from shared.estimators import median_interval


class Timed:
    """Seconds of the pairs so far, and whether their tokens agree.

    Attributes:
        forced: Whether the target alone is led along the speculative tokens.
        speculative_s: Seconds of each pair's speculative block.
        target_only_s: Seconds of each pair's target-only block.
        compared: Greedy target-only blocks compared with the speculative tokens.
        different: What the target alone said in those that differ.
        repeatable: Whether every speculative repeat gave the same tokens in the same steps.
    """

    def __init__(self, *, forced: bool) -> None:
        """Starts with nothing timed."""
        self.forced = forced
        self.speculative_s: list[float] = []
        self.target_only_s: list[float] = []
        self.compared = 0
        self.different: list[list[int]] = []
        self.repeatable = True
        self._wall_s = self._processor_s = 0.0

    @contextmanager
    def block(self, threads: int = 0) -> Iterator[Callable[[], float]]:
        """Times a block, keeping Python's cycle collector out of it; yields how to ask for its seconds afterwards.

        Args:
            threads: Threads that are busy all the while, to tell whether they had the processors; 0 does not tell.
        """
        lasted = 0.0
        gc.disable()
        began, processor = time.perf_counter(), time.process_time()
        try:
            yield lambda: lasted
        finally:
            lasted = time.perf_counter() - began
            if threads:
                self._processor_s += (time.process_time() - processor) / threads
                self._wall_s += lasted
            gc.enable()

    @property
    def processor_share(self) -> float:
        """Share of the wall clock that the target's threads were on a processor while decoding alone."""
        return self._processor_s / self._wall_s if self._wall_s else 1.0

    def speedup(self) -> dict[str, Any] | str:
        """Returns the median of the pairs' time ratios with its interval, or UNAVAILABLE."""
        ratios = [alone / ours for alone, ours in zip(self.target_only_s, self.speculative_s, strict=True)]
        interval = median_interval(ratios)
        if interval is None:
            return labels.UNAVAILABLE
        median, low, high = interval
        return {"label": labels.MEASURED, "median": median, "ci95": [low, high], "pairs": len(ratios)}
