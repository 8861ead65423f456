"""Worker processes: one invocation at a time, replaced when they die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from edge import pool as pool_module
from edge.pool import PoolBusy, WorkerDied, WorkerPool
from tests.edge.support import SCALE

# A worker that does what the event says.
FAKE_WORKER = """
import json, os, sys, time
def say(message):
    print(json.dumps(message), flush=True)
say({"ready": True})
for line in sys.stdin:
    request = json.loads(line)
    event = request["event"]
    if event.get("die"):
        os._exit(3)
    if event.get("hang"):
        time.sleep(600)
    time.sleep(event.get("nap", 0))
    if event.get("garbage"):
        print("{", flush=True)
    say({"result": {"pid": os.getpid(), "echo": event, "remaining_s": request["remaining_s"]}})
"""


@asynccontextmanager
async def _pool(limit: int = 2, worker: str = FAKE_WORKER) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(os.environ, limit, (sys.executable, "-c", worker))
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_worker_is_kept() -> None:
    """One invocation after another uses one process."""
    async with _pool() as pool:
        answers = [await pool.invoke({"n": n}) for n in range(3)]
    assert [answer["echo"] for answer in answers] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert len({answer["pid"] for answer in answers}) == 1
    assert 20 < answers[0]["remaining_s"] <= 29


async def test_pool_is_bounded() -> None:
    """More callers than workers wait their turn, and each gets its own answer."""
    async with _pool(limit=2) as pool:
        answers = await asyncio.gather(*(pool.invoke({"n": n}) for n in range(12)))
    assert [answer["echo"]["n"] for answer in answers] == list(range(12))
    assert len({answer["pid"] for answer in answers}) <= 2


class CountingPool(WorkerPool):
    """A pool that counts how many workers are being started at a time."""

    starting = most = 0

    async def _spawn(self) -> Process:
        self.starting += 1
        self.most = max(self.most, self.starting)
        try:
            return await super()._spawn()
        finally:
            self.starting -= 1


async def test_workers_start_one_at_a_time() -> None:
    """A rush does not start so many processes at once that none is ready in time."""
    pool = CountingPool(os.environ, 4, (sys.executable, "-c", FAKE_WORKER))
    try:
        await asyncio.gather(*(pool.invoke({"n": n}) for n in range(8)))
    finally:
        await pool.close()
    assert pool.most == 1


async def test_caller_that_gets_no_worker_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting in vain for a worker is not the same as a worker that is late: nothing was begun."""
    async with _pool(limit=1) as pool, pool._slots:
        monkeypatch.setattr(pool_module, "QUEUE_S", 0.01)
        with pytest.raises(PoolBusy):
            await pool.invoke({})


async def test_worker_whose_caller_gives_up_is_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun for nobody is not thrown away: else a slow machine would start workers for ever."""
    pool = CountingPool(os.environ, 2, (sys.executable, "-c", FAKE_WORKER))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(pool_module, "QUEUE_S", 0.0)
            with pytest.raises(PoolBusy):
                await pool.invoke({})
        async with asyncio.timeout(30 * SCALE):
            while not pool._idle:
                await asyncio.sleep(0.01)
        (kept,) = pool._idle
        assert (await pool.invoke({}))["pid"] == kept.pid
        assert pool.most == 1
    finally:
        await pool.close()


async def test_callers_that_give_up_start_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where starting takes longer than anybody waits, those who come next wait for the start that is under way."""
    slow = "import time\ntime.sleep(1)\n" + FAKE_WORKER
    pool = CountingPool(os.environ, 8, (sys.executable, "-c", slow))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(pool_module, "QUEUE_S", 0.05)
            for _ in range(5):
                with pytest.raises(PoolBusy):
                    await pool.invoke({})
        assert (await pool.invoke({"n": 1}))["echo"] == {"n": 1}
        assert (pool.most, len(pool._all)) == (1, 1)
    finally:
        await pool.close()


async def test_waiting_for_a_worker_leaves_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is a worker, the gateway's limit counts, less what was waited."""
    async with _pool(limit=1) as pool:
        monkeypatch.setattr(pool_module, "QUEUE_S", 0.5)
        answer = await pool.invoke({"nap": 1})
    assert 20 < answer["remaining_s"] <= 29


async def test_idle_workers_beyond_a_few_are_ended() -> None:
    """After a rush only some of its processes stay."""
    limit = pool_module.KEEP_IDLE + 3
    async with _pool(limit=limit) as pool:
        answers = await asyncio.gather(*(pool.invoke({"nap": 1}) for _ in range(limit)))
        alive = [pid for pid in {answer["pid"] for answer in answers} if _is_alive(pid)]
        assert len(alive) == pool_module.KEEP_IDLE
        assert (await pool.invoke({}))["pid"] in alive


@pytest.mark.parametrize("event", [{"die": True}, {"garbage": True}])
async def test_worker_that_dies_is_replaced(event: dict[str, bool]) -> None:
    """The request in its hands fails, and the next one gets a new process."""
    async with _pool(limit=1) as pool:
        first = await pool.invoke({})
        with pytest.raises(WorkerDied):
            await pool.invoke(event)
        assert (await pool.invoke({}))["pid"] != first["pid"]


async def test_worker_that_died_idle_is_replaced() -> None:
    """A process killed between requests costs nobody an answer."""
    async with _pool(limit=1) as pool:
        pid = (await pool.invoke({}))["pid"]
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30 * SCALE):
            while pool._idle[0].returncode is None:
                await asyncio.sleep(0.01)
        assert (await pool.invoke({}))["pid"] != pid


async def test_late_worker_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the gateway's limit the caller gets a timeout, and the worker cannot answer someone else."""
    async with _pool(limit=1) as pool:
        first = await pool.invoke({})
        with monkeypatch.context() as patch:
            patch.setattr(pool_module, "INTEGRATION_TIMEOUT_S", 0.2)
            with pytest.raises(TimeoutError):
                await pool.invoke({"hang": True})
        assert (await pool.invoke({"n": 1}))["echo"] == {"n": 1}
        async with asyncio.timeout(30 * SCALE):
            while _is_alive(first["pid"]):
                await asyncio.sleep(0.01)


async def test_close_ends_busy_workers() -> None:
    """Closing does not wait for a worker that is in the middle of something."""
    async with _pool(limit=2) as pool:
        pid = (await pool.invoke({}))["pid"]
        busy = asyncio.create_task(pool.invoke({"hang": True}))
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(WorkerDied):
            await busy
    assert not _is_alive(pid)


async def test_worker_that_cannot_start_is_reported() -> None:
    """A broken set-up shows at the start, not at the first request."""
    with pytest.raises(WorkerDied):
        async with _pool(worker="raise SystemExit(1)"):
            pass


async def test_idle_worker_that_was_killed_costs_no_answer() -> None:
    """It is dead at once, though asyncio hears of it later: the next question gets another worker."""
    async with _pool() as pool:
        pid = (await pool.invoke({}))["pid"]
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the thread that waits for it was quicker
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert (await pool.invoke({}))["pid"] != pid
