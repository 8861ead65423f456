"""Tests of agent.runs; decoding is a stand-in that the test finishes by hand."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.errors import (
    AgentError,
    Busy,
    Conflict,
    Expired,
    NotFound,
    OutOfMemory,
    RequestRefused,
    StoreError,
)
from agent.pipe import ProgressEvent, ResultEvent
from agent.runs import STORE_AGAIN_S, Run, RunManager, failed
from agent.store import FILE_NAME, State, Store
from shared.wire import AcceptedFrame, ErrorCode, FailedFrame, ProgressFrame, ResultFrame, RunFrame
from tests.agent.support import GOLDEN, PATIENCE, SCALE, run_frame

MEASUREMENT = GOLDEN["agent"][3]["measurement"]


@dataclass
class Decode:
    """One decode under way."""

    request: dict[str, Any]
    deadline: float
    on_progress: Callable[[ProgressEvent], None]
    done: asyncio.Future[ResultEvent]


class Decoder:
    """Decodes as the test says."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.begun: asyncio.Queue[Decode] = asyncio.Queue()
        self.cancelled: list[str] = []

    async def run(
        self,
        run_id: str,
        request: dict[str, Any],
        *,
        deadline: float,
        on_progress: Callable[[ProgressEvent], None],
    ) -> ResultEvent:
        """Wait for the test to finish the run."""
        decode = Decode(request, deadline, on_progress, asyncio.get_running_loop().create_future())
        self.begun.put_nowait(decode)
        return await decode.done

    def cancel(self, run_id: str) -> None:
        """Note the cancel."""
        self.cancelled.append(run_id)

    async def next(self) -> Decode:
        """Return the decode that begins next."""
        async with asyncio.timeout(PATIENCE):
            return await self.begun.get()


ENERGY = {"label": "UNAVAILABLE", "code": "ON_CPU", "reason": "it was decoded on the processor"}


class Clock:
    """A wall clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@dataclass
class Bench:
    """A manager and what it works with."""

    runs: RunManager
    decoder: Decoder
    store: Store
    clock: Clock

    async def finish(self, run: Run, result: ResultEvent | None = None) -> None:
        """Finish the decode that begins next, which is this run's."""
        (await self.decoder.next()).done.set_result(result or result_of(run))
        assert await run.ends_within(PATIENCE)


def result_of(run: Run, **changes: Any) -> ResultEvent:
    """Return what a worker sends at the end of a run."""
    fields = {
        "measurement": MEASUREMENT,
        "energy": ENERGY,
        "output": "the text",
        "output_sha3_256": "0" * 64,
        **changes,
    }
    return ResultEvent(run_id=run.run_id, **fields)


@asynccontextmanager
async def bench(state: Path, **limits: Any) -> AsyncIterator[Bench]:
    """Run a manager."""
    store, decoder, clock = Store(state), Decoder(), Clock()
    runs = RunManager(store, decoder, clock=clock, **limits)
    runs.start()
    try:
        yield Bench(runs, decoder, store, clock)
    finally:
        await runs.close(0)
        store.close()


def code(run: Run) -> str:
    """Return how a run ended."""
    assert run.outcome is not None
    return run.outcome.code if isinstance(run.outcome, FailedFrame) else "OK"


def pass_time(seconds: float) -> None:
    """Let the event loop's clock be ahead of what it was by so much."""
    loop = asyncio.get_running_loop()
    ahead = loop.time
    loop.time = lambda: ahead() + seconds  # type: ignore[method-assign]


def busy_s(run: Run) -> float | None:
    """Return for how long a run says that it held the worker."""
    assert run.outcome is not None
    return run.outcome.busy_s


async def test_result(tmp_path: Path) -> None:
    """A run ends with a result that echoes nonce and bound request, without the output unless asked for."""
    async with bench(tmp_path) as it:
        frame = run_frame("a secret")
        run = it.runs.submit(frame)
        await it.finish(run)
        assert isinstance(run.outcome, ResultFrame)
        assert run.outcome.nonce == frame.nonce
        assert run.outcome.request["prompt_commitment"] == frame.prompt_commitment
        assert "prompt" not in run.outcome.request
        assert run.outcome.output is None
        assert run.outcome.energy.model_dump(exclude_none=True) == ENERGY
        assert run.outcome.ended_at == "1970-01-01T00:16:40Z"
        it.clock.now += 10
        assert it.runs.find(frame.run_id).outcome == run.outcome


