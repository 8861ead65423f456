"""Tests of `agent.loaded`: the choice of threads, and what loading reports and frees."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest

from agent import loaded
from agent.device import Device
from agent.errors import LoadFailed, NoPair, OutOfMemory
from agent.llama import Weights
from agent.loaded import CPU, LoadedPair, best_threads, load_pair
from agent.pairs import EMBEDDED, ModelFile, PairChoice, choose_pair
from agent.preflight import RESERVE, Need
from shared.schemas import Engine

GPU = Device("gpu", "it is there", "GPU-1")


@pytest.mark.parametrize(
    ("processors", "candidates"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (4, [1, 2, 4]),
        (6, [1, 2, 3, 4, 6]),
        (12, [1, 2, 4, 6, 8, 12]),
        (16, [1, 2, 4, 8, 16]),
    ],
)
def test_candidates(monkeypatch: pytest.MonkeyPatch, processors: int, candidates: list[int]) -> None:
    """Powers of two, half and all of the processors that the process may use are tried."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(7, 7 + processors)))
    assert loaded._candidates() == candidates


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({1: 100.0}, 1),
        ({2: 5.0}, 2),
        ({1: 100.0, 2: 109.0}, 1),
        ({1: 100.0, 2: 111.0}, 2),
        ({2: 111.0, 1: 100.0}, 2),
        ({1: 100.0, 2: 90.0, 4: 80.0}, 1),
        ({1: 100.0, 2: 150.0, 4: 160.0}, 2),
        ({1: 100.0, 2: 150.0, 4: 166.0}, 4),
        ({1: 100.0, 2: 105.0, 4: 112.0}, 4),
        ({1: 100.0, 2: 50.0, 4: 112.0, 8: 120.0}, 4),
    ],
)
def test_more_threads_must_be_worth_it(rates: dict[int, float], best: int) -> None:
    """More threads are taken only where they are more than a tenth faster than the best number below them."""
    assert loaded._best(rates) == best


class Paced:
    """A model whose passes take as long as its threads say, the first after a change of threads longer."""

    def __init__(self, clock: SimpleNamespace, seconds: dict[int, list[float]], capacity: int = 64) -> None:
        """Takes the seconds of each pass for each number of threads."""
        self.clock, self.seconds, self.capacity = clock, seconds, capacity
        self.length = self.threads = self.done = 0

    def set_threads(self, threads: int) -> None:
        """Begins a stretch."""
        self.threads, self.done = threads, 0

    def truncate(self, length: int) -> None:
        """Forgets."""
        self.length = length

    def forward(self, tokens: Sequence[int], rows: int) -> None:
        """Takes its time."""
        self.length += len(tokens)
        assert self.length <= self.capacity
        self.clock.now += self.seconds[self.threads][self.done]
        self.done += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock that tuning looks at."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loaded, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_rates_are_those_of_the_median_pass(clock: SimpleNamespace) -> None:
    """The first pass of each stretch is not timed, one disturbed pass does not matter, and the cache ends empty."""
    model = Paced(clock, {1: [64.0, *[0.5] * 12], 2: [64.0, *[0.25] * 5, 8.0, *[0.25] * 6]})
    assert best_threads(model, [1, 2]) == {1: 2.0, 2: 4.0}  # type: ignore[arg-type]
    assert (model.length, model.done) == (0, loaded.TUNING_PASSES + 1)


def test_rates_in_a_tiny_context(clock: SimpleNamespace) -> None:
    """A context of two tokens has room for one timed pass; one of one token for the first alone, which then counts."""
    model = Paced(clock, {1: [64.0, 0.5], 2: [64.0, 0.25]}, capacity=2)
    assert best_threads(model, [1, 2]) == {1: 2.0, 2: 4.0}  # type: ignore[arg-type]
    model = Paced(clock, {1: [0.5], 2: [0.25]}, capacity=1)
    assert best_threads(model, [1, 2]) == {1: 2.0, 2: 4.0}  # type: ignore[arg-type]


