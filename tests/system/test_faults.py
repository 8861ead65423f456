"""Processes killed under a whole system: nothing is lost in silence, and the next run works."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from shared.client import Specdec
from shared.verify import verify_receipt
from tools.stack import PATIENCE_S, listening, running

LONG = {"prompt": "And it came to pass", "n": 500, "ignore_eos": True}
SHORT = {"prompt": "And it came to pass", "n": 12}
ONE_THREAD = {"SPECDEC_THREADS": "1"}


def post(edge: str, body: dict[str, Any], prefer: str = "wait=20") -> httpx.Response:
    """Asks for a run."""
    return httpx.post(
        f"{edge}/api/a11oy/v1/specdec/run", json=body, headers={"Prefer": prefer}, timeout=PATIENCE_S
    )


def get(edge: str, answer: httpx.Response) -> httpx.Response:
    """Polls the run that a 202 or a receipt names."""
    run_id = answer.json()["payload"]["run_id"]
    return httpx.get(f"{edge}/api/a11oy/v1/specdec/runs/{run_id}", timeout=PATIENCE_S)


def until(condition: Any) -> Any:
    """Returns the first true value of `condition()`; fails when none comes in time."""
    end = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        pause.wait(0.05)
    raise AssertionError("it did not happen in time")


def children(pid: int) -> list[int]:
    """Returns the process ids of a process's children."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def measuring(edge: str, answer: httpx.Response) -> bool:
    """Tells whether a run is being decoded."""
    progress = get(edge, answer).json()["payload"].get("progress") or {}
    return progress.get("phase") in ("measuring", "timing")


def test_measured_receipt_verifies(tmp_path: Path) -> None:
    """A run over HTTP ends MEASURED, lossless, in one unsigned receipt that verifies offline."""
    with running(tmp_path, environ=ONE_THREAD) as stack, Specdec(stack.edge_url, PATIENCE_S) as client:
        health = client.health()
        assert health["label"] == "SPEC-DECODE MEASURED"
        assert health["same_family_pair"]["draft"] == "embedded:draft"
        receipt = client.run("And it came to pass", n=20, include_output=True)
    payload = receipt["payload"]
    assert payload["label"] == "SPEC-DECODE MEASURED"
    assert payload["quality_delta"] == {"identical_rate": 1.0, "label": "MEASURED (lossless)"}
    assert payload["n"] == 20
    assert receipt["output"]
    report = verify_receipt(receipt, key_pem=None, require_signature=False)
    assert report.ok, report
    logs = (tmp_path / "agent.log").read_text() + (tmp_path / "edge.log").read_text()
    assert "came to pass" not in logs
    assert receipt["output"][:12] not in logs


def test_killed_worker_fails_one_run(tmp_path: Path) -> None:
    """Kill -9 of the decode child fails the run with a code, and the next run is measured."""
    with running(tmp_path, environ=ONE_THREAD) as stack:
        long = post(stack.edge_url, LONG, "respond-async")
        assert long.status_code == 202
        until(lambda: measuring(stack.edge_url, long))
        for child in children(stack.agent.pid):
            os.kill(child, signal.SIGKILL)
        ended = until(lambda: (answer := get(stack.edge_url, long)).status_code == 200 and answer)
        assert ended.json()["payload"]["roadmap"]["code"] == "WORKER_DIED"
        assert post(stack.edge_url, SHORT).json()["payload"]["label"] == "SPEC-DECODE MEASURED"


def test_killed_agent_keeps_finished_runs(tmp_path: Path) -> None:
    """After kill -9 of the agent a finished run is still there; an unfinished one answers 410."""
    with running(tmp_path, environ=ONE_THREAD) as stack:
        finished = post(stack.edge_url, SHORT)
        assert finished.json()["payload"]["label"] == "SPEC-DECODE MEASURED"
        unfinished = post(stack.edge_url, LONG, "respond-async")
        until(lambda: measuring(stack.edge_url, unfinished))
        child = children(stack.agent.pid)[0]
        stack.agent.kill()
        stack.agent.wait()
        until(lambda: not Path(f"/proc/{child}").exists())
        assert get(stack.edge_url, finished).status_code == 503
        port = stack.tower_url.rsplit(":", 1)[1].split("/")[0]
        again = [
            "--embedded",
            "--port",
            port,
            "--state",
            str(tmp_path),
            "--token-file",
            str(tmp_path / "token"),
        ]
        with listening("agent", again, tmp_path, {**os.environ, **ONE_THREAD}):
            kept = until(lambda: (answer := get(stack.edge_url, finished)).status_code == 200 and answer)
            assert kept.json()["payload"]["measurement"] == finished.json()["payload"]["measurement"]
            lost = get(stack.edge_url, unfinished)
            assert lost.status_code == 410
            assert lost.headers["content-type"].startswith("application/problem+json")
