"""Tests of agent.worker; the engine is a stand-in, what it does with a real pair is seen in test_server."""

import io
import queue
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.errors import GpuBusy, LoadFailed, OutOfMemory
from agent.measure import RunOutcome
from agent.pairs import ModelFile, PairChoice, version_of
from agent.pipe import (
    CancelOp,
    Event,
    ExitOp,
    FailedEvent,
    Op,
    PairEvent,
    PairOp,
    ProgressEvent,
    ProveOp,
    ResultEvent,
    RunOp,
    encode,
)
from agent.pulse import LOAD_PATIENCE_S, STEP_PATIENCE_S, Pulse
from agent.worker import Worker, listen
from shared.errors import SpecdecError
from tests.agent.support import PATIENCE, ROOT

DRAFT = ModelFile("small", Path("/models/small"), "0" * 64, (2, 3))
TARGET = ModelFile("large", Path("/models/large"), None)
PAIR = PairChoice(True, "one vocabulary", DRAFT, TARGET, "llama", [])
NO_PAIR = PairChoice(False, "no two models of one family", None, None, None, [])
ENERGY = {"label": "UNAVAILABLE", "code": "ON_CPU"}
RUN = RunOp(run_id="r", request={"prompt": "a secret", "n": 2}, deadline_s=60)


@dataclass
class StandIn:
    """An engine that does as it is told."""

    choices: list[PairChoice] = field(default_factory=lambda: [PAIR])
    act: Callable[[Callable[[str, int, int], None], Callable[[], str | None]], None] = lambda *_: None
    loads: list[PairChoice] = field(default_factory=list)
    closed: list[PairChoice] = field(default_factory=list)
    deadline: float = 0.0
    rooms: list[int] = field(default_factory=list)
    unloads: list[bool] = field(default_factory=list)
    crowded: bool = False

    def choose(self, *, compare: bool = False) -> PairChoice:
        """Return the choices one after the other, the last for ever."""
        return self.choices.pop(0) if len(self.choices) > 1 else self.choices[0]

    def load(self, choice: PairChoice) -> Any:
        """Count the loads, and note how many pairs were let go of before each."""
        assert self.closed == self.loads
        self.loads.append(choice)
        return SimpleNamespace(close=lambda: self.closed.append(choice))

    def run(
        self,
        pair: Any,
        request: dict[str, Any],
        *,
        on_progress: Callable[[str, int, int], None],
        should_stop: Callable[[], str | None],
        deadline: float,
    ) -> RunOutcome:
        """Act, then return an outcome."""
        self.deadline = deadline
        self.act(on_progress, should_stop)
        return RunOutcome(measurement={"n": 2}, energy=ENERGY, output_text="text", output_sha3_256="0" * 64)

    def surroundings(self) -> dict[str, Any]:
        """Tell of a processor."""
        return {"device": {"kind": "cpu"}, "energy": ENERGY}

    def make_room(self, *, unload: bool = True) -> None:
        """Note how many pairs were in memory by then, and whether others may be asked to leave it."""
        self.unloads.append(unload)
        self.rooms.append(len(self.loads) - len(self.closed))
        if self.crowded:
            raise GpuBusy("2 other programs compute on the GPU")

    def prove(self, pair: Any) -> None:
        """Act as for a run."""
        self.act(lambda *_: None, lambda: None)


def handled(engine: StandIn, *ops: PairOp | ProveOp | RunOp) -> list[Event]:
    """Return the events a worker sends when it carries out operations."""
    events: list[Event] = []
    worker = Worker(engine, events.append)
    for op in ops:
        worker.handle(op)
    return events


def raising(error: BaseException) -> StandIn:
    """Return an engine whose run raises an error."""

    def act(*_: object) -> None:
        raise error

    return StandIn(act=act)


def test_pair() -> None:
    """Looking for a pair is answered with what was found, after a sign of life."""
    assert handled(StandIn(), PairOp()) == [
        ProgressEvent(run_id=None, phase="pair", done=0, total=0),
        PairEvent(
            found=True,
            reason="one vocabulary",
            draft=DRAFT,
            target=TARGET,
            family="llama",
            models=[],
            device={"kind": "cpu"},
            energy=ENERGY,
        ),
    ]


def test_run() -> None:
    """A run chooses a pair if none is known, loads it, decodes, and ends with a result."""
    engine = StandIn()
    events = handled(engine, RUN)
    assert [event.event for event in events] == ["progress", "pair", "progress", "result"]
    phases = [event.phase for event in events if isinstance(event, ProgressEvent)]
    assert phases == ["loading", "loaded"]
    assert events[-1] == ResultEvent(
        run_id="r", measurement={"n": 2}, energy=ENERGY, output="text", output_sha3_256="0" * 64
    )
    assert engine.loads == [PAIR]


