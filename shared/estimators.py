"""What step counts say: acceptance, its interval, and an interval for a median.

Definitions are those of docs/reference/numbers.md. The names of other tools' metrics differ: vLLM, llama.cpp and AIPerf
call `draft_acceptance_rate` the acceptance rate; vLLM's and Spec-Bench's mean accepted length includes the
correction or bonus token, as `mean_accepted_len` does here. Every 0/0 is None, never 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shared.errors import SpecdecError

MIN_STEPS: Final = 10
WIDEST_INTERVAL: Final = 0.5
"""With fewer steps, or an interval of the speed-up wider than this share of its median, no run is valid."""

_Z95: Final = statistics.NormalDist().inv_cdf(0.975)


class EstimatorError(SpecdecError):
    """The counts contradict each other."""


@dataclass(frozen=True)
class Step:
    """One draft-then-verify step.

    Attributes:
        drafted: Tokens drafted, 0 to k.
        accepted: Draft tokens accepted and emitted.
        rejected: Whether the target examined a draft token and refused it.
        emitted: Tokens emitted: accepted plus one correction or bonus, or just the accepted ones when the
            last of them ended the text.
    """

    drafted: int
    accepted: int
    rejected: bool
    emitted: int


@dataclass(frozen=True)
class Counts:
    """Sums over the steps of one run.

    Attributes:
        k: Draft length asked of each step.
        n: Number of steps.
        drafted: Draft tokens, examined or not.
        accepted: Draft tokens accepted.
        rejections: Steps that ended in a refusal, so draft tokens refused.
        emitted: Tokens emitted.
        acceptance_histogram: k + 1 numbers of steps, by accepted tokens.
        conditional: For each position 1...k, accepted / examined, None where none was examined.
    """

    k: int
    n: int
    drafted: int
    accepted: int
    rejections: int
    emitted: int
    acceptance_histogram: tuple[int, ...]
    conditional: tuple[float | None, ...]


def summarise(steps: Sequence[Step], k: int) -> Counts:
    """Sum up the steps of one run at fixed draft length k.

    Position j was examined in a step if its token was accepted (accepted >= j) or refused (accepted = j - 1
    and rejected). A draft cut short or left unexamined after an end-of-text token counts neither way.

    Raises:
        EstimatorError: If a step is impossible.
    """
    histogram = [0] * (k + 1)
    refused_at = [0] * (k + 1)
    for step in steps:
        _check(step, k)
        histogram[step.accepted] += 1
        refused_at[step.accepted] += step.rejected
    reached = [sum(histogram[j:]) for j in range(k + 1)]
    return Counts(
        k=k,
        n=len(steps),
        drafted=sum(step.drafted for step in steps),
        accepted=sum(step.accepted for step in steps),
        rejections=sum(step.rejected for step in steps),
        emitted=sum(step.emitted for step in steps),
        acceptance_histogram=tuple(histogram),
        conditional=tuple(_ratio(reached[j], reached[j] + refused_at[j - 1]) for j in range(1, k + 1)),
    )


def unconditional_acceptance(histogram: Sequence[int]) -> list[float | None]:
    """For each position 1...k, the share of all steps that accepted it: P(a >= j).

    This is what vLLM and llama.cpp report per position. Unlike `Counts.conditional` it falls along the draft even
    if every examined token is accepted with the same chance alpha, as alpha^j, since a refusal ends the step. The
    values sum to the mean number of accepted tokens per step.

    Args:
        histogram: Numbers of steps with 0, 1, ... k accepted tokens.

    Raises:
        EstimatorError: If a number of steps is negative.
    """
    if any(count < 0 for count in histogram):
        raise EstimatorError("BAD_HISTOGRAM", "a histogram holds numbers of steps, none negative")
    return [_ratio(sum(histogram[j:]), sum(histogram)) for j in range(1, len(histogram))]


def after_full_acceptance(steps: Sequence[Step]) -> float:
    """Share of steps that follow one in which every draft token was accepted; 0 without steps.

    Such a step's first draft pass reads one token more.
    """
    full = sum(before.accepted == before.drafted > 0 for before in steps[:-1])
    return full / len(steps) if steps else 0.0


def accepted_rate(accepted: int, rejections: int) -> float | None:
    """Accepted / examined draft tokens: the alpha of Leviathan et al. (arXiv:2211.17192), Theorem 3.8.

    Under their i.i.d. model a step of k drafts is a geometric variable capped at k; a refusal contributes
    1 - alpha, an acceptance alpha, a cap nothing more, so this ratio is the maximum-likelihood estimate.
    """
    return _ratio(accepted, accepted + rejections)


def draft_acceptance_rate(accepted: int, drafted: int) -> float | None:
    """Accepted / drafted tokens, examined or not: what vLLM, llama.cpp and AIPerf call acceptance rate."""
    return _ratio(accepted, drafted)


def mean_accepted_len(emitted: int, n: int) -> float | None:
    """Emitted tokens per step, correction or bonus token included."""
    return _ratio(emitted, n)


def accepted_rate_ci95(accepted: int, rejections: int) -> tuple[float, float] | None:
    """95 % Wilson score interval for `accepted_rate`.

    The likelihood of a run under the i.i.d. model is alpha^accepted (1 - alpha)^rejections, whatever rule
    decided how many tokens were examined: the likelihood of that many Bernoulli trials. Wilson's interval
    (Wilson 1927, JASA 22:209, eq. 4) inverts that model's score test; unlike estimate +- 1.96 standard
    errors it stays inside [0, 1] and keeps its coverage for few trials and for rates near 0 or 1. It speaks
    of one run's tokens: text whose difficulty varies, so correlated acceptance, makes it too narrow.

    Returns:
        (low, high), containing the rate; None when nothing was examined.
    """
    trials = accepted + rejections
    rate = accepted_rate(accepted, rejections)
    if rate is None:
        return None
    z2 = _Z95 * _Z95
    centre = (accepted + z2 / 2) / (trials + z2)
    half = _Z95 / (trials + z2) * math.sqrt(accepted * rejections / trials + z2 / 4)
    # Exactly 0 and 1 at the ends, where rounding would miss them by an ulp and so exclude the rate.
    return min(max(centre - half, 0.0), rate), max(min(centre + half, 1.0), rate)


def median_interval(samples: Sequence[float], level: float = 0.95) -> tuple[float, float, float] | None:
    """Median and its distribution-free interval between order statistics.

    The number of samples below the true median is Binomial(n, 1/2), so [x_(r), x_(n+1-r)] covers it with
    probability 1 - 2 P(Binomial(n, 1/2) < r), ties only adding to that (David and Nagaraja, Order
    Statistics, section 7.1). The largest r whose coverage reaches `level` is used. Six samples give their
    minimum and maximum (96.9 %); five cannot reach 95 %.

    Args:
        samples: Independent finite values.
        level: Coverage wanted, above 0 and below 1.

    Returns:
        (median, low, high), or None when too few samples reach the level.

    Raises:
        EstimatorError: If a sample is not finite.
    """
    if not all(math.isfinite(sample) for sample in samples):
        raise EstimatorError("NOT_FINITE", "a sample is not finite")
    count = len(samples)
    ordered = sorted(samples)
    below, rank = 0, 0
    while rank < count:
        below += math.comb(count, rank)
        if 2 * below / 2**count > 1 - level:  # a quotient of integers: exact, whatever their size
            break
        rank += 1
    if rank == 0:
        return None
    return statistics.median(ordered), ordered[rank - 1], ordered[count - rank]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _check(step: Step, k: int) -> None:
    if not 0 <= step.accepted <= step.drafted <= k:
        raise EstimatorError("BAD_STEP", "a step must have 0 <= accepted <= drafted <= k")
    if step.rejected and step.accepted == step.drafted:
        raise EstimatorError("BAD_STEP", "a step cannot refuse a token it did not draft")
    ended = step.emitted == step.accepted > 0 and not step.rejected
    if step.emitted != step.accepted + 1 and not ended:
        raise EstimatorError("BAD_STEP", "a step emits one token more than it accepts, unless the text ended")