async def test_outcomes_are_counted(tmp_path: Path) -> None:
    """How runs ended is counted by code, and who asks is told of each that was decoded, with its seconds."""
    told: list[tuple[str, bool]] = []
    async with bench(tmp_path) as it:
        it.runs.on_end = lambda code, seconds: told.append((code, 0 <= seconds <= PATIENCE))
        await it.finish(it.runs.submit(run_frame("one")))
        run = it.runs.submit(run_frame("two"))
        waiting = it.runs.submit(run_frame("three"))
        it.runs.cancel(waiting.run_id)
        (await it.decoder.next()).done.set_exception(OutOfMemory("it does not fit"))
        assert await run.ends_within(PATIENCE)
        assert it.runs.outcomes == {"OK": 1, "CANCELLED": 1, "OUT_OF_MEMORY": 1}
        assert told == [("OK", True), ("OUT_OF_MEMORY", True)]


async def test_prompt_is_forgotten(tmp_path: Path) -> None:
    """The prompt goes to the decoder, and from the run as soon as that is over."""
    async with bench(tmp_path) as it:
        run = it.runs.submit(run_frame("a secret"))
        decode = await it.decoder.next()
        assert decode.request["prompt"] == "a secret" and run.request is not None
        decode.done.set_exception(OutOfMemory("it does not fit"))
        assert await run.ends_within(PATIENCE)
        assert run.request is None and code(run) == "OUT_OF_MEMORY"


async def test_output_until_expiry(tmp_path: Path) -> None:
    """Output that was asked for is kept in memory, not in the store, and no longer than the run."""
    async with bench(tmp_path, expiry_s=0.05) as it:
        run = it.runs.submit(run_frame("a secret", include_output=True))
        await it.finish(run)
        found = it.runs.find(run.run_id)
        assert isinstance(found.outcome, ResultFrame) and found.outcome.output == "the text"
        row = it.store.get(run.key)
        assert row is not None and row.frame is not None and "the text" not in row.frame
        gone = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, gone.set)
        await gone.wait()
        found = it.runs.find(run.run_id)
        assert isinstance(found.outcome, ResultFrame) and found.outcome.output is None


async def test_output_too_long_for_a_frame(tmp_path: Path) -> None:
    """Output that does not fit a frame is left out."""
    async with bench(tmp_path) as it:
        run = it.runs.submit(run_frame("a secret", include_output=True))
        await it.finish(run, result_of(run, output="x" * 300_000))
        assert isinstance(run.outcome, ResultFrame) and run.outcome.output is None