# --- loading, with stand-ins ----------------------------------------------------------------------------------------


class Opened:
    """Stands for weights or a context, and notes when it is closed."""

    log: list[str]
    fails: dict[str, Exception]
    trained = {"large": 900, "small": 700}

    def __init__(self, what: str) -> None:
        """Opens, unless this is to fail."""
        self.what = what
        if what in self.fails:
            raise self.fails[what]
        self.log.append(f"open {what}")

    def close(self) -> None:
        """Closes."""
        self.log.append(f"close {self.what}")


class FakeWeights(Opened):
    """Stands for weights."""

    reached: tuple[int, int] | None = (33, 33)

    def __init__(self, path: Path, name: str, *, gpu_layers: int = 0) -> None:
        """Opens."""
        super().__init__(name)
        self.trained_context, self.gpu_layers = self.trained[name], gpu_layers
        self.name, self.offloaded = name, self.reached if gpu_layers else None


class FakeContext(Opened):
    """Stands for a context."""

    def __init__(self, weights: FakeWeights, *, capacity: int, threads: int) -> None:
        """Opens."""
        super().__init__(f"context of {weights.what}")
        self.capacity, self.threads = capacity, threads

    def set_threads(self, threads: int) -> None:
        """Notes the number."""
        self.threads = threads


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PairChoice:
    """A choice of two files that the stand-ins open."""
    Opened.log, Opened.fails = [], {}
    monkeypatch.setattr(loaded, "Weights", FakeWeights)
    monkeypatch.setattr(loaded, "Context", FakeContext)
    monkeypatch.setattr(loaded, "_candidates", lambda: [1, 2, 4])
    rates = {"large": {1: 10.0, 2: 18.0, 4: 18.5}, "small": {1: 100.0, 2: 90.0}}

    def tried(model: FakeContext, candidates: list[int]) -> dict[int, float]:
        Opened.log.append(f"try {model.what} {candidates}")
        model.threads = candidates[-1]  # what was tried last stays set
        if "tuning" in Opened.fails:
            raise Opened.fails["tuning"]
        return {count: rates[model.what.split()[-1]][count] for count in candidates}

    monkeypatch.setattr(loaded, "best_threads", tried)
    monkeypatch.setattr(loaded, "needed", lambda path, name, *, capacity, gpu_layers: NEEDS[name])
    draft, target = (ModelFile(name, tmp_path / name) for name in ("small", "large"))
    for file in (draft, target):
        file.path.write_text(file.name)
    return PairChoice(True, "one vocabulary", draft, target)


NEEDS = {"large": Need(800 * 2**20, 0, 0), "small": Need(100 * 2**20, 24 * 2**20, 0)}
ALL = ["large", "small", "context of large", "context of small"]


def test_threads_are_tried_for_both(opened: PairChoice, tmp_path: Path) -> None:
    """The target tries all numbers, the draft one thread and the target's number; what was tried is reported."""
    pair = load_pair(opened, n_ctx=512, threads=None, calibrations=tmp_path / "c.json")
    assert Opened.log == [
        *(f"open {what}" for what in ALL),
        "try context of large [1, 2, 4]",
        "try context of small [1, 2]",
    ]
    assert (pair.threads, pair.draft_threads) == (2, 1)
    assert (pair.target.threads, pair.draft.threads) == (2, 1)  # type: ignore[attr-defined]
    assert pair.threads_tried == {"1": 10.0, "2": 18.0, "4": 18.5}
    assert pair.engine()["threads_tried"] == "1: 10 tokens/s, 2: 18 tokens/s, 4: 18.5 tokens/s"
    assert [file.sha256 for file in (pair.draft_file, pair.target_file)] == [
        hashlib.sha256(name).hexdigest() for name in (b"small", b"large")
    ]
    Opened.log.clear()
    pair.close()
    assert Opened.log == ["close context of small", "close context of large", "close small", "close large"]


