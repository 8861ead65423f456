"""How the `specdec` commands answer: lines for people, or JSON, CSV or Markdown for programs and pages.

The answer goes to standard output and is plain text unless that is a terminal, where each label has its colour. What is
said beside it goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from shared.colours import COLOURS
from shared.models import one_line
from shared.tables import to_csv, to_markdown

if TYPE_CHECKING:
    from rich.text import Text


def add_shapes(parser: argparse.ArgumentParser, *, tables: bool) -> None:
    """Give the parser --json and, where the answer has rows, --csv and --md."""
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print the answer as JSON")
    if tables:
        shape.add_argument("--csv", action="store_true", help="print the rows as CSV")
        shape.add_argument("--md", action="store_true", help="print the rows as a Markdown table")


def for_people(args: argparse.Namespace) -> bool:
    """Whether the answer is to be lines for people."""
    return not (args.json or getattr(args, "csv", False) or getattr(args, "md", False))


def print_shape(
    args: argparse.Namespace, answer: Any, names: Sequence[str] = (), rows: Sequence[Sequence[Any]] = ()
) -> None:
    """Print the answer in the shape that was asked for, if one was."""
    if args.json:
        # On a terminal nothing that it would obey.
        print(json.dumps(answer, indent=2, ensure_ascii=sys.stdout.isatty()))
    elif not for_people(args):
        sys.stdout.write((to_csv if args.csv else to_markdown)(names, rows))


def is_screen(stream: TextIO) -> bool:
    """Whether it is a terminal that can do more than print."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def in_colour() -> bool:
    """Whether the answer may have colours: on a terminal that has them, unless NO_COLOR is set."""
    return is_screen(sys.stdout) and not os.environ.get("NO_COLOR")


def say(*lines: str) -> None:
    """Print lines of the answer."""
    if not in_colour():
        for line in lines:
            print(line)
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        console.print(coloured(line), soft_wrap=True)


def coloured(line: str) -> Text:
    """The line with each label word in its colour."""
    from rich.text import Text

    text = Text(line)
    for label, colour in COLOURS.items():
        text.highlight_regex(rf"\b{label}\b", colour.terminal)
    return text


def say_rows(*rows: tuple[str, Any]) -> None:
    """Print names and values, one pair a line."""
    say(*(f"{one_line(name):22} {one_line(str(value))}" for name, value in rows))


def note(text: str) -> None:
    """Say something beside the answer."""
    print(f"specdec: {one_line(text)}", file=sys.stderr)
