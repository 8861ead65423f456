"""The `specdec` command as its users meet it: in a terminal and in a pipe, against a real tower.

Everything is real: a pseudo-terminal, the command as a process, a local edge, an agent that decodes with the embedded
pair. What a run looks like on the tower is asked of the tower, over HTTP.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from shared.client import Receipt, Specdec
from tools.stack import PATIENCE_S, Stack, running

ROOT = Path(__file__).parents[2]
PROMPT = "And it came to pass"
LONG = ["--n", "500", "--ignore-eos"]
SHORT = ["--n", "12"]
UNDER_WAY = r"(?:run|prose 1, k=\d): (?!asking)\w+"
CANCELLED = r"specdec: interrupted: run (\S+) is cancelled on the tower\r\n"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[0-9;]*m")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning"),  # the threads are not used after it
]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tower's state and logs."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def stack(state: Path) -> Iterator[Stack]:
    """An agent with the embedded pair, and a local edge."""
    with running(state, environ={"SPECDEC_THREADS": "1"}) as both:
        yield both


def environ(**more: str) -> dict[str, str]:
    """The environment of a user whose terminal has colours."""
    unset = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES", "SPECDEC_URL")
    return {k: v for k, v in os.environ.items() if k not in unset} | {"TERM": "xterm-256color", **more}


def terminal(url: str, *arguments: str, **more: str) -> pexpect.spawn[str]:
    """Start the command in a wide terminal, where Ctrl-C counts."""
    return pexpect.spawn(
        sys.executable,
        ["-m", "shared.cli", *arguments, "--url", url],
        cwd=str(ROOT),
        env=environ(**more),
        encoding="utf-8",
        timeout=PATIENCE_S,
        dimensions=(40, 300),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def screen(said: str) -> list[str]:
    """The lines that are left to be read on a terminal that got this, what was wiped left out."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", said):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part.startswith("\x1b"):
            row -= int(part[2:-1] or 1) if part.endswith("A") else 0
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


def end(child: pexpect.spawn[str]) -> tuple[str, int | None]:
    """What the command says until it ends, and its exit code."""
    child.expect(pexpect.EOF)
    child.close()
    return str(child.before), child.exitstatus


def queued(state: Path) -> list[str]:
    """The ids of all runs that the tower has taken so far, in order."""
    whole = (state / "agent.log").read_text().rpartition("\n")[0]  # the last line may not be all there yet
    entries = [json.loads(line) for line in whole.splitlines()]
    return [entry["run_id"] for entry in entries if entry.get("message") == "run queued"]


def until_queued(state: Path, number: int) -> str:
    """Wait until the tower has taken so many runs; the id of the last one."""
    by = time.monotonic() + PATIENCE_S
    while len(queued(state)) < number:
        assert time.monotonic() < by, "the tower took no run in time"
        time.sleep(0.02)
    return queued(state)[-1]


def assert_nothing_runs(stack: Stack, run_id: str) -> None:
    """Check at the tower that the run was cancelled, and that a next one need not wait for anything."""
    with Specdec(stack.edge_url, PATIENCE_S) as client:
        ended = client.get_run(run_id)
        assert ended.roadmap_code == "CANCELLED", ended.payload
        following = client.run(PROMPT, n=500, ignore_eos=True, wait=2, follow=False)
        assert following.progress is not None and not following.progress.position, following.payload
        assert following.run_id is not None
        assert client.cancel(following.run_id).roadmap_code == "CANCELLED"


def test_progress_and_answer(stack: Stack, tmp_path: Path) -> None:
    """A run shows how far it is, then wipes that and prints its answer, each label in its colour."""
    saved = tmp_path / "receipt.json"
    child = terminal(stack.edge_url, "run", PROMPT, *SHORT, "--out", str(saved))
    child.expect(r"run: asking")
    child.expect(UNDER_WAY)
    child.expect(r"label +SPEC-DECODE \x1b\[32mMEASURED\x1b\[0m\r\n")
    said, code = end(child)
    assert code == 0
    assert re.search(r"tokens per step +\d+\.\d+ \(\x1b\[32mMEASURED\x1b\[0m\)", said)
    assert re.search(r"speedup, modeled +\d+\.\d+ \(\x1b\[36mMODELED\x1b\[0m\)", said)
    assert "\x1b[33mUNAVAILABLE\x1b[0m" in said  # the energy of a processor
    assert "run: " not in said
    assert Receipt(json.loads(saved.read_text("utf-8"))).measured


def test_no_color(stack: Stack) -> None:
    """With NO_COLOR a terminal gets progress and answer without a colour."""
    child = terminal(stack.edge_url, "run", PROMPT, *SHORT, NO_COLOR="1")
    child.expect(UNDER_WAY)
    before = str(child.before) + str(child.after)
    said, code = end(child)
    assert code == 0
    assert "SPEC-DECODE MEASURED\r\n" in said
    assert ESCAPE.search(before) and not COLOUR.search(before + said)


def test_ctrl_c_leaves_no_run_behind(stack: Stack) -> None:
    """Ctrl-C during a run cancels it on the tower, says so in one line, and the next run starts at once."""
    child = terminal(stack.edge_url, "run", PROMPT, *LONG)
    child.expect(UNDER_WAY)
    child.sendintr()
    child.expect(CANCELLED)
    run_id = str(child.match.group(1))
    said, code = end(child)
    assert (screen(said), code) == ([], 130)
    assert_nothing_runs(stack, run_id)


