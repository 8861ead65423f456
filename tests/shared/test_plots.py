"""What plots show: the numbers of the receipts and rows, each under its label, and nothing that was not measured."""

from __future__ import annotations

from typing import Any

import pytest

from shared import labels
from shared.curve import accounting_modeled, expected_speedup, expected_tokens
from shared.plots import Panel, Series, of_curve, of_run, of_sweep
from shared.results import Receipt
from shared.sweep import K, Row, SweepRun, rows
from tests.shared.build import example_measurement, measured_payload, receipt, roadmap_payload


def curve(**change: Any) -> Receipt:
    """A curve for k 4 at three alphas."""
    block = {**accounting_modeled(4, 0.1, 1.5), **change}
    return Receipt(receipt({"label": labels.CURVE_LABEL, "accounting_modeled": block}))


def series(panel: Panel, kind: str) -> Series:
    """The one series of a kind."""
    (found,) = [one for one in panel.series if one.kind == kind]
    return found


def run(**change: Any) -> Receipt:
    """A measured run of k 4, with the predicted curve that a tower sends."""
    measured = {
        **example_measurement(),
        "predicted_curve": {"label": "MODELED", "speedup": [1.0, 1.2, 1.4, 1.5, 1.45]},
        **change,
    }
    return Receipt(receipt({**measured_payload(), "measurement": measured}))


def table(*measured: tuple[K, float | None], domain: str = "prose") -> list[Row]:
    """Rows of one run each, at these k with these speed-ups."""
    runs = []
    for k, speedup in measured:
        m = {**example_measurement(), "k_requested": k}
        m["calibration"] = {"cost_ratio": 0.1, "verify_cost": [1.0 + i / 10 for i in range(20)]}
        m["speedup"] = (
            labels.UNAVAILABLE
            if speedup is None
            else {"label": "MEASURED", "median": speedup, "ci95": [speedup, speedup], "pairs": 6}
        )
        runs.append(SweepRun(domain, 1, m))
    return rows(runs)


def test_curve() -> None:
    """Speed-up and tokens per step are the formula's, all MODELED, with the receipt's own points and a line at 1x."""
    speed, tokens = of_curve(curve())
    assert (speed.even, tokens.even) == (True, False)
    assert {one.label for panel in (speed, tokens) for one in panel.series} == {labels.MODELED}
    drawn = series(speed, "curve")
    assert (drawn.x[0], drawn.x[-1]) == (0.0, 1.0)
    assert list(drawn.y) == [expected_speedup(alpha, 4, 0.1, 1.5) for alpha in drawn.x]
    assert list(series(tokens, "curve").y) == [expected_tokens(alpha, 4) for alpha in drawn.x]
    points = series(speed, "points")
    assert list(points.x) == [0.5, 0.7, 0.9]
    assert list(points.y) == list(accounting_modeled(4, 0.1, 1.5)["expected_speedup_at_alpha"].values())
    assert speed.title == "k=4, cost ratio 0.1, v=1.5"


def test_curve_without_costs() -> None:
    """A receipt that states no cost ratio, which verification forgives, has no curve to draw."""
    assert of_curve(curve(cost_ratio=None)) == []


def test_run() -> None:
    """A run's histogram is MEASURED; its speed-up stands with its interval over the MODELED curve, at its k."""
    histogram, speed = of_run(run())
    bars = series(histogram, "bars")
    measured = example_measurement()
    assert (list(bars.x), list(bars.y)) == ([0, 1, 2, 3, 4], measured["acceptance_histogram"])
    assert bars.legend == "steps (MEASURED)"
    predicted, point = series(speed, "curve"), series(speed, "points")
    assert (list(predicted.x), predicted.y[3], predicted.label) == ([0, 1, 2, 3, 4], 1.5, labels.MODELED)
    assert (list(point.x), list(point.y), point.label) == (
        [4],
        [measured["speedup"]["median"]],
        labels.MEASURED,
    )
    assert list(point.spans) == [tuple(measured["speedup"]["ci95"])]
    assert speed.even


def test_run_without_a_speedup() -> None:
    """A speed-up that was not measured is no point; the panel says UNAVAILABLE."""
    _, speed = of_run(run(speedup=labels.UNAVAILABLE))
    assert [one.kind for one in speed.series] == ["curve"]
    assert speed.title == "speed-up by k: measured speed-up UNAVAILABLE"


def test_run_of_an_older_tower() -> None:
    """Without a predicted curve the measured speed-up stands alone; without either there is no such panel."""
    _, speed = of_run(run(predicted_curve=None))
    assert [one.kind for one in speed.series] == ["points"]
    assert len(of_run(run(predicted_curve=None, speedup=labels.UNAVAILABLE))) == 1


def test_no_measurement() -> None:
    """A run without a measurement has nothing to draw."""
    assert of_run(Receipt(receipt(roadmap_payload()))) == []


def test_sweep() -> None:
    """Measured points with intervals stand over the modeled and the predicted curve, by k, for each domain."""
    both = [*table((1, 1.1), (4, 1.3)), *table((1, 0.9), domain="code")]
    prose, code = of_sweep(both)
    assert (prose.title, code.title, prose.even) == ("prose", "code", True)
    theorem, predicted, measured = prose.series
    first, second = both[:2]
    assert [list(one.x) for one in prose.series] == [[1, 4]] * 3
    assert list(theorem.y) == [first.speedup_modeled, second.speedup_modeled]
    assert list(predicted.y) == [first.speedup_predicted, second.speedup_predicted]
    assert [one.label for one in prose.series] == [labels.MODELED, labels.MODELED, labels.MEASURED]
    assert list(measured.y) == pytest.approx([1.1, 1.3])
    assert list(measured.spans) == [
        (first.speedup_low, first.speedup_high),
        (second.speedup_low, second.speedup_high),
    ]


def test_sweep_with_gaps() -> None:
    """What was not measured is left out; an adaptive k has a place of its own beside the numbers, and no model."""
    (panel,) = of_sweep(table((1, 1.1), (2, None), ("auto", 1.4)))
    measured = series(panel, "points")
    assert list(measured.x) == [1, 3] and list(measured.y) == pytest.approx([1.1, 1.4])
    assert list(panel.ticks) == [(1, "1"), (2, "2"), (3, "auto")]
    assert all(list(one.x) == [1, 2] for one in panel.series if one.kind == "curve")


def test_sweep_without_a_speedup() -> None:
    """A domain without a measured speed-up says UNAVAILABLE and has no points."""
    (panel,) = of_sweep(table((1, None)))
    assert panel.title == "prose: no speed-up was measured (UNAVAILABLE)"
    assert {one.kind for one in panel.series} == {"curve"}
