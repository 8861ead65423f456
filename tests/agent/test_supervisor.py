"""Tests of agent.supervisor, with a real process that misbehaves on request."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent import child
from agent.child import LOGGED_CHARS
from agent.errors import AgentError, WorkerHung
from agent.pipe import PairEvent, ProgressEvent, ResultEvent
from agent.supervisor import Supervisor
from tests.agent.scripted_worker import OUTPUT
from tests.agent.support import PATIENCE, SCRIPTED, SHORT, await_exit


class Watched:
    """A supervisor, and what is heard from its worker."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Watch a supervisor."""
        self.supervisor = supervisor
        self.progress: asyncio.Queue[ProgressEvent] = asyncio.Queue()

    async def run(self, prompt: str, *, run_id: str = "r", seconds: float = PATIENCE) -> ResultEvent:
        """Run a prompt."""
        deadline = asyncio.get_running_loop().time() + seconds
        request: dict[str, Any] = {"prompt": prompt, "n": 50}
        async with asyncio.timeout(PATIENCE):
            return await self.supervisor.run(
                run_id, request, deadline=deadline, on_progress=self.progress.put_nowait
            )

    async def code(self, prompt: str, **options: Any) -> str:
        """Run a prompt that must fail; return the code and the sentence."""
        with pytest.raises(AgentError) as caught:
            await self.run(prompt, **options)
        return f"{caught.value.code}: {caught.value}"

    def pid(self) -> int:
        """Return the process id of the worker."""
        assert self.supervisor.worker_pid is not None
        return self.supervisor.worker_pid


@asynccontextmanager
async def watched(
    *, pair: str = "found", grace_s: float = PATIENCE, prove: str = "", **options: Any
) -> AsyncIterator[Watched]:
    """Supervise a scripted worker."""
    command = [sys.executable, str(SCRIPTED), "--pair", pair, "--prove", prove]
    supervisor = Supervisor(command, **{"hang_s": PATIENCE, "cancel_grace_s": grace_s, **options})
    try:
        yield Watched(supervisor)
    finally:
        await supervisor.close()


async def test_starts_lazily_and_once() -> None:
    """The worker is started by the first operation, and serves the ones after it."""
    async with watched() as it:
        assert it.supervisor.worker_pid is None
        event = await it.run("finish")
        assert event.output == OUTPUT
        first = it.pid()
        await it.run("finish", run_id="s")
        assert it.pid() == first


async def test_close_ends_the_worker() -> None:
    """Closing awaits the worker's exit, and does nothing when there is none."""
    async with watched() as it:
        await it.supervisor.close()
        await it.run("finish")
        pid = it.pid()
        await it.supervisor.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_end_goes_on_when_nobody_waits_for_it() -> None:
    """Who is cancelled while it ends a worker leaves none behind: the end goes on, and closing awaits it."""
    async with watched(pair="deaf", grace_s=0.2) as it:
        await it.supervisor.pair()
        pid = it.pid()
        closing = asyncio.create_task(it.supervisor.close())
        while it.supervisor.worker_pid is not None:
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        os.kill(pid, 0)
        await it.supervisor.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_progress() -> None:
    """Progress is passed on, however much of it there is."""
    async with watched() as it:
        await it.run("chatty")
        assert it.progress.qsize() == 2001


async def test_pair() -> None:
    """Looking for a pair returns what was found, and tells the one who listens."""
    heard: list[PairEvent] = []
    async with watched() as it:
        it.supervisor.on_pair = heard.append
        event = await it.supervisor.pair()
        assert event.found and event.family == "llama"
        assert heard == [event]


@pytest.mark.parametrize(
    ("mode", "code", "text"),
    [("die", "WORKER_DIED", "exited with status 3"), ("fail", "LOAD_FAILED", "the store cannot be read")],
)
async def test_pair_fails(mode: str, code: str, text: str) -> None:
    """Failing to look for a pair is told with its code."""
    async with watched(pair=mode) as it:
        with pytest.raises(AgentError, match=text) as caught:
            await it.supervisor.pair()
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (
            "die",
            "WORKER_DIED: the decode worker exited with status 3; try again: the next run gets a fresh",
        ),
        ("garbage", "WORKER_DIED: the decode worker sent something that is not an event"),
        ("flood", "WORKER_DIED: the decode worker sent a line of more than 1048576 bytes"),
        ("stranger", "WORKER_DIED: the decode worker spoke of another run"),
        ("fail OUT_OF_MEMORY", "OUT_OF_MEMORY: it failed; try something else"),
    ],
)
async def test_faulty_worker_is_replaced(prompt: str, expected: str) -> None:
    """A worker at fault fails its run with the reason, is gone, and the next run gets another."""
    async with watched() as it:
        await it.supervisor.pair()
        first = it.pid()
        assert (await it.code(prompt)).startswith(expected)
        await_exit(first)
        assert (await it.run("finish", run_id="s")).run_id == "s"
        assert it.pid() != first


@pytest.mark.parametrize("code", ["NO_PAIR", "BAD_REQUEST", "DEADLINE"])
async def test_worker_not_at_fault_is_kept(code: str) -> None:
    """A failure that is not the worker's leaves it in place."""
    async with watched() as it:
        assert (await it.code(f"fail {code}")).startswith(f"{code}: it failed")
        first = it.pid()
        await it.run("finish")
        assert it.pid() == first


async def test_killed_during_run() -> None:
    """A worker that is killed during a run fails that run, and the next one succeeds."""
    async with watched() as it:
        run = asyncio.create_task(it.code("wait"))
        await it.progress.get()
        os.kill(it.pid(), signal.SIGKILL)
        assert (await run).startswith("WORKER_DIED: the decode worker was ended by SIGKILL")
        await it.run("finish", run_id="s")


async def test_killed_while_idle() -> None:
    """A worker that was killed between runs is replaced without any run failing."""
    async with watched() as it:
        await it.run("finish")
        first = it.pid()
        os.kill(first, signal.SIGKILL)
        # Its exit is seen when the event loop next looks, as it does in the start of any run.
        while (child := it.supervisor._child) is not None and child.usable:
            await asyncio.sleep(0)
        await it.run("finish", run_id="s")
        assert it.pid() != first


async def test_descendants_do_not_outlive_the_worker() -> None:
    """A process that the worker has left behind, holding its pipes, is killed as well."""
    async with watched() as it:
        await it.supervisor.pair()
        it.supervisor.hang_s = 5 * SHORT
        assert (await it.code("orphan")).startswith("WORKER_HUNG: the decode worker gave no sign of life")
        events = [it.progress.get_nowait() for _ in range(it.progress.qsize())]
        await_exit(events[-1].done)


async def test_hang() -> None:
    """A worker that gives no sign of life is killed."""
    async with watched() as it:
        await it.supervisor.pair()
        it.supervisor.hang_s = 5 * SHORT
        run = asyncio.create_task(it.code("hang"))
        await it.progress.get()
        pid = it.pid()
        assert (await run).startswith("WORKER_HUNG: the decode worker gave no sign of life for")
        await_exit(pid)


async def test_cancel() -> None:
    """A worker that heeds a cancel is kept."""
    async with watched() as it:
        run = asyncio.create_task(it.code("wait"))
        await it.progress.get()
        pid = it.pid()
        it.supervisor.cancel("r")
        it.supervisor.cancel("r")
        assert await run == "CANCELLED: the run was cancelled"
        await it.run("finish", run_id="s")
        assert it.pid() == pid


async def test_cancel_not_heeded() -> None:
    """A worker that does not heed a cancel is killed after the grace."""
    async with watched(grace_s=SHORT) as it:
        run = asyncio.create_task(it.code("hang"))
        await it.progress.get()
        it.supervisor.cancel("r")
        assert (await run).startswith("CANCELLED: the run was cancelled, and its worker killed")


async def test_cancel_before_the_worker_has_the_run() -> None:
    """A run that is cancelled while its worker starts is not begun."""
    async with watched() as it:
        run = asyncio.create_task(it.code("wait"))
        while not it.supervisor.busy:
            await asyncio.sleep(0)
        it.supervisor.cancel("r")
        assert (await run).startswith("CANCELLED: the run was cancelled")
        assert it.progress.empty()


async def test_cancel_of_another_run() -> None:
    """A cancel for a run that is not under way stops nothing."""
    async with watched() as it:
        run = asyncio.create_task(it.run("wait"))
        await it.progress.get()
        it.supervisor.cancel("another")
        os.kill(it.pid(), signal.SIGUSR1)
        assert (await run).output == OUTPUT


async def test_late_kill_spares_the_next_run() -> None:
    """The kill that follows a cancel does not hit a later run."""
    async with watched(grace_s=SHORT) as it:
        run = asyncio.create_task(it.code("wait"))
        await it.progress.get()
        it.supervisor.cancel("r")
        await run
        later = asyncio.create_task(it.run("wait", run_id="s"))
        await it.progress.get()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(later), 2 * SHORT)
        os.kill(it.pid(), signal.SIGUSR1)
        assert (await later).run_id == "s"


async def test_deadline_not_heeded() -> None:
    """A worker that goes on past the deadline is killed after the grace."""
    async with watched(grace_s=SHORT) as it:
        await it.supervisor.pair()
        assert (await it.code("hang", seconds=SHORT)).startswith("DEADLINE: the decode worker did not heed")


async def test_deadline_before_start() -> None:
    """A run whose deadline has passed is not begun."""
    async with watched() as it:
        assert (await it.code("finish", seconds=-1)).startswith("DEADLINE: the deadline passed before")
        assert it.progress.empty()


async def test_abandoned_run() -> None:
    """When whoever waits for a run is stopped, so is the worker, even one that outstays its input."""
    async with watched(grace_s=SHORT) as it:
        run = asyncio.create_task(it.run("deaf"))
        await it.progress.get()
        pid = it.pid()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_no_such_program() -> None:
    """A worker that cannot be started fails the run."""
    it = Watched(Supervisor(["/does/not/exist"], hang_s=1, cancel_grace_s=1))
    assert (await it.code("finish")).startswith(
        "WORKER_DIED: the decode worker cannot be started (No such file"
    )


async def test_stderr(caplog: pytest.LogCaptureFixture) -> None:
    """What the worker says on stderr is logged, but for what repeats the prompt or has no end."""
    caplog.set_level(logging.INFO)
    async with watched() as it:
        await it.run("shout about the marmalade zeppelin")
    lines = [data["line"] for record in caplog.records if "line" in (data := getattr(record, "data", {}))]
    assert [lines[0], lines[1], lines[-1]] == ["(withheld: repeats the prompt)", "all is well", "still well"]
    assert all(len(line) <= LOGGED_CHARS for line in lines)
    assert "zeppelin" not in caplog.text


@pytest.mark.parametrize(("given", "spins"), [(None, b"3000"), ("77", b"77")])
async def test_environment_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, given: str | None, spins: bytes
) -> None:
    """The worker does not inherit the agent's settings, of which the token is one; its threads spin shortly."""
    monkeypatch.setenv("SPECDEC_TOWER_TOKEN", "secret-token")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if given is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", given)
    async with watched() as it:
        await it.supervisor.pair()
        with open(f"/proc/{it.pid()}/environ", "rb") as file:
            environ = file.read()
    assert b"PATH=" in environ and b"SPECDEC_TOWER_TOKEN" not in environ
    assert b"GOMP_SPINCOUNT=" + spins in environ.split(b"\0")


@pytest.mark.parametrize(
    ("prompt", "heard"),
    [
        ("finish", None),
        ("fail OUT_OF_MEMORY", None),
        ("load LOAD_FAILED", "LOAD_FAILED"),
        ("load OUT_OF_MEMORY", "OUT_OF_MEMORY"),
        ("load DIE", "WORKER_DIED"),
    ],
)
async def test_loading(prompt: str, heard: str | None) -> None:
    """Each run tells once whether the pair could be loaded, and what went wrong if not."""
    told: list[AgentError | None] = []
    async with watched() as it:
        it.supervisor.on_load = told.append
        with suppress(AgentError):
            await it.run(prompt)
    assert [error and error.code for error in told] == [heard]


@pytest.mark.parametrize("code", ["NO_PAIR", "CANCELLED", "DEADLINE"])
async def test_loading_not_at_fault(code: str) -> None:
    """A run that ends before its pair is loaded, for a reason not the pair's, tells nothing of it."""
    told: list[AgentError | None] = []
    async with watched() as it:
        it.supervisor.on_load = told.append
        assert (await it.code(f"load {code}")).startswith(code)
    assert told == []