@pytest.mark.parametrize("taken", [False, True], ids=["at once", "when the tower has it"])
def test_ctrl_c_before_the_first_answer(stack: Stack, state: Path, taken: bool) -> None:
    """Ctrl-C before the service has named the run leaves none behind either."""
    before = len(queued(state))
    child = terminal(stack.edge_url, "run", PROMPT, *LONG, "--wait", "15")
    child.expect(r"run: asking")
    if taken:
        until_queued(state, before + 1)
    child.sendintr()
    child.expect(CANCELLED)
    run_id = str(child.match.group(1))
    assert end(child)[1] == 130
    assert queued(state)[before:] == [run_id]
    assert_nothing_runs(stack, run_id)


def test_ctrl_c_twice(stack: Stack, state: Path) -> None:
    """A second Ctrl-C, while the service does not answer the first, ends the command at once."""
    before = len(queued(state))
    child = terminal(stack.edge_url, "run", PROMPT, *LONG)
    child.expect(UNDER_WAY)
    run_id = until_queued(state, before + 1)
    stack.edge.send_signal(signal.SIGSTOP)
    try:
        child.sendintr()
        child.expect("cancelling; Ctrl-C again leaves")
        child.sendintr()
        child.expect("specdec: interrupted: left at once; the run may go on on the tower\r\n")
        assert end(child)[1] == 130
    finally:
        stack.edge.send_signal(signal.SIGCONT)
    with Specdec(stack.edge_url, PATIENCE_S) as client:
        assert client.cancel(run_id).roadmap_code == "CANCELLED"


def test_ctrl_c_in_a_sweep(stack: Stack) -> None:
    """Ctrl-C ends a sweep: its run is cancelled on the tower, and what there is is printed."""
    child = terminal(stack.edge_url, "sweep", "--domain", "prose", "--k", "1,2", *LONG)
    child.expect(r"all runs")
    child.expect(UNDER_WAY)
    child.sendintr()
    child.expect(CANCELLED)
    run_id = str(child.match.group(1))
    said, code = end(child)
    assert code == 130
    lines = screen(said)
    assert "prose: no speed-up was measured (UNAVAILABLE)" in lines
    assert lines[-1] == "interrupted: 0 of 12 runs were made"
    assert_nothing_runs(stack, run_id)


@pytest.mark.parametrize(
    ("arguments", "line", "code"),
    [
        (["run", "x", "--k", "17"], 'specdec: k must be an integer from 1 to 16, or "auto"', 2),
        (["run", "x", "--out", "/"], "specdec: --out must name a file in a folder that exists", 2),
        (
            ["curve", "--plot", "/no/such/plot.png"],
            "specdec: --plot must name a file in a folder that exists",
            2,
        ),
        (["verify", "/no/such/file"], "specdec: /no/such/file cannot be read: No such file or directory", 2),
        (["sweep", "--domain", "verse"], "specdec: --domain must be one of: code, prose", 2),
    ],
    ids=lambda part: part[0] if isinstance(part, list) else "",
)
def test_errors_are_one_line(stack: Stack, arguments: list[str], line: str, code: int) -> None:
    """What cannot be done is said in one line, without a traceback, and the exit code tells it is the input's fault."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "shared.cli", *arguments],
        cwd=str(ROOT),
        env=environ(SPECDEC_URL=stack.edge_url),
        encoding="utf-8",
        timeout=PATIENCE_S,
        dimensions=(40, 300),
    )
    said, ended = end(child)
    assert (screen(said), ended) == ([line], code)


def test_no_service_is_one_line() -> None:
    """A port where nobody listens is said in one line, and the exit code tells that it is not the input's fault."""
    nobody = "http://127.0.0.1:9"
    said, code = end(terminal(nobody, "run", PROMPT))
    assert "run: asking" in said
    line = f"specdec: the service cannot be reached at {nobody}; is it running there? another one is named by --url"
    assert (screen(said), code) == ([line], 1)


def test_a_pipe_gets_plain_text(stack: Stack) -> None:
    """Into pipes goes the answer alone: no escape sequence, no progress, the same lines in the same order."""
    done = subprocess.run(
        [sys.executable, "-m", "shared.cli", "run", PROMPT, *SHORT, "--plot", "--url", stack.edge_url],
        cwd=ROOT,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    names = [line[:22].strip() for line in done.stdout.splitlines()]
    assert names[:4] == ["label", "run", "models", "steps"]
    assert "steps (MEASURED)" in done.stdout and "1x: break-even" in done.stdout


def test_a_plot_in_the_terminal(stack: Stack) -> None:
    """A plot in a terminal is as wide as that, and in colour."""
    child = terminal(stack.edge_url, "curve", "--k", "4", "--plot")
    said, code = end(child)
    assert code == 0
    plot = said[said.index("signature") :]
    assert COLOUR.search(plot)
    lines = screen(plot)
    assert any("1x: break-even" in line for line in lines)
    assert 200 < max(map(len, lines)) <= 300
