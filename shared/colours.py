"""One colour for each word that says what a number is, in terminals and in plots alike."""

from __future__ import annotations

from typing import Final, NamedTuple

from shared import labels


class Colour(NamedTuple):
    """A colour by its name in a terminal's own palette, and as it is drawn on white paper."""

    terminal: str
    paper: str


COLOURS: Final = {
    labels.MEASURED: Colour("green", "#1a7f37"),
    labels.MODELED: Colour("cyan", "#0969da"),
    labels.UNAVAILABLE: Colour("yellow", "#9a6700"),
}
