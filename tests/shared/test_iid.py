"""The test of the i.i.d. model: exact statistics, its size under the model and its power against others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
import scipy.stats

from shared.distributions import normal_two_sided
from shared.estimators import EstimatorError, Step
from shared.iid import Conclusion, iid_test
from tests.shared.simulate import simulated_step, simulated_steps


def steps_of(accepted: Sequence[int], k: int) -> list[Step]:
    """Steps with these numbers of accepted tokens, k drafted in each."""
    return [Step(k, a, a < k, a + 1) for a in accepted]


def orders(numbers: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """All distinct orders of these many of each value."""
    if not any(numbers.values()):
        yield ()
    for value, left in numbers.items():
        if left:
            for rest in orders({**numbers, value: left - 1}):
                yield (value, *rest)


def test_position_statistic() -> None:
    """The statistic is Pearson's for the table of acceptances and refusals by position, as scipy has it."""
    accepted = [0] * 20 + [1] * 15 + [2] * 10 + [3] * 30
    outcome = iid_test(steps_of(accepted, 3))
    table = [[55, 40, 30], [20, 15, 10]]
    expected = scipy.stats.chi2_contingency(table, correction=False)
    assert outcome.position_df == expected.dof == 2
    assert outcome.position_statistic == pytest.approx(expected.statistic, rel=1e-12)
    assert outcome.position_p == pytest.approx(expected.pvalue, rel=1e-12)


def test_positions_are_pooled() -> None:
    """Positions with fewer than 5 refusals expected go together, and a thin tail with the last group."""
    accepted = [0] * 14 + [1] * 2 + [2] * 4 + [5] * 34  # so 5.4, 4, 3.8, 3.4 and 3.4 refusals expected
    outcome = iid_test(steps_of(accepted, 5))
    assert sum(accepted) == 180 and sum(a < 5 for a in accepted) == 20
    groups = [[40, 38 + 34, 34 + 34], [14, 2 + 4, 0 + 0]]
    expected = scipy.stats.chi2_contingency(groups, correction=False)
    assert outcome.position_df == expected.dof == 2
    assert outcome.position_statistic == pytest.approx(expected.statistic, rel=1e-12)


def test_a_thin_tail_joins_the_last_group() -> None:
    """Where too few refusals are expected in the last positions, they belong to the group before them."""
    accepted = [0] * 20 + [1] * 2 + [2] * 1 + [4] * 10  # so 11.3, 4.5, 3.8 and 3.4 refusals expected
    outcome = iid_test(steps_of(accepted, 4))
    groups = [[13, 11 + 10 + 10], [20, 2 + 1 + 0]]
    expected = scipy.stats.chi2_contingency(groups, correction=False)
    assert outcome.position_df == expected.dof == 1
    assert outcome.position_statistic == pytest.approx(expected.statistic, rel=1e-12)


@pytest.mark.parametrize(("k", "numbers"), [(1, {0: 5, 1: 7}), (2, {0: 3, 1: 3, 2: 4})])
def test_serial_statistic_has_exact_moments(k: int, numbers: dict[int, int]) -> None:
    """Over all orders of a run's steps the statistic has mean 0 and variance 1."""
    values = [iid_test(steps_of(order, k)).serial_statistic for order in orders(numbers)]
    found = [value for value in values if value is not None]
    assert len(found) == len(values) > 700
    assert sum(found) / len(found) == pytest.approx(0.0, abs=1e-12)
    assert sum(value**2 for value in found) / len(found) == pytest.approx(1.0, rel=1e-12)


def test_serial_statistic_has_a_sign() -> None:
    """Like after like is above 0, alternation below, and the p value is that of a normal on both sides."""
    together = iid_test(steps_of([0] * 10 + [1] * 10, 1))
    alternating = iid_test(steps_of([0, 1] * 10, 1))
    assert together.serial_statistic is not None and alternating.serial_statistic is not None
    assert alternating.serial_statistic < -1.96 < 1.96 < together.serial_statistic
    assert alternating.serial_p == normal_two_sided(alternating.serial_statistic)
    assert (together.conclusion, alternating.conclusion) == ("rejected", "rejected")


def test_drafts_of_one_token() -> None:
    """One position cannot differ from another: only the serial test is done, and its p value is not corrected."""
    outcome = iid_test(steps_of([0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0], 1))
    assert (outcome.position_statistic, outcome.position_df, outcome.position_p) == (None, None, None)
    assert outcome.p_value == outcome.serial_p is not None
    assert outcome.conclusion == "not rejected"