def test_pair_stays_loaded() -> None:
    """A pair is loaded once for many runs; when another is to be found, it is told and the old one goes."""
    other = replace(PAIR, draft=replace(DRAFT, version=(2, 4)))
    engine = StandIn()
    handled(engine, RUN, RUN, PairOp(), RUN)
    assert (engine.loads, engine.closed) == ([PAIR], [])
    events = handled(engine := StandIn(choices=[PAIR, PAIR, other]), RUN, RUN, RUN)
    assert (engine.loads, engine.closed) == ([PAIR, other], [PAIR])
    assert [event.draft for event in events if isinstance(event, PairEvent)] == [DRAFT, other.draft]


def test_room_is_made_before_loading() -> None:
    """Whoever is to leave the memory is asked before a pair is loaded, at each run."""
    engine = StandIn()
    handled(engine, RUN, RUN, ProveOp())
    assert engine.rooms == [0, 1, 1]
    assert engine.unloads == [True, True, False]


def test_busy_gpu() -> None:
    """A run that may not share its GPU fails with a code of its own, and nothing is loaded."""
    engine = StandIn(crowded=True)
    event = handled(engine, RUN)[-1]
    assert isinstance(event, FailedEvent) and event.code == "GPU_BUSY"
    assert event.detail == "2 other programs compute on the GPU; try again when it has gone"
    assert engine.loads == []


def test_prove() -> None:
    """One decoded step is told of; without a pair, or when decoding fails, the reason is."""
    assert [event.event for event in handled(StandIn(), ProveOp())] == [
        "progress",
        "pair",
        "progress",
        "proved",
    ]
    for engine, code in (
        (StandIn(choices=[NO_PAIR]), "NO_PAIR"),
        (raising(OutOfMemory("no")), "OUT_OF_MEMORY"),
    ):
        event = handled(engine, ProveOp())[-1]
        assert isinstance(event, FailedEvent) and (event.run_id, event.code) == (None, code)


def on_disk(folder: Path) -> PairChoice:
    """Return a pair of two small files as they are now, which no loader could read."""
    files = {name: folder / name for name in ("draft", "target")}
    for path in files.values():
        path.touch()
    draft, target = (ModelFile(name, path, version=version_of(path)) for name, path in files.items())
    return PairChoice(True, "one vocabulary", draft, target)


def test_file_that_was_changed_is_loaded_anew(tmp_path: Path) -> None:
    """A run never uses weights that a file has lost, even when the agent has not asked for a pair since."""
    before = on_disk(tmp_path)
    engine = StandIn(choices=[before, PAIR])
    worker = Worker(engine, lambda _: None)
    worker.handle(RUN)
    (tmp_path / "target").write_bytes(b"other weights")
    worker.handle(RUN)
    assert (engine.loads, engine.closed) == ([before, PAIR], [before])


def test_file_that_is_changed_in_use_fails_the_run(tmp_path: Path) -> None:
    """A file that is written into during a run is not what the measurement's digest names, so there is none."""

    def overwrite(*_: object) -> None:
        (tmp_path / "draft").write_bytes(b"other weights")

    event = handled(StandIn(choices=[on_disk(tmp_path)], act=overwrite), RUN)[-1]
    assert isinstance(event, FailedEvent) and event.code == "LOAD_FAILED"


def test_file_that_is_deleted_in_use_is_still_what_was_loaded(tmp_path: Path) -> None:
    """What is in memory outlives its file, so a run goes on without it."""
    engine = StandIn(choices=[on_disk(tmp_path)], act=lambda *_: (tmp_path / "draft").unlink())
    assert isinstance(handled(engine, RUN)[-1], ResultEvent)


def test_load_failure() -> None:
    """A pair that cannot be loaded fails the run in its loading phase."""

    class Broken(StandIn):
        def load(self, choice: PairChoice) -> Any:
            raise LoadFailed("it is cut short")

    events = handled(Broken(), RUN)
    assert [event.event for event in events] == ["progress", "pair", "failed"]
    assert isinstance(events[-1], FailedEvent) and events[-1].code == "LOAD_FAILED"


def test_no_pair() -> None:
    """Without a pair a run fails, and looks again the next time."""
    events = handled(StandIn(choices=[NO_PAIR, PAIR]), RUN, RUN)
    failed = [event for event in events if isinstance(event, FailedEvent)]
    assert [event.code for event in failed] == ["NO_PAIR"]
    assert failed[0].detail.startswith("no two models of one family; ")
    assert isinstance(events[-1], ResultEvent)


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (OutOfMemory("it does not fit", "free some"), "OUT_OF_MEMORY", "it does not fit; free some"),
        (SpecdecError("BAD_JSON", "not on the list"), "INTERNAL", "not on the list"),
        (MemoryError(), "OUT_OF_MEMORY", "the decode worker ran out of memory"),
        (ValueError("a secret"), "INTERNAL", "the decode worker failed with ValueError"),
    ],
)
def test_failures(error: Exception, code: str, detail: str) -> None:
    """An exception becomes a failure with a wire code, whose text quotes nothing unknown."""
    event = handled(raising(error), RUN)[-1]
    assert isinstance(event, FailedEvent)
    assert (event.run_id, event.code) == ("r", code)
    assert event.detail.startswith(detail) and "a secret" not in event.detail


