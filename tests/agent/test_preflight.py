"""Tests of agent.preflight: what a pair needs, by llama.cpp's own estimate, and whether it is there."""

import re
from pathlib import Path

import pytest

from agent import preflight
from agent.errors import LoadFailed, OutOfMemory
from agent.llama import Context, Weights
from agent.pairs import EMBEDDED
from agent.preflight import RESERVE, Need, check_room, free_memory, needed

MIB = 1024**2


@pytest.mark.parametrize("model", ["target", "draft"])
def test_estimate_is_what_loading_takes(model: str) -> None:
    """The weights are the file's tensors, and the cache is two f16 values per layer, position and key-value width."""
    path = EMBEDDED / f"{model}.gguf"
    need = needed(path, model, capacity=512, gpu_layers=0)
    weights = Weights(path, model)
    layers = int(weights.metadata(f"{weights.metadata('general.architecture')}.block_count") or 0)
    width = {"target": 256, "draft": 192}[model]
    try:
        assert 0 < path.stat().st_size - need.weights < 100_000
        assert need.cache == 2 * 2 * layers * 512 * width
        assert 1 * MIB < need.compute < 64 * MIB
        assert need.total == need.weights + need.cache + need.compute
    finally:
        weights.close()


def test_context_is_bounded_by_training() -> None:
    """More context than a model was trained for is not counted, as no run gets it."""
    path = EMBEDDED / "target.gguf"
    most = needed(path, "target", capacity=2048, gpu_layers=0)
    assert needed(path, "target", capacity=1_000_000, gpu_layers=0) == most


def test_estimate_leaves_loading_alone() -> None:
    """A model can be opened and decodes as ever after it was estimated."""
    path = EMBEDDED / "draft.gguf"
    needed(path, "draft", capacity=64, gpu_layers=0)
    weights = Weights(path, "draft")
    context = Context(weights, capacity=64, threads=1)
    try:
        assert context.forward([1, 2], 1).shape == (1, weights.vocab.size)
    finally:
        context.close()
        weights.close()


def test_damaged_file(tmp_path: Path) -> None:
    """A file that lacks tensors is refused, though its tokenizer could be read."""
    whole = (EMBEDDED / "draft.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LoadFailed, match="^llama.cpp could not load cut; "):
        needed(cut, "cut", capacity=64, gpu_layers=0)


NEEDS = [("large", Need(3 * MIB, 2 * MIB, MIB)), ("small", Need(MIB, MIB, MIB))]
TOTAL = 9 * MIB + RESERVE


@pytest.mark.parametrize("free", [None, TOTAL])
def test_room_enough(free: int | None) -> None:
    """A pair that fits to the byte is let in, and any pair where nobody knows what is free."""
    check_room(NEEDS, free, "memory")


def test_room_too_small() -> None:
    """A pair that lacks one byte is refused with what each model needs and what is free."""
    said = "the pair needs 521 MiB of GPU memory (large 6 MiB, small 3 MiB) and 521 MiB is free"
    with pytest.raises(OutOfMemory, match=re.escape(said)):
        check_room(NEEDS, TOTAL - 1, "GPU memory")


def test_free_memory_here() -> None:
    """On this machine the system says what is free, within what there is."""
    free = free_memory()
    assert free is not None and 0 < free


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 1,000 kB available, and this process in a control group of its own."""
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable:    1000 kB\n")
    (tmp_path / "cgroup").write_text("1:cpu:/x\n0::/tower.slice/agent\n")
    group = tmp_path / "groups" / "tower.slice" / "agent"
    group.mkdir(parents=True)
    monkeypatch.setattr(preflight, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(preflight, "_OWN_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(preflight, "_CGROUPS", tmp_path / "groups")
    return group


def limit(group: Path, most: str, used: int, cached: int) -> None:
    """Write a control group's numbers as the kernel does."""
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


def test_no_limit(system: Path) -> None:
    """Without a control group's limit what the system has available counts."""
    assert free_memory() == 1000 * 1024
    limit(system, "max", 5, 5)
    assert free_memory() == 1000 * 1024


def test_limit(system: Path) -> None:
    """A control group's limit counts where it is tighter; its file cache can be had back."""
    limit(system, "700000", 500000, 100000)
    assert free_memory() == 300000
    limit(system, "700000", 900000, 100000)
    assert free_memory() == 0
    limit(system, "90000000", 0, 0)
    assert free_memory() == 1000 * 1024


def test_nobody_says(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not say what is free, nothing is made up."""
    monkeypatch.setattr(preflight, "_MEMINFO", system / "absent")
    assert free_memory() is None
