"""Draws plots: as text for a terminal (plotext), or into an SVG or PNG file (matplotlib).

Both packages are the extra `plot` and are imported only here, when something is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from shared.colours import COLOURS
from shared.plots import Panel, Series

BREAK_EVEN: Final = "1x: break-even"
_HEIGHT: Final = 20
_CURVE_MARKS: Final = ("·", "+")
"""Curves of one panel have one colour, as all are MODELED, so these tell them apart."""


def as_text(panels: Sequence[Panel], width: int, *, colour: bool) -> str:
    """The panels, one below the other, each above its legend; without colour it is plain text."""
    return "\n\n".join(_panel_text(panel, width, colour) for panel in panels)


def _panel_text(panel: Panel, width: int, colour: bool) -> str:
    import plotext

    plotext.terminal.limit(False, False)
    figure = plotext.figure.clear()
    figure.theme("simple" if colour else "colorless")
    figure.plot_size(width, _HEIGHT)
    figure.label(panel.x_name, "x")
    figure.label(panel.y_name, "y")
    legend = []  # below the plot: inside, it would cover what is drawn
    if panel.even:
        figure.draw(figure.segment(_across(panel), (1.0, 1.0), marker=plotext.marker("-", "gray")))
        legend.append(f"- {BREAK_EVEN}")
    marks = iter(_CURVE_MARKS)
    for series in panel.series:
        mark = {"points": "●", "bars": "█"}.get(series.kind) or next(marks, "x")
        _draw_text(plotext, series, mark)
        line = f"{mark} {series.legend}"
        ink = COLOURS[series.label].terminal
        legend.append(plotext.colorize(line).fill(ink).string() if colour else line)
    high = _limits(panel)[1]
    levels = _levels(high)
    figure.ruler("y").lim(0.0, high).ticks(levels, [f"{level:g}" for level in levels])
    if panel.ticks:
        figure.ruler("x").ticks([at for at, _ in panel.ticks], [name for _, name in panel.ticks])
    plot = figure.build().string(colorless=not colour).rstrip("\n")
    # The title stands by itself: in the plot one that is too wide would be left out.
    return "\n".join([panel.title, plot, *(f"  {line}" for line in legend)])


def _draw_text(plotext: Any, series: Series, mark: str) -> None:
    figure, colour = plotext.figure, COLOURS[series.label].terminal
    x, y, marker = list(series.x), list(series.y), plotext.marker(mark, colour)
    for at, span in zip(x, series.spans, strict=False):
        if span is not None:
            figure.draw(figure.segment((at, at), span, marker=plotext.marker("│", colour)))
    if series.kind == "bars":
        figure.draw(figure.bar(x, y, marker=marker, width=0.6))
    else:
        figure.draw(figure.signal(x, y, marker=marker).lines(series.kind == "curve"))


def _across(panel: Panel) -> tuple[float, float]:
    """From the first to the last of what is drawn, side by side, and never a mere point."""
    x = [at for series in panel.series for at in series.x] or [0.0]
    return (min(x), max(x)) if min(x) < max(x) else (min(x) - 0.5, max(x) + 0.5)


def _levels(high: float) -> list[float]:
    """Round numbers from 0 to this one, six at most."""
    unit = 10.0 ** math.floor(math.log10(high))
    step = next(unit * part for part in (0.2, 0.5, 1.0, 2.0) if high / (unit * part) < 6)
    return [step * i for i in range(int(high / step) + 1)]


def to_file(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels into a file, of the kind that its name ends in.

    Raises:
        OSError: If it cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    svg = path.suffix.lower() == ".svg"
    # Text stays text in an SVG, and the same plot has the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "specdec"}):
        figure = Figure(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for panel, axis in zip(panels, axes, strict=False):
            _draw_panel(axis, panel)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        figure.savefig(path, dpi=150, metadata={"Date": None} if svg else None)


def _draw_panel(axis: Any, panel: Panel) -> None:
    axis.set_title(panel.title, parse_math=False)
    axis.set_xlabel(panel.x_name)
    axis.set_ylabel(panel.y_name)
    if panel.ticks:
        axis.set_xticks([at for at, _ in panel.ticks], [name for _, name in panel.ticks])
    axis.set_ylim(*_limits(panel))
    if panel.even:
        axis.axhline(1.0, color="#57606a", linewidth=1, linestyle=":", label=BREAK_EVEN)
    styles = iter(("-", "--"))
    for series in panel.series:
        colour = COLOURS[series.label].paper
        if series.kind == "bars":
            axis.bar(series.x, series.y, width=0.6, color=colour, label=series.legend)
        elif series.kind == "curve":
            dots = "." if len(series.x) < 20 else ""  # a curve over one k alone is to be seen, too
            axis.plot(series.x, series.y, next(styles, "-."), marker=dots, color=colour, label=series.legend)
        else:
            for x, span in zip(series.x, series.spans, strict=False):
                if span is not None:
                    axis.plot((x, x), span, color=colour, linewidth=1.5)
            axis.plot(series.x, series.y, "o", color=colour, label=series.legend)
    if panel.series:
        axis.legend(fontsize="small")


def _limits(panel: Panel) -> tuple[float, float]:
    """From 0 to a little above what is drawn, so that heights can be compared."""
    values = [y for series in panel.series for y in series.y]
    values += [end for series in panel.series for span in series.spans if span is not None for end in span]
    return 0.0, 1.1 * max([*values, 1.0] if panel.even else values, default=1.0)
