"""From measurements to rows, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared import labels
from shared.estimators import accepted_rate
from shared.intervals import cluster_bootstrap
from shared.sweep import ALL, LABELS, K, Row, SweepRun, best, rows
from tests.shared.build import example_measurement, measured_payload


def run(
    k: K = 2,
    prompt: int = 1,
    domain: str = "prose",
    *,
    accepted: int = 8,
    rejections: int = 8,
    speedup: float | None = 1.5,
    **more: Any,
) -> SweepRun:
    """A run of ten steps, with as much of a measurement as rows are made of."""
    measurement = {
        "k_requested": k,
        "n": 10,
        "drafted": 20,
        "accepted": accepted,
        "rejections": rejections,
        "emitted": accepted + 10,
        "speedup": labels.UNAVAILABLE if speedup is None else {"label": "MEASURED", "median": speedup},
        "quality": {"identical_rate": 1.0},
        "verdict": {"valid": True},
        "recommended_k": None,
        **more,
    }
    return SweepRun(domain, prompt, measurement)


def only(*runs: SweepRun) -> Row:
    """The one row of these runs."""
    (row,) = rows(runs)
    return row


def calibration(cost_ratio: float, *verify_cost: float) -> dict[str, Any]:
    """A calibration as receipts hold it."""
    return {"cost_ratio": cost_ratio, "verify_cost": list(verify_cost), "measured_at": "2026-11-30T00:00:00Z"}


def test_a_row() -> None:
    """Acceptance is pooled over prompts, not averaged; the modeled figures take the pooled rate."""
    costs = calibration(0.1, 1.0, 1.1, 1.3)
    row = only(
        run(prompt=1, accepted=15, rejections=3, speedup=1.75, calibration=costs),
        run(prompt=2, accepted=3, rejections=15, speedup=1.25, verdict={"valid": False}),
    )
    assert row == Row(
        domain="prose",
        k=2,
        label="MEASURED",
        asked=2,
        runs=2,
        valid=1,
        compared=2,
        lossless=2,
        tokens_per_step=1.9,  # (25 + 13) / 20
        drafted_per_step=2.0,
        accepted=18,
        examined=36,
        accepted_rate=0.5,
        accepted_rate_low=None,  # two prompts say nothing of the others
        accepted_rate_high=None,
        timed=2,
        speedup_measured=1.5,
        speedup_low=1.25,
        speedup_high=1.75,
        speedup_spread="range",
        speedup_modeled=1.75 / 1.4,  # (1 + 0.5 + 0.25) / (2 * 0.2 + 1)
        speedup_predicted=1.75 / 1.5,  # the same tokens / (2 * 0.1 + 1.3)
    )


def test_the_modeled_figure_is_the_receipts() -> None:
    """For a single run Theorem 3.8 gives what its receipt says."""
    row = only(SweepRun("prose", 1, example_measurement()))
    assert row.speedup_modeled is not None and row.accepted_rate is not None
    assert round(row.speedup_modeled, 4) == measured_payload()["speedup_modeled"]
    assert round(row.accepted_rate, 4) == measured_payload()["accepted_rate"]


def test_modeled_figures_are_medians_over_receipts() -> None:
    """Where cost ratios or calibrations differ, each receipt's own counts; a calibration short of v(k+1) does not."""
    runs = [
        run(prompt=1, calibration=calibration(0.1, 1.0, 1.1, 1.3)),
        run(prompt=2, calibration=calibration(0.2, 1.0, 1.1, 1.35)),
        run(prompt=3, calibration=calibration(0.5, 1.0, 1.1)),
        run(prompt=4, calibration=None),
    ]
    runs[1:] = [replace(one, cost_ratio=0.375) for one in runs[1:]]
    row = only(*runs)
    assert row.accepted_rate == 0.5
    assert row.speedup_modeled == 1.75 / 1.75
    assert row.speedup_predicted == pytest.approx((1.75 / 1.5 + 1.75 / 1.75) / 2, rel=1e-12)