@pytest.mark.parametrize(
    "changes", [{"measurement": {}}, {"energy": {"label": "MEASURED"}}, {"output_sha3_256": "no"}]
)
async def test_invalid_result(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A result of the wrong form fails the run, and the next one goes on."""
    async with bench(tmp_path) as it:
        run = it.runs.submit(run_frame("one"))
        await it.finish(run, result_of(run, **changes))
        assert code(run) == "INTERNAL"
        other = it.runs.submit(run_frame("two"))
        await it.finish(other)
        assert code(other) == "OK"


async def test_unexpected_error(tmp_path: Path) -> None:
    """An error nobody thought of fails its run only, and its text is not passed on."""
    async with bench(tmp_path) as it:
        run = it.runs.submit(run_frame("a secret"))
        (await it.decoder.next()).done.set_exception(ValueError("a secret"))
        assert await run.ends_within(PATIENCE)
        assert isinstance(run.outcome, FailedFrame)
        assert run.outcome.code == "INTERNAL" and "a secret" not in run.outcome.detail
        other = it.runs.submit(run_frame("two"))
        await it.finish(other)


async def test_queue(tmp_path: Path) -> None:
    """Runs are decoded one at a time in the order they came, and each knows how many are ahead."""
    async with bench(tmp_path) as it:
        first, second, third = (it.runs.submit(run_frame(f"run {i}")) for i in range(3))
        decode = await it.decoder.next()
        assert [it.runs.position(run) for run in (first, second, third)] == [0, 1, 2]
        assert it.runs.queue().model_dump() == {"running": True, "waiting": 2, "limit": 4}
        assert it.decoder.begun.empty()
        assert it.runs.report(third) == AcceptedFrame(run_id=third.run_id, position=2, k=4)
        decode.on_progress(ProgressEvent(run_id=first.run_id, phase="measuring", done=7, total=50))
        assert it.runs.report(first) == ProgressFrame(
            run_id=first.run_id, phase="measuring", done=7, total=50, k=4
        )
        decode.done.set_result(result_of(first))
        await it.finish(second)
        await it.finish(third)
        assert it.runs.queue().model_dump() == {"running": False, "waiting": 0, "limit": 4}


@pytest.mark.parametrize(("asked", "told"), [(8, 8), ("auto", None)])
async def test_k(tmp_path: Path, asked: Any, told: int | None) -> None:
    """A run that is not over tells the draft length asked for, if one was; one that is over still knows it."""
    async with bench(tmp_path) as it:
        run = it.runs.submit(run_frame("one", k=asked))
        accepted = it.runs.report(run)
        assert isinstance(accepted, AcceptedFrame) and accepted.k == told
        decode = await it.decoder.next()
        progress = it.runs.report(run)
        assert isinstance(progress, ProgressFrame) and progress.k == told
        decode.done.set_result(result_of(run))
        assert await run.ends_within(PATIENCE)
        assert it.runs.accepted(it.runs.find(run.run_id)).k == told


async def test_busy(tmp_path: Path) -> None:
    """A run too many is refused with an estimate, can be sent again, and known ones are still found."""
    async with bench(tmp_path, queue_limit=1) as it:
        first = it.runs.submit(run_frame("one"))
        waiting_frame = run_frame("two")
        it.runs.submit(waiting_frame)
        refused = run_frame("three")
        with pytest.raises(Busy, match="runs are waiting") as caught:
            it.runs.submit(refused)
        assert caught.value.retry_after >= 1
        assert it.runs.submit(waiting_frame).run_id == waiting_frame.run_id
        await it.finish(first)
        with pytest.raises(NotFound):
            it.runs.find(refused.run_id)
        it.runs.submit(refused)


async def test_attach(tmp_path: Path) -> None:
    """The same run asked for again, running or over, is the same run and is decoded once."""
    async with bench(tmp_path) as it:
        frame = run_frame("one")
        run = it.runs.submit(frame)
        assert it.runs.submit(frame) is run
        await it.finish(run)
        assert it.runs.submit(frame).outcome == run.outcome
        assert it.decoder.begun.empty()


async def test_failed_run_is_not_run_again(tmp_path: Path) -> None:
    """Asking again for a run that failed gives the failure."""
    async with bench(tmp_path) as it:
        frame = run_frame("one")
        run = it.runs.submit(frame)
        (await it.decoder.next()).done.set_exception(OutOfMemory("it does not fit"))
        assert await run.ends_within(PATIENCE)
        assert it.runs.submit(frame).outcome == run.outcome


async def test_conflict(tmp_path: Path) -> None:
    """An ID that names another request, or another nonce, is refused whether that run is live or over."""
    async with bench(tmp_path) as it:
        frame = run_frame("one", id_bytes=bytes(16))
        other = run_frame("two", id_bytes=bytes(16))
        run = it.runs.submit(frame)
        for over in (False, True):
            with pytest.raises(Conflict):
                it.runs.submit(other)
            with pytest.raises(Conflict):
                it.runs.find(other.run_id)
            with pytest.raises(Conflict, match="nonce"):
                it.runs.submit(frame.model_copy(update={"nonce": "0" * 64}))
            if not over:
                await it.finish(run)


@pytest.mark.parametrize("changed", ["prompt_commitment", "request"])
async def test_binding(tmp_path: Path, changed: str) -> None:
    """A run id made for another request or another prompt is refused."""
    async with bench(tmp_path) as it:
        frame = run_frame("one")
        changes: dict[str, Any] = {
            "prompt_commitment": "0" * 64,
            "request": frame.request.model_copy(update={"n": 51}),
        }
        with pytest.raises(RequestRefused, match="made for another request"):
            it.runs.submit(frame.model_copy(update={changed: changes[changed]}))


async def test_unknown(tmp_path: Path) -> None:
    """An id nobody has sent is not found."""
    async with bench(tmp_path) as it:
        with pytest.raises(NotFound):
            it.runs.find(run_frame("one").run_id)


async def test_expiry(tmp_path: Path) -> None:
    """A run that has expired is told apart from one that never was, and is not run again."""
    async with bench(tmp_path, expiry_s=60) as it:
        frame = run_frame("one")
        run = it.runs.submit(frame)
        await it.finish(run)
        it.clock.now += 60
        with pytest.raises(Expired, match="the run has expired"):
            it.runs.find(frame.run_id)
        it.runs.submit(run_frame("two"))  # purges
        with pytest.raises(Expired, match="the run has expired"):
            it.runs.submit(frame)


async def test_cancel_waiting(tmp_path: Path) -> None:
    """A waiting run that is cancelled ends at once, and those behind it move up."""
    async with bench(tmp_path) as it:
        first, second, third = (it.runs.submit(run_frame(f"run {i}")) for i in range(3))
        decode = await it.decoder.next()
        it.runs.cancel(second.run_id)
        assert code(second) == "CANCELLED" and it.runs.position(third) == 1
        decode.done.set_result(result_of(first))
        await it.finish(third)
        assert it.decoder.cancelled == []


async def test_cancel_running_and_over(tmp_path: Path) -> None:
    """A cancel is passed on to the decoder if the run is under way, and changes nothing if it is over."""
    async with bench(tmp_path) as it:
        run = it.runs.submit(run_frame("one"))
        decode = await it.decoder.next()
        it.runs.cancel(run.run_id)
        assert it.decoder.cancelled == [run.run_id]
        decode.done.set_result(result_of(run))
        assert await run.ends_within(PATIENCE)
        assert code(it.runs.cancel(run.run_id)) == "OK"


async def test_deadline(tmp_path: Path) -> None:
    """The deadline is bounded by the agent's own, and counts from when the run was sent."""
    async with bench(tmp_path, max_deadline_s=50) as it:
        now = asyncio.get_running_loop().time()
        it.runs.submit(run_frame("one", deadline_s=500))
        assert now + 50 <= (await it.decoder.next()).deadline <= now + 50 + PATIENCE
        late = it.runs.submit(run_frame("two", deadline_s=0.05))
        assert await late.ends_within(PATIENCE)
        assert code(late) == "DEADLINE"


async def test_restart(tmp_path: Path) -> None:
    """After a restart finished runs are found, and runs that had not ended are lost."""
    async with bench(tmp_path) as it:
        frames = [run_frame(f"run {i}") for i in range(3)]
        done, _, _ = (it.runs.submit(frame) for frame in frames)
        await it.finish(done)
        await it.decoder.next()
    async with bench(tmp_path) as it:
        assert it.runs.find(frames[0].run_id).outcome == done.outcome
        for frame in frames[1:]:
            with pytest.raises(Expired, match="the agent restarted"):
                it.runs.submit(frame)


async def test_shutdown(tmp_path: Path) -> None:
    """On closing, the run under way may end within the grace, no other begins, and none is taken."""
    async with bench(tmp_path) as it:
        first, second = (it.runs.submit(run_frame(f"run {i}")) for i in range(2))
        decode = await it.decoder.next()
        closing = asyncio.create_task(it.runs.close(PATIENCE))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="shutting down"):
            it.runs.submit(run_frame("three"))
        decode.done.set_result(result_of(first))
        await closing
        assert code(first) == "OK" and second.state is State.QUEUED and it.decoder.begun.empty()


async def test_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that cannot be remembered is not run; an outcome that cannot be is kept in memory until it expires."""

    def broken(*_: object) -> None:
        raise StoreError("the disk is full")

    async with bench(tmp_path, expiry_s=0.3 * SCALE) as it:
        run = it.runs.submit(frame := run_frame("one"))
        monkeypatch.setattr(it.store, "add", broken)
        monkeypatch.setattr(it.store, "finish", broken)
        with pytest.raises(StoreError):
            it.runs.submit(run_frame("two"))
        await it.finish(run)
        assert code(run) == "OK" and not it.runs.queue().running
        assert it.runs.find(run.run_id).outcome == it.runs.submit(frame).outcome == run.outcome
        await asyncio.sleep(0.6 * SCALE)
        with pytest.raises(Expired, match="the run has expired"):
            it.runs.find(run.run_id)
        assert it.decoder.begun.empty()


async def test_store_that_has_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble that has passed is over without a run to show it, which nobody would send: looked at once a minute."""

    def broken(*_: object) -> None:
        raise StoreError("the disk is full")

    async with bench(tmp_path) as it:
        assert it.runs.remembers()
        with monkeypatch.context() as patch:
            patch.setattr(it.store, "add", broken)
            patch.setattr(it.store, "check", broken)
            with pytest.raises(StoreError):
                it.runs.submit(run_frame("one"))
            it.runs._store_tried_at -= STORE_AGAIN_S
            assert not it.runs.remembers() and it.runs.store_trouble == "the disk is full"
        assert not it.runs.remembers()
        it.runs._store_tried_at -= STORE_AGAIN_S
        assert it.runs.remembers() and it.runs.store_trouble == ""


