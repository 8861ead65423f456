"""A tower whose models are Ollama's: a pair that is pulled makes it MEASURED, one that is removed makes it ROADMAP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from agent.pairs import EMBEDDED
from shared.client import Specdec
from shared.verify import verify_receipt
from tests.system.test_faults import ONE_THREAD, SHORT, get, measuring, post, until
from tools.ollama_store import add_model, build_store, remove_model
from tools.stack import PATIENCE_S, running

DRAFT, TARGET = "llama3.2:1b", "llama3.1:8b"
FILES = {DRAFT: EMBEDDED / "draft.gguf", TARGET: EMBEDDED / "target.gguf"}


def health(edge: str) -> dict[str, Any]:
    """Returns what the edge says of its tower."""
    answer: dict[str, Any] = httpx.get(f"{edge}/api/a11oy/v1/specdec/health", timeout=PATIENCE_S).json()
    return answer


def flips(edge: str, *, found: bool) -> dict[str, Any]:
    """Returns the first answer that tells of a pair, or of none; fails when none comes in time."""
    answer: dict[str, Any] = until(
        lambda: (told := health(edge))["same_family_pair"]["found"] is found and told
    )
    return answer


def test_pulled_pair_is_measured_and_removed_draft_is_told(tmp_path: Path) -> None:
    """The pair is found and named as Ollama names it, its draft's removal is told with what to do, and undone."""
    store, state = tmp_path / "models", tmp_path / "state"
    state.mkdir()
    build_store(store, FILES)
    with (
        running(state, agent=["--ollama-models", str(store)], environ=ONE_THREAD) as stack,
        Specdec(stack.edge_url, PATIENCE_S) as client,
    ):
        told = flips(stack.edge_url, found=True)
        assert told["label"] == "SPEC-DECODE MEASURED"
        assert (told["same_family_pair"]["draft"], told["same_family_pair"]["target"]) == (DRAFT, TARGET)
        receipt = client.run("And it came to pass", n=12)
        payload = receipt["payload"]
        assert (payload["label"], payload["draft_model"], payload["target_model"]) == (
            "SPEC-DECODE MEASURED",
            DRAFT,
            TARGET,
        )
        digests = {path.name.removeprefix("sha256-") for path in (store / "blobs").iterdir()}
        for side in ("draft", "target"):
            assert payload["measurement"][side]["sha256"] in digests
        assert verify_receipt(receipt, key_pem=None, require_signature=False).ok

        remove_model(store, DRAFT)
        told = flips(stack.edge_url, found=False)
        assert told["label"] == "SPEC-DECODE ROADMAP (no same-family pair)"
        reason = told["same_family_pair"]["reason"]
        assert reason == f"{TARGET} has no smaller model with its vocabulary: run `ollama pull llama3.2:1b`"
        roadmap = client.run("And it came to pass", n=12)["payload"]
        assert (roadmap["label"], roadmap["measured"]) == ("SPEC-DECODE ROADMAP", "UNAVAILABLE")

        add_model(store, DRAFT, FILES[DRAFT])
        assert flips(stack.edge_url, found=True)["label"] == "SPEC-DECODE MEASURED"
        assert client.run("And it came to pass", n=12)["payload"]["label"] == "SPEC-DECODE MEASURED"


def test_pair_that_vanishes_during_a_run(tmp_path: Path) -> None:
    """Health flips while a run is decoded; that run, whose models are in memory, still ends measured."""
    store, state = tmp_path / "models", tmp_path / "state"
    state.mkdir()
    build_store(store, FILES)
    with running(state, agent=["--ollama-models", str(store)], environ=ONE_THREAD) as stack:
        flips(stack.edge_url, found=True)
        answer = post(stack.edge_url, {**SHORT, "n": 40, "ignore_eos": True}, prefer="respond-async")
        until(lambda: measuring(stack.edge_url, answer))
        remove_model(store, DRAFT)
        flips(stack.edge_url, found=False)
        ended = until(lambda: (now := get(stack.edge_url, answer)).status_code == 200 and now)
        assert ended.json()["payload"]["label"] == "SPEC-DECODE MEASURED"