def test_the_interval_is_by_prompt() -> None:
    """The rate's interval is the cluster bootstrap over prompts; two runs of one prompt are one cluster."""
    counts = [(9, 1), (8, 3), (7, 3), (5, 5), (8, 2), (6, 5)]
    runs = [run(prompt=i, accepted=a, rejections=r) for i, (a, r) in enumerate(counts)]
    row = only(*runs)
    expected = cluster_bootstrap([(a, a + r) for a, r in counts])
    assert expected is not None
    assert (row.accepted_rate_low, row.accepted_rate_high) == expected
    assert row.accepted_rate == accepted_rate(43, 19)
    again = only(*runs, run(prompt=0, accepted=9, rejections=1))
    assert (again.accepted_rate_low, again.accepted_rate_high) == cluster_bootstrap(
        [(18, 20), *((a, a + r) for a, r in counts[1:])]
    )


def test_speedups_have_an_interval_from_six_prompts_on() -> None:
    """Six prompts give the interval of the median, five their range, which is called that."""
    values = [1.1, 1.6, 1.3, 1.2, 1.5, 1.4, 2.5, 0.5, 1.35]
    runs = [run(prompt=i, speedup=value) for i, value in enumerate(values)]
    nine, six, five = only(*runs), only(*runs[:6]), only(*runs[:5])
    assert (nine.speedup_measured, six.speedup_measured, five.speedup_measured) == (
        1.35,
        (1.3 + 1.4) / 2,
        1.3,
    )
    assert [(row.speedup_low, row.speedup_high) for row in (nine, six, five)] == [(1.1, 1.6)] * 3
    assert (nine.speedup_spread, six.speedup_spread, five.speedup_spread) == ("interval", "interval", "range")


def test_prompts_count_once_in_speedups() -> None:
    """Several runs of a prompt give one value, their median, so that no prompt weighs more than another."""
    row = only(*(run(prompt=1, speedup=s) for s in (1.0, 1.2, 3.0)), run(prompt=2, speedup=1.4))
    assert (row.runs, row.timed, row.speedup_measured) == (4, 2, (1.2 + 1.4) / 2)


def test_what_was_not_timed_is_left_out() -> None:
    """A run without a measured speed-up counts for acceptance alone; without any there is no speed-up, not 0."""
    some = only(run(prompt=1), run(prompt=2, speedup=None))
    assert (some.runs, some.timed, some.speedup_measured, some.examined) == (2, 1, 1.5, 32)
    none = only(run(speedup=None))
    assert (none.label, none.timed, none.speedup_measured, none.speedup_low, none.speedup_spread) == (
        "MEASURED",
        0,
        None,
        None,
        None,
    )
    assert none.speedup_modeled is not None


def test_sampled_runs_are_not_lossless_or_lossy() -> None:
    """Only runs that were compared with the target's own output count in the share of lossless ones."""
    rates = (1.0, 0.75, None)
    row = only(*(run(prompt=i, quality={"identical_rate": rate}) for i, rate in enumerate(rates)))
    assert (row.runs, row.compared, row.lossless) == (3, 2, 1)


def test_nothing_examined() -> None:
    """Without one examined draft token there is no rate, so nothing modeled from it."""
    row = only(run(accepted=0, rejections=0, calibration=calibration(0.1, 1.0, 1.1, 1.3)))
    assert (row.examined, row.accepted_rate, row.speedup_modeled, row.speedup_predicted) == (
        0,
        None,
        None,
        None,
    )


def test_adaptive_runs() -> None:
    """A k that the agent adapts has a row of its own, after the others, with no rate and nothing modeled."""
    adaptive: dict[str, Any] = {
        "mode": "adaptive",
        "accepted_rate": None,
        "drafted": 33,
        "calibration": calibration(0.1, *[1.0] * 9),
    }
    fixed, row = rows([run("auto", accepted=21, rejections=4, **adaptive), run(16)])
    assert (fixed.k, row.k, row.label) == (16, "auto", "MEASURED")
    assert (row.tokens_per_step, row.drafted_per_step, row.speedup_measured) == (3.1, 3.3, 1.5)
    assert (row.accepted, row.examined) == (21, 25)
    figures = (row.accepted_rate, row.accepted_rate_low, row.speedup_modeled, row.speedup_predicted)
    assert figures == (None, None, None, None)


