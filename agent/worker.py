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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Protocol

from agent import logs
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
    ProgressEvent,
    ResultEvent,
    RunOp,
    decode_op,
    encode,
)
from shared.errors import SpecdecError
from shared.wire import ErrorCode

if TYPE_CHECKING:
    from agent.measure import LoadedPair, RunOutcome
    from agent.pairs import ModelFile, PairChoice

BEAT_S = 5.0
"""Seconds between two signs of life while busy."""

REPORT_S = 0.2
"""Progress within one phase is not sent more often than this."""

LOAD_PATIENCE_S = 300.0
STEP_PATIENCE_S = 60.0
"""How long the work may give no sign before the signs of life stop: in a slow phase, and in any other."""

SLOW_PHASES = frozenset({"pair", LOADING})

log = logging.getLogger(__name__)


class Engine(Protocol):
    """What decodes: `LlamaEngine`, or a stand-in in a test."""

    def choose(self) -> "PairChoice":
        """Look for a pair."""

    def load(self, choice: "PairChoice") -> "LoadedPair":
        """Load a pair."""

    def run(
        self,
        pair: "LoadedPair",
        request: dict[str, Any],
        *,
        on_progress: Callable[[str, int, int], None],
        should_stop: Callable[[], str | None],
        deadline: float,
    ) -> "RunOutcome":
        """Decode and measure one request."""


class LlamaEngine:
    """Decodes with llama.cpp; nothing of it is imported before it is needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Take the worker's command line."""
        self._options = options

    def choose(self) -> "PairChoice":
        """Look for a pair where the command line says."""
        from agent.pairs import choose_pair

        options = self._options
        return choose_pair(
            draft=options.draft,
            target=options.target,
            embedded=options.embedded,
            ollama_models=options.ollama_models,
        )

    def load(self, choice: "PairChoice") -> "LoadedPair":
        """Load a pair."""
        from agent.measure import load_pair

        options = self._options
        return load_pair(
            choice, n_ctx=options.context, threads=options.threads, calibrations=options.calibrations
        )

    def run(
        self,
        pair: "LoadedPair",
        request: dict[str, Any],
        *,
        on_progress: Callable[[str, int, int], None],
        should_stop: Callable[[], str | None],
        deadline: float,
    ) -> "RunOutcome":
        """Decode and measure one request."""
        from agent.measure import run

        return run(pair, request, on_progress=on_progress, should_stop=should_stop, deadline=deadline)


class Pulse:
    """Tells the agent that work goes on, and stops telling when it no longer does.

    A thread repeats the last progress every `BEAT_S`. It must not hide a hang, so it falls silent once the
    work itself has given no sign for the patience of its phase; the agent then finds the worker hung.
    """

    def __init__(self, send: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Send through `send`; nothing is sent outside `busy`."""
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._last: ProgressEvent | None = None
        self._sign_at = 0.0
        self._sent_at = 0.0

    @contextmanager
    def busy(self, run_id: str | None, phase: str, total: int) -> Iterator[None]:
        """Be busy with a run (None: with looking for a pair), beginning with a phase."""
        with self._lock:
            self._last = ProgressEvent(run_id=run_id, phase=phase, done=0, total=total)
            self._sign_at = self._clock()
            self._show()
        try:
            yield
        finally:
            with self._lock:
                self._last = None

    def progress(self, phase: str, done: int, total: int) -> None:
        """Take a sign of progress from the work, and pass it on unless the last one is very fresh."""
        with self._lock:
            if self._last is None:
                return
            news = phase != self._last.phase or done == total
            self._last = ProgressEvent(run_id=self._last.run_id, phase=phase, done=done, total=total)
            self._sign_at = self._clock()
            if news or self._sign_at - self._sent_at >= REPORT_S:
                self._show()

    def sign(self) -> None:
        """Take a sign of life that is no progress to report, such as the question whether to stop."""
        with self._lock:
            self._sign_at = self._clock()

    def beat(self) -> None:
        """Repeat the last progress if the work has given a sign within its phase's patience."""
        with self._lock:
            if self._last is None:
                return
            patience = LOAD_PATIENCE_S if self._last.phase in SLOW_PHASES else STEP_PATIENCE_S
            if self._clock() - self._sign_at <= patience:
                self._show()

    def forever(self) -> NoReturn:
        """Beat until the process ends."""
        while True:
            time.sleep(BEAT_S)
            self.beat()

    def _show(self) -> None:
        # Sent with the lock held, so that no progress can follow the result of its run.
        if self._last is not None:
            self._sent_at = self._clock()
            self._send(self._last)


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

    def handle(self, op: PairOp | RunOp) -> None:
        """Carry out one operation and send its last event."""
        run_id = op.run_id if isinstance(op, RunOp) else None
        event: Event
        try:
            event = self._run(op) if isinstance(op, RunOp) else self._pair()
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
            choice = self._choice = self._engine.choose()
        return _pair_event(choice)

    def _run(self, op: RunOp) -> ResultEvent:
        deadline = time.monotonic() + op.deadline_s
        steps = int(op.request["n"])
        with self.pulse.busy(op.run_id, LOADING, steps):
            # A pair found before is kept until the agent asks again: choosing may mean reading whole files.
            if self._choice is None or not self._choice.found or not self._choice.unchanged():
                self._choice = self._engine.choose()
                self._send(_pair_event(self._choice))
            choice = self._choice
            if not choice.found:
                raise NoPair(choice.reason)
            pair = self._load(choice)
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
        if not choice.unchanged():
            raise LoadFailed("a model file was changed while it was in use", "try again")
        return ResultEvent(
            run_id=op.run_id,
            measurement=outcome.measurement,
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


def _pair_event(choice: "PairChoice") -> PairEvent:
    return PairEvent.model_validate(asdict(choice))


def listen(lines: BinaryIO, worker: Worker, work: "queue.SimpleQueue[PairOp | RunOp]") -> None:
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

    worker = Worker(LlamaEngine(arguments), send)
    work: queue.SimpleQueue[PairOp | RunOp] = queue.SimpleQueue()

    def listen_then_end() -> None:
        try:
            with os.fdopen(0, "rb", closefd=False) as lines:
                listen(lines, worker, work)
        finally:
            # Not sys.exit: the main thread may be deep in native code, and nothing here needs tidying.
            os._exit(0)

    threading.Thread(target=listen_then_end, daemon=True).start()
    threading.Thread(target=worker.pulse.forever, daemon=True).start()
    while True:
        worker.handle(work.get())


if __name__ == "__main__":
    main()
