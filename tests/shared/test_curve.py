"""The modeled curve against exact vectors."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.curve import (
    CurveError,
    StepCosts,
    accounting_modeled,
    best_k,
    expected_speedup,
    expected_tokens,
    optimal_k,
    predicted_curve,
    predicted_speedup,
)
from tests.shared.build import golden


def test_golden_rows() -> None:
    """All golden rows, next to alpha = 1 too, hold to 1e-12 relative."""
    rows = golden("curve")["rows"]
    assert len(rows) == 360
    for row in rows:
        tokens = expected_tokens(row["alpha"], row["k"])
        speedup = expected_speedup(row["alpha"], row["k"], row["cost_ratio"], row["verify_cost"])
        assert math.isclose(tokens, row["expected_tokens"], rel_tol=1e-12, abs_tol=0)
        assert math.isclose(speedup, row["expected_speedup"], rel_tol=1e-12, abs_tol=0)


@given(st.floats(0, 1), st.integers(0, 64))
def test_tokens_equal_the_exact_series(alpha: float, k: int) -> None:
    """For any alpha the sum agrees with exact rational arithmetic to 1e-13 relative."""
    exact = sum(Fraction(alpha) ** i for i in range(k + 1))
    assert abs(Fraction(expected_tokens(alpha, k)) - exact) <= exact * Fraction(1, 10**13)


@pytest.mark.parametrize("gap", [1e-6, 1e-9, 1e-12, 2.0**-53])
def test_next_to_one(gap: float) -> None:
    """Next to alpha = 1, where the closed form loses all digits, the sum stays exact and below k + 1."""
    tokens = expected_tokens(1 - gap, 64)
    exact = sum(Fraction(1 - gap) ** i for i in range(65))
    assert abs(Fraction(tokens) - exact) <= exact * Fraction(1, 10**13)
    assert tokens <= 65


def test_accounting_block() -> None:
    """The defaults give the published block exactly."""
    assert accounting_modeled(4, 0.2) == {
        "label": "MODELED (acceptance-rejection accounting curve, not a measurement)",
        "k": 4,
        "cost_ratio": 0.2,
        "verify_cost": 1.0,
        "expected_tokens_per_step_at_alpha": {"0.5": 1.9375, "0.7": 2.7731, "0.9": 4.0951},
        "expected_speedup_at_alpha": {"0.5": 1.0764, "0.7": 1.5406, "0.9": 2.2751},
    }


def test_accounting_keys() -> None:
    """Keys are repr(float(alpha)), each once, integers included."""
    block = accounting_modeled(2, 1, 2, (0, 1, 1.0, 1e-07))
    assert block["expected_tokens_per_step_at_alpha"] == {"0.0": 1.0, "1.0": 3.0, "1e-07": 1.0}
    assert repr(block["cost_ratio"]) == "1.0" and repr(block["verify_cost"]) == "2.0"


def test_headline_speedup() -> None:
    """An accepted rate of 0.73 gives 1.6311 at k = 4 and cost ratio 0.2."""
    assert round(expected_speedup(0.73, 4, 0.2), 4) == 1.6311


def test_predicted_speedup() -> None:
    """The prediction divides by k c + v(k + 1), with v counted from one token."""
    assert predicted_speedup(0.5, 2, 0.25, [1.0, 1.1, 1.5]) == 1.75 / 2.0
    assert predicted_speedup(0.5, 0, 0.25, [1.0]) == 1.0
    with pytest.raises(CurveError, match="does not reach k \\+ 1"):
        predicted_speedup(0.5, 3, 0.25, [1.0, 1.1, 1.5])


def test_optimal_k() -> None:
    """The best k maximises the speedup, and is 0 when speculation does not pay."""
    assert optimal_k(0.8, 0.05, max_k=16) == 8
    assert optimal_k(0.1, 0.2) == 0  # alpha below c: Corollary 3.9
    assert optimal_k(1.0, 0.0, max_k=16) == 16
    assert optimal_k(0.0, 0.0) == 0  # all equal: the smallest
    assert optimal_k(0.7, 0.2, verify_cost=3.0) == 0
    costs = [1, 1.12, 1.19, 1.32, 1.51]
    assert optimal_k(97 / 134, 0.16, lambda m: costs[m - 1], max_k=4) == 2


@given(st.floats(0, 1), st.floats(0, 10), st.floats(1, 100))
def test_optimal_k_is_the_argmax(alpha: float, cost_ratio: float, verify_cost: float) -> None:
    """No k beats the optimal one, and no smaller k equals it."""
    best = optimal_k(alpha, cost_ratio, verify_cost, max_k=8)
    speedups = [1.0] + [expected_speedup(alpha, k, cost_ratio, verify_cost) for k in range(1, 9)]
    assert best == speedups.index(max(speedups))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((-0.1, 4, 0.2, 1.0), "alpha must be a number from 0 to 1"),
        ((1.1, 4, 0.2, 1.0), "alpha must be a number from 0 to 1"),
        ((math.nan, 4, 0.2, 1.0), "alpha must be a number from 0 to 1"),
        ((0.5, -1, 0.2, 1.0), "k must be an integer from 0 to 64"),
        ((0.5, 65, 0.2, 1.0), "k must be an integer from 0 to 64"),
        ((0.5, True, 0.2, 1.0), "k must be an integer from 0 to 64"),
        ((0.5, 4.0, 0.2, 1.0), "k must be an integer from 0 to 64"),
        ((0.5, 4, -0.2, 1.0), "cost_ratio must be a finite number, at least 0"),
        ((0.5, 4, math.nan, 1.0), "cost_ratio must be a finite number, at least 0"),
        ((0.5, 4, math.inf, 1.0), "cost_ratio must be a finite number, at least 0"),
        ((0.5, 4, 0.2, 0.0), "verify_cost must be a finite number above 0"),
        ((0.5, 4, 0.2, math.inf), "verify_cost must be a finite number above 0"),
    ],
)
def test_out_of_range(arguments: Any, sentence: str) -> None:
    """A parameter outside the model's range is named in one sentence."""
    with pytest.raises(CurveError) as refused:
        expected_speedup(*arguments)
    assert str(refused.value) == sentence


