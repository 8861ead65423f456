"""The tail functions against scipy, tables and each other."""

from __future__ import annotations

import math

import pytest
import scipy.stats

from shared.distributions import chi_square_sf, normal_two_sided, t_quantile
from shared.estimators import EstimatorError


@pytest.mark.parametrize("df", range(1, 41))
def test_chi_square_tail(df: int) -> None:
    """The tail agrees with scipy's to 1e-12 of its value, from 1 down to 1e-190."""
    for x in [0.0, 1e-8, 0.01, 0.5, 1.0, 3.0, 5.5, 10.0, 20.0, 60.0, 150.0, 400.0, 900.0]:
        assert chi_square_sf(x, df) == pytest.approx(scipy.stats.chi2.sf(x, df), rel=1e-12, abs=0)


def test_chi_square_tail_in_closed_form() -> None:
    """With one degree it is the normal tail on both sides, with two an exponential; at 0 it is exactly 1."""
    assert chi_square_sf(1.7**2, 1) == pytest.approx(normal_two_sided(1.7), rel=1e-14)
    assert chi_square_sf(5.0, 2) == math.exp(-2.5)
    assert [chi_square_sf(0.0, df) for df in range(1, 9)] == [1.0] * 8


@pytest.mark.parametrize("df", [*range(1, 40), 99, 100, 499, 2000])
def test_t_quantile(df: int) -> None:
    """The quantile agrees with scipy's, below the median too, where it is 0 within rounding."""
    for p in [0.001, 0.025, 0.1, 0.6, 0.9, 0.95, 0.975, 0.995, 0.9995]:
        assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-11)
    assert t_quantile(0.5, df) == pytest.approx(0.0, abs=1e-12)


def test_published_quantiles() -> None:
    """Three entries of the tables, and the normal limit."""
    assert [round(t_quantile(0.975, df), 3) for df in (1, 9, 30)] == [12.706, 2.262, 2.042]
    assert t_quantile(0.975, 20_000) == pytest.approx(1.959964, abs=2e-4)
    assert normal_two_sided(-1.959963984540054) == pytest.approx(0.05, rel=1e-14)


@pytest.mark.parametrize(("x", "df"), [(-1e-9, 3), (math.nan, 3), (math.inf, 3), (1.0, 0)])
def test_chi_square_of_what_it_is_not(x: float, df: int) -> None:
    """A negative or missing number, or no degree of freedom, is refused."""
    with pytest.raises(EstimatorError, match="x >= 0"):
        chi_square_sf(x, df)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (math.nan, 3), (0.9, 0)])
def test_t_quantile_of_what_it_is_not(p: float, df: int) -> None:
    """A p that is no probability within 0 to 1, or no degree of freedom, is refused."""
    with pytest.raises(EstimatorError, match="0 < p < 1"):
        t_quantile(p, df)
