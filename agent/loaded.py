"""A pair in memory: both models, a context each, their files' digests, and the threads they decode with best."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agent.calibration import CalibrationStore
from agent.device import Device
from agent.errors import LoadFailed, NoPair
from agent.filefacts import FileFacts
from agent.llama import Context, Weights, system_info
from agent.pairs import ModelFile, PairChoice
from agent.preflight import check_room, free_memory, needed

_NO_COST = {"threads_tried", "device_reason"}
"""What the receipt tells of an engine and no cost depends on."""

TUNING_PASSES = 12
"""Passes over one token timed for each number of threads."""

WORTH_A_THREAD = 1.1
"""More threads are taken only if they are at least so many times faster: idle cores are rarely idle for long."""


CPU = Device("cpu", "nothing else was chosen")


@dataclass
class LoadedPair:
    """A draft and a target in memory, each with one context of `capacity` tokens.

    Attributes:
        draft_file: The draft's file, hashed.
        target_file: The target's.
        draft_weights: The draft's weights and vocabulary.
        target_weights: The target's.
        draft: The draft's context.
        target: The target's.
        threads: Threads the target decodes with.
        draft_threads: Threads the draft decodes with.
        threads_tried: Tokens per second of plain decoding for each number of threads that was tried, if any.
        calibrations: Costs measured before.
        device: What decodes.
    """

    draft_file: ModelFile
    target_file: ModelFile
    draft_weights: Weights
    target_weights: Weights
    draft: Context
    target: Context
    threads: int
    draft_threads: int = 0
    threads_tried: dict[str, float] = field(default_factory=dict)
    calibrations: CalibrationStore = field(default_factory=CalibrationStore)
    device: Device = CPU

    def __post_init__(self) -> None:
        """Lets the draft decode with the target's threads unless told otherwise."""
        self.draft_threads = self.draft_threads or self.threads

    def engine(self) -> dict[str, Any]:
        """Returns what decodes, for the receipt (`shared.schemas.Engine`)."""
        return {
            "name": "llama.cpp",
            "library": f"llama-cpp-python {version('llama-cpp-python')}",
            "system": system_info(),
            "threads": self.threads,
            "draft_threads": self.draft_threads,
            "threads_tried": ", ".join(f"{n}: {rate:g} tokens/s" for n, rate in self.threads_tried.items()),
            "device": self.device.kind,
            "device_reason": self.device.reason,
            "gpu_layers": _layers(self.target_weights),
            "draft_gpu_layers": _layers(self.draft_weights),
            "flash_attention": "auto",
            "spin_count": os.environ.get("GOMP_SPINCOUNT"),
        }

    def identity(self) -> dict[str, Any]:
        """Returns all that a measured cost depends on, except the context's length and the decoding rule."""
        return {
            "draft": self.draft_file.sha256,
            "target": self.target_file.sha256,
            "capacity": self.target.capacity,
            "gpu": self.device.uuid,
            **{name: value for name, value in self.engine().items() if name not in _NO_COST},
        }

    def close(self) -> None:
        """Frees both models."""
        for part in (self.draft, self.target, self.draft_weights, self.target_weights):
            part.close()


