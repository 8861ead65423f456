"""Estimators against exact vectors, exact enumeration and their own definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.curve import expected_speedup, expected_tokens
from shared.estimators import (
    EstimatorError,
    Step,
    accepted_rate,
    accepted_rate_ci95,
    after_full_acceptance,
    draft_acceptance_rate,
    mean_accepted_len,
    median_interval,
    summarise,
    unconditional_acceptance,
)
from tests.shared.build import golden, golden_steps, runs


@pytest.mark.parametrize("case", golden("measured")["cases"], ids=lambda case: case["name"])
def test_golden_cases(case: dict[str, Any]) -> None:
    """Every golden case's steps give exactly its counts, its ratios and the speedup they model."""
    counts = summarise(golden_steps(case), case["k"])
    alpha = accepted_rate(counts.accepted, counts.rejections)
    assert alpha is not None
    assert {
        "n": counts.n,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "rejections": counts.rejections,
        "emitted": counts.emitted,
        "acceptance_histogram": list(counts.acceptance_histogram),
        "accepted_rate": alpha,
        "draft_acceptance_rate": draft_acceptance_rate(counts.accepted, counts.drafted),
        "mean_accepted_len": mean_accepted_len(counts.emitted, counts.n),
        "conditional_acceptance": list(counts.conditional),
        "expected_tokens_per_step": pytest.approx(expected_tokens(alpha, counts.k), rel=1e-14),
        "speedup_modeled": pytest.approx(expected_speedup(alpha, counts.k, 0.2), rel=1e-14),
    } == case["expect"]


def test_nothing_over_nothing_is_none() -> None:
    """0/0 is None, never 0; 0 out of something is 0."""
    assert accepted_rate(0, 0) is None
    assert draft_acceptance_rate(0, 0) is None
    assert mean_accepted_len(0, 0) is None
    assert accepted_rate_ci95(0, 0) is None
    assert accepted_rate(0, 3) == 0.0
    empty = summarise([], 2)
    assert (empty.n, empty.emitted, empty.acceptance_histogram, empty.conditional) == (
        0,
        0,
        (0, 0, 0),
        (None, None),
    )


@given(runs())
def test_sums_belong_together(run: tuple[int, int, str | None, list[Step]]) -> None:
    """Acceptances plus refusals are the tokens examined, counted position by position."""
    k, _, _, steps = run
    counts = summarise(steps, k)
    examined = sum(step.accepted + step.rejected for step in steps)
    assert counts.accepted + counts.rejections == examined <= counts.drafted
    assert sum(counts.acceptance_histogram) == counts.n == len(steps)
    assert counts.emitted <= counts.accepted + counts.n


def test_unconditional_acceptance() -> None:
    """Each position is counted over all steps, so the values fall along the draft; no steps give None, no 0."""
    assert unconditional_acceptance([2, 1, 0, 1]) == [0.5, 0.25, 0.25]
    assert unconditional_acceptance([3, 0]) == [0.0]
    assert unconditional_acceptance([0, 0, 0]) == [None, None]
    assert unconditional_acceptance([4]) == unconditional_acceptance([]) == []
    with pytest.raises(EstimatorError, match="none negative"):
        unconditional_acceptance([1, -1])


@given(runs())
def test_unconditional_sums_to_the_mean(run: tuple[int, int, str | None, list[Step]]) -> None:
    """The values sum to the accepted tokens per step, and the first is the conditional one of full drafts."""
    k, _, _, steps = run
    counts = summarise(steps, k)
    values = [value for value in unconditional_acceptance(counts.acceptance_histogram) if value is not None]
    assert len(values) == k
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(counts.accepted / counts.n, rel=1e-12)
    if steps[-1].drafted == k and steps[-1].emitted > steps[-1].accepted:
        assert values[0] == counts.conditional[0]


@pytest.mark.parametrize(
    ("step", "clause"),
    [
        (Step(5, 0, True, 1), "0 <= accepted <= drafted <= k"),
        (Step(2, 3, False, 4), "0 <= accepted <= drafted <= k"),
        (Step(4, -1, True, 0), "0 <= accepted <= drafted <= k"),
        (Step(4, 4, True, 5), "cannot refuse a token it did not draft"),
        (Step(4, 2, True, 2), "emits one token more"),
        (Step(4, 0, False, 0), "emits one token more"),
        (Step(4, 2, False, 4), "emits one token more"),
    ],
)
def test_impossible_steps(step: Step, clause: str) -> None:
    """A step that no verification could produce is refused."""
    with pytest.raises(EstimatorError, match=clause):
        summarise([step], 4)


