"""Our loop against llama.cpp's server: speculative and plain, same pair, k, threads and prompts, in turn."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp

from agent.decode import Generation, begin, prefill, speculative_step, target_only
from agent.llama import Context, Weights
from agent.sampling import Greedy
from bench.models import BenchPair
from bench.peer import Server, peak_memory_mb, running, system_info
from shared.estimators import median_interval

CONTEXT = 1024


class Ours:
    """Our loop on one pair, with a clock around llama_decode."""

    def __init__(self, pair: BenchPair, threads: int) -> None:
        """Loads the pair."""
        self.target_weights = Weights(pair.target, "target")
        self.draft_weights = Weights(pair.draft, "draft")
        self.target = Context(self.target_weights, capacity=CONTEXT, threads=threads)
        self.draft = Context(self.draft_weights, capacity=CONTEXT, threads=threads)
        self.prompt: list[int] = []

    def read(self, text: str) -> None:
        """Reads a prompt into both caches."""
        self.prompt = self.target_weights.prompt_tokens(text, chat=False)
        for model in (self.draft, self.target):
            prefill(self.prompt, model, lambda _: None)

    def speculative(self, k: int, count: int) -> Generation:
        """Decodes at least `count` tokens with the draft."""
        generation = begin(self.prompt, self.draft, self.target)
        while len(generation.tokens) < count:
            speculative_step(generation, self.draft, self.target, Greedy(), k, lambda _: False)
        return generation

    def plain(self, count: int) -> list[int]:
        """Decodes `count` tokens by the target alone."""
        return target_only(self.prompt, self.target, Greedy(), count)

    def close(self) -> None:
        """Frees both models."""
        for part in (self.draft, self.target, self.draft_weights, self.target_weights):
            part.close()


def compare(pair: BenchPair, binary: Any, *, k: int, threads: int, count: int, rounds: int) -> dict[str, Any]:
    """Compares speculative and plain decoding, ours and the server's; all four take turns.

    Each round decodes every prompt in each of the four ways, in one order and in the next round in the other. A rate is
    tokens / decode seconds, prefill left out on both sides (the server's clock is its own `predicted_ms`). Ratios are
    taken within a round.
    """
    ours = Ours(pair, threads)
    with (
        running(binary, pair.target, threads=threads, context=CONTEXT, draft=pair.draft, k=k) as drafting,
        running(binary, pair.target, threads=threads, context=CONTEXT) as plain,
    ):
        rates: dict[str, list[float]] = {way: [] for way in ("ours", "server", "ours_plain", "server_plain")}
        agreement = _agreement(ours, pair, drafting, plain, k, count)
        gc.disable()
        for number in range(rounds):
            for _, text in pair.prompts:
                ours.read(text)
                for way in list(rates)[:: 1 if number % 2 == 0 else -1]:
                    rates[way].append(_rate(way, ours, drafting, plain, text, k, count))
        gc.enable()
        result = {
            "pair": pair.name,
            "k": k,
            "threads": threads,
            "tokens": count,
            "prompts": len(pair.prompts),
            "rounds": rounds,
            "tokens_per_second": {way: statistics.median(values) for way, values in rates.items()},
            "ours_over_server": _ratio(rates["ours"], rates["server"]),
            "ours_plain_over_server_plain": _ratio(rates["ours_plain"], rates["server_plain"]),
            "speedup_ours": _ratio(rates["ours"], rates["ours_plain"]),
            "speedup_server": _ratio(rates["server"], rates["server_plain"]),
            "overhead": overhead(ours, pair, k, count),
            **agreement,
            "server_system": system_info(binary),
            "peak_memory_mb": {"ours": peak_memory_mb(os.getpid()), "server": drafting.peak_memory_mb},
        }
    ours.close()
    return result


def _rate(way: str, ours: Ours, drafting: Server, plain: Server, text: str, k: int, count: int) -> float:
    if way.startswith("server"):
        timings = (drafting if way == "server" else plain).complete(text, count)["timings"]
        # The first token is the prompt's own pass's: the server counts it, and starts its clock after it.
        return 1000 * (float(timings["predicted_n"]) - 1) / float(timings["predicted_ms"])
    began = time.perf_counter()
    tokens = ours.speculative(k, count).tokens if way == "ours" else ours.plain(count)
    return len(tokens) / (time.perf_counter() - began)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    median, low, high = median_interval(ratios) or (statistics.median(ratios), min(ratios), max(ratios))
    return {"median": median, "low": low, "high": high}


def _agreement(
    ours: Ours, pair: BenchPair, drafting: Server, plain: Server, k: int, count: int
) -> dict[str, Any]:
    """Compares tokens and counts prompt by prompt; our steps beyond the server's budget are left out of neither."""
    same = 0
    counts = {"ours": [0, 0], "server": [0, 0]}
    for _, text in pair.prompts:
        ours.read(text)
        generation = ours.speculative(k, count)
        answer = drafting.complete(text, count)
        same += generation.tokens[:count] == answer["tokens"] == plain.complete(text, count)["tokens"]
        counts["ours"][0] += sum(step.drafted for step in generation.steps)
        counts["ours"][1] += sum(step.accepted for step in generation.steps)
        counts["server"][0] += answer["timings"]["draft_n"]
        counts["server"][1] += answer["timings"]["draft_n_accepted"]
    return {"same_tokens": f"{same}/{len(pair.prompts)}", "drafted_and_accepted": counts}


def overhead(ours: Ours, pair: BenchPair, k: int, count: int) -> dict[str, float]:
    """Splits the loop's time: inside llama_decode, in logits and choices, and in the rest of Python."""
    inside = choosing = 0.0
    decode = llama_cpp.llama_decode
    clock = time.perf_counter

    def timed(handle: Any, batch: Any) -> int:
        nonlocal inside
        began = clock()
        code: int = decode(handle, batch)
        inside += clock() - began
        return code

    class Choosing(Greedy):
        def propose(self, row: Any) -> Any:
            nonlocal choosing
            began = clock()
            proposal = super().propose(row)
            choosing += clock() - began
            return proposal

        def judge(self, proposals: Any, rows: Any) -> Any:
            nonlocal choosing
            began = clock()
            verdict = super().judge(proposals, rows)
            choosing += clock() - began
            return verdict

    total = decoding = 0.0
    llama_cpp.llama_decode = timed
    gc.disable()
    try:
        for _, text in pair.prompts:
            ours.read(text)
            reading = inside
            began = clock()
            generation = begin(ours.prompt, ours.draft, ours.target)
            while len(generation.tokens) < count:
                speculative_step(generation, ours.draft, ours.target, Choosing(), k, lambda _: False)
            total += clock() - began
            decoding += inside - reading
    finally:
        llama_cpp.llama_decode = decode
        gc.enable()
    return {
        "outside_llama_decode": 1 - decoding / total,
        "logits_and_choice": choosing / total,
        "other_python": 1 - (decoding + choosing) / total,
    }
