"""The modeled curve against exact vectors."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.curve import (
    CurveError,
    accounting_modeled,
    expected_speedup,
    expected_tokens,
    optimal_k,
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
