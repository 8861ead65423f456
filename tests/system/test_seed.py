"""The user's own quickstart and one-line verification, unchanged but for the base address."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tools.stack import Stack, running

QUICKSTART = Path(__file__).with_name("seed_quickstart.py.txt").read_text(encoding="utf-8")
PUBLIC = "https://a-11-oy.com"
PATIENCE_S = 120 * float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))


def quickstart(base: str) -> str:
    """Runs the quickstart against `base` and returns what it prints."""
    program = QUICKSTART.replace(PUBLIC, base)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_said(printed: str, label: str, *, signed: bool = True) -> None:
    """Asserts the lines that the quickstart prints whatever the state, and the label."""
    assert "k (draft steps):         4\n" in printed
    assert f"State label:             {label}\n" in printed
    assert "Expected speedup @ α=0.7: 1.541×\n" in printed
    assert f"Signed: {signed}\n" in printed
    assert printed.endswith("Offline receipt verify: OK ✓\n")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:  # type: ignore[misc]
    """An agent with the embedded pair behind a local edge."""
    with running(tmp_path_factory.mktemp("state"), environ={"SPECDEC_THREADS": "1"}) as stack:
        yield stack


def test_quickstart_measures(stack: Stack) -> None:
    """With a tower that holds a pair the quickstart prints MEASURED and its check passes."""
    assert_said(quickstart(stack.edge_url), "SPEC-DECODE MEASURED")


def test_quickstart_while_the_run_goes_on(tmp_path: Path) -> None:
    """While the tower is still at it the answer is a 202, on which the quickstart works all the same."""
    with running(tmp_path, environ={"SPECDEC_THREADS": "1", "SPECDEC_WAIT_S": "0.01"}) as slow:
        assert_said(quickstart(slow.edge_url), "SPEC-DECODE ROADMAP", signed=False)
        answer = httpx.post(
            f"{slow.edge_url}/api/a11oy/v1/specdec/run", json={"prompt": "And"}, timeout=PATIENCE_S
        )
        assert answer.status_code == 202
        assert answer.json()["payload"]["roadmap"]["reason"] == "running"


def test_quickstart_without_a_tower(tmp_path: Path) -> None:
    """With the tower down the quickstart prints ROADMAP and its check passes."""
    with running(tmp_path, edge=("--tower-url", "ws://127.0.0.1:9/specdec")) as alone:
        assert_said(quickstart(alone.edge_url), "SPEC-DECODE ROADMAP")
        health = httpx.get(f"{alone.edge_url}/api/a11oy/v1/specdec/health", timeout=PATIENCE_S).json()
    assert health["status"] == "LIVE"
    assert health["label"] == "SPEC-DECODE ROADMAP (no same-family pair)"
    assert health["same_family_pair"] == {"found": False, "reason": "tower unreachable"}
    assert health["measured_run_possible"] is False