def test_threads_that_are_given_are_not_tried(opened: PairChoice) -> None:
    """A number that is given is used by both, and nothing is tried."""
    pair = load_pair(opened, n_ctx=512, threads=3)
    assert Opened.log == [f"open {what}" for what in ALL]
    assert (pair.threads, pair.draft_threads, pair.threads_tried) == (3, 3, {})
    assert (pair.target.threads, pair.draft.threads) == (3, 3)  # type: ignore[attr-defined]
    assert pair.engine()["threads_tried"] == ""


def test_threads_are_not_tried_where_layers_are_offloaded(opened: PairChoice) -> None:
    """On a GPU one thread does, nothing is tried, and the receipt tells what decodes, why, and how many layers."""
    pair = load_pair(opened, n_ctx=512, threads=None, device=GPU)
    assert Opened.log == [f"open {what}" for what in ALL]
    assert (pair.threads, pair.target_weights.gpu_layers, pair.draft_weights.gpu_layers) == (1, -1, -1)
    engine = pair.engine()
    assert (engine["device"], engine["device_reason"]) == ("gpu", "it is there")
    assert (engine["gpu_layers"], engine["draft_gpu_layers"]) == (33, 33)


def test_the_processor_is_said_to_be_one(opened: PairChoice) -> None:
    """On the processor the receipt says so with the reason, and no layer is on a GPU."""
    engine = load_pair(opened, n_ctx=512, threads=1).engine()
    assert (engine["device"], engine["device_reason"]) == ("cpu", "nothing else was chosen")
    assert (engine["gpu_layers"], engine["draft_gpu_layers"]) == (0, 0)


@pytest.mark.parametrize(
    ("reached", "said"),
    [
        ((20, 33), "only 20 of 33 layers of large are on the GPU; free GPU memory or choose smaller models"),
        ((0, 33), "only 0 of 33 layers of large are on the GPU; free GPU memory or choose smaller models"),
        (None, "llama.cpp does not say whether large is on the GPU; look at the agent's log"),
    ],
)
def test_nothing_falls_back_to_the_processor(
    opened: PairChoice, monkeypatch: pytest.MonkeyPatch, reached: tuple[int, int] | None, said: str
) -> None:
    """A pair meant for the GPU of which a layer is elsewhere, or of which nobody knows, is let go again."""
    monkeypatch.setattr(FakeWeights, "reached", reached)
    with pytest.raises(LoadFailed) as failure:
        load_pair(opened, n_ctx=512, threads=None, device=GPU)
    assert str(failure.value) == said
    assert Opened.log == ["open large", "open small", "close small", "close large"]


@pytest.mark.parametrize(("device", "where"), [(GPU, "GPU memory"), (CPU, "memory")])
def test_a_pair_that_does_not_fit_is_not_opened(opened: PairChoice, device: Device, where: str) -> None:
    """What a pair needs is compared with what is free before a byte of it is loaded."""
    needs = 924 * 2**20 + RESERVE
    load_pair(opened, n_ctx=512, threads=1, device=device, free=lambda: needs).close()
    Opened.log.clear()
    with pytest.raises(OutOfMemory, match=f"needs 1,436 MiB of {where}"):
        load_pair(opened, n_ctx=512, threads=1, device=device, free=lambda: needs - 1)
    assert Opened.log == []


@pytest.mark.parametrize(("n_ctx", "capacity"), [(512, 512), (700, 700), (4096, 700)])
def test_trained_contexts_bound_the_context(opened: PairChoice, n_ctx: int, capacity: int) -> None:
    """The context is what was asked for, or what the model with the smaller one was trained for."""
    pair = load_pair(opened, n_ctx=n_ctx, threads=1)
    assert (pair.draft.capacity, pair.target.capacity) == (capacity, capacity)


