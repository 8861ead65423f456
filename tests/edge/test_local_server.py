"""``python -m edge`` as a person runs it: real HTTP, real processes, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.server import ServerConnection

from edge.__main__ import QUICK_WORKERS, _parser
from edge.local_server import Gateway
from edge.pool import PoolBusy, WorkerPool
from shared.labels import BASE_PATH
from shared.runid import prompt_commitment
from tests.certificates import Authority
from tests.edge.fake_tower import FakeTower, honest, says_nothing
from tests.edge.support import PROMPT, SCALE, TOKEN

DEADLINE_S = 60 * SCALE


@dataclass(frozen=True)
class LocalEdge:
    """A running local edge."""

    process: subprocess.Popen[str]
    url: str

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET a path below the base."""
        return httpx.get(self.url + BASE_PATH + path, timeout=DEADLINE_S, **options)

    def post(self, body: Any, **options: Any) -> httpx.Response:
        """POST JSON to /run."""
        return httpx.post(f"{self.url}{BASE_PATH}/run", json=body, timeout=DEADLINE_S, **options)

    def workers(self) -> list[int]:
        """Process ids of the workers alive."""
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in tasks.read_text().split()]


@contextlib.contextmanager
def local_edge(tower_url: str, *arguments: str, **environ: str) -> Iterator[LocalEdge]:
    """Start a local edge on a free port, and make sure that it is gone afterwards."""
    with subprocess.Popen(
        [sys.executable, "-m", "edge", "--port", "0", "--tower-url", tower_url, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPECDEC_TOWER_TOKEN": TOKEN, **environ},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.fullmatch(r"edge listening on (http://127\.0\.0\.1:\d+)\n", line)
            assert match, line
            yield LocalEdge(process, match[1])
        finally:
            process.kill()


@pytest.fixture(scope="module")
def tower() -> Iterator[FakeTower]:
    """An honest tower for the whole module."""
    with FakeTower() as tower:
        yield tower


@pytest.fixture(scope="module")
def edge(tower: FakeTower) -> Iterator[LocalEdge]:
    """A local edge for the whole module."""
    with local_edge(tower.url, "--workers", "4") as edge:
        yield edge


def test_seed_quickstart_works(edge: LocalEdge) -> None:
    """A run over real HTTP gives a receipt whose digest the caller can recompute."""
    reply = edge.post({"prompt": PROMPT})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert body["payload"]["measured"] == "MEASURED"
    salt = bytes.fromhex(body["prompt_salt"])
    assert body["payload"]["prompt_commitment"] == prompt_commitment(salt, PROMPT)


def test_twenty_callers_at_once_get_their_own_answers(edge: LocalEdge, tower: FakeTower) -> None:
    """No answer goes to another caller, however many workers they share."""

    def call(number: int) -> tuple[int, str, str]:
        prompt = f"{PROMPT} {number}"
        body = edge.post({"prompt": prompt, "seed": number}).json()
        expected = prompt_commitment(bytes.fromhex(body["prompt_salt"]), prompt)
        return body["payload"]["request"]["seed"], body["payload"]["prompt_commitment"], expected

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(call, range(20)))
    assert [seed for seed, _, _ in answers] == list(range(20))
    assert all(commitment == expected for _, commitment, expected in answers)
    assert len(edge.workers()) <= 4 + QUICK_WORKERS


def test_repeated_parameters_survive(edge: LocalEdge) -> None:
    """A repeated alpha reaches the handler as it was sent."""
    reply = edge.get("/curve?alpha=0.25&alpha=0.5&k=2")
    assert set(reply.json()["payload"]["accounting_modeled"]["expected_speedup_at_alpha"]) == {"0.25", "0.5"}


def test_head_has_no_body(edge: LocalEdge) -> None:
    """HEAD is answered without a body, and the connection stays usable."""
    with httpx.Client(base_url=edge.url, timeout=DEADLINE_S) as http_client:
        assert http_client.head(f"{BASE_PATH}/curve").content == b""
        assert http_client.get(f"{BASE_PATH}/curve").status_code == 200


def test_body_that_is_not_utf8_is_400(edge: LocalEdge) -> None:
    """Bytes that are no text travel in Base64 and are refused by the handler."""
    reply = httpx.post(
        f"{edge.url}{BASE_PATH}/run",
        content=b'{"prompt": "\xff"}',
        headers={"content-type": "application/json"},
        timeout=DEADLINE_S,
    )
    assert reply.status_code == 400
    assert reply.headers["content-type"] == "application/problem+json"


def test_large_headers_are_431(edge: LocalEdge) -> None:
    """The gateway takes 10,240 bytes of request line and headers, no more."""
    assert edge.get("/curve", headers={"x-large": "x" * 9_000}).status_code == 200
    reply = edge.get("/curve", headers={"x-large": "x" * 10_240})
    assert reply.status_code == 431
    assert reply.json() == {"message": "Request Header Fields Too Large"}


def test_large_payload_is_413(edge: LocalEdge) -> None:
    """The gateway takes 10 MB; the handler far less."""
    for size in (200_000, 10_000_001):
        reply = httpx.post(
            f"{edge.url}{BASE_PATH}/run",
            content=b"x" * size,
            headers={"content-type": "application/json"},
            timeout=DEADLINE_S,
        )
        assert reply.status_code == 413


def test_endless_payload_is_cut_off(edge: LocalEdge) -> None:
    """A body without an end gets an answer, not all the memory."""
    parts = urlsplit(edge.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.putrequest("POST", f"{BASE_PATH}/run")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(2_000):
                connection.send(chunk)
    assert edge.get("/curve").status_code == 200


class BusyPool(WorkerPool):
    """A pool without a free worker."""

    async def invoke(self, event: dict[str, Any]) -> Any:
        """Say so."""
        raise PoolBusy


async def answered(*messages: dict[str, Any]) -> list[Any]:
    """What a gateway with little patience sends to a client that sends these and then nothing more."""
    arriving, sent = list(messages), list[Any]()
    pool = BusyPool({}, 1)
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/",
        "raw_path": b"/",
    }
    scope |= {"query_string": b"", "headers": []}

    async def receive() -> Any:
        return arriving.pop(0) if arriving else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await Gateway(pool, pool, payload_timeout_s=0.01)(scope, receive, send)  # type: ignore[arg-type]
    return sent


HALF = {"type": "http.request", "body": b"{}", "more_body": True}


async def test_half_a_request_is_not_carried_out() -> None:
    """A client that leaves before its body is whole starts nothing, even if what came reads like a request."""
    assert await answered(HALF, {"type": "http.disconnect"}) == []


async def test_body_that_does_not_come_is_408() -> None:
    """A client that stops in the middle of its body is not waited for without end."""
    start, body = await answered(HALF)
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert json.loads(body["body"]) == {"message": "Request Timeout"}


async def test_request_that_gets_no_worker_is_429() -> None:
    """A full pool is the client's cue to come back, not a failure of the service."""
    start, body = await answered({**HALF, "more_body": False})
    assert start["status"] == 429
    assert dict(start["headers"])[b"retry-after"].isdigit()
    assert json.loads(body["body"]) == {"message": "Too Many Requests"}


def test_caller_is_whoever_connected(edge: LocalEdge) -> None:
    """No X-Forwarded-For makes one caller another, to whom Idempotency-Keys of its own would belong."""
    posts = [
        edge.post({"prompt": PROMPT}, headers={"idempotency-key": "mine", "x-forwarded-for": address})
        for address in ("192.0.2.1", "192.0.2.2")
    ]
    assert len({post.json()["payload"]["run_id"] for post in posts}) == 1


def test_no_prompt_in_any_log(tower: FakeTower) -> None:
    """Neither standard output nor standard error ever shows a prompt or the token."""
    with local_edge(tower.url, "--workers", "1") as edge:
        edge.post({"prompt": PROMPT})
        edge.post({"prompt": PROMPT, "k": 99})
        edge.process.send_signal(signal.SIGTERM)
        out, err = edge.process.communicate(timeout=DEADLINE_S)
    assert '"method":"POST","route":"/run","status":200' in err
    for text in (PROMPT[:12], "zeppelins", TOKEN):
        assert text not in out + err


def test_runs_that_wait_do_not_hold_up_health() -> None:
    """With every worker for runs stuck on a silent tower, health and curve keep their time."""
    with FakeTower(says_nothing) as tower, local_edge(tower.url, "--workers", "2") as edge:
        with ThreadPoolExecutor(6) as threads:
            pending = [threads.submit(edge.post, {"prompt": PROMPT}) for _ in range(6)]
            end = time.monotonic() + DEADLINE_S
            while len(tower.frames) < 2 and time.monotonic() < end:
                time.sleep(0.01)
            for path, limit_s in (("/health", 2), ("/curve", 1)):
                started = time.monotonic()
                assert edge.get(path).status_code == 200
                assert time.monotonic() - started < limit_s * SCALE
            assert not any(post.done() for post in pending)
            tower.stopped.set()
            edge.process.kill()


def test_many_runs_are_handled_at_once() -> None:
    """By default two dozen callers may wait for a slow tower without holding up one another."""
    assert _parser().parse_args([]).workers >= 24


def test_worker_that_is_killed_costs_one_answer(tower: FakeTower) -> None:
    """The request in a killed worker is 502; the server and the next request live."""
    with local_edge(tower.url, "--workers", "1") as edge:
        quick = set(edge.workers())
        tower.script, usual = says_nothing, tower.script
        seen = len(tower.frames)
        with ThreadPoolExecutor(1) as threads:
            pending = threads.submit(edge.post, {"prompt": PROMPT})
            end = time.monotonic() + DEADLINE_S
            while len(tower.frames) == seen and time.monotonic() < end:
                time.sleep(0.01)
            (pid,) = set(edge.workers()) - quick
            os.kill(pid, signal.SIGKILL)
            reply = pending.result()
        tower.script = usual
        assert (reply.status_code, reply.json()) == (502, {"message": "Bad Gateway"})
        assert edge.post({"prompt": PROMPT}).json()["payload"]["measured"] == "MEASURED"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_everything_promptly(tower: FakeTower, number: signal.Signals) -> None:
    """A signal ends server and workers within seconds, even in the middle of a run."""
    with local_edge(tower.url, "--workers", "2") as edge:
        tower.script, usual = says_nothing, tower.script
        seen = len(tower.frames)
        with ThreadPoolExecutor(1) as threads:
            pending = threads.submit(edge.post, {"prompt": PROMPT})
            end = time.monotonic() + DEADLINE_S
            while len(tower.frames) == seen and time.monotonic() < end:
                time.sleep(0.01)
            workers = edge.workers()
            edge.process.send_signal(number)
            assert edge.process.wait(timeout=10 * SCALE) == 0
            assert pending.exception() or pending.result().status_code >= 500
        tower.script = usual
    assert workers
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_killed_server_leaves_no_orphan(tower: FakeTower) -> None:
    """Workers notice that their server is gone, whatever happened to it."""
    with local_edge(tower.url) as edge:
        workers = edge.workers()
        edge.process.kill()
        edge.process.wait()
        end = time.monotonic() + DEADLINE_S
        while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
            time.sleep(0.01)
    assert workers
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_token_file_is_used(tower: FakeTower, tmp_path: Path) -> None:
    """--token-file comes before the environment."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with local_edge(tower.url, "--token-file", str(tmp_path / "token"), SPECDEC_TOWER_TOKEN="wrong") as edge:
        assert edge.get("/health").json()["tower_reachable"] is True


def test_token_file_of_the_agent_is_used(tower: FakeTower, tmp_path: Path) -> None:
    """Of the two tokens that an agent's file holds during a change, the edge presents the new one."""
    (tmp_path / "token").write_text(f"{TOKEN}\nold-token\n")
    with local_edge(tower.url, "--token-file", str(tmp_path / "token")) as edge:
        assert edge.get("/health").json()["tower_reachable"] is True


def test_gate_and_authority_are_used(tmp_path: Path) -> None:
    """--tower-ca and --tower-headers, from a file, reach the workers, and the secret is in no message."""
    authority = Authority.new()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(tmp_path))
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "headers").write_text('{"X-Gate": "gate-secret"}\n')
    flags = ("--tower-ca", str(tmp_path / "ca.pem"))
    with FakeTower(tls=context) as tower:
        tower.wants = {"X-Gate": "gate-secret"}
        with local_edge(tower.url, *flags, "--tower-headers", f"@{tmp_path}/headers") as edge:
            (tmp_path / "ca.pem").unlink()
            assert edge.post({"prompt": PROMPT}).json()["payload"]["measured"] == "MEASURED"
            edge.process.terminate()
            _, said = edge.process.communicate(timeout=DEADLINE_S)
    assert "gate-secret" not in said


