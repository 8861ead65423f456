"""The 95 % intervals contain the truth in at least 93 % of runs, and half as wide they would not.

Runs are simulated, 1,000 of each kind, except where all outcomes can be counted. An interval that covers exactly 95 %
passes with a probability of 99.8 %; the seeds are fixed.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Iterator

import pytest

from shared.estimators import accepted_rate_ci95, median_interval
from shared.intervals import cluster_bootstrap, sum_min_ci95
from tests.shared.simulate import simulated_steps, totals

RUNS = 1000
ENOUGH = 0.93


def check(outcomes: Iterable[tuple[float, float, float]], truth: float) -> None:
    """Each outcome is an estimate and the ends of its interval."""
    count = covered = covered_by_half = 0
    for estimate, low, high in outcomes:
        count += 1
        covered += low <= truth <= high
        covered_by_half += (low + estimate) / 2 <= truth <= (estimate + high) / 2
    assert count == RUNS
    assert covered / RUNS >= ENOUGH
    assert covered_by_half / RUNS < ENOUGH


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("alpha", [0.5, 0.77, 0.95])
def test_accepted_rate(alpha: float, k: int) -> None:
    """Wilson's interval covers the acceptance rate in runs of 50 steps: exactly, over all their outcomes.

    A thousand runs would tell too little, for the interval of 50 tokens covers a rate of 0.5 in 93.5 %. A run with r
    refusals has (n - r) k acceptances in its full steps and from 0 to k - 1 in each other, in `ways` orders.
    """
    n = 50
    probability = covered = covered_by_half = 0.0
    ways = [1]
    for refusals in range(n + 1):
        for short, orders in enumerate(ways):
            accepted = (n - refusals) * k + short
            chance = math.comb(n, refusals) * orders * alpha**accepted * (1 - alpha) ** refusals
            interval = accepted_rate_ci95(accepted, refusals)
            assert interval is not None
            estimate, (low, high) = accepted / (accepted + refusals), interval
            probability += chance
            covered += chance * (low <= alpha <= high)
            covered_by_half += chance * ((low + estimate) / 2 <= alpha <= (estimate + high) / 2)
        ways = [sum(ways[max(0, i - k + 1) : i + 1]) for i in range(len(ways) + k - 1)]
    assert probability == pytest.approx(1.0, rel=1e-9)
    assert covered >= ENOUGH > covered_by_half


def time_ratios(rng: random.Random, pairs: int, ratio: float, sigma: float) -> list[float]:
    """Target-only / speculative times of blocks in the order A B B A on a machine that is anything but quiet.

    Each block has log-normal noise and, one in fifty, takes six times as long. The machine slows down by a quarter
    over the run and swings by a tenth, which the two blocks of a pair share but for the moment between them.
    """
    phase = rng.random() * 2 * math.pi

    def block(position: int, seconds: float) -> float:
        at = position / (2 * pairs)
        drift = (1 + 0.25 * at) * (1 + 0.1 * math.sin(2 * math.pi * at + phase))
        return seconds * drift * rng.lognormvariate(0, sigma) * (6 if rng.random() < 0.02 else 1)

    ratios = []
    for pair in range(pairs):
        first, second = 2 * pair, 2 * pair + 1
        target, speculative = (first, second) if pair % 2 == 0 else (second, first)
        ratios.append(block(target, ratio) / block(speculative, 1.0))
    return ratios


@pytest.mark.parametrize("pairs", [6, 12, 24])
@pytest.mark.parametrize("sigma", [0.05, 0.3])
def test_time_ratio(pairs: int, sigma: float) -> None:
    """The interval of the median time ratio covers the true one despite noise, drift and outliers."""
    rng = random.Random(41)

    def outcomes() -> Iterator[tuple[float, float, float]]:
        for _ in range(RUNS):
            interval = median_interval(time_ratios(rng, pairs, 1.6, sigma))
            assert interval is not None
            yield interval

    check(outcomes(), 1.6)


def alpha_over_prompts(a: float, b: float, k: int) -> float:
    """Accepted / examined tokens in the long run when each prompt has its own alpha from Beta(a, b).

    A step at alpha examines 1 + alpha + ... + alpha^(k-1) tokens and accepts alpha times as many in the mean: easy
    prompts weigh more. The moments of a Beta are products.
    """
    moments = [math.prod((a + i) / (a + b + i) for i in range(j)) for j in range(k + 1)]
    return sum(moments[1:]) / sum(moments[:-1])


@pytest.mark.parametrize(("prompts", "a", "b"), [(12, 8, 2), (12, 18, 2), (20, 8, 2), (60, 8, 2)])
def test_rate_over_prompts(prompts: int, a: float, b: float) -> None:
    """The cluster bootstrap covers the rate over prompts of differing difficulty and length, even of 12."""
    rng = random.Random(42)

    def outcomes() -> Iterator[tuple[float, float, float]]:
        for seed in range(RUNS):
            clusters = [
                totals(simulated_steps(rng, rng.randint(30, 60), 4, rng.betavariate(a, b)))
                for _ in range(prompts)
            ]
            interval = cluster_bootstrap(clusters, resamples=119, seed=seed)
            assert interval is not None
            yield sum(part for part, _ in clusters) / sum(whole for _, whole in clusters), *interval

    check(outcomes(), alpha_over_prompts(a, b, 4))


def test_prompts_taken_for_tokens() -> None:
    """Wilson's interval of the pooled counts, which takes tokens for independent, misses the rate over prompts."""
    rng = random.Random(43)
    truth = alpha_over_prompts(8, 2, 4)
    covered = 0
    for _ in range(200):
        prompts = [totals(simulated_steps(rng, 45, 4, rng.betavariate(8, 2))) for _ in range(20)]
        accepted = sum(part for part, _ in prompts)
        interval = accepted_rate_ci95(accepted, sum(whole for _, whole in prompts) - accepted)
        assert interval is not None
        covered += interval[0] <= truth <= interval[1]
    assert covered / 200 < 0.6