@pytest.mark.parametrize("step", [*ALL, "tuning"])
def test_errors_close_what_was_opened(opened: PairChoice, step: str) -> None:
    """Whatever fails, all that was open is closed, the last first, and the error is passed on as it is."""
    Opened.fails = {step: OutOfMemory("not enough memory")}
    with pytest.raises(OutOfMemory):
        load_pair(opened, n_ctx=512, threads=None)
    done = ALL[: ALL.index(step)] if step in ALL else ALL
    closed = [entry for entry in Opened.log if entry.startswith("close")]
    assert closed == [f"close {what}" for what in reversed(done)]


def test_a_file_that_went_away_is_not_opened(opened: PairChoice) -> None:
    """A file that is gone when it is to be hashed leaves nothing open."""
    assert opened.draft is not None
    opened.draft.path.unlink()
    with pytest.raises(FileNotFoundError):
        load_pair(opened, n_ctx=512, threads=1)
    assert Opened.log == []


def test_no_pair_opens_nothing(opened: PairChoice) -> None:
    """Where no pair was found nothing is opened."""
    with pytest.raises(NoPair, match="none here"):
        load_pair(PairChoice(False, "none here"), n_ctx=512, threads=None)
    assert Opened.log == []


# --- loading, for real ----------------------------------------------------------------------------------------------


def test_embedded_pair_with_threads_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the embedded pair tries threads on both real contexts, sets them, and leaves both caches empty."""
    monkeypatch.setattr(loaded, "_candidates", lambda: [1, 2])
    monkeypatch.setattr(loaded, "TUNING_PASSES", 1)
    monkeypatch.setattr(loaded, "_best", lambda rates: max(rates))
    pair = load_pair(choose_pair(embedded=True), n_ctx=64, threads=None)
    try:
        assert (pair.threads, pair.draft_threads) == (2, 2)
        for context in (pair.target, pair.draft):
            assert llama_cpp.llama_n_threads(context.handle) == 2
            assert llama_cpp.llama_n_threads_batch(context.handle) == 2
            assert (context.length, context.capacity) == (0, 64)
        assert pair.threads_tried.keys() == {"1", "2"}
        assert all(rate > 0 for rate in pair.threads_tried.values())
        engine = Engine.model_validate(pair.engine())
        assert (engine.threads, engine.name) == (2, "llama.cpp")
        lines = (EMBEDDED / "SHA256SUMS").read_text().splitlines()
        sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
        assert (pair.draft_file.sha256, pair.target_file.sha256) == (sums["draft.gguf"], sums["target.gguf"])
    finally:
        pair.close()
    assert pair.target.handle is None and pair.draft_weights.handle is None


def test_embedded_target_with_a_damaged_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that cannot be loaded has the target's real weights freed again."""
    opened: list[Any] = []
    real = Weights.__init__

    def noting(self: Any, *args: Any, **more: Any) -> None:
        opened.append(self)
        real(self, *args, **more)

    monkeypatch.setattr(Weights, "__init__", noting)
    monkeypatch.setattr(
        loaded, "needed", lambda *_, **__: Need(0, 0, 0)
    )  # it would refuse the file beforehand
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF" + bytes(100))
    whole = choose_pair(embedded=True).target
    choice = PairChoice(True, "", ModelFile("damaged", tmp_path / "damaged.gguf"), whole)
    with pytest.raises(LoadFailed, match="could not load damaged"):
        load_pair(choice, n_ctx=64, threads=None)
    assert len(opened) == 2 and opened[0].handle is None


def test_a_pair_has_the_draft_use_the_targets_threads() -> None:
    """Unless told otherwise the draft decodes with as many threads as the target."""
    part: Any = SimpleNamespace()
    assert LoadedPair(part, part, part, part, part, part, 3).draft_threads == 3
    assert LoadedPair(part, part, part, part, part, part, 3, 1).draft_threads == 1
