"""Owns the decode worker: starts it when needed, talks to it, and sees to it that it ends.

Whatever goes wrong (death, silence, nonsense, a cancel or a deadline it does not heed) leads to the same end:
the process is killed, its exit is awaited, and the operation fails with the first reason there was. The next
operation starts a fresh worker.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from agent.errors import AgentError, Cancelled, DeadlineExceeded, WorkerDied, WorkerError, WorkerHung
from agent.pipe import (
    LOADING,
    MAX_LINE,
    CancelOp,
    Event,
    FailedEvent,
    Op,
    PairEvent,
    PairOp,
    PipeError,
    ProgressEvent,
    ResultEvent,
    RunOp,
    decode_event,
    encode,
)
from shared.privacy import shares_piece

log = logging.getLogger(__name__)

GENTLE_CODES = frozenset({"NO_PAIR", "BAD_REQUEST", "CANCELLED", "DEADLINE"})
"""Failures that leave the worker as good as before; after any other a new one gets its memory."""

LOGGED_LINES = 200
LOGGED_CHARS = 500
"""How much of the worker's stderr is logged: lines per operation, characters per line."""

SHORT_SPIN = ("GOMP_SPINCOUNT", "3000")
"""How often llama.cpp's threads look whether the others are done before they sleep, unless the environment says.

OpenMP's own choice is millions, which beside other work lets each wait last a whole time slice: with two busy programs
on two cores decoding came to a stand, and with this setting to a fifth of its speed. Undisturbed, plain decoding was as
fast with either. A shorter spin than this slows the change between draft and target.
"""

Progress = Callable[[ProgressEvent], None]


class Decoder(Protocol):
    """What the run manager needs of the supervisor."""

    async def run(
        self, run_id: str, request: dict[str, Any], *, deadline: float, on_progress: Progress
    ) -> ResultEvent:
        """Decode one request."""

    def cancel(self, run_id: str) -> None:
        """Stop this run."""


class Child:
    """One worker process and its three pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take a process that has just been started."""
        self._process = process
        self._verdict: AgentError | None = None
        self._secret = ""
        self._lines_left = LOGGED_LINES
        self._stderr = asyncio.create_task(self._drain_stderr())

    @classmethod
    async def start(cls, command: Sequence[str]) -> "Child":
        """Start a worker.

        Raises:
            WorkerDied: There is no such program.
        """
        # The worker needs none of our settings, and the token least of all.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_")}
        environ.setdefault(*SHORT_SPIN)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_LINE,
                env=environ,
                # Ctrl-C at a terminal is for the agent, which then ends its worker in its own way.
                start_new_session=True,
            )
        except OSError as exc:
            raise WorkerDied(f"the decode worker cannot be started ({exc.strerror})") from exc
        log.info("worker started", extra={"data": {"worker": process.pid}})
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it runs and nothing has been held against it."""
        stdout = self._process.stdout
        return (
            self._verdict is None
            and self._process.returncode is None
            and stdout is not None
            and not stdout.at_eof()
        )

    def post(self, op: Op) -> None:
        """Send an operation; that a dead worker does not get it shows when it is read from."""
        if isinstance(op, RunOp):
            self._secret = op.request["prompt"]
        self._lines_left = LOGGED_LINES
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(encode(op))

    async def read(self) -> Event | None:
        """Return the next event, or None once the worker has gone.

        Raises:
            PipeError: It sent something else, or a line without end.
        """
        assert self._process.stdout is not None  # noqa: S101 - for the type checker: we asked for a pipe
        try:
            line = await self._process.stdout.readline()
        except ValueError:
            raise PipeError(f"the decode worker sent a line of more than {MAX_LINE} bytes") from None
        return decode_event(line) if line.endswith(b"\n") else None

    def kill(self, verdict: AgentError) -> None:
        """Kill it for a reason; the first reason given counts."""
        if self._verdict is None:
            self._verdict = verdict
        if self._process.returncode is None:
            self._kill()

    async def end(self, grace: float = 0.0) -> AgentError:
        """Let it go, kill it if it has not gone within the grace, await its exit, and return why it ended."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101 - as above
        self._process.stdin.close()
        # What is left in the pipe must be read, or its end is never seen.
        rest = asyncio.create_task(_discard(self._process.stdout))
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._process.wait()
        # Also when it has gone by itself: what it left behind would keep the pipes open.
        self._kill()
        await self._process.wait()
        await rest
        await self._stderr
        status = self._process.returncode or 0
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        log.info("worker ended", extra={"data": {"worker": self.pid, "how": how}})
        return self._verdict or WorkerDied(f"the decode worker {how}")

    def _kill(self) -> None:
        # The whole group, which `start` made for it: no process of the worker's own making is left behind.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def forget(self) -> None:
        """Forget the prompt that its stderr must not repeat; called when the run has ended."""
        self._secret = ""

    async def _drain_stderr(self) -> None:
        stream = self._process.stderr
        assert stream is not None  # noqa: S101 - for the type checker: we asked for a pipe
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                continue  # A line without end: the stream has dropped what it held of it.
            if not line:
                return
            self._lines_left -= 1
            if self._lines_left < 0:
                continue
            text = line.decode(errors="replace").rstrip()[:LOGGED_CHARS]
            if shares_piece(text, self._secret):
                text = "(withheld: repeats the prompt)"
            log.info("worker says", extra={"data": {"worker": self.pid, "line": text}})


