"""One of several processes that ask for runs in one database, all at once; started by `test_limits`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from edge.deadline import Deadline
from edge.limits import DAY_S, Allowance, LimitsDown, LocalLimits

ALLOWED = Allowance(runs_per_minute=7, burst=20, gpu_seconds_per_day=130.5)
ASKED = 15
SHARED_RUNS = 5
RUN_S = 10.0

TODAY = 20_833
NOON = DAY_S * TODAY + DAY_S // 2
FAR = Deadline(float("inf"))

T = TypeVar("T")


def patiently(ask: Callable[[], T]) -> T:
    """Ask until there is an answer: on a slow machine the wait for a lock may be too short, and nothing is counted."""
    while True:
        try:
            return ask()
        except LimitsDown:
            pass


def main(file: str, name: str) -> None:
    """Wait to be told, then print how many runs were admitted, and how many of all callers' and of its own reserved."""
    limits = LocalLimits(ALLOWED, Path(file), clock=lambda: NOON)
    print("ready", flush=True)
    sys.stdin.readline()
    admitted = sum(patiently(partial(limits.admit, "caller", FAR)) == 0 for _ in range(ASKED))
    everybody, own = (
        sum(patiently(partial(limits.reserve, f"{whose}-{run}", RUN_S, FAR)).new for run in range(count))
        for whose, count in (("everybody", SHARED_RUNS), (name, ASKED))
    )
    print(admitted, everybody, own)


if __name__ == "__main__":
    main(*sys.argv[1:])