def test_correction() -> None:
    """The p value is twice the smaller of two, at most 1: one p value of 4 % does not reject."""
    rng = random.Random(30)
    seen = set()
    for _ in range(200):
        outcome = iid_test(simulated_steps(rng, 40, 4, 0.7))
        assert outcome.position_p is not None and outcome.serial_p is not None
        smaller = min(outcome.position_p, outcome.serial_p)
        assert outcome.p_value == min(1.0, 2 * smaller)
        assert outcome.conclusion == ("rejected" if 2 * smaller <= 0.05 else "not rejected")
        seen |= {"between"} if 0.025 < smaller <= 0.05 else set()
        seen |= {"one"} if outcome.p_value == 1.0 else set()
    assert seen == {"between", "one"}


@pytest.mark.parametrize(
    ("steps", "conclusion"),
    [
        ([], "too few steps"),
        ([Step(0, 0, False, 1)] * 40, "too few steps"),
        (steps_of([4] * 500, 4), "too few steps"),
        (steps_of([0] * 500, 4), "too few steps"),
        (steps_of([4, 0, 2, 1, 3, 4, 0, 1, 2], 4), "too few steps"),
        (steps_of([1, 2, 4, 4] * 4, 4), "too few steps"),
        (steps_of([1] * 40, 2), "rejected"),
        (steps_of([1] * 40 + [2], 2), "rejected"),
    ],
    ids=["none", "no drafts", "all accepted", "all refused", "nine", "positions", "alike", "one differs"],
)
def test_what_cannot_be_tested(steps: list[Step], conclusion: Conclusion) -> None:
    """A test that cannot be done is None and bars "not rejected"; the other one may still reject."""
    outcome = iid_test(steps)
    assert outcome.conclusion == conclusion
    assert outcome.serial_p is None or outcome.position_p is None
    assert (outcome.p_value is None) == (outcome.serial_p is None and outcome.position_p is None)


def test_serial_test_needs_ten_steps_and_five_outcomes() -> None:
    """Nine steps, four refusals or four acceptances are too few for the serial test; ten, five and five are enough."""
    assert iid_test(steps_of([4, 0, 2, 1, 3, 4, 0, 1, 2], 4)).serial_p is None
    assert iid_test(steps_of([1, 1, 1, 0] * 4, 1)).serial_p is None
    assert iid_test(steps_of([0, 0, 0, 1] * 4, 1)).serial_p is None
    assert iid_test(steps_of([0, 1, 1, 0, 0, 1, 0, 1, 1, 0], 1)).serial_p is not None


def test_impossible_step() -> None:
    """A step that no verification could produce is refused."""
    with pytest.raises(EstimatorError, match="0 <= accepted <= drafted"):
        iid_test([*steps_of([1] * 20, 4), Step(2, 3, False, 4)])


def rejections(make: Callable[[random.Random], list[Step]], seed: int) -> float:
    """Share of 1,000 simulated runs in which the model is rejected."""
    rng = random.Random(seed)
    return sum(iid_test(make(rng)).conclusion == "rejected" for _ in range(1000)) / 1000


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("alpha", [0.6, 0.8, 0.95])
def test_size(alpha: float, k: int) -> None:
    """The model itself is rejected in at most 6 % of runs of 50 steps."""
    assert rejections(lambda rng: simulated_steps(rng, 50, k, alpha), 31) <= 0.06


@pytest.mark.parametrize(("n", "least"), [(50, 0.65), (100, 0.93)])
def test_power_against_positions(n: int, least: float) -> None:
    """Acceptance that falls from 0.9 to 0.6 along the draft is found, mostly in 50 steps and nearly always in 100."""

    def run(rng: random.Random) -> list[Step]:
        return [simulated_step(rng, [0.9, 0.8, 0.7, 0.6]) for _ in range(n)]

    assert rejections(run, 32) >= least


@pytest.mark.parametrize(("stretch", "least"), [(1, 0.93), (5, 0.65), (10, 0.85), (25, 0.93)])
def test_power_against_stretches(stretch: int, least: float) -> None:
    """Easy and hard stretches (0.95 and 0.5), even of single steps, are found in 50 steps."""
    easy = itertools.cycle([0.95] * stretch + [0.5] * stretch)

    def run(rng: random.Random) -> list[Step]:
        return [simulated_step(rng, [next(easy)] * 4) for _ in range(50)]

    assert rejections(run, 33) >= least


def test_the_tests_find_what_they_are_for() -> None:
    """Positions alone leave the serial test at its 5 %, since the steps are still independent."""
    rng = random.Random(34)
    runs = [[simulated_step(rng, [0.9, 0.8, 0.7, 0.6]) for _ in range(50)] for _ in range(1000)]
    found = [p for run in runs if (p := iid_test(run).serial_p) is not None]
    assert len(found) == 1000
    assert 0.03 <= sum(p <= 0.05 for p in found) / 1000 <= 0.07
