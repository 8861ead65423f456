"""`python -m tests.agent.nvml_stub.child TASK`: measure energy under the NVML that this process finds, report in JSON.

Blocks are pauses that stand for decoding on a GPU: the meter does not look at what a block does. With `real` they are
decoding, of the embedded pair on one thread. The task's `changes` say before which block (counted from 0) which keys of
the stub's scenario change; so a GPU is lost, or another program comes, in the middle of a measurement, and always at
the same place.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent import energy
from agent.energy import OutOfTime, Recorded, measure_energy, probe
from agent.gpu import GpuWatch, find_gpu
from tests.agent.nvml_stub.scenario import write


class Blocks:
    """Decodes, or lets time pass as if it did."""

    def __init__(self, task: dict[str, Any]) -> None:
        """Take the task."""
        self.task, self.done = task, 0
        self.keys = dict(task.get("keys", {}))
        self.speculative: Callable[[], int] = lambda: self._pause(task.get("speculative_s", 0.02), 3)
        self.target_only: Callable[[], int] = lambda: self._pause(task.get("target_only_s", 0.03), 2)
        if task.get("real"):
            self.speculative, self.target_only = decoding()

    def block(self, decode: Callable[[], int]) -> int:
        """Make one block."""
        if changes := self.task.get("changes", {}).get(str(self.done)):
            self.keys |= changes
            write(Path(os.environ["NVML_STUB_SCENARIO"]), self.keys)
        if self.done == self.task.get("raises_at"):
            time.sleep(self.task.get("raises_after_s", 0.0))
            raise OutOfTime
        self.done += 1
        return decode()

    def _pause(self, seconds: float, tokens: int) -> int:
        time.sleep(seconds)
        return tokens

    def out_of_time(self) -> bool:
        """Tell whether the task's number of blocks has been made."""
        return bool(self.done >= self.task.get("blocks", 10**9))


def decoding() -> tuple[Callable[[], int], Callable[[], int]]:
    """Load the embedded pair, and return how to decode a block with the draft and without."""
    from agent import decode
    from agent.llama import Context, Weights
    from agent.pairs import EMBEDDED
    from agent.sampling import Greedy

    draft, target = (
        Context(Weights(EMBEDDED / f"{name}.gguf", name), capacity=256, threads=1)
        for name in ("draft", "target")
    )
    prompt = [0, 5, 9, 200, 31]
    for model in (draft, target):
        decode.prefill(prompt, model, lambda done: None)

    def speculative() -> int:
        run = decode.begin(prompt, draft, target)
        while len(run.steps) < 8:
            decode.speculative_step(run, draft, target, Greedy(), 4, lambda token: False)
        return len(run.tokens)

    def target_only() -> int:
        return len(decode.target_only(prompt, target, Greedy(), 16))

    return speculative, target_only


def carry_out(task: dict[str, Any]) -> dict[str, Any]:
    """Carry out one task, and return the report."""
    kept: list[Recorded] = []
    whole, worst = energy.measured, energy.WORST

    def measured(recorded: Recorded, idle: tuple[float, float] | None = None) -> dict[str, Any]:
        kept.append(recorded)
        return whole(recorded, idle)

    energy.measured = measured  # for the moments at which windows began and ended, which no receipt tells
    energy.WORST = task.get("worst", worst)
    try:
        return _report(task, kept)
    finally:
        energy.measured, energy.WORST = whole, worst


def _report(task: dict[str, Any], kept: list[Recorded]) -> dict[str, Any]:
    blocks = Blocks(task)
    found = find_gpu(task.get("gpu"))
    report: dict[str, Any] = {"found": [found.code, found.reason], "probe": probe(found.gpu)}
    options = {name: task[name] for name in ("pairs", "window_s", "idle") if name in task}

    def measure() -> dict[str, Any]:
        return measure_energy(
            found.gpu,
            lambda: blocks.block(blocks.speculative),
            lambda: blocks.block(blocks.target_only),
            own_pids={os.getpid()},
            out_of_time=blocks.out_of_time,
            **options,
        )

    if found.gpu is None:
        report["energy"] = measure()
    else:
        with GpuWatch(found.gpu, {os.getpid()}, every_s=0.05) as watch:
            report["energy"] = measure()
        report |= {"gpu": watch.measurement(), "reasons": watch.reasons()}
    report["blocks"] = blocks.done
    report["windows"] = [
        [window.mode, window.began, window.ended, window.joules, window.doubt]
        for recorded in kept
        for window in recorded.windows
    ]
    return report


if __name__ == "__main__":
    print(json.dumps(carry_out(json.loads(sys.argv[1]))))
