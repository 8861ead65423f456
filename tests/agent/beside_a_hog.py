"""A program that measures the same requests on an idle machine, on a busy one, and on one whose load comes and goes.

It prints what each run says apart from its timings, as JSON. It is a program of its own because how long OpenMP's
threads spin for each other is read from the environment when they are first needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from agent import calibration, measure
from agent.calibration import Calibration, CalibrationStore
from agent.loaded import LoadedPair, load_pair
from agent.pairs import choose_pair
from shared.curve import StepCosts
from shared.schemas import RunRequest

STEPS = 15
REQUESTS: list[dict[str, Any]] = [
    {"k": 3},
    {"k": 3, "temperature": 0.9, "top_p": 0.95, "seed": 7},
    {"k": "auto"},
    {"k": "auto", "temperature": 0.9, "seed": 7},
]
COSTS = StepCosts(0.3, 0.2, 0.05, tuple(1 + 0.1 * m for m in range(17)))

COUNTED = (
    "k n stopped drafted accepted rejections emitted acceptance_histogram accepted_rate accepted_rate_ci95 "
    "draft_acceptance_rate mean_accepted_len conditional_acceptance unconditional_acceptance per_step iid sum_min alpha"
).split()
"""What a measurement says that must not depend on the machine's load."""


class Hogs:
    """Other work on every processor, which can be started and stopped."""

    def __init__(self) -> None:
        """Starts with none."""
        self._spinning: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts them, and returns once they spin."""
        program = "print(flush=True)\nwhile True: pass"
        for _ in os.sched_getaffinity(0):
            self._spinning.append(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE))
        for hog in self._spinning:
            assert hog.stdout is not None and hog.stdout.readline()

    def stop(self) -> None:
        """Ends them, however many there are."""
        for hog in self._spinning:
            hog.kill()
            hog.communicate()
        self._spinning = []


def facts(pair: LoadedPair, fields: dict[str, Any], hogs: Hogs, *, changing: bool) -> dict[str, Any]:
    """Measures one request; with `changing` the load begins in the middle of its steps and ends between its pairs."""
    request = RunRequest(prompt="And it came to pass", n=STEPS, ignore_eos=True, **fields).model_dump()
    # An automatic k follows costs, so it is equal where these are. One request measures them under the load there is.
    pair.calibrations = CalibrationStore(clock=lambda: 0.0)
    if fields != REQUESTS[0]:
        rule = {name: request[name] for name in ("temperature", "top_p", "top_k")}
        context = len(pair.target_weights.prompt_tokens(request["prompt"], chat=False)) + STEPS
        key = pair.calibrations.key(pair.identity(), context, rule)
        pair.calibrations.put(key, Calibration(COSTS, 0.01, context, 5, True, "2026-01-01T00:00:00Z", 0.0))

    def progress(phase: str, done: int, total: int) -> None:
        if changing and (phase, done) == ("measuring", STEPS // 2):
            hogs.start()
        if changing and (phase, done) == ("timing", 1):
            hogs.stop()

    outcome = measure.run(pair, request, on_progress=progress)
    return {
        "text": outcome.output_text,
        "output_sha3_256": outcome.output_sha3_256,
        "quality": outcome.measurement["quality"],
        **{name: outcome.measurement[name] for name in COUNTED},
    }


def main(argv: Sequence[str]) -> None:
    """Measures with as many threads as the argument says."""
    measure.TIMING_S = calibration.SECONDS = 0.0
    measure.MIN_PAIRS = 2
    calibration.ROUNDS = calibration.FEWEST_ROUNDS = 1
    pair, hogs = load_pair(choose_pair(embedded=True), n_ctx=256, threads=int(argv[0])), Hogs()
    try:
        idle = [facts(pair, fields, hogs, changing=False) for fields in REQUESTS]
        hogs.start()
        busy = [facts(pair, fields, hogs, changing=False) for fields in REQUESTS]
        hogs.stop()
        changing = [facts(pair, fields, hogs, changing=True) for fields in REQUESTS]
    finally:
        hogs.stop()
        pair.close()
    print(json.dumps({"idle": idle, "busy": busy, "changing": changing}))


if __name__ == "__main__":
    main(sys.argv[1:])
