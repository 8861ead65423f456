"""Our loop against llama.cpp's server: speculative and plain, same pair, k, threads and prompts, all taking turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent.llama import system_info
from bench import peer
from bench.memory import ours_peak_mb
from bench.models import BenchPair
from bench.ours import CONTEXT, Ours, Watched, drafted_and_accepted
from bench.overhead import overhead
from bench.peer import Server, running
from shared.estimators import median_interval

LEAST_SHARE = 0.9
"""A round in which our threads, decoding plainly, were on a processor for less of the time is decoded again."""

SPARE_ROUNDS = 4
"""Most rounds decoded again; if that does not do, the least disturbed ones are used and the result is marked."""

Way = Callable[[str], float]
"""Decodes one prompt and returns the seconds that its tokens after the first took."""


def compare(
    pair: BenchPair, binary: Path, *, ks: Sequence[int], threads: int, count: int, rounds: int
) -> list[dict[str, Any]]:
    """Compares speculative and plain decoding, ours and the server's; returns one result for each k.

    Each round decodes every prompt in every way, in one order and in the next round in the other. A rate is tokens
    after the first / seconds they took: the first comes from the prompt's own pass on both sides, and the server's
    clock (`predicted_ms`) starts when it is there, as ours does. Ratios are taken within a round.
    """
    with ExitStack() as stack:
        ours = Ours(pair, threads)
        stack.callback(ours.close)

        def serve(draft: Path | None, k: int) -> Server:
            return stack.enter_context(
                running(binary, pair.target, threads=threads, context=CONTEXT, draft=draft, k=k)
            )

        plain = serve(None, 0)
        drafting = {k: serve(pair.draft, k) for k in ks}
        agreements = {k: agreement(ours, pair, drafting[k], plain, k, count) for k in ks}
        taken, disturbed = _rounds(ours, pair, drafting, plain, count, rounds)
        return [
            {
                "pair": pair.name,
                "licence": pair.licence,
                "k": k,
                "threads": threads,
                "tokens": count,
                "prompts": len(pair.prompts),
                **summary(taken, k, count, len(pair.prompts)),
                "rounds_disturbed": disturbed,
                "overhead": overhead(ours, pair, k, min(count, 64)),
                **agreements[k],
                "server_command": server_flags(pair, k, threads),
                "system_ours": system_info(),
                "system_server": peer.system_info(binary),
                "same_library_files": True,  # `running` refuses a server that executes others
                "peak_memory_mb": {
                    "ours": ours_peak_mb(pair, k, threads, count),
                    "server": drafting[k].peak_memory_mb,
                },
            }
            for k in ks
        ]


def _rounds(
    ours: Ours, pair: BenchPair, drafting: dict[int, Server], plain: Server, count: int, rounds: int
) -> tuple[list[dict[str, float]], int]:
    """Returns the seconds of each way in each round, and how many rounds were disturbed.

    The share of the processors that our threads had while decoding plainly is in each round as "share".
    """
    ways = _ways(ours, drafting, plain, count)
    undisturbed: list[dict[str, float]] = []
    disturbed: list[dict[str, float]] = []
    gc.disable()
    try:
        for number in range(rounds + SPARE_ROUNDS):
            if len(undisturbed) == rounds:
                break
            order = list(ways)[:: 1 if number % 2 == 0 else -1]
            seconds, used = dict.fromkeys(ways, 0.0), 0.0
            for _, text in pair.prompts:
                ours.read(text)
                for way in order:
                    before = time.process_time()
                    seconds[way] += ways[way](text)
                    if way == "plain_ours":
                        used += time.process_time() - before
            seconds["share"] = used / seconds["plain_ours"] / ours.threads
            (undisturbed if seconds["share"] >= LEAST_SHARE else disturbed).append(seconds)
            print(" ".join(f"{way} {value:.2f}" for way, value in seconds.items()), flush=True)
    finally:
        gc.enable()
    return choose(undisturbed, disturbed, rounds), len(disturbed)


def choose(
    undisturbed: list[dict[str, float]], disturbed: list[dict[str, float]], rounds: int
) -> list[dict[str, float]]:
    """Returns the undisturbed rounds, filled up with the least disturbed ones where they are too few."""
    spare = sorted(disturbed, key=lambda taken: -taken["share"])
    return undisturbed + spare[: max(0, rounds - len(undisturbed))]


def _ways(ours: Ours, drafting: dict[int, Server], plain: Server, count: int) -> dict[str, Way]:
    """Returns every way of decoding, by name: `ours` and `server` with k, and both plainly."""

    def timed(decode: Callable[[], Any]) -> float:
        began = time.perf_counter()
        decode()
        return time.perf_counter() - began

    def asked(server: Server, text: str) -> float:
        return float(server.complete(text, count)["timings"]["predicted_ms"]) / 1000

    def one_draft_thread(k: int) -> float:
        ours.draft.set_threads(1)
        try:
            return timed(lambda: ours.speculative(k, count))
        finally:
            ours.draft.set_threads(ours.threads)

    ways: dict[str, Way] = {
        "plain_ours": lambda text: timed(lambda: ours.plain(count)),
        "plain_server": lambda text: asked(plain, text),
    }
    for k, server in drafting.items():
        ways[f"ours_{k}"] = lambda text, k=k: timed(lambda: ours.speculative(k, count))  # type: ignore[misc]
        ways[f"server_{k}"] = lambda text, server=server: asked(server, text)  # type: ignore[misc]
        if ours.threads > 1:
            ways[f"ours_draft_1_{k}"] = lambda text, k=k: one_draft_thread(k)  # type: ignore[misc]
    return ways


def summary(taken: Sequence[dict[str, float]], k: int, count: int, prompts: int) -> dict[str, Any]:
    """Sums up the rounds for one k: rates, ratios of rates within a round, and how disturbed the rounds were."""
    tokens = prompts * (count - 1)
    names = {
        "ours": f"ours_{k}",
        "server": f"server_{k}",
        "plain_ours": "plain_ours",
        "plain_server": "plain_server",
        "ours_draft_1": f"ours_draft_1_{k}",
    }
    seconds = {name: [one[key] for one in taken] for name, key in names.items() if key in taken[0]}
    result = {
        "rounds": len(taken),
        "tokens_per_second": {name: tokens / statistics.median(values) for name, values in seconds.items()},
        "ours_over_server": ratio(seconds["server"], seconds["ours"]),
        "plain_ours_over_server": ratio(seconds["plain_server"], seconds["plain_ours"]),
        "speedup_ours": ratio(seconds["plain_ours"], seconds["ours"]),
        "speedup_server": ratio(seconds["plain_server"], seconds["server"]),
        "processor_share": min(one["share"] for one in taken),
        "disturbed_rounds_used": sum(one["share"] < LEAST_SHARE for one in taken),
    }
    if "ours_draft_1" in seconds:
        result["ours_draft_1_over_server"] = ratio(seconds["server"], seconds["ours_draft_1"])
    return result


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, Any]:
    """Returns the median of paired ratios with its 95 % interval, or with their range where they are too few."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    interval = median_interval(ratios)
    median, low, high = interval or (statistics.median(ratios), min(ratios), max(ratios))
    return {"median": median, "low": low, "high": high, "of": "interval" if interval else "range"}


