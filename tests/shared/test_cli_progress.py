"""The bars: how far runs are, on a terminal."""

from __future__ import annotations

import re
import sys

import pytest

from shared.cli_progress import Bars
from shared.results import Progress

Capture = pytest.CaptureFixture[str]


def take_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on standard error passes for a wide terminal."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)


def shown(capsys: Capture) -> str:
    """What the terminal got, without control sequences."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", captured.err)


def test_one_run(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The bar says what the service says: who is ahead, then the phase and its counts."""
    take_for_a_terminal(monkeypatch)
    with Bars() as bars:
        bars.begin("run")
        for progress, words in (
            (None, "run: asking"),
            (Progress("id", "queued", position=2), "run: queued, 2 ahead"),
            (Progress("id", "measuring", done=7, total=50), "run: measuring"),
            (Progress("id", "odd\x1b[2J phase", done=0, total=0), "run: odd [2J phase"),
        ):
            if progress is not None:
                bars(progress)
            assert bars._display is not None
            bars._display.refresh()
            text = shown(capsys)
            assert words in text
            assert ("7/50" in text) == (words == "run: measuring")
        bars.say("cancelling")
        assert bars._display is not None
        bars._display.refresh()
        assert "run: cancelling" in shown(capsys)


def test_several_runs(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Over several runs a bar counts those that are done, and a line about each stays."""
    take_for_a_terminal(monkeypatch)
    with Bars(3) as bars:
        for i in (1, 2):
            bars.begin(f"prose {i}, k=4")
            bars.end(f"[{i}/3] prose {i}: speed-up 1.5 (MEASURED)")
        assert bars._display is not None
        bars._display.refresh()
    text = shown(capsys)
    assert "all runs" in text and "2/3" in text
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines()]
    assert "[1/3] prose 1: speed-up 1.5 (MEASURED)" in lines
    assert "[2/3] prose 2: speed-up 1.5 (MEASURED)" in lines


def test_no_terminal(capsys: Capture) -> None:
    """Where standard error is no terminal nothing at all is shown."""
    with Bars(2) as bars:
        bars.begin("run")
        bars(Progress("id", "measuring", done=7, total=50))
        bars.say("cancelling")
        bars.end("[1/2] done")
    assert capsys.readouterr() == ("", "")
