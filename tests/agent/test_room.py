"""Tests of agent.room: what a pair may take where it is decoded, and who has to go or be absent first."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from agent import gpu, room
from agent.device import Device
from agent.errors import GpuBusy
from agent.nvml import NvmlError
from agent.preflight import RESERVE
from agent.room import free_bytes, gpu_of, make_room, memory_bytes

CPU = Device("cpu", "there is no GPU")
ON_GPU = Device("gpu", "it is there", "GPU-1")
UNKNOWN = Device("gpu", "NVML does not know it")
GIB = 2**30


class Card:
    """A GPU with 16 GiB, of which 10 are free, and the programs that compute on it."""

    memory_total = 16 * GIB

    def __init__(self) -> None:
        """Begin with nobody there."""
        self.pids: set[int] = set()
        self.dumb = False

    def memory_free(self) -> int:
        """Tell what is free."""
        return 10 * GIB

    @property
    def device(self) -> "Card":
        """Its own readings."""
        return self

    def compute_pids(self) -> frozenset[int]:
        """Tell who is there."""
        if self.dumb:
            raise NvmlError("NOT_SUPPORTED", "the compute processes: the driver has no data on it")
        return frozenset(self.pids)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """A machine with this one GPU."""
    it = Card()
    monkeypatch.setattr(
        gpu, "find_gpu", lambda uuid: SimpleNamespace(gpu=it if uuid == "GPU-1" else None, reason="no")
    )
    return it


def test_memory(card: Card) -> None:
    """On a GPU its own memory counts, elsewhere the machine's; where NVML knows nothing, nothing is said."""
    seen: list[object] = [gpu_of(device) for device in (ON_GPU, UNKNOWN, CPU)]
    assert seen == [card, None, None]
    assert memory_bytes(ON_GPU) == 16 * GIB - RESERVE
    assert free_bytes(ON_GPU) == 10 * GIB
    assert (memory_bytes(UNKNOWN), free_bytes(UNKNOWN)) == (None, None)
    whole, free = memory_bytes(CPU), free_bytes(CPU)
    assert whole is not None and free is not None and 0 < free <= whole + RESERVE


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({7}, "1 other program computes on the GPU"),
        ({7, 8}, "2 other programs compute on the GPU"),
    ],
)
def test_others_on_the_gpu(card: Card, others: set[int], said: str) -> None:
    """Where nobody may share the GPU a run is refused while somebody does; we ourselves are nobody else."""
    card.pids = {os.getpid()}
    make_room(ON_GPU, foreign="refuse")
    card.pids |= others
    with pytest.raises(GpuBusy, match=f"^{said}; "):
        make_room(ON_GPU, foreign="refuse")
    make_room(ON_GPU, foreign="mark")
    card.dumb = True
    with pytest.raises(GpuBusy, match="^nobody can tell who else computes on the GPU: "):
        make_room(ON_GPU, foreign="refuse")
    make_room(UNKNOWN, foreign="refuse")
    make_room(CPU, foreign="refuse")


class FakeOllama:
    """An Ollama that takes two looks to let a model go."""

    log: list[str]
    loaded: list[str]

    def __init__(self, url: str) -> None:
        """Take its address."""
        self.log.append(url)

    def __enter__(self) -> "FakeOllama":
        """Open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.log.append("closed")

    def ps(self) -> Any:
        """Tell what is loaded."""
        self.log.append("ps")
        if self.log.count("ps") > 3:
            self.loaded.clear()
        return SimpleNamespace(models=[SimpleNamespace(name=name) for name in self.loaded])

    def unload(self, name: str) -> None:
        """Begin to let a model go."""
        self.log.append(f"unload {name}")


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> type[FakeOllama]:
    """An Ollama in place of the client."""
    FakeOllama.log, FakeOllama.loaded = [], ["llama3.1:8b", "qwen3:4b"]
    monkeypatch.setattr("agent.ollama.api.Ollama", FakeOllama)
    monkeypatch.setattr(room, "_LOOK_S", 0.0)
    return FakeOllama


def test_ollama_is_left_alone(ollama: type[FakeOllama]) -> None:
    """Unless the operator says so, Ollama is not even asked."""
    make_room(CPU)
    assert ollama.log == []


def test_ollama_unloads(ollama: type[FakeOllama]) -> None:
    """Where the operator says so, each of Ollama's models is to go, and is waited for."""
    make_room(CPU, ollama_url="http://127.0.0.1:1")
    assert ollama.log == [
        "http://127.0.0.1:1",
        "ps",
        "unload llama3.1:8b",
        "unload qwen3:4b",
        "ps",
        "ps",
        "ps",
        "closed",
    ]


def test_ollama_that_holds_on(ollama: type[FakeOllama], monkeypatch: pytest.MonkeyPatch) -> None:
    """An Ollama that does not let go is not waited for without end; the pre-flight sees what is free."""
    monkeypatch.setattr(room, "UNLOAD_PATIENCE_S", 0.0)
    make_room(CPU, ollama_url="http://127.0.0.1:1")
    assert ollama.log.count("ps") == 2


def test_ollama_with_nothing_loaded(ollama: type[FakeOllama]) -> None:
    """An Ollama that holds nothing, or does not answer, is asked once."""
    ollama.loaded.clear()
    make_room(CPU, ollama_url="http://127.0.0.1:1")
    assert ollama.log == ["http://127.0.0.1:1", "ps", "closed"]


def test_ollama_that_takes_its_time(ollama: type[FakeOllama], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of Ollama's models together have one budget of time, however many there are."""
    ollama.loaded[:] = [f"m{i}" for i in range(100)]
    now = iter(range(1000))
    monkeypatch.setattr("agent.room.time.monotonic", lambda: float(next(now)))
    make_room(CPU, ollama_url="http://127.0.0.1:1")
    assert 10 <= len([entry for entry in ollama.log if entry.startswith("unload")]) <= 15
