"""How answers are printed: colours on a terminal and nowhere else."""

from __future__ import annotations

import re
import sys

import pytest

from shared import labels
from shared.cli_output import say
from shared.colours import COLOURS

Capture = pytest.CaptureFixture[str]
LINES = ("speedup 1.5 (MEASURED), 1.6 (MODELED)", "energy UNAVAILABLE", "x" * 300)
ANSI = {"green": "32", "yellow": "33", "cyan": "36"}


def take_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on standard output passes for a terminal with colours."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_plain(capsys: Capture) -> None:
    """What is no terminal gets the lines as they are."""
    say(*LINES)
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in LINES)


def test_colours(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """On a terminal each label word has a colour of its own; the text is the same, and long lines are not broken."""
    take_for_a_terminal(monkeypatch)
    say(*LINES)
    out = capsys.readouterr().out
    assert re.sub(r"\x1b\[[0-9;]*m", "", out) == "".join(f"{line}\n" for line in LINES)
    for label, colour in COLOURS.items():
        assert f"\x1b[{ANSI[colour.terminal]}m{label}\x1b[0m" in out
    assert len({colour for pair in COLOURS.values() for colour in pair}) == 2 * len(COLOURS)
    assert set(COLOURS) == {labels.MEASURED, labels.MODELED, labels.UNAVAILABLE}


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours(name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """NO_COLOR, or a terminal that knows none, gets the plain lines."""
    take_for_a_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    say(*LINES)
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in LINES)


def test_an_empty_no_color_counts_as_unset(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """NO_COLOR asks for something only when it is not empty."""
    take_for_a_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "")
    say(*LINES)
    assert "\x1b[" in capsys.readouterr().out


def test_markup_is_text(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Brackets and colons of an answer are printed as they are, whatever they mean to the printer."""
    take_for_a_terminal(monkeypatch)
    say("[bold]k[/bold] :smile: [red]", "")
    assert capsys.readouterr().out == "[bold]k[/bold] :smile: [red]\n\n"
