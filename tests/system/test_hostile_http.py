"""The hostile corpus, as bytes on the socket of a local edge: each has its answers, and no prompt gets out.

The edge is the real one, a process with workers, its log at DEBUG, metrics on, receipts kept. Whether two readers could
cut a request at different places shows in the number of answers, and in what the tower is asked for.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final

import pytest

from shared.labels import BASE_PATH
from tests.edge.fake_tower import FakeTower
from tests.edge.hostile.entry import GOOD, MARK, Wire
from tests.edge.hostile.leaks import shows, shows_in
from tests.edge.hostile.towers import parrot
from tests.edge.hostile.wire import WIRE
from tests.edge.support import SCALE, TOKEN

DEADLINE_S: Final = 60 * SCALE

LAST: Final = f"PATCH {BASE_PATH}/keys HTTP/1.1\r\nHost: edge.example\r\nConnection: close\r\n\r\n".encode()
"""Sent when all answers are there: it is the next one on the connection, and the last."""

LAST_STATUS: Final = 405

_DEBUG: Final = """\
import logging

_usual = logging.basicConfig


def _at_debug(**options):
    _usual(**{**options, "level": logging.DEBUG})
    logging.getLogger("control").debug("the log is at DEBUG")


logging.basicConfig = _at_debug
"""
"""Read by every Python process that finds it as `sitecustomize`: the workers' root logger says everything."""


@dataclass(frozen=True)
class Answer:
    """One answer, as it came."""

    status: int
    head: str
    body: str


@dataclass(frozen=True)
class Edge:
    """A running local edge, its tower, and where it writes."""

    process: subprocess.Popen[str]
    port: int
    tower: FakeTower
    folder: Path

    @property
    def said(self) -> str:
        """All that it has written to standard error so far: its own, its workers' logs and metrics."""
        return (self.folder / "stderr").read_text("utf-8", "replace")

    def runs(self) -> int:
        """How many runs the tower was asked for."""
        return sum(frame["type"] == "run" for frame in self.tower.frames)

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)

    def exchange(self, entry: Wire) -> list[Answer]:
        """Send an entry's bytes and read answers until the edge closes, the last request of a connection included."""
        with self.connect() as sock:
            # The edge may close, rightly, before it has read all.
            with contextlib.suppress(ConnectionError):
                sock.sendall(entry.sends)
            if entry.leaves:
                return []
            method = "HEAD" if entry.sends.startswith(b"HEAD") else "GET"
            with contextlib.closing(sock.makefile("rb")) as file:
                answers = [_answer(file, method) for _ in entry.statuses]
                if entry.stays:
                    sock.sendall(LAST)
                while (more := _answer(file, "PATCH")) is not None:
                    answers.append(more)
            return [answer for answer in answers if answer is not None]


def _answer(file: BufferedReader, method: str) -> Answer | None:
    """Return the next answer of a connection, None where it ends."""
    try:
        if not file.peek(1):
            return None
        answer = http.client.HTTPResponse(_Lent(file), method=method)  # type: ignore[arg-type]
        answer.begin()
        body = answer.read().decode("utf-8")
    except ConnectionError:
        return None
    return Answer(answer.status, str(answer.headers), body)


