"""Intervals over clusters and the check of the sampler: exact values, edges and refusals. Coverage has its own file."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import scipy.stats

from shared.estimators import EstimatorError
from shared.intervals import cluster_bootstrap, martingale_z, sum_min_ci95

FIVE = [(40.0, 60.0), (90.0, 100.0), (30.0, 80.0), (55.0, 70.0), (66.0, 90.0)]
TEN = [(3.2, 4), (0.3, 1), (1.5, 2), (3.9, 4), (2.0, 3), (0.9, 1), (3.0, 4), (1.1, 2), (2.8, 4), (0.5, 1)]


def error_of(clusters: Sequence[tuple[float, float]]) -> float:
    """Linearised standard error of the ratio of sums."""
    part, whole = np.array(clusters).T
    residuals = part - part.sum() / whole.sum() * whole
    return float(np.std(residuals, ddof=1)) * math.sqrt(len(clusters)) / float(whole.sum())


def pivots(clusters: Sequence[tuple[float, float]], resamples: Iterable[Sequence[int]]) -> list[float]:
    """(ratio* - ratio) / error* of each resample, in order: infinite where it holds one cluster alone."""
    part, whole = np.array(clusters).T

    def fit(chosen: Sequence[int]) -> tuple[float, float]:
        p, w = part[list(chosen)], whole[list(chosen)]
        ratio = float(p.sum() / w.sum())
        return ratio, float(np.std(p - ratio * w, ddof=1)) * math.sqrt(len(p)) / float(w.sum())

    ratio, _ = fit(range(len(clusters)))
    found = []
    for chosen in resamples:
        again, error = fit(chosen)
        found.append((again - ratio) / error if error > 1e-12 else math.copysign(math.inf, again - ratio))
    return sorted(found)


def test_bootstrap_t_by_enumeration() -> None:
    """Many resamples of five clusters approach the bootstrap-t of all 3125 there are."""
    every = pivots(FIVE, itertools.product(range(5), repeat=5))
    smallest, largest = np.quantile(every, [0.025, 0.975], method="inverted_cdf")
    ratio, error = 281 / 400, error_of(FIVE)
    interval = cluster_bootstrap(FIVE, resamples=20_000)
    assert interval == pytest.approx((ratio - largest * error, ratio - smallest * error), rel=0.02)


def test_bootstrap_ranks() -> None:
    """Of 39 resamples the least and the greatest bound 95 %, of 79 the second ones: tails of 1 and 2 in 40, 80."""
    ratio, error = sum(part for part, _ in TEN) / sum(whole for _, whole in TEN), error_of(TEN)
    for resamples, rank in ((39, 1), (79, 2)):
        rng = random.Random(3)
        drawn = [[int(rng.random() * 10) for _ in range(10)] for _ in range(resamples)]
        ordered = pivots(TEN, drawn)
        expected = (ratio - ordered[-rank] * error, ratio - ordered[rank - 1] * error)
        assert cluster_bootstrap(TEN, resamples=resamples, seed=3) == pytest.approx(expected, rel=1e-9)


def test_bootstrap_is_reproducible() -> None:
    """A seed gives one interval, on every Python; another seed gives a slightly different one around the ratio."""
    interval = cluster_bootstrap(FIVE, seed=7)
    assert interval == cluster_bootstrap(FIVE, seed=7)
    assert interval == pytest.approx((0.30601506693868463, 0.8779973779920724), rel=1e-12)
    other = cluster_bootstrap(FIVE, seed=8)
    assert interval is not None and other is not None and other != interval
    assert other == pytest.approx(interval, rel=0.2)
    assert interval[0] < 281 / 400 < interval[1]


def test_bootstrap_level() -> None:
    """The 80 % interval lies within the 95 % one, from the same resamples."""
    wide, narrow = cluster_bootstrap(FIVE), cluster_bootstrap(FIVE, level=0.8)
    assert wide is not None and narrow is not None
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_bootstrap_follows_units() -> None:
    """Parts in another unit give the interval in that unit: nothing supposes that the ratio is a rate."""
    seconds = cluster_bootstrap([(part * 2**10, whole) for part, whole in FIVE])
    minutes = cluster_bootstrap([(part * 2**4, whole) for part, whole in FIVE])
    assert seconds is not None and minutes is not None
    assert seconds == (minutes[0] * 64, minutes[1] * 64)
    assert seconds[0] > 1  # where rates would be cut


def test_bootstrap_of_rates_stays_within_them() -> None:
    """Parts of their wholes give an interval cut to 0 and 1, and just the end that lies beyond."""
    high = [(float(part), 10.0) for part in (6, 10, 10, 7, 10, 9)]
    upper = cluster_bootstrap(high)
    lower = cluster_bootstrap([(whole - part, whole) for part, whole in high])
    uncut = cluster_bootstrap([(2 * part, whole) for part, whole in high])
    assert upper is not None and lower is not None and uncut is not None
    assert uncut[1] > 2.0 and upper == (uncut[0] / 2, 1.0)
    assert lower[0] == 0.0 < 4 / 30 < lower[1] < 1.0


@pytest.mark.parametrize(
    "clusters",
    [
        [],
        FIVE[:4],
        [*FIVE[:4], (0.0, 0.0)],
        [(0.0, 0.0)] * 6,
        [(0.8 * whole, whole) for whole in (1.0, 2.0, 3.0, 5.0, 7.0, 9.0)],
        [(0.0, 4.0)] * 6,
        [(9.0, 10.0)] + [(10.0, 10.0)] * 11,
        [(0.3, 3.0)] + [(0.7 * whole, whole) for whole in (1.1, 2.3, 3.1, 5.3, 7.7, 9.9)],
    ],
    ids=["none", "four", "four and empty", "0/0", "one ratio", "zero", "one differs", "one differs, rounded"],
)
def test_no_bootstrap(clusters: list[tuple[float, float]]) -> None:
    """There is no interval from 0/0, from fewer than five clusters or from clusters that do not differ."""
    assert cluster_bootstrap(clusters) is None


@pytest.mark.parametrize("bad", [(1.0, -1.0), (math.nan, 1.0), (1.0, math.inf), (1.0, 0.0)])
def test_impossible_clusters(bad: tuple[float, float]) -> None:
    """A negative or infinite whole, or a part of no whole, is refused."""
    with pytest.raises(EstimatorError, match="finite part of a whole"):
        cluster_bootstrap([*FIVE, bad])


def test_impossible_bootstraps() -> None:
    """A level outside 0 to 1 is refused, and so are resamples too few for it: 39 are the least for 95 %."""
    with pytest.raises(EstimatorError, match="between 0 and 1"):
        cluster_bootstrap(FIVE, level=1.0)
    with pytest.raises(EstimatorError, match="too few resamples"):
        cluster_bootstrap(FIVE, resamples=38)
    cluster_bootstrap(FIVE, resamples=39)


def test_sum_min_interval() -> None:
    """The interval is that of the linearised error on the logit scale, computed another way."""
    alpha, error = sum(part for part, _ in TEN) / sum(whole for _, whole in TEN), error_of(TEN)
    ends = scipy.stats.logistic.cdf(
        scipy.special.logit(alpha)
        + np.array([-1, 1]) * scipy.stats.t.ppf(0.975, 9) * error / (alpha * (1 - alpha))
    )
    assert sum_min_ci95(TEN) == pytest.approx((alpha, *ends), rel=1e-11)


def test_sum_min_is_unbiased_with_lower_variance() -> None:
    """Over 3,000 runs of 20 steps it is right in the mean, and has the part of the variance that betas have."""
    rng = random.Random(20)
    ours, counted = [], []
    for _ in range(3000):
        clusters, accepted = [], 0
        for _ in range(20):
            total, examined = 0.0, 0
            for _ in range(4):
                beta = rng.betavariate(8, 2)
                total, examined = total + beta, examined + 1
                if rng.random() >= beta:
                    break
                accepted += 1
            clusters.append((total, examined))
        estimate = sum_min_ci95(clusters)
        assert estimate is not None
        ours.append(estimate[0])
        counted.append(accepted / sum(examined for _, examined in clusters))
    assert statistics.mean(ours) == pytest.approx(0.8, abs=0.002)
    assert statistics.mean(counted) == pytest.approx(0.8, abs=0.006)  # a ratio, so biased for few steps
    # Beta(8, 2) has variance 0.16 / 11, the draw of an acceptance at 0.8 has 0.16.
    assert statistics.variance(ours) / statistics.variance(counted) == pytest.approx(1 / 11, rel=0.15)


@pytest.mark.parametrize(
    "clusters",
    [
        [],
        TEN[:9],
        [*TEN[:9], (0.0, 0)],
        [(1.0, 1), (4.0, 4)] * 10,
        [(1.0 + 1e-7, 1), (4.0, 4)] * 10,
        [(0.7, 1), (2.1, 3)] * 10,
        [(0.0, 1)] * 20,
    ],
    ids=["none", "nine", "nine and an empty one", "all 1", "above 1 by rounding", "all alike", "all 0"],
)
def test_no_sum_min(clusters: list[tuple[float, int]]) -> None:
    """Fewer than ten steps with a token examined, or steps that do not differ, give no interval."""
    assert sum_min_ci95(clusters) is None


@pytest.mark.parametrize("bad", [(-0.1, 1), (2.1, 2), (0.1, 0), (math.nan, 1)])
def test_impossible_sums_of_betas(bad: tuple[float, int]) -> None:
    """Betas that sum to less than nothing or more than their number are refused."""
    with pytest.raises(EstimatorError, match="sum of betas"):
        sum_min_ci95([*TEN, bad])


def test_martingale_z_exactly() -> None:
    """Four tokens at one half have mean 2 and variance 1; certain ones add to neither."""
    assert [martingale_z(a, [0.5] * 4) for a in (0, 2, 4)] == [-2.0, 0.0, 2.0]
    assert martingale_z(3, [0.5, 1.0, 0.5, 0.5, 0.5]) == 0.0
    assert martingale_z(1, [0.9, 0.2]) == pytest.approx(-0.1 / math.sqrt(0.09 + 0.16), rel=1e-14)


def test_martingale_z_without_variance() -> None:
    """Nothing examined, or betas of 0 and 1 alone, give no z; a beta above 1 by rounding is 1."""
    assert martingale_z(0, []) is None
    assert martingale_z(2, [1.0, 1.0, 0.0]) is None
    assert martingale_z(1, [1.0 + 1e-7]) is None


@pytest.mark.parametrize(
    ("accepted", "betas"), [(3, [0.5, 0.5]), (-1, [0.5]), (1, [1.1]), (1, [-0.1]), (1, [math.nan])]
)
def test_impossible_betas(accepted: int, betas: list[float]) -> None:
    """Betas outside 0 to 1, and more acceptances than tokens, are refused."""
    with pytest.raises(EstimatorError, match="beta"):
        martingale_z(accepted, betas)


@pytest.mark.parametrize(("off", "least", "most"), [(0.0, 0.035, 0.065), (0.05, 0.4, 1.0), (-0.05, 0.4, 1.0)])
def test_martingale_z_finds_a_wrong_sampler(off: float, least: float, most: float) -> None:
    """|z| exceeds 1.96 in 5 % of runs if tokens are accepted with chance beta, and often if it is 0.05 off."""
    rng = random.Random(21)
    found = 0
    for _ in range(1000):
        accepted, betas = 0, []
        for _ in range(150):
            ease = rng.random()  # tokens of a step are alike, and refusals end it
            for _ in range(4):
                beta = min(1.0, ease + 0.3 * rng.random())
                betas.append(beta)
                if rng.random() >= beta + off:
                    break
                accepted += 1
        z = martingale_z(accepted, betas)
        assert z is not None
        found += abs(z) > 1.96
    assert least <= found / 1000 <= most
