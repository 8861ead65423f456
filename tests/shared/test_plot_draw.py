"""Plots as text and as files: all that is to be seen is in them, and readable."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shared import labels
from shared.plot_draw import BREAK_EVEN, as_text, to_file
from shared.plots import Panel, Series

CURVE = Series("Th. 3.8", labels.MODELED, "curve", [1, 2, 4, 8], [1.2, 1.5, 1.9, 1.4])
OTHER = Series("predicted", labels.MODELED, "curve", [1, 2, 4, 8], [1.0, 1.1, 1.2, 0.9])
POINTS = Series("median", labels.MEASURED, "points", [1, 4], [1.1, 1.3], [(1.0, 1.2), None])
SPEED = Panel("prose: $k$", "k", "speed-up", [CURVE, OTHER, POINTS], ticks=[(1, "1"), (8, "auto")], even=True)
BARS = Panel("one run", "accepted", "steps", [Series("steps", labels.MEASURED, "bars", [0, 1, 2], [3, 0, 9])])
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def test_text() -> None:
    """The text has each panel's title, axes, legend with labels, and the line at 1x; every line fits."""
    text = as_text([SPEED, BARS], 80, colour=False)
    for words in (
        "prose: $k$",
        "one run",
        "speed-up",
        "steps (MEASURED)",
        "Th. 3.8 (MODELED)",
        "auto",
        BREAK_EVEN,
    ):
        assert words in text
    assert text.index("median (MEASURED)") < text.index("one run")
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_points_and_curves_differ_without_colour() -> None:
    """Each curve and the points have a mark of their own, so that plain text can be told apart."""
    text = as_text([SPEED], 100, colour=False)
    marks = {
        re.search(rf"(\S) {re.escape(one.legend)}", text)[1]  # type: ignore[index]
        for one in (CURVE, OTHER, POINTS)
    }
    assert len(marks) == 3
    assert "│" in text


def test_the_height_of_bars() -> None:
    """A higher bar covers more of the text than a lower one, and none covers nothing."""
    single = [
        as_text(
            [Panel("t", "x", "y", [Series("s", labels.MEASURED, "bars", [0, 1], [9, n])])], 60, colour=False
        )
        for n in (0, 3, 6)
    ]
    covered = [text.count("█") for text in single]
    assert 0 < covered[0] < covered[1] < covered[2]


def test_colours() -> None:
    """With colour the text is the same, and MEASURED and MODELED are drawn in different ones."""
    text = as_text([SPEED], 80, colour=True)
    assert ANSI.sub("", text) == as_text([SPEED], 80, colour=False)
    assert text != ANSI.sub("", text)


def test_plots_do_not_build_up() -> None:
    """A plot shows nothing of the one before."""
    assert "●" in as_text([SPEED], 80, colour=False)
    bars = as_text([BARS], 80, colour=False)
    assert "█" in bars and "●" not in bars and "+" not in bars
    assert "█" not in as_text([SPEED], 80, colour=False)


def test_svg(tmp_path: Path) -> None:
    """An SVG file is well-formed, its words are text, and the same plot has the same bytes."""
    paths = [tmp_path / name for name in ("one.svg", "two.SVG")]
    for path in paths:
        to_file([SPEED, BARS, BARS], path)
    words = " ".join(ElementTree.fromstring(paths[0].read_bytes()).itertext())  # noqa: S314 - our own file
    for text in ("prose: $k$", "one run", "Th. 3.8 (MODELED)", "median (MEASURED)", BREAK_EVEN, "auto"):
        assert text in words
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_png(tmp_path: Path) -> None:
    """A PNG file is one, wider than high for two panels side by side."""
    path = tmp_path / "plot.png"
    to_file([SPEED, BARS], path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1.5 * height > 0


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """What the disk says is passed on."""
    with pytest.raises(OSError, match="No such file"):
        to_file([BARS], tmp_path / "none" / "plot.svg")


def test_a_panel_without_series(tmp_path: Path) -> None:
    """A panel in which there is nothing to draw still says what it is about."""
    empty = Panel("nothing here", "k", "speed-up", [], even=True)
    assert "nothing here" in as_text([empty], 80, colour=False)
    to_file([empty], tmp_path / "plot.svg")
    assert "nothing here" in (tmp_path / "plot.svg").read_text("utf-8")
