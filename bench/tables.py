"""The benchmarks' results as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import formats


def lengths(results: dict[str, dict[str, Any]]) -> str:
    """Renders what `bench.lengths.measure` returned for each pair."""
    lines = []
    for name, result in results.items():
        lines += [
            f"## {name}",
            "",
            "Speed-ups are over plain decoding in the same round. cost: predicted / measured time per step; "
            "yield: E[tokens] at the measured alpha / tokens per step seen.",
            "",
            "| prompts | k | tokens a step | accepted rate | speed-up | predicted | cost | yield |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in result["rows"]:
            modeled = [
                _number(row.get(what), 3) for what in ("predicted_speedup", "cost_ratio", "yield_ratio")
            ]
            lines.append(
                f"| {row['domain']} | {row['k']} | {row['tokens_per_step']:.2f} | "
                f"{_number(row.get('accepted_rate'), 3)} | {row['speedup']:.3f} | {' | '.join(modeled)} |"
            )
        if left_out := result.get("left_out"):
            lines += [
                "",
                f"Left out: {left_out} prompt(s) whose text depends on the width of a pass.",
            ]
        auto, recommended = result["auto"], result["recommended"]
        lines += [
            "",
            f"auto / best fixed k ({auto['best_fixed_k']}): {auto['auto_over_best_fixed']:.3f}{_between(auto)}. "
            f"Recommended k {recommended['recommended_k']}, measured best {recommended['measured_best_k']}; "
            "recommended / the k that was best in the other half of the rounds: "
            f"{recommended['recommended_over_best']:.3f}{_between(recommended)}.",
            "",
        ]
    return "\n".join(lines)


def peer(compared: dict[str, list[dict[str, Any]]], alone: dict[str, dict[str, Any]]) -> str:
    """Renders what `bench.versus.compare` and `bench.formats.measure` returned for each model."""
    rows = [row for of_model in compared.values() for row in of_model]
    lines = [
        "Greedy, the same number of tokens after the first on both sides; rates are medians of rounds in tokens per "
        "second. Both clocks start when the first token after the prompt is there, so that prefill is left out: the "
        "server's is its own `predicted_ms`. Ratios are medians over rounds of the ratio within a round, with their "
        "95 % interval, or with their range (marked ~) for fewer than six rounds.",
        "",
        "## Speculative: ours and the server's",
        "",
        "| pair (licence) | k | threads | ours | server | ours / server | draft on one thread, / server | same tokens "
        "| drafted, accepted: ours; server | rounds (disturbed: seen, used) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rate, counts = row["tokens_per_second"], row["drafted_and_accepted"]
        lines.append(
            f"| {_pair(row)} ({row['licence']}) | {row['k']} | {row['threads']} "
            f"| {rate['ours']:.1f} | {rate['server']:.1f} "
            f"| **{_ratio(row['ours_over_server'])}** | {_ratio(row.get('ours_draft_1_over_server'))} "
            f"| {_same(row)} | {_counts(counts['ours'])}; {_counts(counts['server'])} "
            f"| {row['rounds']} ({row['rounds_disturbed']}, {row['disturbed_rounds_used']}) |"
        )
    lines += [
        "",
        "## Plain, and what speculation gains",
        "",
        "| pair | k | plain ours | plain server | plain ours / server | speed-up ours | speed-up server |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rate = row["tokens_per_second"]
        lines.append(
            f"| {_pair(row)} | {row['k']} | {rate['plain_ours']:.1f} | {rate['plain_server']:.1f} "
            f"| {_ratio(row['plain_ours_over_server'])} | {_ratio(row['speedup_ours'])} "
            f"| {_ratio(row['speedup_server'])} |"
        )
    lines += [
        "",
        "## Our loop's time outside llama_decode, and peak memory (VmHWM)",
        "",
        "The limit is the ratio that a loop with nothing outside llama_decode would reach over the same passes.",
        "",
        "| pair | k | outside llama_decode | logits and choice | other Python | limit of ours / server | MB ours | "
        "MB server |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shares = (row["overhead"][n] for n in ("outside_llama_decode", "logits_and_choice", "other_python"))
        percent = " | ".join(f"{100 * share:.1f} %" for share in shares)
        memory = row["peak_memory_mb"]
        lines.append(
            f"| {_pair(row)} | {row['k']} | {percent} | {limit(row):.2f} "
            f"| {memory['ours']:.0f} | {memory['server']:.0f} |"
        )
    for model, measured in alone.items():
        lines += [
            "",
            f"## {model} alone, by format",
            "",
            "| format | MB | tokens per second | over F32 |",
            "|---|---|---|---|",
            *(
                f"| {name} | {one['megabytes']:.0f} | {one['tokens_per_second']:.1f} | {_ratio(one['over_f32'])} |"
                for name, one in measured.items()
            ),
            "",
            formats.verdict(measured, compared[model]),
        ]
    for row in rows[:1]:
        lines += [
            "",
            "Both sides execute the same libllama and libggml files, as the server's memory map shows.  ",
            f"ours: {row['system_ours']}  ",
            f"server: {row['system_server']}  ",
            f"its command line: `{row['server_command']}`",
        ]
    return "\n".join(lines)


def crosscheck(checked: list[dict[str, Any]]) -> str:
    """Renders what `bench.crosscheck.crosscheck` returned."""
    lines = [
        "Greedy; tokens, drafted and accepted compared prompt by prompt with llama.cpp's server. A tie: two best "
        "logits so close on the way that another width's rounding decides.",
        "",
        "| pair | k | tokens | prompts | equal | differ by a tie | unexplained |",
        "|---|---|---|---|---|---|---|",
    ]
    names = ("pair", "k", "tokens", "prompts", "equal", "explained_by_ties", "unexplained")
    lines += ["| " + " | ".join(str(one[name]) for name in names) + " |" for one in checked]
    return "\n".join(lines)


def limit(row: dict[str, Any]) -> float:
    """Ours / server if our loop's time outside llama_decode were nothing; no loop over the same passes can do more."""
    ratio: float = row["ours_over_server"]["median"]
    outside: float = row["overhead"]["outside_llama_decode"]
    return ratio / (1 - outside)


def _pair(row: dict[str, Any]) -> str:
    return f"{row['pair']} (disturbed)" if row["disturbed_rounds_used"] else str(row["pair"])


def _same(row: dict[str, Any]) -> str:
    gap = row["smallest_gap_where_they_differ"]
    return f"{row['same_tokens']}/{row['prompts']}" + (f", gap {gap:.2g}" if gap is not None else "")


def _counts(counts: Sequence[int]) -> str:
    return ", ".join(str(count) for count in counts)


def _ratio(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return "–"
    mark = "" if ratio["of"] == "interval" else "~"
    return f"{ratio['median']:.2f} ({mark}{ratio['low']:.2f}–{ratio['high']:.2f})"


def _between(ratio: dict[str, Any]) -> str:
    interval = ratio["ci95"]
    return f" (95 % {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