COSTS = StepCosts(
    first=0.5, following=0.125, catch_up=0.25, verify=(1.0, 1.125, 1.25, 1.5, 2.0), warming=(0.375, 0.25)
)


@pytest.mark.parametrize(
    ("k", "drafting"),
    [
        (0, 0.0),
        (1, 0.5),  # the first pass
        (2, 0.875),  # and one that warms up
        (3, 1.125),  # and another
        (4, 1.25),  # and a settled one
        (9, 1.875),  # and five more
    ],
)
def test_step_costs_by_hand(k: int, drafting: float) -> None:
    """A draft costs its first pass, as many warming ones as it has, settled ones, and now and then a longer first."""
    assert COSTS.draft(k, 0.0) == drafting
    assert COSTS.draft(k, 0.5) == drafting + (0.125 if k else 0.0)
    if k:
        assert COSTS.cost_ratio(k, 0.5) == (drafting + 0.125) / k
    if k <= COSTS.max_k:
        assert COSTS.step(k, 0.5) == COSTS.draft(k, 0.5) + (1.0, 1.125, 1.25, 1.5, 2.0)[k]


@pytest.mark.parametrize(
    ("k", "all_accepted", "drafting"),
    [
        (1, 0.0, 0.5),
        (1, 1.0, 0.6875),  # two tokens after two: nothing is built anew
        (1, 0.5, 0.625),  # a quarter of the passes each way
        (1, 0.25, 0.5703125),
        (2, 0.0, 0.875),
        (2, 1.0, 1.1875),  # two tokens after one, which catch_up tells, and one after two
        (2, 0.5, 1.03125),
        (4, 1.0, 1.5625),
    ],
)
def test_draft_passes_of_changing_widths_by_hand(k: int, all_accepted: float, drafting: float) -> None:
    """Each draft pass over another number of tokens than the one before costs a graph; at k = 1 these are few."""
    costs = replace(COSTS, draft_width_change=0.0625)
    assert costs.draft(k, all_accepted) == drafting
    if k == 1:  # first + a (catch_up - R) + 2 a (1 - a) R
        by_changes = 0.5 + all_accepted * 0.1875 + 2 * all_accepted * (1 - all_accepted) * 0.0625
        assert by_changes == drafting


def test_step_costs_without_warming() -> None:
    """Passes after the first all cost the same when none is told to warm up."""
    costs = StepCosts(0.5, 0.125, 0.25, (1.0, 1.5, 1.75))
    assert [costs.draft(k, 1.0) for k in range(4)] == [0.0, 0.75, 0.875, 1.0]
    assert (costs.max_k, costs.step(2, 1.0)) == (2, 2.625)


