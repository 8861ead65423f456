"""Where our loop's time goes: inside llama_decode, in logits and choices, in the rest of Python."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp

from agent import llama
from agent.sampling import Greedy
from bench.models import BenchPair
from bench.ours import Ours

REPEATS = 3


class Stopwatch:
    """Sums up the seconds spent in the functions it wraps."""

    def __init__(self) -> None:
        """Starts at 0."""
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, timed."""

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


@contextmanager
def _watching(decoding: Stopwatch, choosing: Stopwatch) -> Iterator[Greedy]:
    """Times llama_decode and the fetching of logits until the block ends; yields a rule whose choices are timed."""
    decode, logits_at = llama_cpp.llama_decode, llama._logits_at
    rule: Any = Greedy()
    for name in ("propose", "judge", "alone"):
        setattr(rule, name, choosing.around(getattr(rule, name)))
    llama_cpp.llama_decode = decoding.around(decode)
    llama._logits_at = choosing.around(logits_at)  # type: ignore[assignment]
    gc.disable()
    try:
        yield rule
    finally:
        llama_cpp.llama_decode, llama._logits_at = decode, logits_at
        gc.enable()


def overhead(ours: Ours, pair: BenchPair, k: int, count: int) -> dict[str, float]:
    """Splits the speculative loop's time over all prompts; the median of some repeats.

    llama.cpp decodes synchronously on processors, so that a wait for it would show as time to fetch logits.
    """
    splits = []
    for _ in range(REPEATS):
        decoding, choosing = Stopwatch(), Stopwatch()
        total = 0.0
        for _, text in pair.prompts:
            ours.read(text)
            with _watching(decoding, choosing) as rule:
                began = time.perf_counter()
                ours.speculative(k, count, rule)
                total += time.perf_counter() - began
        splits.append(split(total, decoding.seconds, choosing.seconds))
    return {name: statistics.median(one[name] for one in splits) for name in splits[0]}


def split(total: float, decoding: float, choosing: float) -> dict[str, float]:
    """Returns shares of `total` seconds."""
    return {
        "outside_llama_decode": (total - decoding) / total,
        "logits_and_choice": choosing / total,
        "other_python": (total - decoding - choosing) / total,
    }