def test_an_adaptive_run_that_did_not_speculate() -> None:
    """Where the agent chose not to draft at all, the row says 0 drafts a step, which was measured."""
    row = only(run("auto", accepted=0, rejections=0, drafted=0, accepted_rate=None, speedup=1.0))
    assert (row.tokens_per_step, row.drafted_per_step, row.speedup_measured) == (1.0, 0.0, 1.0)


def test_domains() -> None:
    """Each domain has its rows, and several have rows of all together, where prompts of both are clusters."""
    runs = [run(k, i, domain, speedup=i) for domain in ("prose", "code") for k in (4, 1) for i in (1, 2, 3)]
    table = rows(runs)
    assert [(row.domain, row.k) for row in table] == [(d, k) for d in ("prose", "code", ALL) for k in (1, 4)]
    assert [row.runs for row in table] == [3, 3, 3, 3, 6, 6]
    assert [row.timed for row in table] == [3, 3, 3, 3, 6, 6]
    assert table[-1].speedup_spread == "interval"
    assert {row.domain for row in rows(runs[:6])} == {"prose"}


def test_rows_without_a_run() -> None:
    """What was asked for and not measured is a row that says UNAVAILABLE and holds no figure."""
    asked: list[tuple[str, K]] = [("prose", 1), ("prose", 1), ("prose", "auto"), ("code", 1)]
    table = rows([run(1)], asked)
    assert [(row.domain, row.k, row.label, row.runs, row.asked) for row in table] == [
        ("prose", 1, "MEASURED", 1, 2),
        ("prose", "auto", "UNAVAILABLE", 0, 1),
        ("code", 1, "UNAVAILABLE", 0, 1),
        (ALL, 1, "MEASURED", 1, 3),
        (ALL, "auto", "UNAVAILABLE", 0, 1),
    ]
    for row in table:
        if row.label == "UNAVAILABLE":
            assert all(getattr(row, name) is None for name in LABELS if name != "recommended_k")
            assert (row.speedup_low, row.speedup_spread, row.accepted_rate_low) == (None, None, None)
    assert rows([]) == []


def test_best() -> None:
    """The k with the highest measured speed-up is the best, the smaller on a tie, whatever the model says."""
    runs = [run(1, speedup=1.2), run(2, speedup=1.4), run(4, speedup=1.4), run(8, speedup=None)]
    (choice,) = best(runs, rows(runs))
    assert choice.row is not None
    assert (choice.domain, choice.row.k, choice.speculate) == ("prose", 2, True)


@pytest.mark.parametrize(("speedup", "speculate"), [(0.999, False), (1.0, True)])
def test_best_below_one(speedup: float, speculate: bool) -> None:
    """When even the best is below 1, the advice is not to speculate."""
    runs = [run(1, speedup=speedup), run("auto", speedup=0.5)]
    (choice,) = best(runs, rows(runs))
    assert choice.speculate is speculate and choice.row is not None and choice.row.k == 1


def test_the_best_may_be_adaptive() -> None:
    """The adaptive k takes part like any other."""
    runs = [run(1, speedup=1.2), run("auto", speedup=1.3)]
    (choice,) = best(runs, rows(runs))
    assert choice.row is not None and choice.row.k == "auto"


def test_no_best() -> None:
    """Without a measured speed-up there is no best k and no advice."""
    for runs in ([], [run(1, speedup=None)]):
        (choice,) = best(runs, rows(runs, [("prose", 1)]))
        assert (choice.row, choice.speculate, choice.recommended_k) == (None, None, None)
    assert best([], []) == []


def test_recommended_k() -> None:
    """The median of what the domain's receipts recommend is passed on, the lower of an even number, with its range."""
    votes: dict[str, list[int | None]] = {"prose": [4, 5, 2, None], "code": [3, 0, 0, 8]}
    runs = [
        run(2, i, domain, recommended_k=k) for domain, ks in votes.items() for i, k in enumerate(ks, start=1)
    ]
    choices = best(runs, rows(runs))
    assert [
        (c.domain, c.recommended_k, c.recommended_least, c.recommended_most, c.recommending) for c in choices
    ] == [("prose", 4, 2, 5, 3), ("code", 0, 0, 8, 4), (ALL, 3, 0, 8, 7)]
