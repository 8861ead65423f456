"""The option --plot: in the terminal, or into a file."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shared.cli_output import for_people, in_colour, note
from shared.cli_parts import InputError, is_new_or_file
from shared.plots import Panel

_TERMINAL: Final = "-"
_WIDTH: Final = 80
"""Columns of a plot that goes into a pipe or a file."""


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Give the parser --plot."""
    parser.add_argument(
        "--plot",
        nargs="?",
        const=_TERMINAL,
        type=_target,
        metavar="FILE",
        help="plot it, too: in the terminal, or into FILE, which ends in .svg or .png",
    )


def check_plot(args: argparse.Namespace) -> None:
    """Refuse a plot that cannot be drawn before anything is measured for it.

    Raises:
        InputError: If it cannot go there, or the package that draws it is missing.
    """
    if args.plot is None:
        return
    if args.plot == _TERMINAL:
        if not for_people(args):
            raise InputError("BAD_INPUT", "--plot needs a FILE beside --json, --csv or --md")
        try:
            "█●│·".encode(sys.stdout.encoding or "utf-8")
        except (LookupError, UnicodeEncodeError):
            raise InputError("BAD_INPUT", "--plot needs a FILE where the terminal is not UTF-8") from None
    elif not is_new_or_file(args.plot):
        raise InputError("BAD_INPUT", "--plot must name a file in a folder that exists")
    package = "plotext" if args.plot == _TERMINAL else "matplotlib"
    try:
        importlib.import_module(package)
    except ImportError:
        raise InputError(
            "BAD_INPUT", f"--plot needs {package}", "pip install 'governed-specdec[plot]'"
        ) from None


def plot(args: argparse.Namespace, panels: Sequence[Panel]) -> None:
    """Draw the panels where --plot says, if it was given.

    Raises:
        InputError: If the file cannot be written.
    """
    if args.plot is None:
        return
    if not panels:
        note("there is nothing to plot, as nothing was measured")
        return
    from shared import plot_draw

    if args.plot == _TERMINAL:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
        print("\n" + plot_draw.as_text(panels, width, colour=in_colour()))
        return
    try:
        plot_draw.to_file(panels, Path(args.plot))
    except OSError as error:
        raise InputError("BAD_INPUT", f"--plot cannot be written: {error.strerror}") from None


def _target(text: str) -> str:
    if text == _TERMINAL or Path(text).suffix.lower() in (".svg", ".png"):
        return text
    raise argparse.ArgumentTypeError(
        "FILE must end in .svg or .png; to plot in the terminal give --plot last"
    )
