"""Rows as CSV and as Markdown."""

from __future__ import annotations

import csv
import io

from shared.tables import to_csv, to_markdown

ODD = 'a "quoted", |piped|\nand broken \\ text'


def test_csv() -> None:
    """CSV gives back each text as it was; a missing figure is an empty field, and 0 is 0."""
    text = to_csv(("name", "figure"), [(ODD, 0), ("none", None), ("half", 0.5)])
    assert list(csv.reader(io.StringIO(text))) == [
        ["name", "figure"],
        [ODD, "0"],
        ["none", ""],
        ["half", "0.5"],
    ]


def test_markdown() -> None:
    """Markdown keeps each row on a line and its cells apart; a missing figure is UNAVAILABLE, and 0 is 0."""
    assert to_markdown(("name", "figure"), [(ODD, 0), ("none", None)]) == (
        "| name | figure |\n"
        "| --- | --- |\n"
        '| a "quoted", \\|piped\\| and broken \\\\ text | 0 |\n'
        "| none | UNAVAILABLE |\n"
    )


def test_no_rows() -> None:
    """Without rows there is still the header."""
    assert to_csv(("a", "b"), []) == "a,b\n"
    assert to_markdown(("a", "b"), []) == "| a | b |\n| --- | --- |\n"