def betas_of_step(rng: random.Random, k: int, a: float, b: float, alike: bool) -> tuple[float, int]:
    """Sum of the examined tokens' betas, and their number, in a step whose betas are alike or independent."""
    total, beta = 0.0, rng.betavariate(a, b)
    for examined in range(1, k):
        total += beta
        if rng.random() >= beta:
            return total, examined
        beta = beta if alike else rng.betavariate(a, b)
    return total + beta, k


@pytest.mark.parametrize("alike", [False, True], ids=["independent", "alike"])
@pytest.mark.parametrize(
    ("n", "k", "a", "b"),
    [
        (50, 4, 8, 2),
        (50, 1, 0.8, 0.2),
        (50, 8, 0.8, 0.2),
        (50, 4, 1.9, 0.1),
        (20, 4, 0.8, 0.2),
        (10, 4, 8, 2),
    ],
)
def test_alpha_from_probabilities(n: int, k: int, a: float, b: float, alike: bool) -> None:
    """The interval of sum_min_ci95 covers alpha, for betas near 0 and 1 as for moderate ones."""
    rng = random.Random(44)

    def outcomes() -> Iterator[tuple[float, float, float]]:
        for _ in range(RUNS):
            interval = sum_min_ci95([betas_of_step(rng, k, a, b, alike) for _ in range(n)])
            assert interval is not None
            yield interval

    check(outcomes(), alpha_over_prompts(a, b, k) if alike else a / (a + b))


def test_the_check_can_fail() -> None:
    """Five values' range, which has 93.75 %, passes; the range of four, which has 87.5 %, does not."""
    rng = random.Random(45)

    def ranges(count: int) -> Iterator[tuple[float, float, float]]:
        for _ in range(RUNS):
            values = [rng.gauss(0, 1) for _ in range(count)]
            yield statistics.median(values), min(values), max(values)

    with pytest.raises(AssertionError):
        check(ranges(4), 0.0)