class Supervisor:
    """Runs one operation at a time in a worker of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        hang_s: float,
        cancel_grace_s: float,
        on_pair: Callable[[PairEvent], None] = lambda _: None,
        on_load: Callable[[AgentError | None], None] = lambda _: None,
    ) -> None:
        """Prepare; the worker is started by the first operation.

        Args:
            command: The program and its arguments.
            hang_s: Silence of this length means that the worker hangs.
            cancel_grace_s: How long it may take to heed a cancel, a deadline or its end before it is killed.
            on_pair: Told whenever the worker has looked for a pair.
            on_load: Told in each run whether the pair told of last could be loaded (None), or what went wrong.
        """
        self.on_pair = on_pair
        self.on_load = on_load
        self._command = command
        self.hang_s = hang_s
        self._grace_s = cancel_grace_s
        self._turn = asyncio.Lock()
        self._child: Child | None = None
        self._run_id: str | None = None
        self._runner: Child | None = None
        self._cancelled = False

    @property
    def busy(self) -> bool:
        """Whether an operation is under way."""
        return self._turn.locked()

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker, if there is one."""
        return self._child.pid if self._child else None

    async def pair(self) -> PairEvent:
        """Look for a pair.

        Raises:
            AgentError: The worker could not.
        """
        async with self._turn:
            child = await self._ready()
            event = await self._converse(child, PairOp(), lambda _: None)
            assert isinstance(event, PairEvent)  # noqa: S101 - for the type checker
            return event

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
        try:
            async with self._turn:
                child = await self._ready()
                if self._cancelled:
                    raise Cancelled("the run was cancelled")
                if deadline <= loop.time():
                    raise DeadlineExceeded("the deadline passed before the run could start")
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
                    if loading and exc.code not in GENTLE_CODES:
                        self.on_load(exc)
                    raise
                finally:
                    self._runner = None
                    killer.cancel()
                    child.forget()
                assert isinstance(event, ResultEvent)  # noqa: S101 - for the type checker
                return event
        finally:
            self._run_id = None

    def cancel(self, run_id: str) -> None:
        """Stop this run if it is the one under way: ask first, kill after the grace."""
        if run_id != self._run_id or self._cancelled:
            return
        self._cancelled = True
        if self._runner is not None:
            self._runner.post(CancelOp(run_id=run_id))
            asyncio.get_running_loop().call_later(self._grace_s, self._kill_runner_of, run_id)

    async def close(self) -> None:
        """End the worker, whatever it is doing, and await its exit."""
        if self._child is not None:
            await self._retire(self._child)

    def _kill_runner_of(self, run_id: str) -> None:
        if self._run_id == run_id and self._runner is not None:
            self._runner.kill(Cancelled("the run was cancelled, and its worker killed as it did not stop"))

    async def _ready(self) -> Child:
        if self._child is not None and not self._child.usable:
            await self._retire(self._child)
        if self._child is None:
            self._child = await Child.start(self._command)
        return self._child

    async def _converse(
        self, child: Child, op: PairOp | RunOp, on_progress: Progress
    ) -> PairEvent | ResultEvent:
        """Send an operation and return its last event; end the worker if it is to blame for a failure."""
        fit = False
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
        self, child: Child, op: PairOp | RunOp, on_progress: Progress
    ) -> PairEvent | ResultEvent | FailedEvent | None:
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
            match event:
                case None:
                    return None
                case PairEvent():
                    self.on_pair(event)
                    if run_id is None:
                        return event
                case ProgressEvent() if event.run_id == run_id:
                    on_progress(event)
                case ResultEvent() | FailedEvent() if event.run_id == run_id:
                    return event
                case _:
                    child.kill(WorkerDied("the decode worker spoke of another run"))
                    return None

    async def _retire(self, child: Child) -> AgentError:
        """End a worker; it gets the grace only if nothing is held against it."""
        if self._child is child:
            self._child = None
        return await child.end(self._grace_s if child.usable else 0.0)


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass
