"""Tests of `agent.child` with a real worker: what it holds when models have come and gone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from agent.supervisor import Supervisor
from tests.agent.ollama.support import DRAFT, TARGET
from tests.agent.support import PATIENCE
from tools.ollama_store import add_model, build_store, remove_model

pytestmark = pytest.mark.slow


async def test_models_that_went_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose models were replaced again and again holds as much memory as one that has loaded them once."""
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    store = build_store(tmp_path / "models", {"tiny:draft": DRAFT, "tiny:target": TARGET})
    command = [sys.executable, "-m", "agent.worker", "--ollama-models", str(store), "--context", "2048"]
    supervisor = Supervisor([*command, "--threads", "1"], hang_s=PATIENCE, cancel_grace_s=PATIENCE)
    held = []
    try:
        for _ in range(4):
            await supervisor.prove()
            assert supervisor.worker_pid is not None
            status = Path(f"/proc/{supervisor.worker_pid}/status").read_text()
            held.append(int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]))
            remove_model(store, "tiny:draft")
            add_model(store, "tiny:draft", DRAFT)
    finally:
        await supervisor.close()
    assert supervisor.starts == 1
    assert held[-1] <= 1.05 * held[0], held