@pytest.mark.parametrize(
    ("accepted", "rejections", "low", "high"),
    [
        (0, 10, 0.0, 0.2775327998628898),
        (10, 0, 0.7224672001371106, 1.0),
        (8, 2, 0.4901624715472402, 0.9433178485456247),
        (97, 37, 0.6427464230451555, 0.7925362597799642),
        (1, 0, 0.20654931437723745, 1.0),
    ],
)
def test_wilson_interval(accepted: int, rejections: int, low: float, high: float) -> None:
    """The interval is Wilson's: reference values from another implementation, one-sided at 0 and 1."""
    assert accepted_rate_ci95(accepted, rejections) == pytest.approx((low, high), rel=1e-9, abs=1e-15)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_wilson_interval_contains_the_rate(accepted: int, rejections: int) -> None:
    """The interval lies within 0 to 1 and contains the rate exactly, at both ends too."""
    rate, interval = accepted_rate(accepted, rejections), accepted_rate_ci95(accepted, rejections)
    if rate is None or interval is None:
        assert rate is None and interval is None
    else:
        assert 0.0 <= interval[0] <= rate <= interval[1] <= 1.0


def test_wilson_interval_covers() -> None:
    """Over every outcome of 60 trials the exact coverage averages at least 94.5 % across rates."""
    trials = 60
    rates = [i / 200 for i in range(1, 200)]
    intervals = [accepted_rate_ci95(a, trials - a) or (0.0, 0.0) for a in range(trials + 1)]
    coverage = [
        sum(
            math.comb(trials, a) * rate**a * (1 - rate) ** (trials - a)
            for a, (low, high) in enumerate(intervals)
            if low <= rate <= high
        )
        for rate in rates
    ]
    assert sum(coverage) / len(coverage) > 0.945


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(6, 1, 6), (7, 1, 7), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15), (50, 18, 33)],
)
def test_median_interval_ranks(count: int, low: int, high: int) -> None:
    """The ranks are those of the published tables for 95 %."""
    samples = [float(i) for i in range(count, 0, -1)]
    assert median_interval(samples) == ((count + 1) / 2, low, high)


def test_median_interval_needs_six() -> None:
    """Five samples cannot reach 95 %, so there is no interval; a lower level they can reach."""
    assert median_interval([]) is None
    assert median_interval([1.0] * 5) is None
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0], level=0.9) == (3.0, 1.0, 5.0)


@settings(max_examples=30)
@given(st.integers(6, 2000), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_median_interval_coverage(count: int, level: float) -> None:
    """The coverage reaches the level and the next narrower interval's would not, for many samples too."""
    interval = median_interval([float(i) for i in range(1, count + 1)], level)

    def coverage(rank: int) -> float:
        return float(1 - 2 * scipy.stats.binom.cdf(rank - 1, count, 0.5))

    if interval is None:
        assert coverage(1) < level
    else:
        rank = int(interval[1])
        assert interval[2] == count + 1 - rank
        assert coverage(rank) >= level - 1e-12 > coverage(rank + 1) - 2e-12


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_median_of_no_number(bad: float) -> None:
    """A sample that is not finite is refused, not sorted somewhere."""
    with pytest.raises(EstimatorError, match="not finite"):
        median_interval([1.0] * 6 + [bad])


FULL, PART, NONE = Step(2, 2, False, 3), Step(2, 1, True, 2), Step(2, 0, True, 1)


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ([], 0.0),
        ([FULL], 0.0),  # nothing follows it
        ([FULL, NONE], 1 / 2),
        ([NONE, FULL], 0.0),
        ([FULL, FULL, FULL], 2 / 3),
        ([PART, FULL, NONE, FULL, PART], 2 / 5),
        ([Step(0, 0, False, 1)] * 3, 0.0),  # nothing was drafted, so nothing was accepted in full
        ([Step(1, 1, False, 2), Step(2, 2, False, 2)], 1 / 2),
        ([Step(5, 5, False, 6), Step(0, 0, False, 1), PART], 1 / 3),
    ],
)
def test_after_full_acceptance(steps: list[Step], share: float) -> None:
    """It is the share of all steps that have a fully accepted, non-empty draft right before them."""
    assert after_full_acceptance(steps) == share
    assert after_full_acceptance(tuple(steps)) == share


@given(runs())
def test_after_full_acceptance_counts_pairs(run: tuple[int, int, str | None, list[Step]]) -> None:
    """For any run it counts the neighbours of which the first was accepted in full, over all steps."""
    steps = run[3]
    follow = sum(1 for i in range(1, len(steps)) if 0 < steps[i - 1].drafted == steps[i - 1].accepted)
    assert after_full_acceptance(steps) == follow / len(steps)
