"""From measured runs to curves: for each domain and draft length the MEASURED figures beside the MODELED ones.

Pure arithmetic over what receipts hold as `payload["measurement"]`, whoever made the runs. Acceptance is pooled over
prompts (sum of accepted / sum of examined), as tokens are what the papers' alpha counts; a speed-up is the median over
prompts, as each prompt's is a ratio of its own. Both MODELED speed-ups take the pooled rate: Theorem 3.8 of
Leviathan et al. (arXiv:2211.17192) with the service's stated cost ratio, and, where receipts carry a calibration, the
same with measured costs. What no run measured is None, never 0.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from shared import labels
from shared.curve import expected_speedup, predicted_speedup
from shared.estimators import accepted_rate, median_interval
from shared.intervals import cluster_bootstrap

K = int | Literal["auto"]
"""A fixed draft length, or that the agent chooses one for each step."""

AUTO: Final = "auto"
ALL: Final = "all"
"""The domain of rows that pool all domains; no domain of runs may have this name."""

LABELS: Final = {
    "tokens_per_step": labels.MEASURED,
    "drafted_per_step": labels.MEASURED,
    "accepted_rate": labels.MEASURED,
    "speedup_measured": labels.MEASURED,
    "speedup_modeled": labels.MODELED,
    "speedup_predicted": labels.MODELED,
    "recommended_k": labels.MODELED,
}
"""What each figure of a row is where it is given."""


@dataclass(frozen=True)
class SweepRun:
    """One measured run.

    Attributes:
        domain: What kind of text the prompt is, for example `prose`.
        prompt: Which prompt of its domain.
        measurement: `payload["measurement"]` of a verified receipt.
        cost_ratio: c that the service states for the modeled curve.
    """

    domain: str
    prompt: int
    measurement: Mapping[str, Any]
    cost_ratio: float = labels.DEFAULT_COST_RATIO

    @property
    def k(self) -> K:
        """The draft length that was asked for."""
        k: K = self.measurement["k_requested"]
        return k


@dataclass(frozen=True)
class Row:
    """What the runs of one domain and draft length say.

    Attributes:
        domain: The domain, or `all`.
        k: The draft length that was asked for.
        label: MEASURED, or UNAVAILABLE when no run was measured.
        asked: Runs asked for.
        runs: Runs measured.
        valid: Those whose own verdict is valid.
        compared: Those whose tokens were compared with the target's own; greedy runs are.
        lossless: Those of the compared in which all tokens were the same.
        tokens_per_step: Tokens emitted / steps, the target's own tokens included.
        drafted_per_step: Tokens drafted / steps.
        accepted: Draft tokens accepted.
        examined: Draft tokens that the target accepted or refused.
        accepted_rate: accepted / examined; None for an adaptive k, which stops drafts where it expects a refusal.
        accepted_rate_low: Lower end of its 95 % interval over prompts (`cluster_bootstrap`).
        accepted_rate_high: Upper end.
        timed: Prompts with a measured speed-up.
        speedup_measured: Median of their speed-ups, target-only time / speculative time.
        speedup_low: Lower end of the median's 95 % interval over prompts, or the least where prompts are too few.
        speedup_high: Upper end, or the most.
        speedup_spread: Which of the two it is: `interval` or `range`.
        speedup_modeled: Theorem 3.8 at the pooled rate, this k and the stated cost ratio.
        speedup_predicted: The same at measured costs: median over the receipts with a calibration.
    """

    domain: str
    k: K
    label: str
    asked: int
    runs: int
    valid: int
    compared: int
    lossless: int
    tokens_per_step: float | None
    drafted_per_step: float | None
    accepted: int
    examined: int
    accepted_rate: float | None
    accepted_rate_low: float | None
    accepted_rate_high: float | None
    timed: int
    speedup_measured: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_spread: Literal["interval", "range"] | None
    speedup_modeled: float | None
    speedup_predicted: float | None


@dataclass(frozen=True)
class Best:
    """What a domain's rows come to.

    Attributes:
        domain: The domain, or `all`.
        row: The row with the highest measured speed-up, the smaller k on a tie; None when none was measured. As
            the highest of several it promises a little too much.
        speculate: Whether that speed-up is at least 1; None without one.
        recommended_k: Median of the k that receipts recommend from their calibration, the lower one of an even number;
            0 is: do not speculate. None where no receipt recommends any.
        recommended_least: The least of them.
        recommended_most: The most.
        recommending: Number of receipts that recommend some k.
    """

    domain: str
    row: Row | None
    speculate: bool | None
    recommended_k: int | None
    recommended_least: int | None
    recommended_most: int | None
    recommending: int


def rows(runs: Iterable[SweepRun], asked: Iterable[tuple[str, K]] = ()) -> list[Row]:
    """One row per domain and k, in the order of the domains, then for `all` of them if they are several.

    Args:
        runs: Measured runs.
        asked: Domain and k of each run that was asked for, measured or not; those measured, if empty.
    """
    measured = list(runs)
    wanted = Counter(asked) or Counter((run.domain, run.k) for run in measured)
    domains = list(dict.fromkeys(domain for domain, _ in wanted))
    ks = sorted({k for _, k in wanted}, key=_rank)
    if len(domains) > 1:
        wanted.update({(ALL, k): sum(wanted[domain, k] for domain in domains) for k in ks})
        domains.append(ALL)
    return [
        _row(domain, k, wanted[domain, k], [r for r in measured if r.k == k and domain in (r.domain, ALL)])
        for domain in domains
        for k in ks
        if wanted[domain, k]
    ]


def best(runs: Iterable[SweepRun], table: Iterable[Row]) -> list[Best]:
    """For each domain of the table the best measured row, and what its receipts recommend."""
    measured, by_domain = list(runs), dict[str, list[Row]]()
    for row in table:
        by_domain.setdefault(row.domain, []).append(row)
    return [_best(domain, group, measured) for domain, group in by_domain.items()]


def _best(domain: str, table: list[Row], measured: list[SweepRun]) -> Best:
    timed = [(row.speedup_measured, row) for row in table if row.speedup_measured is not None]
    highest = max(timed, key=lambda one: one[0], default=None)
    mine = [run.measurement for run in measured if domain in (run.domain, ALL)]
    recommended: list[int] = [m["recommended_k"] for m in mine if m.get("recommended_k") is not None]
    return Best(
        domain=domain,
        row=None if highest is None else highest[1],
        speculate=None if highest is None else highest[0] >= 1,
        recommended_k=statistics.median_low(recommended) if recommended else None,
        recommended_least=min(recommended, default=None),
        recommended_most=max(recommended, default=None),
        recommending=len(recommended),
    )


def _row(domain: str, k: K, asked: int, runs: list[SweepRun]) -> Row:
    measured = [run.measurement for run in runs]
    steps = sum(m["n"] for m in measured)
    accepted, refused = sum(m["accepted"] for m in measured), sum(m["rejections"] for m in measured)
    alpha = None if k == AUTO else accepted_rate(accepted, refused)
    low, high = (alpha is not None and cluster_bootstrap(_acceptance(runs))) or (None, None)
    compared = [m["quality"]["identical_rate"] for m in measured]
    speedups = _speedups(runs)
    middle, least, most, spread = _over_prompts(speedups)
    return Row(
        domain=domain,
        k=k,
        label=labels.MEASURED if runs else labels.UNAVAILABLE,
        asked=asked,
        runs=len(runs),
        valid=sum(m["verdict"]["valid"] for m in measured),
        compared=sum(rate is not None for rate in compared),
        lossless=sum(rate == 1.0 for rate in compared),
        tokens_per_step=sum(m["emitted"] for m in measured) / steps if steps else None,
        drafted_per_step=sum(m["drafted"] for m in measured) / steps if steps else None,
        accepted=accepted,
        examined=accepted + refused,
        accepted_rate=alpha,
        accepted_rate_low=low,
        accepted_rate_high=high,
        timed=len(speedups),
        speedup_measured=middle,
        speedup_low=least,
        speedup_high=most,
        speedup_spread=spread,
        speedup_modeled=_median(_modeled(runs, k, alpha)),
        speedup_predicted=_median(_predicted(runs, k, alpha)),
    )


def _rank(k: K) -> tuple[bool, int]:
    return (True, 0) if isinstance(k, str) else (False, k)


def _acceptance(runs: list[SweepRun]) -> list[tuple[float, float]]:
    """(accepted, examined) of each prompt, which is the cluster."""
    counts: dict[tuple[str, int], tuple[int, int]] = {}
    for run in runs:
        part, whole = counts.get((run.domain, run.prompt), (0, 0))
        m = run.measurement
        counts[run.domain, run.prompt] = part + m["accepted"], whole + m["accepted"] + m["rejections"]
    return list(counts.values())


def _speedups(runs: list[SweepRun]) -> list[float]:
    """The measured speed-up of each prompt; the median of its runs, should it have several."""
    by_prompt: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        if isinstance(run.measurement["speedup"], Mapping):
            speedup = run.measurement["speedup"]["median"]
            by_prompt.setdefault((run.domain, run.prompt), []).append(speedup)
    return [statistics.median(speedups) for speedups in by_prompt.values()]


def _over_prompts(
    speedups: list[float],
) -> tuple[float | None, float | None, float | None, Literal["interval", "range"] | None]:
    if not speedups:
        return None, None, None, None
    interval = median_interval(speedups)
    if interval is not None:
        return *interval, "interval"
    return statistics.median(speedups), min(speedups), max(speedups), "range"


def _modeled(runs: list[SweepRun], k: K, alpha: float | None) -> list[float]:
    if isinstance(k, str) or alpha is None:
        return []
    return [expected_speedup(alpha, k, run.cost_ratio) for run in runs]


def _predicted(runs: list[SweepRun], k: K, alpha: float | None) -> list[float]:
    if isinstance(k, str) or alpha is None:
        return []
    calibrations = [c for run in runs if (c := run.measurement.get("calibration")) is not None]
    return [
        predicted_speedup(alpha, k, c["cost_ratio"], c["verify_cost"])
        for c in calibrations
        if len(c["verify_cost"]) > k
    ]


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
