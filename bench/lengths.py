"""Which draft length pays, and does the calibration know it? Every k and "auto" against plain decoding.

For each prompt all variants decode the same number of tokens in turn, round after round, each round in another order
and between plain blocks, in one process. Ratios are to the plain blocks around; the median round counts. So what is
compared with each other met the same machine.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.adaptive import Stopping
from agent.calibration import Calibration, calibrate
from agent.decode import Generation, begin, prefill, speculative_step, target_only
from agent.measure import LoadedPair
from agent.sampling import Greedy
from shared.curve import StepCosts, best_k, expected_tokens, predicted_curve
from shared.estimators import accepted_rate, after_full_acceptance, summarise
from shared.intervals import cluster_bootstrap

AUTO = "auto"
KS: tuple[int | str, ...] = (1, 2, 3, 4, 5, 6, 7, 8, AUTO)


class Diverged(Exception):
    """Two of the target's logits are so close that passes of different widths, which round differently, part there.

    Then the ways of decoding are not timed over the same tokens. A run says so in its receipt: diverged, a tie.
    """


@dataclass
class Variant:
    """What one draft length did on one prompt.

    Attributes:
        generation: Its counted generation.
        step_cost: Cost per step in target passes, one per round.
        token_cost: Cost per token in target passes, one per round.
    """

    generation: Generation
    step_cost: list[float] = field(default_factory=list)
    token_cost: list[float] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """Median cost per token, in plain passes of the same round."""
        return statistics.median(self.token_cost)


def decode(
    pair: LoadedPair,
    prompt: Sequence[int],
    k: int | str,
    tokens: int,
    costs: StepCosts,
    alpha: float | None = None,
) -> Generation:
    """Decodes at least `tokens` tokens greedily at one draft length; "auto" begins with `alpha`."""
    generation = begin(prompt, pair.draft, pair.target)
    length = Stopping(costs, 0.0, alpha=alpha) if isinstance(k, str) else None
    limit = length.limit if length else int(k)
    while len(generation.tokens) < tokens and generation.stopped is None:
        speculative_step(generation, pair.draft, pair.target, Greedy(), limit, lambda _: False, length)
    return generation


def one_prompt(
    pair: LoadedPair, prompt: Sequence[int], tokens: int, rounds: int
) -> tuple[dict[int | str, Variant], Calibration]:
    """Decodes one prompt at every draft length, `rounds` times over.

    Raises:
        Diverged: If some length decodes another text than the target alone.
        ValueError: If the context is too short, or a repeat decodes other tokens.
    """
    for model in (pair.draft, pair.target):
        prefill(prompt, model, lambda _: None)
    calibration = calibrate(
        pair.draft, pair.target, prompt, len(prompt) + tokens // 2, Greedy(), threads=pair.threads
    )
    if calibration is None:
        raise ValueError("the context is too short to calibrate")
    pilot = decode(pair, prompt, 4, tokens, calibration.costs).steps[:24]  # what a run does beside "auto"
    alpha = accepted_rate(sum(s.accepted for s in pilot), sum(s.rejected for s in pilot))
    variants = {k: Variant(decode(pair, prompt, k, tokens, calibration.costs, alpha)) for k in KS}
    plain_text = target_only(prompt, pair.target, Greedy(), tokens)
    if any(variant.generation.tokens[:tokens] != plain_text for variant in variants.values()):
        raise Diverged
    gc.disable()
    for number in range(rounds):
        shift = number * 2 % len(KS)
        order = [*KS[shift:], *KS[:shift]]
        before = _plain(pair, prompt, tokens)
        for trio in (order[i : i + 3] for i in range(0, len(order), 3)):
            seconds = []
            for k in trio:
                began = time.perf_counter()
                again = decode(pair, prompt, k, tokens, calibration.costs, alpha)
                seconds.append(time.perf_counter() - began)
                if again.tokens[:tokens] != plain_text or again.steps != variants[k].generation.steps:
                    raise ValueError("a repeat decoded other tokens")
            after = _plain(pair, prompt, tokens)
            unit = (before + after) / 2
            before = after
            for k, lasted in zip(trio, seconds, strict=True):
                generation = variants[k].generation
                variants[k].token_cost.append(lasted / len(generation.tokens) / unit)
                variants[k].step_cost.append(lasted / len(generation.steps) / unit)
    gc.enable()
    return variants, calibration


def _plain(pair: LoadedPair, prompt: Sequence[int], tokens: int) -> float:
    """Returns the seconds per token of plain decoding over the same tokens."""
    began = time.perf_counter()
    target_only(prompt, pair.target, Greedy(), tokens)
    return (time.perf_counter() - began) / tokens


def measure(
    pair: LoadedPair, prompts: Sequence[tuple[str, Sequence[int]]], tokens: int, rounds: int
) -> dict[str, Any]:
    """Measures a set of prompts, (domain, token ids) each, and sums them up by domain and over all."""
    results, left_out = [], 0
    for domain, prompt in prompts:
        try:
            variants, calibration = one_prompt(pair, prompt, tokens, rounds)
        except Diverged:
            left_out += 1
            print(f"  {domain}: left out, as its text depends on a pass's width", flush=True)
            continue
        results.append((domain, variants, calibration))
        print(f"  {domain}: " + " ".join(f"{k}:{1 / v.cost:.2f}" for k, v in variants.items()), flush=True)
    domains = sorted({domain for domain, *_ in results})
    return {
        "tokens": tokens,
        "rounds": rounds,
        "left_out": left_out,
        "rows": [
            row
            for domain in [*domains, "all"]
            for row in _rows(domain, [(v, c) for d, v, c in results if domain in (d, "all")])
        ],
        "auto": _auto([v for _, v, _ in results]),
        "recommended": _recommended([(v, c) for _, v, c in results]),
    }


def _rows(domain: str, results: list[tuple[dict[int | str, Variant], Calibration]]) -> list[dict[str, Any]]:
    rows = []
    for k in KS:
        variants = [v[k] for v, _ in results]
        steps = [step for variant in variants for step in variant.generation.steps]
        emitted = sum(step.emitted for step in steps)
        row: dict[str, Any] = {
            "domain": domain,
            "k": k,
            "prompts": len(variants),
            "tokens_per_step": emitted / len(steps),
            "speedup": len(variants) / sum(variant.cost for variant in variants),
        }
        if not isinstance(k, str):
            counts = summarise(steps, k)
            alpha = accepted_rate(counts.accepted, counts.rejections) or 0.0
            predicted = [c.costs.step(k, after_full_acceptance(v[k].generation.steps)) for v, c in results]
            row["accepted_rate"] = alpha
            row["yield_ratio"] = expected_tokens(alpha, k) / row["tokens_per_step"]
            # Predicted / measured time per step: median over prompts.
            row["cost_ratio"] = statistics.median(
                p / statistics.median(variant.step_cost)
                for p, variant in zip(predicted, variants, strict=True)
            )
            row["predicted_speedup"] = statistics.median(
                predicted_curve(alpha, c.costs)[k] for _, c in results
            )
        rows.append(row)
    return rows


def _auto(variants: list[dict[int | str, Variant]]) -> dict[str, Any]:
    """Compares "auto" with the k that is best over the whole set of prompts."""
    fixed = [k for k in KS if not isinstance(k, str)]
    best = min(fixed, key=lambda k: sum(v[k].cost for v in variants))
    interval = cluster_bootstrap([(v[best].cost, v[AUTO].cost) for v in variants])
    return {
        "best_fixed_k": best,
        "auto_over_best_fixed": sum(v[best].cost for v in variants) / sum(v[AUTO].cost for v in variants),
        "ci95": interval,
    }


def _recommended(results: list[tuple[dict[int | str, Variant], Calibration]]) -> dict[str, Any]:
    """Compares the recommended k, from alpha over all runs and the measured costs, with the k measured best.

    The fastest of eight lengths is also the luckiest. So the best k of every other round is compared with the
    recommended one in the rounds between, and the other way round: there neither was chosen for its luck.
    """
    fixed = [k for k in KS if not isinstance(k, str)]
    variants = [v for v, _ in results]
    steps = [step for v in variants for k in fixed for step in v[k].generation.steps]
    alpha = accepted_rate(sum(s.accepted for s in steps), sum(s.rejected for s in steps)) or 0.0
    curves = [predicted_curve(alpha, c.costs)[:9] for _, c in results]
    recommended = best_k([statistics.median(column) for column in zip(*curves, strict=True)])

    def cost(variant: dict[int | str, Variant], k: int, half: int | None = None) -> float:
        if k == 0:
            return 1.0
        seen = variant[k].token_cost
        return statistics.median(seen if half is None or len(seen) < 2 else seen[half::2])

    def best(half: int | None) -> int:
        return min(fixed, key=lambda k: sum(cost(v, k, half) for v in variants))

    rivals = [best(1), best(0)]  # for each half of the rounds, the best of the other
    pairs = [
        (
            sum(cost(v, k, half) for half, k in enumerate(rivals)),
            sum(cost(v, recommended, half) for half in (0, 1)),
        )
        for v in variants
    ]
    return {
        "recommended_k": recommended,
        "measured_best_k": best(None),
        "recommended_over_best": sum(one for one, _ in pairs) / sum(other for _, other in pairs),
        "ci95": cluster_bootstrap(pairs),
    }
