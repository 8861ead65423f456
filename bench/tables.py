"""The benchmarks' results as Markdown."""

from __future__ import annotations

from typing import Any


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
        auto, recommended = result["auto"], result["recommended"]
        interval = auto["ci95"]
        between = f" (95 % {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
        lines += [
            "",
            f"auto / best fixed k ({auto['best_fixed_k']}): {auto['auto_over_best_fixed']:.3f}{between}. "
            f"Recommended k {recommended['recommended_k']}, measured best {recommended['measured_best_k']}: "
            f"{recommended['recommended_over_best']:.3f} of its speed.",
            "",
        ]
    return "\n".join(lines)


def peer(compared: list[dict[str, Any]], plain: dict[str, float]) -> str:
    """Renders what `bench.versus.compare` returned, and plain rates of SmolLM2's formats."""
    lines = [
        "Tokens per second (medians); ratios are medians of rounds with their interval or, for fewer than six, range.",
        "",
        "| pair | k | threads | ours | server | ours / server | plain ours | plain server | plain ours / server "
        "| outside llama_decode | same tokens | drafted, accepted: ours; server |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in compared:
        rate, counts = one["tokens_per_second"], one["drafted_and_accepted"]
        lines.append(
            f"| {one['pair']} | {one['k']} | {one['threads']} | {rate['ours']:.1f} | {rate['server']:.1f} "
            f"| **{_ratio(one['ours_over_server'])}** | {rate['ours_plain']:.1f} | {rate['server_plain']:.1f} "
            f"| {_ratio(one['ours_plain_over_server_plain'])} "
            f"| {100 * one['overhead']['outside_llama_decode']:.1f} % | {one['same_tokens']} "
            f"| {counts['ours']}; {counts['server']} |"
        )
    for one in compared[:1]:
        lines += ["", f"server: {one['server_system']}"]
    if plain:
        best = max(plain, key=lambda name: plain[name])
        rates = ", ".join(f"{name} {rate:.1f}" for name, rate in plain.items())
        lines += ["", f"SmolLM2 alone, tokens per second by format: {rates}. Fastest plain: {best}."]
        fastest = max(
            (one["tokens_per_second"]["ours"] for one in compared if "SmolLM2" in one["pair"]), default=0
        )
        if fastest and plain[best] > fastest:
            lines.append(
                f"{best} without a draft is faster than F32 with the best draft here ({fastest:.1f}): "
                "a smaller format pays more than speculation does, at the price of other weights."
            )
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


def _ratio(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
