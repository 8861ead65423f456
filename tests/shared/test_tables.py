"""Rows as CSV and as Markdown."""

from __future__ import annotations

import csv
import io

import pytest

from shared.tables import to_csv, to_markdown

ODD = 'a "quoted", |piped|\nand broken \\ text'


def test_csv() -> None:
    """CSV gives back each text on one line; a missing figure is an empty field, and 0 is 0."""
    text = to_csv(("name", "figure"), [(ODD, 0), ("none", None), ("half", 0.5)])
    assert list(csv.reader(io.StringIO(text))) == [
        ["name", "figure"],
        [ODD.replace("\n", " "), "0"],
        ["none", ""],
        ["half", "0.5"],
    ]


@pytest.mark.parametrize("text", ['=HYPERLINK("http://x","y")', "+1", "-1", "@a"])
def test_no_formulas(text: str) -> None:
    """A stranger's text is not a formula for the spreadsheet that opens the file; numbers stay numbers."""
    rows = list(csv.reader(io.StringIO(to_csv(("name", "figure"), [(text, -0.5)]))))
    assert rows[1] == [f"'{text}", "-0.5"]


def test_no_control_characters() -> None:
    """A terminal gets nothing that it would obey."""
    assert "\x1b" not in to_csv(("name",), [("a\x1b[2Jb",)])


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