def agreement(
    ours: Ours, pair: BenchPair, drafting: Server, plain: Server, k: int, count: int
) -> dict[str, Any]:
    """Compares all four ways token by token, and both speculative ones in what they drafted and had accepted."""
    same, gaps = 0, []
    counts = {"ours": [0, 0], "server": [0, 0]}
    for _, text in pair.prompts:
        ours.read(text)
        rule = Watched()
        run = ours.speculative(k, count, rule)
        answers = drafting.complete(text, count), plain.complete(text, count)["tokens"]
        timings = answers[0]["timings"]
        tokens = [ours.first, *run.tokens]
        equal = tokens == answers[0]["tokens"] == answers[1] == [ours.first, *ours.plain(count)]
        same += equal
        if not equal:
            gaps.append(rule.gap)
        counts["ours"] = [a + b for a, b in zip(counts["ours"], drafted_and_accepted(run), strict=True)]
        theirs = int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))
        counts["server"] = [a + b for a, b in zip(counts["server"], theirs, strict=True)]
    return {
        "same_tokens": same,
        "smallest_gap_where_they_differ": min(gaps, default=None),
        "drafted_and_accepted": counts,
    }


def server_flags(pair: BenchPair, k: int, threads: int) -> str:
    """Returns the server's command line without the places of files on this machine."""
    target, draft = Path(pair.target.name), Path(pair.draft.name)
    return " ".join(peer.server_command(Path("llama-server"), 0, target, threads, CONTEXT, draft, k))
