"""The worker's loop, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from edge.worker import LocalContext
from tests.edge.support import SCALE, make_event


@pytest.fixture
def worker() -> Any:
    """A worker process without a tower."""
    with subprocess.Popen(
        [sys.executable, "-m", "edge.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SPECDEC_TOWER_URL": "ws://127.0.0.1:9/"},
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}
        yield process
        process.kill()


def _ask(worker: subprocess.Popen[bytes], event: dict[str, Any]) -> Any:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps({"event": event, "remaining_s": 29}).encode() + b"\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())["result"]


def test_worker_answers_one_line_with_one_line(worker: subprocess.Popen[bytes]) -> None:
    """Each event gets the handler's result, and so does what is no event."""
    assert _ask(worker, make_event("GET", "/curve"))["statusCode"] == 200
    assert _ask(worker, {"not": "an event"})["statusCode"] == 400
    assert _ask(worker, make_event("GET", "/nothing"))["statusCode"] == 404


def test_worker_leaves_when_its_server_is_gone(worker: subprocess.Popen[bytes]) -> None:
    """End of input ends the process: no orphan, whatever killed the server."""
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(timeout=30 * SCALE) == 0


def test_context_counts_down() -> None:
    """The context tells the time left, never less than none."""
    assert 900 < LocalContext(time.monotonic() + 1).get_remaining_time_in_millis() <= 1000
    assert LocalContext(time.monotonic() - 1).get_remaining_time_in_millis() == 0
