"""How fast the target alone decodes in every format at hand: speculation has to beat that, too."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from agent.decode import prefill, target_only
from agent.llama import Context, Weights
from agent.sampling import Greedy
from bench.versus import ratio

CAPACITY = 256


def measure(files: dict[str, Path], text: str, *, threads: int, count: int, rounds: int) -> dict[str, Any]:
    """Decodes a prompt plainly in each format in turn, round after round.

    Args:
        files: The same model by format, "f32" among them.
        text: A prompt.
        threads: Threads to decode with.
        count: Tokens to decode.
        rounds: Rounds, every other one backwards.

    Returns:
        By format: tokens per second, how many times F32's speed (within a round), and megabytes.
    """
    opened = {}
    for name, path in files.items():
        weights = Weights(path, name)
        opened[name] = (weights, Context(weights, capacity=CAPACITY, threads=threads))
    seconds: dict[str, list[float]] = {name: [] for name in files}
    for number in range(rounds):
        for name in list(files)[:: 1 if number % 2 == 0 else -1]:
            weights, context = opened[name]
            prompt = weights.prompt_tokens(text, chat=False)
            prefill(prompt, context, lambda _: None)
            began = time.perf_counter()
            target_only(prompt, context, Greedy(), count)
            seconds[name].append(time.perf_counter() - began)
    for weights, context in opened.values():
        context.close()
        weights.close()
    return {
        name: {
            "tokens_per_second": count / statistics.median(values),
            "over_f32": ratio(seconds["f32"], values),
            "megabytes": files[name].stat().st_size / 1e6,
        }
        for name, values in seconds.items()
    }


def verdict(formats: dict[str, Any], compared: list[dict[str, Any]]) -> str:
    """Says whether a smaller format alone beats F32 with the best speculation of ours."""
    name = max(formats, key=lambda one: formats[one]["over_f32"]["median"])
    alone = formats[name]["over_f32"]["median"]
    best = max(compared, key=lambda one: one["speedup_ours"]["median"])
    sped = best["speedup_ours"]["median"]
    with_draft = f"F32 with the best draft here ({best['pair']}, k = {best['k']}) {sped:.2f} times"
    if alone > sped:
        return (
            f"{name.upper()} alone decodes {alone:.2f} times as fast as F32 alone, {with_draft}: the smaller format "
            "by itself is faster than F32 with speculation, at the price of other weights and so other tokens."
        )
    return (
        f"{with_draft} as fast as F32 alone; the fastest format alone is {name.upper()} at {alone:.2f} times."
    )
