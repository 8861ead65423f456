"""One decode worker as the agent sees it: a process, its three pipes, and the reason why it ended."""

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from agent.errors import AgentError, WorkerDied
from agent.pipe import MAX_LINE, Event, Op, PipeError, RunOp, decode_event, encode
from shared.privacy import shares_piece

log = logging.getLogger(__name__)

UNKILLABLE_S = 20.0
"""A process that was killed and is still there after so long is left to the system."""

LOGGED_LINES = 200
LOGGED_CHARS = 500
"""How much of the worker's stderr is logged: lines per operation, characters per line."""

SHORT_SPIN = ("GOMP_SPINCOUNT", "3000")
"""How often llama.cpp's threads look whether the others are done before they sleep, unless the environment says.

OpenMP's own choice is millions, which beside other work lets each wait last a whole time slice: with two busy programs
on two cores decoding came to a stand, and with this setting to a fifth of its speed. Undisturbed, plain decoding was as
fast with either. A shorter spin than this slows the change between draft and target.
"""

GIVES_BACK = ("MALLOC_MMAP_THRESHOLD_", str(4 * 2**20))
"""From how many bytes on memory is the system's again as soon as it is freed (glibc; mallopt(3), M_MMAP_THRESHOLD).

By itself glibc raises that with every larger block that is freed, and what models leave behind is then too fragmented
for the next ones: after two reloads of the embedded pair a worker held 107 MiB of its own where 70 had done. Contexts
are larger than this, and what a step needs (a row of logits and copies of it) is smaller.
"""

NO_BACKTRACE = ("GGML_NO_BACKTRACE", "1")
"""A dying llama.cpp calls a debugger on itself, which takes seconds and writes memory addresses into the log."""


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
        for name, value in (SHORT_SPIN, GIVES_BACK, NO_BACKTRACE):
            environ.setdefault(name, value)
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
        try:
            async with asyncio.timeout(UNKILLABLE_S):
                await self._process.wait()
                await rest
                await self._stderr
        except TimeoutError:
            # The system holds it, as in a driver or on a drive that does not answer: nothing more can be done here.
            log.error("worker cannot be killed", extra={"data": {"worker": self.pid}})
            return self._verdict or WorkerDied("the decode worker cannot be killed")
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


async def _discard(stream: asyncio.StreamReader) -> None:
    with suppress(RuntimeError):  # somebody is reading it already, and will to its end
        while await stream.read(65536):
            pass
