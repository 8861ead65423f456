"""The option --plot: where the plot goes, and what is refused before anything is asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shared import labels
from shared.cli import main
from shared.curve import accounting_modeled
from tests.shared.build import PROMPT, measured_payload, receipt, roadmap_payload
from tests.shared.service import Answer, serve

Capture = pytest.CaptureFixture[str]
CURVE = {
    "schema": labels.PAYLOAD_SCHEMA,
    "label": labels.CURVE_LABEL,
    "measured": labels.UNAVAILABLE,
    "accounting_modeled": accounting_modeled(4, 0.2),
}


def test_in_the_terminal(capsys: Capture) -> None:
    """Without a file the plot follows the answer on standard output, as plain text into a pipe."""
    with serve(Answer(200, receipt(CURVE))) as service:
        assert main(["curve", "--url", service.url, "--plot"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("label                  SPEC-DECODE MODELED\n")
    assert "1x: break-even" in captured.out and "expected tokens (MODELED)" in captured.out
    assert "\x1b" not in captured.out and captured.err == ""


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_in_the_terminal(no_color: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """On a terminal the plot is in colour, unless NO_COLOR asks for none."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"TERM": "xterm", "NO_COLOR": no_color}.items():
        monkeypatch.setenv(name, value)
    with serve(Answer(200, receipt(CURVE))) as service:
        assert main(["curve", "--url", service.url, "--plot"]) == 0
    plot = capsys.readouterr().out.partition("signature")[2]
    assert "expected tokens (MODELED)" in plot
    assert ("\x1b[" in plot) == (no_color == "")


@pytest.mark.parametrize("name", ["run.svg", "run.PNG"])
def test_into_a_file(name: str, tmp_path: Path, capsys: Capture) -> None:
    """With a file the answer is as ever, and the plot is in the file."""
    path = tmp_path / name
    with serve(Answer(200, receipt(measured_payload()))) as service:
        assert main(["run", PROMPT, "--url", service.url, "--json", "--plot", str(path)]) == 0
    assert capsys.readouterr().out.startswith("{\n")
    assert path.read_bytes()[:4] in (b"<?xm", b"\x89PNG")


def test_nothing_to_plot(tmp_path: Path, capsys: Capture) -> None:
    """A run that was not measured is an answer, too: no file is written, and a word says why."""
    path = tmp_path / "run.svg"
    with serve(Answer(200, receipt(roadmap_payload()))) as service:
        assert main(["run", PROMPT, "--url", service.url, "--plot", str(path)]) == 0
    assert capsys.readouterr().err == "specdec: there is nothing to plot, as nothing was measured\n"
    assert not path.exists()


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--plot", "--json"], "--plot needs a FILE beside --json, --csv or --md"),
        (["--csv", "--plot"], "--plot needs a FILE beside --json, --csv or --md"),
        (["--plot", "/no/such/folder/plot.svg"], "--plot must name a file in a folder that exists"),
    ],
    ids=str,
)
def test_refused(argv: list[str], sentence: str, capsys: Capture) -> None:
    """A plot that cannot go where it is to go is refused before the service is asked."""
    with serve() as service:
        for command in (["curve"], ["run", PROMPT], ["sweep"]):
            assert main([*command, "--url", service.url, *argv]) == 2
            assert capsys.readouterr().err == f"specdec: {sentence}\n"
    assert service.requests == []


@pytest.mark.parametrize(("argv", "package"), [(["--plot"], "plotext"), (["--plot", "p.svg"], "matplotlib")])
def test_without_the_package(
    argv: list[str], package: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Where the package that draws is missing, one line names the extra that brings it, and nothing is asked."""
    monkeypatch.setitem(sys.modules, package, None)
    with serve() as service:
        assert main(["run", PROMPT, "--url", service.url, *argv]) == 2
    assert service.requests == []
    assert capsys.readouterr() == (
        "",
        f"specdec: --plot needs {package}; pip install 'governed-specdec[plot]'\n",
    )


def test_a_prompt_taken_for_a_file(capsys: Capture) -> None:
    """A prompt right after --plot is no file: the usage says how to write it."""
    with pytest.raises(SystemExit) as ended:
        main(["run", "--plot", PROMPT])
    assert ended.value.code == 2
    assert "to plot in the terminal give --plot last" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: Capture) -> None:
    """A file that turns out not to be writable is said in one line."""
    path = tmp_path / f"{'x' * 300}.svg"
    with serve(Answer(200, receipt(CURVE))) as service:
        assert main(["curve", "--url", service.url, "--plot", str(path)]) == 2
    assert capsys.readouterr().err == "specdec: --plot cannot be written: File name too long\n"
