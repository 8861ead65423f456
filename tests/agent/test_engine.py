"""Tests of agent.engine: what the worker's command line comes to; decoding itself is seen in test_server."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import device, gpu, idle, room
from agent.device import Device
from agent.engine import LlamaEngine
from agent.errors import LoadFailed
from agent.pairs import EMBEDDED
from agent.worker import options
from tests.agent.nvml_stub.stub import Stub
from tools.ollama_store import build_store

FILES = {"llama3.2:1b": EMBEDDED / "draft.gguf", "llama3.1:8b": EMBEDDED / "target.gguf"}


def engine(*flags: str) -> LlamaEngine:
    """An engine by the worker's own command line."""
    return LlamaEngine(options(["--context", "256", *flags]))


def test_options_reach_the_choice(tmp_path: Path) -> None:
    """Pinned and forbidden models are the operator's, whatever else would pair."""
    store = build_store(tmp_path / "models", FILES)
    flags = ["--ollama-models", str(store), "--device", "cpu"]
    assert engine(*flags).choose().found
    forbidden = engine(*flags, "--forbid", "llama3.2:1b").choose()
    assert not forbidden.found
    assert [model["reason"] for model in forbidden.models if model["name"] == "llama3.2:1b"] == [
        "forbidden by the operator"
    ]
    absent = engine(*flags, "--pin-draft", "qwen3:0.6b").choose()
    assert not absent.found and "qwen3:0.6b" in absent.reason


def test_memory_reaches_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair larger than what the device has is not chosen."""
    monkeypatch.setattr(room, "memory_bytes", lambda device: 1_000_000)
    store = build_store(tmp_path / "models", FILES)
    choice = engine("--ollama-models", str(store), "--device", "cpu").choose()
    assert not choice.found
    assert [one["fits"] for one in choice.ranked] == [False]


def test_facts_are_kept(tmp_path: Path) -> None:
    """What looking has found of the files is kept where the command line says."""
    facts = tmp_path / "state" / "files.json"
    assert engine("--embedded", "--device", "cpu", "--facts", str(facts)).choose().found
    assert facts.is_file()


def test_unusable_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing may decode there is no pair, for that reason; the models are listed all the same."""

    def refuse(*_: object, **__: object) -> Device:
        raise LoadFailed("this machine has a GPU, and llama.cpp cannot use it", "build it anew")

    monkeypatch.setattr(device, "choose_device", refuse)
    it = engine("--embedded")
    choice = it.choose()
    assert (choice.found, choice.draft, choice.target) == (False, None, None)
    assert choice.reason == "this machine has a GPU, and llama.cpp cannot use it; build it anew"
    assert [model["name"] for model in choice.models] == ["embedded:draft", "embedded:target"]
    assert it.surroundings() == {"device": {"kind": None, "reason": choice.reason}}


def test_surroundings_of_the_processor() -> None:
    """On the processor energy is UNAVAILABLE, and what decodes is told with the reason."""
    assert engine("--embedded", "--device", "cpu").surroundings() == {
        "device": {"kind": "cpu", "reason": "the operator chose the processor", "uuid": None},
        "energy": {
            "label": "UNAVAILABLE",
            "code": "ON_CPU",
            "reason": "the pair is decoded on the processor, and the meter is a GPU's",
        },
    }


@pytest.fixture
def on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaEngine]:
    """An engine on a GPU that a stub of NVML stands for."""
    Stub(tmp_path).here(monkeypatch)
    gpu.close()
    it = engine("--embedded")
    uuid = gpu.choose_gpu().uuid
    monkeypatch.setattr(device, "choose_device", lambda *_, **__: Device("gpu", "it is there", uuid))
    yield it
    gpu.close()


def test_surroundings_of_a_gpu(on_gpu: LlamaEngine) -> None:
    """On a GPU with a counter energy is what each run measures, and is UNAVAILABLE before."""
    told = on_gpu.surroundings()
    assert told["device"]["kind"] == "gpu"
    assert (told["energy"]["label"], told["energy"]["code"]) == ("UNAVAILABLE", "PER_RUN")


def test_idle_power_is_metered_between_runs(on_gpu: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the GPU takes while the worker waits goes into the next run; before the device is known nobody looks."""
    looked: list[str] = []

    class Meter:
        def __init__(self, gpu: Any, own_pids: set[int]) -> None:
            looked.append(gpu.uuid)

        def __enter__(self) -> "Meter":
            return self

        def __exit__(self, *_: object) -> None:
            looked.append("over")

        def watts(self) -> tuple[float, float]:
            return 17.5, 30.0

    monkeypatch.setattr(idle, "IdleMeter", Meter)
    with on_gpu.waiting():
        pass
    assert looked == []
    uuid = on_gpu.device.uuid
    with on_gpu.waiting():
        pass
    assert looked == [uuid, "over"]
    given: dict[str, Any] = {}
    monkeypatch.setattr("agent.measure.run", lambda pair, request, **more: given.update(more))
    pair: Any = SimpleNamespace()
    on_gpu.run(pair, {}, on_progress=lambda *_: None, should_stop=lambda: None, deadline=1.0)
    assert given["idle"] == (17.5, 30.0)
    monkeypatch.setattr("agent.room.gpu_of", lambda _: None)
    with on_gpu.waiting():
        pass
    on_gpu.run(pair, {}, on_progress=lambda *_: None, should_stop=lambda: None, deadline=1.0)
    assert given["idle"] is None  # a GPU that cannot be metered now is not told by what it took before


def test_worker_options_are_complete() -> None:
    """Every option that the engine reads is one of the worker's command line."""
    given = options(["--context", "1"])
    assert isinstance(given, argparse.Namespace)
    assert {"device", "gpu", "foreign", "pin_draft", "pin_target", "forbid", "facts"} <= vars(given).keys()
    assert (given.device, given.foreign, given.forbid, given.ollama_unload) == ("auto", "mark", [], False)
