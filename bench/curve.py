"""Acceptance and speed-up of the embedded pair for several k, on prose and code, as measured runs report them.

Each figure is a median over prompts of what one measured run reports: target-only time ÷ speculative time over the same
tokens, from interleaved pairs in one process. Speculation must beat plain decoding with the same threads; both do worse
when another program has the processors, so a row also counts the runs whose verdict was not valid.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

from agent import measure
from agent.pairs import EMBEDDED, choose_pair
from shared.schemas import RunRequest

KS = (1, 2, 4, 6, 8)


def rows(threads: int | None, prompts_per_domain: int, steps: int) -> list[dict[str, Any]]:
    """Measures every k on the first prompts of each domain."""
    pair = measure.load_pair(choose_pair(embedded=True), n_ctx=2048, threads=threads)
    prompts = json.loads((EMBEDDED / "prompts.json").read_text(encoding="utf-8"))
    table = []
    for domain in ("prose", "code"):
        chosen = [one["prompt"] for one in prompts if one["domain"] == domain][:prompts_per_domain]
        for k in KS:
            requests = [RunRequest(prompt=prompt, k=k, n=steps, ignore_eos=True) for prompt in chosen]
            runs = [measure.run(pair, request.model_dump()).measurement for request in requests]
            table.append({"domain": domain, "k": k, **summary(runs)})
            print(markdown(table[-1:]).splitlines()[-1], flush=True)
    pair.close()
    return table


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums up the measurements of one k and domain: pooled acceptance, medians over prompts."""
    accepted, refused = sum(m["accepted"] for m in runs), sum(m["rejections"] for m in runs)
    timed = [m for m in runs if isinstance(m["speedup"], dict)]
    return {
        "runs": len(runs),
        "accepted_rate": accepted / (accepted + refused),
        "mean_accepted_len": sum(m["emitted"] for m in runs) / sum(m["n"] for m in runs),
        "speculative_tokens_per_s": statistics.median(m["tokens_per_second"]["speculative"] for m in timed),
        "target_only_tokens_per_s": statistics.median(m["tokens_per_second"]["target_only"] for m in timed),
        "speedup": statistics.median(m["speedup"]["median"] for m in timed),
        "speedup_least": min(m["speedup"]["median"] for m in timed),
        "speedup_most": max(m["speedup"]["median"] for m in timed),
        "lossless": sum(m["quality"]["identical_rate"] == 1.0 for m in runs),
        "valid": sum(m["verdict"]["valid"] for m in runs),
    }


def markdown(table: list[dict[str, Any]]) -> str:
    """Renders the rows as a Markdown table."""
    lines = [
        "| domain | k | runs | accepted rate | tokens a step | speculative t/s | target-only t/s | speed-up (range) "
        "| lossless | valid |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['domain']} | {r['k']} | {r['runs']} | {r['accepted_rate']:.3f} | {r['mean_accepted_len']:.2f} "
        f"| {r['speculative_tokens_per_s']:.0f} | {r['target_only_tokens_per_s']:.0f} "
        f"| {r['speedup']:.2f} ({r['speedup_least']:.2f}–{r['speedup_most']:.2f}) "
        f"| {r['lossless']}/{r['runs']} | {r['valid']}/{r['runs']} |"
        for r in table
    ]
    return "\n".join(lines)
