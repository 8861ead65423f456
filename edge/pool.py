"""A bounded pool of worker processes, each handling one invocation at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Any

WORKER_COMMAND = (sys.executable, "-m", "edge.worker")
MAX_LINE_BYTES = 32 * 1024 * 1024
# Workers that have nothing to do are kept up to this many.
KEEP_IDLE = 6
# Lambda's timeout in template.yaml; the gateway waits one second longer.
FUNCTION_TIMEOUT_S = 29.0
INTEGRATION_TIMEOUT_S = 30.0
# Who gets no worker by then is told to come back: with less time left a run could only say that it had none.
QUEUE_S = 10.0
# A process that was killed and is still there after so long is left to the system.
UNKILLABLE_S = 20.0


class WorkerDied(Exception):
    """The worker ended before it had answered."""


class PoolBusy(Exception):
    """No worker was free in time, so nothing was done."""


class WorkerPool:
    """Starts workers as they are needed, up to a limit, and keeps a few."""

    def __init__(
        self, environ: Mapping[str, str], limit: int, command: tuple[str, ...] = WORKER_COMMAND
    ) -> None:
        """Set the pool up; nothing is started yet.

        Args:
            environ: Environment of the workers.
            limit: How many may run at once; further invocations wait for a free one.
            command: Program of a worker.
        """
        self._environ = dict(environ)
        self._command = command
        self._slots = asyncio.Semaphore(limit)
        # Workers are started one after the other: many at once share the processors, and all of them would be late.
        self._starting = asyncio.Lock()
        self._starts: set[asyncio.Task[Process]] = set()
        self._idle: list[Process] = []
        self._all: set[Process] = set()

    async def start(self) -> None:
        """Start one worker, so that a broken set-up shows at once.

        Raises:
            WorkerDied: If the worker did not get ready.
        """
        self._idle.append(await self._spawn())

    async def invoke(self, event: dict[str, Any]) -> Any:
        """Return the handler's result for an event; None if the handler raised.

        Raises:
            WorkerDied: If the worker ended instead of answering. The next invocation gets another one.
            PoolBusy: If no worker was free within `QUEUE_S`.
            TimeoutError: If the gateway's limit passed before the worker had answered.
        """
        now = asyncio.get_running_loop().time
        started = now()
        worker: Process | None = None
        try:
            async with asyncio.timeout_at(started + QUEUE_S) as limit, self._slots:
                worker = await self._take()
                limit.reschedule(started + INTEGRATION_TIMEOUT_S)
                return await self._invoke(worker, event, now() - started)
        except TimeoutError:
            if worker is None:
                raise PoolBusy from None
            raise

    async def _invoke(self, worker: Process, event: dict[str, Any], waited: float) -> Any:
        try:
            request = {"event": event, "remaining_s": FUNCTION_TIMEOUT_S - waited}
            answer = await self._exchange(worker, request)
        except BaseException:
            # Dead, late or no longer wanted: its next line would answer the wrong request.
            await self._end(worker)
            raise
        if len(self._idle) < KEEP_IDLE:
            self._idle.append(worker)
        else:
            await self._end(worker)
        return answer["result"]

    async def close(self) -> None:
        """End all workers; they hold nothing that would be lost."""
        for start in self._starts:
            start.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await asyncio.gather(*(self._end(worker) for worker in list(self._all)))

    async def _take(self) -> Process:
        if (worker := await self._take_idle()) is not None:
            return worker
        async with self._starting:
            while True:
                # Another may have become idle meanwhile, also one whose caller has given up.
                if (worker := await self._take_idle()) is not None:
                    return worker
                if not self._starts:
                    return await self._start()
                await asyncio.wait(self._starts, return_when=asyncio.FIRST_COMPLETED)

    async def _start(self) -> Process:
        """Start a worker; if the caller gives up meanwhile, it is for the next one."""
        start = asyncio.create_task(self._spawn())
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            start.add_done_callback(self._keep)
            raise

    def _keep(self, start: asyncio.Task[Process]) -> None:
        if not start.cancelled() and start.exception() is None:
            self._idle.append(start.result())

    async def _take_idle(self) -> Process | None:
        while self._idle:
            worker = self._idle.pop()
            if not _has_ended(worker):
                return worker
            await self._end(worker)
        return None

    async def _spawn(self) -> Process:
        worker = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, env=self._environ, limit=MAX_LINE_BYTES
        )
        self._all.add(worker)
        try:
            await self._read(worker)
        except BaseException:
            await self._end(worker)
            raise
        return worker

    async def _end(self, worker: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        assert worker.stdin is not None  # noqa: S101 - it was opened as a pipe
        worker.stdin.close()
        with contextlib.suppress(TimeoutError):  # one that the system holds must not hold its slot, too
            async with asyncio.timeout(UNKILLABLE_S):
                await worker.wait()
        self._all.discard(worker)

    async def _exchange(self, worker: Process, request: dict[str, Any]) -> dict[str, Any]:
        assert worker.stdin is not None  # noqa: S101 - it was opened as a pipe
        try:
            worker.stdin.write(json.dumps(request).encode("utf-8") + b"\n")
            await worker.stdin.drain()
        except ConnectionError:
            raise WorkerDied from None
        return await self._read(worker)

    @staticmethod
    async def _read(worker: Process) -> dict[str, Any]:
        assert worker.stdout is not None  # noqa: S101 - it was opened as a pipe
        try:
            message: dict[str, Any] = json.loads(await worker.stdout.readline())
        except ValueError:
            # The line is empty or cut short.
            raise WorkerDied from None
        return message


def _has_ended(worker: Process) -> bool:
    """Whether a worker is dead; asyncio learns of it only some time later."""
    try:
        return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