def test_pair_failure() -> None:
    """Failing to look for a pair is answered without a run id."""

    class Broken(StandIn):
        def choose(self, *, compare: bool = False) -> PairChoice:
            raise OutOfMemory("it does not fit")

    event = handled(Broken(), PairOp())[-1]
    assert isinstance(event, FailedEvent)
    assert (event.run_id, event.code) == (None, "OUT_OF_MEMORY")


def test_cancel() -> None:
    """A cancel reaches the run it names, before or while it is decoded, and no other."""
    answers: list[str | None] = []

    def act(_: object, should_stop: Callable[[], str | None]) -> None:
        answers.append(should_stop())
        worker.cancel("r")
        answers.append(should_stop())

    worker = Worker(StandIn(act=act), lambda _: None)
    worker.cancel("another")
    worker.handle(RUN)
    worker.handle(RUN)
    worker.cancel("r")
    worker.handle(RUN)
    assert answers == [None, "cancelled", None, "cancelled", "cancelled", "cancelled"]


def test_listen() -> None:
    """Operations are queued, a cancel is not, and the worker ends when it is told to."""
    cancelled: list[str] = []

    class Spy(Worker):
        def cancel(self, run_id: str) -> None:
            cancelled.append(run_id)

    work: queue.SimpleQueue[PairOp | ProveOp | RunOp] = queue.SimpleQueue()
    ops: list[Op] = [PairOp(), RUN, CancelOp(run_id="r"), ExitOp(), PairOp()]
    listen(io.BytesIO(b"".join(encode(op) for op in ops)), Spy(StandIn(), lambda _: None), work)
    assert [work.get_nowait(), work.get_nowait()] == [PairOp(), RUN]
    assert work.empty() and cancelled == ["r"]


def test_listen_to_nonsense() -> None:
    """The worker ends when it is sent something else."""
    work: queue.SimpleQueue[PairOp | ProveOp | RunOp] = queue.SimpleQueue()
    listen(io.BytesIO(b"{}\n" + encode(PairOp())), Worker(StandIn(), lambda _: None), work)
    assert work.empty()


class Clock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.mark.parametrize(
    ("phase", "patience"), [("loading", LOAD_PATIENCE_S), ("measuring", STEP_PATIENCE_S)]
)
def test_pulse_stops_with_the_work(phase: str, patience: float) -> None:
    """Signs of life go on as long as the work gives some, and stop after its patience."""
    events: list[Event] = []
    clock = Clock()
    pulse = Pulse(events.append, clock)
    pulse.beat()
    assert events == []
    with pulse.busy("r", "loading", 9):
        pulse.progress(phase, 1, 9)
        events.clear()
        clock.now = patience
        pulse.beat()
        assert events == [ProgressEvent(run_id="r", phase=phase, done=1, total=9)]
        clock.now = patience + 1
        pulse.beat()
        assert len(events) == 1
        pulse.sign()
        pulse.beat()
        assert len(events) == 2
    pulse.beat()
    pulse.progress(phase, 2, 9)
    assert len(events) == 2


def test_pulse_thins_progress() -> None:
    """Of quick progress within a phase only the last is sent, but a new phase and the end always are."""
    events: list[Event] = []
    clock = Clock()
    pulse = Pulse(events.append, clock)
    with pulse.busy("r", "loading", 9):
        pulse.progress("measuring", 0, 9)
        pulse.progress("measuring", 1, 9)
        pulse.progress("measuring", 2, 9)
        clock.now = 1.0
        pulse.progress("measuring", 3, 9)
        pulse.progress("measuring", 9, 9)
    shown = [(event.phase, event.done) for event in events if isinstance(event, ProgressEvent)]
    assert shown == [("loading", 0), ("measuring", 0), ("measuring", 3), ("measuring", 9)]


def command(*flags: str) -> list[str]:
    """Return the command line of a real worker."""
    return [sys.executable, "-m", "agent.worker", "--context", "64", "--threads", "1", *flags]


@pytest.mark.parametrize("sent", [b"", encode(ExitOp()), b"nonsense\n"])
def test_process_ends(sent: bytes) -> None:
    """The process ends by itself when its input ends, when told to, and when it is sent nonsense."""
    done = subprocess.run(command(), input=sent, capture_output=True, cwd=ROOT, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_process_answers() -> None:
    """The process answers on its stdout, and models that do not exist are no pair."""
    with subprocess.Popen(
        command("--draft", "/does/not/exist", "--target", "/does/not/exist"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(encode(PairOp()))
        process.stdin.flush()
        assert b'"phase":"pair"' in process.stdout.readline()
        assert b'"found":false' in process.stdout.readline()
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
