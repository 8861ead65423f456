"""What the plots of a curve, a run and a sweep show; how they are drawn is in `shared.plot_draw`.

Each series says in its name whether it is MODELED or MEASURED. What was not measured is left out, never drawn as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

from shared import labels
from shared.curve import expected_speedup, expected_tokens
from shared.results import Receipt
from shared.sweep import ALL, Row

_GRID: Final = 100
"""Parts into which alpha is divided for a curve."""
_TENTHS: Final = [(i / 10, f"{i / 10:.1f}") for i in range(11)]


@dataclass(frozen=True)
class Series:
    """One line, row of points or row of bars.

    Attributes:
        name: What it is, for the legend.
        label: MODELED or MEASURED; stands in the legend and chooses the colour.
        kind: How it is drawn.
        x: Where.
        y: How high.
        spans: For each point the ends of its interval, or None without one.
    """

    name: str
    label: str
    kind: Literal["curve", "points", "bars"]
    x: Sequence[float]
    y: Sequence[float]
    spans: Sequence[tuple[float, float] | None] = ()

    @property
    def legend(self) -> str:
        """The name with the label."""
        return f"{self.name} ({self.label})"


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: What it is about.
        x_name: What the horizontal axis counts.
        y_name: What the vertical axis counts.
        series: What is drawn.
        ticks: Positions and names on the horizontal axis.
        even: Whether a line marks 1x, below which speculating costs time.
    """

    title: str
    x_name: str
    y_name: str
    series: Sequence[Series]
    ticks: Sequence[tuple[float, str]] = ()
    even: bool = False


def of_curve(receipt: Receipt) -> list[Panel]:
    """Speed-up and tokens per step against alpha: the formula's curve, and the receipt's own points on it."""
    block = receipt.payload["accounting_modeled"]
    k, cost_ratio, verify_cost = block["k"], block.get("cost_ratio"), block.get("verify_cost", 1.0)
    if cost_ratio is None:  # a verifier forgives that; without it there is no curve
        return []
    grid = [i / _GRID for i in range(_GRID + 1)]
    title = f"k={k}, cost ratio {cost_ratio:g}, v={verify_cost:g}"
    return [
        Panel(
            title,
            "alpha, the acceptance rate",
            "speed-up",
            [
                _modeled("Th. 3.8", grid, [expected_speedup(a, k, cost_ratio, verify_cost) for a in grid]),
                _asked(block["expected_speedup_at_alpha"]),
            ],
            ticks=_TENTHS,
            even=True,
        ),
        Panel(
            title,
            "alpha, the acceptance rate",
            "tokens per step",
            [
                _modeled("expected tokens", grid, [expected_tokens(a, k) for a in grid]),
                _asked(block.get("expected_tokens_per_step_at_alpha") or {}),
            ],
            ticks=_TENTHS,
        ),
    ]


def of_run(receipt: Receipt) -> list[Panel]:
    """How many drafts each step accepted, and the measured speed-up over the predicted curve; nothing unmeasured."""
    m, speedup = receipt.measurement, receipt.speedup_measured
    if m is None:
        return []
    steps = list(range(len(m.acceptance_histogram)))
    bars = Series("steps", labels.MEASURED, "bars", steps, m.acceptance_histogram)
    panels = [
        Panel(
            f"{m.draft.name} -> {m.target.name}, k={m.k_requested}, {m.n} steps",
            "accepted draft tokens",
            "steps",
            [bars],
            ticks=[(i, str(i)) for i in steps],
        )
    ]
    series = []
    if m.predicted_curve is not None:
        curve = m.predicted_curve.speedup
        series.append(_modeled("predicted at measured costs", list(range(len(curve))), curve))
    if speedup is not None:
        low, high = speedup.ci95
        series.append(_measured("speed-up, 95 % interval", [m.k], [speedup.median], [(low, high)]))
    if series:
        unknown = "" if speedup else f": measured speed-up {labels.UNAVAILABLE}"
        last = max(int(x) for one in series for x in one.x)
        ticks = [(k, str(k)) for k in range(last + 1)]
        panels.append(Panel(f"speed-up by k{unknown}", "k", "speed-up", series, ticks, even=True))
    return panels


def of_sweep(table: Sequence[Row]) -> list[Panel]:
    """For each domain the measured speed-ups over the modeled and the predicted ones, by k."""
    return [_domain(domain, list(group)) for domain, group in groupby(table, key=lambda row: row.domain)]


def _domain(domain: str, rows: list[Row]) -> Panel:
    numbers = [row.k for row in rows if isinstance(row.k, int)]
    places = {row.k: row.k if isinstance(row.k, int) else max(numbers, default=0) + 1 for row in rows}
    timed = [(row, row.speedup_measured) for row in rows if row.speedup_measured is not None]
    series = []
    for name, field in (("Th. 3.8", "speedup_modeled"), ("predicted at measured costs", "speedup_predicted")):
        known = [(places[row.k], value) for row in rows if (value := getattr(row, field)) is not None]
        if known:
            series.append(_modeled(name, [x for x, _ in known], [y for _, y in known]))
    if timed:
        x, y = [places[row.k] for row, _ in timed], [value for _, value in timed]
        series.append(_measured("median over prompts", x, y, [_span(row) for row, _ in timed]))
    title = "all domains" if domain == ALL else domain
    return Panel(
        title if timed else f"{title}: no speed-up was measured ({labels.UNAVAILABLE})",
        "k",
        "speed-up",
        series,
        ticks=[(place, str(k)) for k, place in places.items()],
        even=True,
    )


def _modeled(name: str, x: Sequence[float], y: Sequence[float]) -> Series:
    return Series(name, labels.MODELED, "curve", x, y)


def _measured(
    name: str, x: Sequence[float], y: Sequence[float], spans: Sequence[tuple[float, float] | None]
) -> Series:
    return Series(name, labels.MEASURED, "points", x, y, spans)


def _asked(at_alpha: dict[str, Any]) -> Series:
    return Series(
        "asked for", labels.MODELED, "points", [float(alpha) for alpha in at_alpha], list(at_alpha.values())
    )


def _span(row: Row) -> tuple[float, float] | None:
    low, high = row.speedup_low, row.speedup_high
    return None if low is None or high is None else (low, high)
