"""The decode worker: the agent's child process, and the only place where llama.cpp is loaded.

It reads operations from stdin and writes events to stdout (`agent.pipe`). It lives no longer than its parent:
a thread waits at stdin, and when that ends, so does the process, in the middle of a decode if need be.
"""

import argparse
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agent import logs
from agent.engine import Engine, LlamaEngine
from agent.errors import LoadFailed, NoPair
from agent.pipe import (
    LOADING,
    MAX_LINE,
    CancelOp,
    Event,
    ExitOp,
    FailedEvent,
    Op,
    PairEvent,
    PairOp,
    PipeError,
    ProvedEvent,
    ProveOp,
    ResultEvent,
    RunOp,
    decode_op,
    encode,
)
from agent.pulse import Pulse
from shared.errors import SpecdecError
from shared.wire import ErrorCode

if TYPE_CHECKING:
    from agent.measure import LoadedPair
    from agent.pairs import ModelFile, PairChoice

log = logging.getLogger(__name__)


class Worker:
    """Carries out operations one after the other; only `cancel` may come from another thread."""

    def __init__(self, engine: Engine, send: Callable[[Event], None]) -> None:
        """Decode with `engine` and answer through `send`."""
        self.pulse = Pulse(send)
        self._engine = engine
        self._send = send
        self._choice: PairChoice | None = None
        self._loaded: tuple[tuple[ModelFile | None, ModelFile | None], LoadedPair] | None = None
        self._cancelled: set[str] = set()

    def cancel(self, run_id: str) -> None:
        """Make the run stop, now or as soon as it begins."""
        self._cancelled.add(run_id)

    def handle(self, op: PairOp | ProveOp | RunOp) -> None:
        """Carry out one operation and send its last event."""
        run_id = op.run_id if isinstance(op, RunOp) else None
        event: Event
        try:
            match op:
                case RunOp():
                    event = self._run(op)
                case ProveOp():
                    event = self._prove()
                case PairOp():
                    event = self._pair()
        except SpecdecError as exc:
            code = exc.code if exc.code in set(ErrorCode) else ErrorCode.INTERNAL
            event = FailedEvent(run_id=run_id, code=code, detail=str(exc))
        except MemoryError:
            event = FailedEvent(
                run_id=run_id, code=ErrorCode.OUT_OF_MEMORY, detail="the decode worker ran out of memory"
            )
        except Exception as exc:
            log.exception("unexpected error", extra={"data": {"run_id": run_id}})
            event = FailedEvent(
                run_id=run_id,
                code=ErrorCode.INTERNAL,
                detail=f"the decode worker failed with {type(exc).__name__}; its place is in the agent's log",
            )
        self._cancelled.clear()
        self._send(event)

    def _pair(self) -> PairEvent:
        with self.pulse.busy(None, "pair", 0):
            return self._choose(compare=True)

    def _choose(self, *, compare: bool = False) -> PairEvent:
        choice = self._choice = self._engine.choose(compare=compare)
        return PairEvent.model_validate(asdict(choice) | self._engine.surroundings())

    def _prove(self) -> ProvedEvent:
        with self.pulse.busy(None, LOADING, 0):
            pair = self._current(unload=False)[1]
            self.pulse.progress("loaded", 0, 1)
            self._engine.prove(pair)
        return ProvedEvent()

    def _current(self, *, unload: bool = True) -> "tuple[PairChoice, LoadedPair]":
        """Return the pair as it is to be found now, in memory; nobody is asked to leave that for a mere proof."""
        before = self._choice
        event = self._choose()
        choice = self._choice
        assert choice is not None  # noqa: S101 - for the type checker: just chosen
        if choice != before:
            self._send(event)
        if not choice.found:
            raise NoPair(choice.reason)
        self._engine.make_room(unload=unload)
        return choice, self._load(choice)

    def _run(self, op: RunOp) -> ResultEvent:
        deadline = time.monotonic() + op.deadline_s
        steps = int(op.request["n"])
        with self.pulse.busy(op.run_id, LOADING, steps):
            choice, pair = self._current()
            self.pulse.progress("loaded", 0, steps)

            def should_stop() -> str | None:
                self.pulse.sign()
                return "cancelled" if op.run_id in self._cancelled else None

            outcome = self._engine.run(
                pair,
                op.request,
                on_progress=self.pulse.progress,
                should_stop=should_stop,
                deadline=deadline,
            )
        # llama.cpp maps the files: whoever writes into one changes the weights in use, and its digest is another's.
        if not choice.intact():
            raise LoadFailed("a model file was changed while it was in use", "try again")
        return ResultEvent(
            run_id=op.run_id,
            measurement=outcome.measurement,
            energy=outcome.energy,
            output=outcome.output_text,
            output_sha3_256=outcome.output_sha3_256,
        )

    def _load(self, choice: "PairChoice") -> "LoadedPair":
        """Return the pair, loaded if it is not; the one loaded before goes first, as both may not fit."""
        files = (choice.draft, choice.target)
        if self._loaded is None or self._loaded[0] != files:
            before, self._loaded = self._loaded, None
            if before is not None:
                before[1].close()
            self._loaded = (files, self._engine.load(choice))
        return self._loaded[1]


def listen(lines: BinaryIO, worker: Worker, work: "queue.SimpleQueue[PairOp | ProveOp | RunOp]") -> None:
    """Pass on what the agent sends until it asks to exit or goes away.

    A cancel overtakes the queue, as the main thread is busy with the run it is about.
    """
    while line := lines.readline(MAX_LINE):
        try:
            op: Op = decode_op(line)
        except PipeError:
            log.error("not an operation")
            return
        if isinstance(op, ExitOp):
            return
        if isinstance(op, CancelOp):
            worker.cancel(op.run_id)
        else:
            work.put(op)


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the worker's command line."""
    parser = argparse.ArgumentParser(prog="python -m agent.worker", description="The agent's decode worker.")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--ollama-models", type=Path)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, help="not given: what is fastest")
    parser.add_argument("--calibrations", type=Path)
    parser.add_argument("--facts", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gpu")
    parser.add_argument("--foreign", default="mark")
    parser.add_argument("--pin-draft")
    parser.add_argument("--pin-target")
    parser.add_argument("--forbid", action="append", default=[])
    parser.add_argument("--ollama-url", default="")
    parser.add_argument("--ollama-unload", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Carry out what the agent asks until it goes away."""
    arguments = options(argv)
    logs.configure()
    # Native code prints to fd 1 as it likes: let that land in stderr, and keep the real stdout for events.
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sending = threading.Lock()

    def send(event: Event) -> None:
        with sending:
            try:
                events.write(encode(event))
                events.flush()
            except BrokenPipeError:
                os._exit(0)

    engine = LlamaEngine(arguments)
    worker = Worker(engine, send)
    work: queue.SimpleQueue[PairOp | ProveOp | RunOp] = queue.SimpleQueue()

    def listen_then_end() -> None:
        try:
            with os.fdopen(0, "rb", closefd=False) as lines:
                listen(lines, worker, work)
        finally:
            try:
                if arguments.facts is not None:
                    engine.facts.withdraw()
            finally:
                # Not sys.exit: the main thread may be deep in native code, and nothing here needs tidying.
                os._exit(0)

    threading.Thread(target=listen_then_end, daemon=True).start()
    threading.Thread(target=worker.pulse.forever, daemon=True).start()
    while True:
        with engine.waiting():
            op = work.get()
        worker.handle(op)


if __name__ == "__main__":
    main()