def heeds(pid: int) -> bool:
    """Tell whether a process has come so far as to handle SIGUSR1."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (signal.SIGUSR1 - 1))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to be so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_idle_worker_leaves() -> None:
    """A worker without work for a while is ended, which counts as no death, and the next run gets a fresh one."""
    async with watched(idle_s=0.05) as it:
        await it.run("finish")
        await until(lambda: it.supervisor.worker_pid is None)
        await it.run("finish", run_id="s")
        assert it.supervisor.starts == 2 and it.supervisor.deaths == {}


async def test_busy_worker_stays() -> None:
    """A worker that is at work is not idle, however long that takes."""
    async with watched(idle_s=0.05) as it:
        await it.run("finish")
        first = it.pid()
        run = asyncio.create_task(it.run("wait", run_id="s"))
        await it.progress.get()
        await asyncio.sleep(0.2)  # idle for longer than idle_s, were it not at work
        os.kill(it.pid(), signal.SIGUSR1)
        await run
        assert it.supervisor.starts == 1 or it.pid() != first


async def test_deaths_are_counted() -> None:
    """Workers that died of themselves, hung or spoke nonsense are counted by code; those let go are not."""
    async with watched() as it:
        await it.code("die")
        await it.code("garbage")
        await it.code("fail OUT_OF_MEMORY")
        await it.run("finish")
        assert it.supervisor.deaths == {"WORKER_DIED": 2}
        assert it.supervisor.starts == 4


@pytest.mark.parametrize("how", ["deadline", "cancel"])
async def test_run_behind_a_slow_proof(how: str) -> None:
    """A run that waits for something else to end heeds its deadline and a cancel, and the worker is free afterwards."""
    async with watched(prove="slow") as it:
        proof = asyncio.create_task(it.supervisor.prove())
        await until(lambda: it.supervisor.worker_pid is not None and heeds(it.pid()))
        if how == "deadline":
            assert (await it.code("finish", seconds=0.05)).startswith("DEADLINE: ")
        else:
            run = asyncio.create_task(it.code("finish"))
            await asyncio.sleep(0)
            it.supervisor.cancel("r")
            assert (await run).startswith("CANCELLED: ")
        assert it.supervisor.busy and not proof.done()
        os.kill(it.pid(), signal.SIGUSR1)
        await proof
        assert it.supervisor.last_decode_at is not None
        await it.run("finish", run_id="s")


async def test_alive() -> None:
    """A supervisor is alive while idle, while work gives signs, and no longer once even a kill has not helped."""
    async with watched() as it:
        assert it.supervisor.alive
        run = asyncio.create_task(it.run("wait"))
        await it.progress.get()
        assert it.supervisor.alive
        it.supervisor.hang_s = it.supervisor._grace_s = -1.0  # as if both had long passed
        assert not it.supervisor.alive
        it.supervisor.hang_s = it.supervisor._grace_s = PATIENCE
        os.kill(it.pid(), signal.SIGUSR1)
        await run


async def test_alive_when_work_begins_after_a_long_rest() -> None:
    """The silence before an operation is not held against it while its worker starts."""
    async with watched() as it:
        it.supervisor._heard_at = -1e9
        run = asyncio.create_task(it.run("finish"))
        await until(lambda: it.supervisor.busy)
        assert it.supervisor.alive
        await run


async def test_failed_proof() -> None:
    """A proof that fails is an error with its code, and is noted."""
    async with watched(prove="fail") as it:
        with pytest.raises(AgentError) as caught:
            await it.supervisor.prove()
        assert caught.value.code == "OUT_OF_MEMORY"
        assert it.supervisor.last_failure_at is not None and it.supervisor.last_decode_at is None


async def test_process_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that the system does not let go of is left behind after a while, with the reason why it was to end."""
    monkeypatch.setattr(child, "UNKILLABLE_S", 0.05)
    monkeypatch.setattr(child.Child, "_kill", lambda self: None)
    kept = await child.Child.start(["sleep", "600"])
    try:
        kept.kill(WorkerHung("the decode worker gave no sign of life for 60 s"))
        verdict = await kept.end()
        assert isinstance(verdict, WorkerHung)
    finally:
        os.kill(kept.pid, signal.SIGKILL)
        await kept._process.wait()
        await kept._stderr


async def test_run_that_came_too_late_lets_the_worker_go() -> None:
    """A run whose time is over once it has a worker leaves that to its rest, after which it ends."""
    async with watched(idle_s=0.01) as it:
        loop = asyncio.get_running_loop()
        start = it.supervisor._ready

        async def slow() -> child.Child:
            started = await start()
            it.supervisor._cancelled = True
            return started

        it.supervisor._ready = slow  # type: ignore[method-assign]
        assert (await it.code("finish")).startswith("CANCELLED")
        pid = it.pid()
        until = loop.time() + PATIENCE
        while it.supervisor.worker_pid is not None:
            assert loop.time() < until
            await asyncio.sleep(0.01)
        await it.supervisor.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_closed_in_the_middle_of_an_operation() -> None:
    """Whoever closes while somebody listens to the worker ends it all the same."""
    async with watched(grace_s=0.1) as it:
        run = asyncio.create_task(it.code("wait"))
        await it.progress.get()
        pid = it.pid()
        await it.supervisor.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert (await run).startswith("WORKER_DIED")