class _Lent:
    """A file that whoever reads an answer from it must not close: the next answer is in it."""

    def __init__(self, file: object) -> None:
        self._file = file

    def makefile(self, _: str) -> _Lent:
        return self

    def close(self) -> None:
        """Stay open."""

    def flush(self) -> None:
        """Have nothing to write."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


@contextlib.contextmanager
def _edge(folder: Path) -> Iterator[Edge]:
    (folder / "debug").mkdir()
    (folder / "debug" / "sitecustomize.py").write_text(_DEBUG)
    arguments = ("--workers", "4", "--receipts-dir", str(folder / "receipts"))
    environ = {
        "SPECDEC_TOWER_TOKEN": TOKEN,
        "POWERTOOLS_METRICS_DISABLED": "false",
        "POWERTOOLS_LOG_LEVEL": "DEBUG",
        "PYTHONPATH": f"{folder / 'debug'}{os.pathsep}{Path.cwd()}",
    }
    with (
        FakeTower(parrot) as tower,
        (folder / "stderr").open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "edge", "--port", "0", "--tower-url", tower.url, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **environ},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            match = re.fullmatch(r"edge listening on http://127\.0\.0\.1:(\d+)\n", process.stdout.readline())
            assert match
            yield Edge(process, int(match[1]), tower, folder)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """One edge for the whole corpus."""
    with _edge(tmp_path_factory.mktemp("hostile")) as edge:
        yield edge


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in WIRE])
def test_entry(edge: Edge, entry: Wire) -> None:
    """Each has the answers that are written beside it, no more, and none shows its prompt."""
    started = edge.runs()
    answers = edge.exchange(entry)
    expected = [*entry.statuses, *([LAST_STATUS] if entry.stays else [])]
    assert [answer.status for answer in answers] == expected, answers
    assert edge.runs() - started == entry.runs
    if entry.says:
        said = answers[len(entry.statuses) - 1]
        assert entry.says in said.head + said.body
    for answer in answers:
        assert not shows(answer.head + answer.body)
        assert "Set-Cookie" not in answer.head.title()


@pytest.mark.parametrize(
    "line",
    [
        "X-Forwarded-For: 198.51.100.7",
        "X-Forwarded-For: 198.51.100.7, 127.0.0.1",
        "Forwarded: for=198.51.100.7",
        "X-Real-IP: 198.51.100.7",
        "CF-Connecting-IP: 198.51.100.7",
        "True-Client-IP: 198.51.100.7",
        "Client-IP: 198.51.100.7",
    ],
)
def test_no_header_makes_a_caller_another(edge: Edge, line: str) -> None:
    """An Idempotency-Key belongs to whoever connected, whatever a header says."""
    ids = set()
    for more in ("", f"{line}\r\n"):
        head = f"POST {BASE_PATH}/run HTTP/1.1\r\nHost: edge.example\r\nContent-Type: application/json\r\n"
        sent = f"{head}Idempotency-Key: scope\r\n{more}Content-Length: {len(GOOD)}\r\n\r\n{GOOD}".encode()
        answer = edge.exchange(Wire("", "", sent, (200,), stays=True))[0]
        ids.add(json.loads(answer.body)["payload"]["run_id"])
    assert len(ids) == 1


def test_client_that_never_ends_holds_up_nobody(edge: Edge) -> None:
    """While others keep half requests open, whole ones are answered."""
    head = f"POST {BASE_PATH}/run HTTP/1.1\r\nHost: edge.example\r\n"
    with contextlib.ExitStack() as stack:
        for number in range(40):
            sock = stack.enter_context(edge.connect())
            sock.sendall((head if number % 2 else f"{head}Content-Length: 9\r\n\r\n{{").encode())
        assert [answer.status for answer in edge.exchange(WIRE[0])] == [200, LAST_STATUS]


def test_body_that_comes_slowly_is_read(edge: Edge) -> None:
    """A run that comes byte by byte is the run that it is; the edge has seen its head before it gets the body."""
    head = f"POST {BASE_PATH}/run HTTP/1.1\r\nHost: edge.example\r\nContent-Type: application/json\r\n"
    with edge.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(f"{head}Expect: 100-continue\r\nContent-Length: {len(GOOD)}\r\n\r\n".encode())
        with contextlib.closing(sock.makefile("rb")) as reader:
            assert reader.readline().startswith(b"HTTP/1.1 100 ")
            assert reader.readline() == b"\r\n"
            for letter in GOOD.encode():
                sock.sendall(bytes([letter]))
            assert reader.readline().startswith(b"HTTP/1.1 200 ")


def test_nothing_that_is_said_or_kept_shows_a_prompt(tmp_path: Path) -> None:
    """Neither standard error with logs and metrics, nor a stored receipt, nor a file's name, for the whole corpus."""
    with _edge(tmp_path) as edge:
        for entry in [*WIRE, WIRE[0]]:
            edge.exchange(entry)
        # Nor has the tower been asked for more than was meant: what comes late would be here by now.
        assert edge.runs() == sum(entry.runs for entry in [*WIRE, WIRE[0]])
        edge.process.send_signal(signal.SIGTERM)
        edge.process.wait(DEADLINE_S)
        said = edge.said
        # The log was on, at DEBUG, and metrics were; else there were nothing to find.
        assert '"message":"answered"' in said
        assert "the log is at DEBUG" in said
        assert "CloudWatchMetrics" in said
        assert not shows(said)
        for word in ("Traceback", TOKEN):
            assert word not in said
        files = [file for file in edge.folder.rglob("*") if file.is_file()]
        assert any(file.name.endswith(".receipt.json") for file in files)
        for file in files:
            assert not shows_in(file), file.name


def test_grep_finds_a_prompt_in_what_workers_say(edge: Edge) -> None:
    """The control: a worker whose loggers are told a prompt writes it where the test looks."""
    code = f"import logging; logging.basicConfig(level=50); logging.getLogger('x').debug({MARK!r})"
    environ = {**os.environ, "PYTHONPATH": str(edge.folder / "debug")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert shows(done.stderr)