def test_more_warming_than_passes() -> None:
    """Warming passes beyond the draft's length are not made and cost nothing."""
    costs = StepCosts(0.5, 0.0, 0.0, (1.0,) * 17, warming=(0.25,) * 16)
    assert [costs.draft(k, 0.0) for k in (1, 2, 3, 17, 19)] == [0.5, 0.75, 1.0, 4.5, 4.5]


@pytest.mark.parametrize("k", [-1, 5, 64, 65, True, 2.0])
def test_step_costs_that_were_not_measured(k: Any) -> None:
    """A step whose verifying pass was not measured, or of no length, has no cost."""
    with pytest.raises(CurveError) as refused:
        COSTS.step(k, 0.0)
    assert refused.value.code == ("NO_VERIFY_COST" if k in (5, 64) else "BAD_K")


def test_predicted_curve_by_hand() -> None:
    """The curve is E[tokens] over the step's cost, a share alpha^k of the first passes being longer; 1 without."""
    assert predicted_curve(0.5, COSTS) == [
        1.0,
        1.5 / (0.5 + 0.125 + 1.125),
        1.75 / (0.875 + 0.0625 + 1.25),
        1.875 / (1.125 + 0.03125 + 1.5),
        1.9375 / (1.25 + 0.015625 + 2.0),
    ]
    assert predicted_curve(0.0, COSTS) == [1.0, 1 / 1.625, 1 / 2.125, 1 / 2.625, 1 / 3.25]
    assert predicted_curve(1.0, COSTS)[4] == 5 / 3.5
    assert predicted_curve(1.0, StepCosts(0.0, 0.0, 0.0, (1.0,))) == [1.0]


@given(
    st.floats(0, 1),
    st.floats(0, 10),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=65),
)
def test_predicted_curve_is_the_theorem(alpha: float, cost: float, verify: list[float]) -> None:
    """Where all draft passes cost the same the curve is that of Theorem 3.8."""
    curve = predicted_curve(alpha, StepCosts(cost, cost, 0.0, tuple(verify)))
    assert len(curve) == len(verify)
    assert curve[0] == 1.0
    for k in range(1, len(verify)):
        assert math.isclose(curve[k], expected_speedup(alpha, k, cost, verify[k]), rel_tol=1e-12)


@given(st.floats(0, 1), st.lists(st.floats(0, 10), max_size=16), st.floats(0, 10), st.integers(1, 64))
def test_warming_only_moves_costs(alpha: float, warming: list[float], following: float, k: int) -> None:
    """Warming passes stand in the place of following ones: as dear as those, they change nothing."""
    plain = StepCosts(0.3, following, 0.1, (1.0,) * 65)
    same = StepCosts(0.3, following, 0.1, (1.0,) * 65, (following,) * len(warming))
    assert math.isclose(same.draft(k, alpha), plain.draft(k, alpha), rel_tol=1e-12)
    warm = StepCosts(0.3, following, 0.1, (1.0,) * 65, tuple(warming))
    extra = sum(cost - following for cost in warming[: k - 1])
    assert math.isclose(warm.draft(k, alpha), plain.draft(k, alpha) + extra, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_predicted_curve_of_no_probability(alpha: float) -> None:
    """An alpha that is no probability has no curve."""
    with pytest.raises(CurveError, match="^alpha must be a number from 0 to 1$"):
        predicted_curve(alpha, COSTS)


def test_predicted_curve_beyond_the_longest_draft() -> None:
    """Costs that reach further than any k are refused, not cut."""
    with pytest.raises(CurveError, match="^k must be an integer from 0 to 64$"):
        predicted_curve(0.5, StepCosts(0.1, 0.1, 0.0, (1.0,) * 66))


@pytest.mark.parametrize(
    ("curve", "best"),
    [([1.0], 0), ([1.0, 1.0], 0), ([1.0, 1.5, 1.5, 1.2], 1), ([1.0, 0.9, 1.1], 2), ([1.0, 0.5], 0)],
)
def test_best_k(curve: list[float], best: int) -> None:
    """The best k is the highest entry's, on a tie the smallest, 0 where no draft pays."""
    assert best_k(curve) == best


def test_best_k_of_nothing() -> None:
    """An empty curve has no best k."""
    with pytest.raises(ValueError, match="empty"):
        best_k([])
