"""Owns the decode worker: starts it when needed, talks to it, and sees to it that it ends.

Whatever goes wrong (death, silence, nonsense, a cancel or a deadline it does not heed) leads to the same end:
the process is killed, its exit is awaited, and the operation fails with the first reason there was. The next
operation starts a fresh worker.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from agent.child import Child
from agent.errors import AgentError, Cancelled, DeadlineExceeded, WorkerDied, WorkerError, WorkerHung
from agent.pipe import (
    LOADING,
    CancelOp,
    FailedEvent,
    PairEvent,
    PairOp,
    PipeError,
    ProgressEvent,
    ProvedEvent,
    ProveOp,
    ResultEvent,
    RunOp,
)

log = logging.getLogger(__name__)

GENTLE_CODES = frozenset({"NO_PAIR", "BAD_REQUEST", "CANCELLED", "DEADLINE", "GPU_BUSY"})
"""Failures that leave the worker as good as before; after any other a new one gets its memory."""

Progress = Callable[[ProgressEvent], None]


class Decoder(Protocol):
    """What the run manager needs of the supervisor."""

    async def run(
        self, run_id: str, request: dict[str, Any], *, deadline: float, on_progress: Progress
    ) -> ResultEvent:
        """Decode one request."""

    def cancel(self, run_id: str) -> None:
        """Stop this run."""


class Supervisor:
    """Runs one operation at a time in a worker of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        hang_s: float,
        cancel_grace_s: float,
        idle_s: float = math.inf,
        on_pair: Callable[[PairEvent], None] = lambda _: None,
        on_load: Callable[[AgentError | None], None] = lambda _: None,
    ) -> None:
        """Prepare; the worker is started by the first operation.

        Attributes:
            starts: How many workers have been started.
            deaths: How many of them ended otherwise than by our leave, by the error's code.
            last_decode_at: When a run or a proof last decoded, on the event loop's clock.
            last_failure_at: When one last failed for another reason than its own request.

        Args:
            command: The program and its arguments.
            hang_s: Silence of this length means that the worker hangs.
            cancel_grace_s: How long it may take to heed a cancel, a deadline or its end before it is killed.
            idle_s: After so long without an operation the worker is ended: others get its memory, all of it.
            on_pair: Told whenever the worker has looked for a pair.
            on_load: Told in each run whether the pair told of last could be loaded (None), or what went wrong.
        """
        self.on_pair = on_pair
        self.on_load = on_load
        self._command = command
        self.hang_s = hang_s
        self._grace_s = cancel_grace_s
        self._idle_s = idle_s
        self._idle: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[AgentError]] = set()
        self.starts = 0
        self.deaths: Counter[str] = Counter()
        self.last_decode_at: float | None = None
        self.last_failure_at: float | None = None
        self._heard_at = 0.0
        self._turn = asyncio.Lock()
        self._stop = asyncio.Event()
        self._child: Child | None = None
        self._run_id: str | None = None
        self._runner: Child | None = None
        self._cancelled = False

    @property
    def busy(self) -> bool:
        """Whether an operation is under way."""
        return self._turn.locked()

    @property
    def alive(self) -> bool:
        """Whether the worker is as it should be: idle, absent, or heard of lately.

        One that hangs is killed long before this says no: no means that even killing it did not help, as when the
        system holds a process in a driver that does not return.
        """
        silence = asyncio.get_running_loop().time() - self._heard_at
        return not self.busy or silence <= 2 * (self.hang_s + self._grace_s)

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker, if there is one."""
        return self._child.pid if self._child else None

    async def pair(self) -> PairEvent:
        """Look for a pair.

        Raises:
            AgentError: The worker could not.
        """
        event = await self._short(PairOp())
        assert isinstance(event, PairEvent)  # noqa: S101 - for the type checker
        return event

    async def prove(self) -> None:
        """Load the pair if it is not, and decode one step.

        Raises:
            AgentError: The worker could not.
        """
        try:
            await self._short(ProveOp())
        except AgentError as exc:
            self._note_failure(exc)
            raise
        self.last_decode_at = asyncio.get_running_loop().time()

    async def _short(self, op: PairOp | ProveOp) -> PairEvent | ProvedEvent | ResultEvent:
        async with self._turn:
            child = await self._ready()
            try:
                return await self._converse(child, op, lambda _: None)
            finally:
                self._rest()

    async def run(
        self, run_id: str, request: dict[str, Any], *, deadline: float, on_progress: Progress
    ) -> ResultEvent:
        """Decode one request.

        Args:
            run_id: Names the run to `cancel`.
            request: The request with its prompt.
            deadline: Of the event loop's clock; the worker is killed if it ignores it.
            on_progress: Told of progress.

        Raises:
            AgentError: The run failed; the code says how.
        """
        loop = asyncio.get_running_loop()
        self._run_id, self._cancelled = run_id, False
        self._stop.clear()
        try:
            async with self._turn_before(deadline):
                child = await self._ready()
                try:
                    self._check(deadline)
                except AgentError:
                    self._rest()
                    raise
                late = DeadlineExceeded("the decode worker did not heed the deadline")
                killer = loop.call_at(deadline + self._grace_s, child.kill, late)
                op = RunOp(run_id=run_id, request=request, deadline_s=deadline - loop.time())
                self._runner = child
                loading = True

                def note(event: ProgressEvent) -> None:
                    nonlocal loading
                    if loading and event.phase != LOADING:
                        loading = False
                        self.on_load(None)
                    on_progress(event)

                try:
                    event = await self._converse(child, op, note)
                except AgentError as exc:
                    self._note_failure(exc)
                    if loading and exc.code not in GENTLE_CODES:
                        self.on_load(exc)
                    raise
                finally:
                    self._runner = None
                    killer.cancel()
                    child.forget()
                    self._rest()
                assert isinstance(event, ResultEvent)  # noqa: S101 - for the type checker
                self.last_decode_at = loop.time()
                return event
        finally:
            self._run_id = None

    @asynccontextmanager
    async def _turn_before(self, deadline: float) -> AsyncIterator[None]:
        """Waits for the worker to be free, but not beyond the deadline or a cancel."""
        tasks = [asyncio.create_task(self._turn.acquire()), asyncio.create_task(self._stop.wait())]
        try:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait(
                tasks,
                timeout=max(0.0, left) if math.isfinite(left) else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not tasks[0].done():
                self._check(deadline)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not tasks[0].cancelled():
                self._turn.release()

    def _check(self, deadline: float) -> None:
        if self._cancelled:
            raise Cancelled("the run was cancelled")
        if deadline <= asyncio.get_running_loop().time():
            raise DeadlineExceeded("the deadline passed before the run could start")

    def _note_failure(self, error: AgentError) -> None:
        if error.code not in GENTLE_CODES:
            self.last_failure_at = asyncio.get_running_loop().time()

    def cancel(self, run_id: str) -> None:
        """Stop this run if it is the one under way: ask first, kill after the grace."""
        if run_id != self._run_id or self._cancelled:
            return
        self._cancelled = True
        self._stop.set()
        if self._runner is not None:
            self._runner.post(CancelOp(run_id=run_id))
            asyncio.get_running_loop().call_later(self._grace_s, self._kill_runner_of, run_id)

    async def close(self) -> None:
        """End the worker, whatever it is doing, and await its exit."""
        self._stir()
        if self._child is not None:
            await self._retire(self._child)
        await self._have_left()

    def _kill_runner_of(self, run_id: str) -> None:
        if self._run_id == run_id and self._runner is not None:
            self._runner.kill(Cancelled("the run was cancelled, and its worker killed as it did not stop"))

    def _rest(self) -> None:
        """End the worker unless it is needed again soon."""
        self._stir()
        if self._child is not None and math.isfinite(self._idle_s):
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._let_go)

    def _stir(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _let_go(self) -> None:
        if self._child is not None and not self.busy:
            log.info("worker idle", extra={"data": {"worker": self._child.pid}})
            self._send_off(self._child)

    async def _ready(self) -> Child:
        self._heard_at = asyncio.get_running_loop().time()
        self._stir()
        # What is leaving still holds memory that the next one needs.
        await self._have_left()
        if self._child is not None and not self._child.usable:
            await self._retire(self._child)
        if self._child is None:
            self._child = await Child.start(self._command)
            self.starts += 1
        return self._child

    async def _converse(
        self, child: Child, op: PairOp | ProveOp | RunOp, on_progress: Progress
    ) -> PairEvent | ProvedEvent | ResultEvent:
        """Send an operation and return its last event; end the worker if it is to blame for a failure."""
        fit = False
        self._heard_at = asyncio.get_running_loop().time()
        try:
            child.post(op)
            event = await self._last_event(child, op, on_progress)
            fit = event.code in GENTLE_CODES if isinstance(event, FailedEvent) else event is not None
        finally:
            # Also when we are cancelled ourselves, at shutdown.
            reason = None if fit else await self._retire(child)
        if isinstance(event, FailedEvent):
            raise WorkerError(event.code, event.detail)
        if event is None:
            raise reason or WorkerDied("the decode worker ended")
        return event

    async def _last_event(
        self, child: Child, op: PairOp | ProveOp | RunOp, on_progress: Progress
    ) -> PairEvent | ProvedEvent | ResultEvent | FailedEvent | None:
        run_id = op.run_id if isinstance(op, RunOp) else None
        while True:
            try:
                async with asyncio.timeout(self.hang_s):
                    event = await child.read()
            except TimeoutError:
                child.kill(WorkerHung(f"the decode worker gave no sign of life for {self.hang_s:g} s"))
                return None
            except PipeError as exc:
                child.kill(WorkerDied(exc.cause))
                return None
            self._heard_at = asyncio.get_running_loop().time()
            match event:
                case None:
                    return None
                case PairEvent():
                    self.on_pair(event)
                    if isinstance(op, PairOp):
                        return event
                case ProvedEvent() if isinstance(op, ProveOp):
                    return event
                case ProgressEvent() if event.run_id == run_id:
                    on_progress(event)
                case ResultEvent() | FailedEvent() if event.run_id == run_id:
                    return event
                case _:
                    child.kill(WorkerDied("the decode worker spoke of another run"))
                    return None

    async def _retire(self, child: Child) -> AgentError:
        """End a worker and await its exit; if we are cancelled meanwhile its end goes on, and `close` awaits it."""
        return await asyncio.shield(self._send_off(child))

    def _send_off(self, child: Child) -> asyncio.Task[AgentError]:
        if self._child is child:
            self._child = None
        task = asyncio.create_task(self._end(child))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def _have_left(self) -> None:
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _end(self, child: Child) -> AgentError:
        """Let a worker go; it gets the grace only if nothing is held against it."""
        wanted = child.usable
        reason = await child.end(self._grace_s if wanted else 0.0)
        if not wanted:
            self.deaths[reason.code] += 1
        return reason
