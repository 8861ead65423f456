"""How soon a pair that comes or goes is told: from the change in Ollama's store to the edge's `/health`.

A real agent and edge on a store laid out as Ollama's, with their defaults: the agent looks every 3 s, the edge uses
an answer for 5 s. The draft's manifest is taken away and put back, round after round, at a moment of no phase.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from agent.pairs import EMBEDDED
from tools.ollama_store import add_model, build_store, remove_model
from tools.stack import PATIENCE_S, running

DRAFT, TARGET = "specdec:1m", "specdec:9m"
LOOK_S = 0.05


def measure(rounds: int) -> dict[str, Any]:
    """Returns the seconds until `/health` told of each change, in the order of the rounds."""
    seconds: dict[str, list[float]] = {"gone": [], "back": []}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store, state = Path(folder) / "models", Path(folder) / "state"
        state.mkdir()
        build_store(store, {DRAFT: EMBEDDED / "draft.gguf", TARGET: EMBEDDED / "target.gguf"})
        with (
            running(state, agent=["--ollama-models", str(store)]) as stack,
            httpx.Client(base_url=stack.edge_url, timeout=PATIENCE_S) as client,
        ):
            _until(client, found=True)
            for number in range(rounds):
                time.sleep(0.7 * (number % 5))  # so that rounds meet all phases of both periods
                remove_model(store, DRAFT)
                seconds["gone"].append(_until(client, found=False))
                add_model(store, DRAFT, EMBEDDED / "draft.gguf")
                seconds["back"].append(_until(client, found=True))
    return {"seconds": seconds}


def _until(client: httpx.Client, *, found: bool) -> float:
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        told = client.get("/api/a11oy/v1/specdec/health").json()["same_family_pair"]
        if told["found"] is found:
            return time.monotonic() - began
        time.sleep(LOOK_S)
    raise TimeoutError("the change was not told")


def markdown(result: dict[str, Any]) -> str:
    """Returns the table."""
    lines = ["| the draft is | median s | longest s | rounds |", "|---|---|---|---|"]
    for what, seconds in result["seconds"].items():
        middle, longest = statistics.median(seconds), max(seconds)
        lines.append(f"| {what} | {middle:.1f} | {longest:.1f} | {len(seconds)} |")
    return "\n".join(lines)