@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        (["--tower-url", "http://x"], {}, "SPECDEC_TOWER_URL"),
        (["--token-file", "/nowhere/token"], {}, "--token-file cannot be read"),
        (["--token-file", "/dev/null"], {}, "--token-file holds no token"),
        (["--tower-ca", "/nowhere/ca.pem"], {}, "SPECDEC_TOWER_CA must be the text itself or a file"),
        (["--tower-headers", "@/nowhere"], {}, "--tower-headers cannot be read"),
        (["--tower-headers", "X-Gate: x"], {}, "SPECDEC_TOWER_HEADERS must be JSON"),
        (["--receipts-dir", "/dev/null"], {}, "the receipts' directory cannot be written"),
        (["--receipts-dir", ""], {}, "--receipts-dir: must be a path"),
        (["--signing-key-file", "/dev/null"], {}, "null is not a file"),
        ([], {"SPECDEC_K": "99"}, "SPECDEC_K"),
        (["--host", "192.0.2.1"], {}, "assign"),
        (["--port", "70000"], {}, "--port"),
        (["--port", "http"], {}, "--port"),
        (["--workers", "0"], {}, "--workers"),
        (["--nonsense"], {}, "--nonsense"),
    ],
)
def test_wrong_start_is_one_clear_line(arguments: list[str], environ: dict[str, str], says: str) -> None:
    """A start that cannot work ends with status 2 and one line."""
    done = subprocess.run(
        [sys.executable, "-m", "edge", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, **environ},
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("edge: ")
    assert says in line


def test_port_in_use_is_one_clear_line() -> None:
    """A port that someone else holds is said, not raised."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run(
            [sys.executable, "-m", "edge", "--port", str(listener.getsockname()[1])],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert done.returncode == 2
    assert "in use" in done.stderr
    assert json.dumps(done.stderr).count("\\n") == 1


def test_workers_count_together(tmp_path: Path) -> None:
    """Two workers that are at it at the same time allow together what one caller may start, and no more."""
    both = threading.Barrier(2)

    def meets(tower: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] == "run" and len(tower.frames) <= 2:
            both.wait(DEADLINE_S)
        honest(tower, connection, frame)

    limits = {"SPECDEC_RUNS_PER_MINUTE": "0.001", "SPECDEC_RUN_BURST": "3", "TMPDIR": str(tmp_path)}
    with FakeTower(meets) as tower, local_edge(tower.url, "--workers", "2", **limits) as edge:
        with ThreadPoolExecutor(2) as threads:
            replies = list(threads.map(lambda _: edge.post({"prompt": PROMPT}), range(2)))
        assert len(edge.workers()) == 2 + 1
        assert len(list(tmp_path.glob("specdec-edge-*/limits.sqlite"))) == 1
        replies += [edge.post({"prompt": PROMPT}) for _ in range(3)]
        edge.process.send_signal(signal.SIGTERM)
        assert edge.process.wait(DEADLINE_S) == 0
        assert list(tmp_path.iterdir()) == []
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429, 429]
    assert replies[-1].headers["content-type"] == "application/problem+json"
    assert 59_000 < int(replies[-1].headers["retry-after"]) <= 60_000


def test_no_limits_no_folder(tmp_path: Path) -> None:
    """An edge that counts nothing makes no place to count in."""
    with FakeTower() as tower, local_edge(tower.url, TMPDIR=str(tmp_path)) as edge:
        assert edge.post({"prompt": PROMPT}).status_code == 200
        assert list(tmp_path.iterdir()) == []