def load_pair(
    choice: PairChoice,
    *,
    n_ctx: int,
    threads: int | None,
    calibrations: Path | None = None,
    device: Device = CPU,
    facts: FileFacts | None = None,
    free: Callable[[], int | None] = free_memory,
) -> LoadedPair:
    """Loads both models and their contexts, and hashes both files.

    Args:
        choice: A pair that was found.
        n_ctx: Most tokens of context; the models' trained contexts bound it.
        threads: Threads to decode with; None tries what is fastest, for the target and for the draft.
        calibrations: File to remember measured costs in.
        device: What to decode on.
        facts: What is known of files, their digests among it.
        free: Tells how many bytes are free where the models go; None if nobody knows.

    Raises:
        NoPair: If none was found.
        LoadFailed: If llama.cpp refuses a file, a file is not what its name in a store says, or not every layer went
            where it should.
        OutOfMemory: If the models or their contexts do not fit.
    """
    if choice.draft is None or choice.target is None:
        raise NoPair(choice.reason)
    gpu_layers = device.gpu_layers
    facts = facts or FileFacts(None)
    target_file, draft_file = (file.hashed(facts) for file in (choice.target, choice.draft))
    needs = [
        (file.name, needed(file.path, file.name, capacity=n_ctx, gpu_layers=gpu_layers))
        for file in (choice.target, choice.draft)
    ]
    check_room(needs, free(), "GPU memory" if gpu_layers else "memory")
    opened: list[Weights | Context] = []
    try:
        target_weights = Weights(choice.target.path, choice.target.name, gpu_layers=gpu_layers)
        opened.append(target_weights)
        draft_weights = Weights(choice.draft.path, choice.draft.name, gpu_layers=gpu_layers)
        opened.append(draft_weights)
        for weights in (target_weights, draft_weights):
            check_offload(weights)
        capacity = min(n_ctx, target_weights.trained_context, draft_weights.trained_context)
        target = Context(target_weights, capacity=capacity, threads=threads or 1)
        opened.append(target)
        draft = Context(draft_weights, capacity=capacity, threads=threads or 1)
        opened.append(draft)
        tried: dict[int, float] = {}
        target_threads = draft_threads = threads or 1
        if threads is None and gpu_layers == 0:
            tried = best_threads(target, _candidates())
            target_threads = _best(tried)
            draft_threads = _best(best_threads(draft, sorted({1, target_threads})))
            target.set_threads(target_threads)
            draft.set_threads(draft_threads)
    except BaseException:
        for part in reversed(opened):
            part.close()
        raise
    return LoadedPair(
        draft_file,
        target_file,
        draft_weights,
        target_weights,
        draft,
        target,
        target_threads,
        draft_threads,
        {str(count): round(rate, 2) for count, rate in tried.items()},
        CalibrationStore(calibrations),
        device,
    )


def check_offload(weights: Weights) -> None:
    """Makes sure that a model meant for the GPU is there with all of its layers.

    Raises:
        LoadFailed: If it is not, or llama.cpp does not say.
    """
    if weights.gpu_layers == 0:
        return
    if weights.offloaded is None:
        raise LoadFailed(
            f"llama.cpp does not say whether {weights.name} is on the GPU", "look at the agent's log"
        )
    there, layers = weights.offloaded
    if there < layers:
        raise LoadFailed(
            f"only {there} of {layers} layers of {weights.name} are on the GPU",
            "free GPU memory or choose smaller models",
        )


def _layers(weights: Weights) -> int:
    """Returns how many layers are on the GPU."""
    return weights.offloaded[0] if weights.offloaded else 0


def best_threads(model: Context, candidates: list[int]) -> dict[int, float]:
    """Returns the model's tokens per second, one at a time, for each number of threads.

    Each number gets a stretch of its own, as OpenMP builds its team anew when the size changes; the first pass of
    a stretch is not timed. The median pass counts.
    """
    rates = {}
    for count in candidates:
        model.set_threads(count)
        model.truncate(0)
        seconds = []
        for _ in range(min(TUNING_PASSES + 1, model.capacity)):
            began = time.perf_counter()
            model.forward([0], 1)
            seconds.append(time.perf_counter() - began)
        rates[count] = 1 / statistics.median(seconds[1:] or seconds)
    model.truncate(0)
    return rates


def _best(rates: dict[int, float]) -> int:
    """Returns the number of threads to take: more only where that is clearly faster than any fewer."""
    best = min(rates)
    for count in sorted(rates):
        if rates[count] > WORTH_A_THREAD * rates[best]:
            best = count
    return best


def _candidates() -> list[int]:
    """Returns 1, 2, 4, ... and half and all of the processors this process may use."""
    processors = len(os.sched_getaffinity(0))
    powers = [2**i for i in range(processors.bit_length()) if 2**i <= processors]
    return sorted({*powers, max(1, processors // 2), processors})
