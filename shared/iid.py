"""Does one run contradict the model behind the papers' formula, the same chance of acceptance for every token?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from shared.distributions import chi_square_sf, normal_two_sided
from shared.estimators import MIN_STEPS, Step, summarise

SIZE: Final = 0.05
"""Chance with which `iid_test` may reject a true model."""

MIN_EXPECTED: Final = 5
"""Acceptances and refusals to expect in every cell of a chi-square test (Cochran 1954, Biometrics 10:417)."""

Conclusion = Literal["not rejected", "rejected", "too few steps"]


@dataclass(frozen=True)
class IidTest:
    """Two tests of the i.i.d. model on the steps of one run.

    Attributes:
        position_statistic: Chi-square of equal acceptance at all positions of the draft. None, with the next two, when
            there are not two groups of positions to compare.
        position_df: Its degrees of freedom: groups of positions, less one.
        position_p: Its p value.
        serial_statistic: Correlation of neighbouring steps, standardised: above 0 if like follows like. None, with
            the next, when there are too few steps, acceptances or refusals, or hardly two steps that differ.
        serial_p: Its p value, two-sided.
        p_value: The smaller of the two after Holm's correction; None when both are.
        conclusion: "rejected" if `p_value` is at most 5 %; otherwise "too few steps" if a test could not be
            done, or "not rejected", which is no proof of the model.
    """

    position_statistic: float | None
    position_df: int | None
    position_p: float | None
    serial_statistic: float | None
    serial_p: float | None
    p_value: float | None
    conclusion: Conclusion


def iid_test(steps: Sequence[Step]) -> IidTest:
    """Test that all examined tokens are accepted with one chance, as Leviathan et al. assume (arXiv:2211.17192, Eq. 1).

    Two ways to be wrong are tested, at 5 % together by Holm's correction (Holm 1979, Scandinavian Journal of
    Statistics 6:65): acceptance may differ between positions in the draft, and neighbouring steps may be alike. Drafts
    of one token have one position, so only the second is tested, without correction. Each test may see
    what the other is for: hard and easy stretches let the easy ones reach later positions. The draft length must be
    fixed, but for a last step cut short.

    Raises:
        EstimatorError: If a step is impossible.
    """
    k = max((step.drafted for step in steps), default=0)
    summarise(steps, k)  # refuses impossible steps
    statistic, df = _position_chi_square(steps, k) or (None, None)
    position_p = None if statistic is None or df is None else chi_square_sf(statistic, df)
    serial = _serial_z(steps)
    serial_p = None if serial is None else normal_two_sided(serial)
    tests = 2 if k > 1 else 1
    done = [p for p in (position_p, serial_p) if p is not None]
    p_value = min(1.0, tests * min(done)) if done else None
    conclusion: Conclusion = "too few steps" if len(done) < tests else "not rejected"
    if p_value is not None and p_value <= SIZE:
        conclusion = "rejected"
    return IidTest(statistic, df, position_p, serial, serial_p, p_value, conclusion)


def _position_chi_square(steps: Sequence[Step], k: int) -> tuple[float, int] | None:
    """Pearson's chi-square for one rate of acceptance at all positions, and its degrees of freedom.

    Given how many steps examined it, a position's acceptances are binomial, whatever came before. Positions are
    pooled, from the first on, until `MIN_EXPECTED` acceptances and refusals are expected in each group; what is
    left at the tail joins the last group.
    """
    accepted, refused = _totals(steps)
    groups: list[tuple[int, int]] = []
    kept = examined = 0
    for position in range(1, k + 1):
        here = sum(step.accepted >= position for step in steps)
        kept += here
        examined += here + sum(step.rejected and step.accepted == position - 1 for step in steps)
        if examined * min(accepted, refused) >= MIN_EXPECTED * (accepted + refused) > 0:
            groups.append((kept, examined))
            kept = examined = 0
    if len(groups) < 2:
        return None
    groups[-1] = (groups[-1][0] + kept, groups[-1][1] + examined)
    rate = accepted / (accepted + refused)
    statistic = math.fsum((kept - n * rate) ** 2 / (n * rate * (1 - rate)) for kept, n in groups)
    return statistic, len(groups) - 1


def _serial_z(steps: Sequence[Step]) -> float | None:
    """Serial correlation of the steps' residuals at lag 1, standardised by its exact mean and variance.

    A step's residual is accepted - alpha * examined: acceptances less their chance, summed until a refusal stops it,
    so of mean 0. Under the model all orders of the steps are equally likely, and over all orders the sum of the
    products of neighbours (first and last being neighbours too) has the mean and variance that Wald and Wolfowitz
    give (1943, Annals of Mathematical Statistics 14:378, section 5), here for residuals that sum to 0. Dividing by
    the root of the summed squared products instead would reject a true model too often for few steps or a high
    alpha (in simulation 12 % for 50 steps at 0.95). Residuals times all tokens examined are whole numbers, so
    nothing is rounded and a variance of 0, as when but one step differs, is told exactly.
    """
    n = len(steps)
    accepted, refused = _totals(steps)
    if n < MIN_STEPS or min(accepted, refused) < MIN_EXPECTED:
        return None
    residuals = [
        step.accepted * (accepted + refused) - accepted * (step.accepted + step.rejected) for step in steps
    ]
    square, fourth = sum(r**2 for r in residuals), sum(r**4 for r in residuals)
    products = sum(a * b for a, b in zip(residuals, residuals[1:] + residuals[:1], strict=True))
    # mean = -square / (n - 1)
    # variance = (square^2 - fourth) / (n - 1) + (square^2 - 2 fourth) / ((n - 1) (n - 2)) - mean^2
    # Both are multiplied out below: the deviation by n - 1, the variance by (n - 1)^2 (n - 2).
    deviation = products * (n - 1) + square
    variance = ((square**2 - fourth) * (n - 2) + square**2 - 2 * fourth) * (n - 1) - square**2 * (n - 2)
    return deviation * math.sqrt((n - 2) / variance) if variance else None


def _totals(steps: Sequence[Step]) -> tuple[int, int]:
    """Tokens accepted and tokens refused."""
    return sum(step.accepted for step in steps), sum(step.rejected for step in steps)