def test_errors_have_wire_codes() -> None:
    """Each error of the agent has a code that the wire protocol knows."""
    kinds = AgentError.__subclasses__()
    assert len(kinds) > 10
    assert {kind.code for kind in kinds} <= set(ErrorCode)


def test_frame_of_support() -> None:
    """The frame that the tests make from the golden request is the golden frame."""
    golden = GOLDEN["client"][1]
    made = run_frame(golden["request"]["prompt"], id_bytes=bytes(range(16)))
    assert made == RunFrame.model_validate(golden)


# How long a run held the worker: the clock is moved by ten seconds at a time, all else takes less.


async def test_busy_without_the_wait(tmp_path: Path) -> None:
    """A run's result says how long it was decoded, and not how long it waited for another one; it says so for good."""
    async with bench(tmp_path) as it:
        first, second = (it.runs.submit(run_frame(prompt)) for prompt in ("1", "2"))
        decode = await it.decoder.next()
        pass_time(10)
        decode.done.set_result(result_of(first))
        assert await first.ends_within(PATIENCE)
        await it.finish(second)
        assert (busy_s(first) or 0) // 10 == 1
        assert (busy_s(second) or 0) // 10 == 0
        again = it.runs.find(first.run_id)
        assert busy_s(again) == busy_s(first)
        assert second.outcome is not None and "busy_s" in second.outcome.model_fields_set


@pytest.mark.parametrize("error", [OutOfMemory("none left"), RuntimeError("what?")])
async def test_busy_though_failed(tmp_path: Path, error: Exception) -> None:
    """A run that failed while it was decoded says how long it was."""
    async with bench(tmp_path) as it:
        run = it.runs.submit(run_frame("1"))
        decode = await it.decoder.next()
        pass_time(10)
        decode.done.set_exception(error)
        assert await run.ends_within(PATIENCE)
        assert isinstance(run.outcome, FailedFrame) and (busy_s(run) or 0) // 10 == 1


async def test_busy_though_expired(tmp_path: Path) -> None:
    """An agent says how long a run was decoded for as long as it knows its ID, before and after its row is emptied."""
    frame = run_frame("1")

    def told(runs: RunManager) -> dict[str, Any]:
        with pytest.raises(Expired, match="the run has expired") as caught:
            runs.find(frame.run_id)
        return failed(frame.run_id, caught.value).model_dump(exclude={"type", "detail"})

    async with bench(tmp_path, expiry_s=60) as it:
        await it.finish(run := it.runs.submit(frame))
        known = {"run_id": frame.run_id, "code": ErrorCode.EXPIRED, "busy_s": busy_s(run)}
        it.clock.now += 60
        assert told(it.runs) == known
        it.runs.submit(run_frame("2"))  # purges
        assert told(it.runs) == known
    assert known["busy_s"] is not None
    async with bench(tmp_path) as it:
        assert told(it.runs) == known


async def test_busy_unknown(tmp_path: Path) -> None:
    """Runs whose time is not known say nothing of it: lost ones, and those that an older agent has emptied."""
    frames = [run_frame(str(number)) for number in range(2)]
    async with bench(tmp_path) as it:
        await it.finish(it.runs.submit(frames[0]))
        it.runs.submit(frames[1])
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as db:
        db.execute("UPDATE runs SET state = 'expired', frame = NULL, request = '' WHERE state = 'finished'")
    async with bench(tmp_path) as it:
        for frame in frames:
            with pytest.raises(Expired) as caught:
                it.runs.find(frame.run_id)
            assert "busy_s" not in failed(frame.run_id, caught.value).model_dump()


async def test_busy_for_nothing(tmp_path: Path) -> None:
    """A run that ends while it waits has held the worker for no time, and a run that was not taken says nothing."""
    async with bench(tmp_path, queue_limit=2) as it:
        running = it.runs.submit(run_frame("1"))
        await it.decoder.next()
        late = it.runs.submit(run_frame("2", deadline_s=0.01))
        waiting = it.runs.submit(run_frame("3"))
        with pytest.raises(Busy) as caught:
            it.runs.submit(run_frame("4"))
        assert failed(None, caught.value).model_dump().keys() == {
            "type",
            "run_id",
            "code",
            "detail",
            "retry_after",
        }
        it.runs.cancel(waiting.run_id)
        assert await late.ends_within(PATIENCE)
        assert (code(waiting), busy_s(waiting)) == (ErrorCode.CANCELLED, 0.0)
        assert (code(late), busy_s(late)) == (ErrorCode.DEADLINE, 0.0)
        assert running.outcome is None
