"""Rows as CSV and as Markdown.

A figure that there is not is an empty field in CSV, where programs expect a number, and UNAVAILABLE in Markdown.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from shared import labels
from shared.models import one_line


def to_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The rows as CSV under a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_field(value) for value in row] for row in rows)
    return out.getvalue()


def _field(value: Any) -> Any:
    """The value; of a text one line, which no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def to_markdown(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return labels.UNAVAILABLE
    return one_line(str(value)).replace("\\", "\\\\").replace("|", "\\|")
