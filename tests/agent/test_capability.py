"""Tests of agent.capability: when a pair is looked for, how long one is held unfit, and what readiness rests on."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent import capability
from agent.capability import LATELY_S, CapabilityWatch
from agent.errors import AgentError, LoadFailed, OutOfMemory, WorkerDied
from agent.pairs import ModelFile
from agent.pipe import PairEvent
from agent.runs import RunManager
from agent.store import Store
from agent.supervisor import Supervisor
from shared.wire import encode
from tests.agent.support import PATIENCE, SCRIPTED

FILE = ModelFile("model", Path("/models/model"), None, (2, 3))
PAIR = PairEvent(found=True, reason="one vocabulary", draft=FILE, target=FILE)
OTHER = PairEvent(found=True, reason="one vocabulary", draft=FILE, target=replace(FILE, version=(2, 4)))


class Heard:
    """A watch that never looks by itself, and the supervisor it hears."""

    def __init__(self, supervisor: Supervisor, watch: CapabilityWatch) -> None:
        """Listen."""
        self.supervisor = supervisor
        self.watch = watch

    async def pair(self, *events: PairEvent | AgentError | None) -> tuple[bool, str]:
        """Hear of pairs and of loads, and return what is told of the pair then."""
        for event in events:
            if isinstance(event, PairEvent):
                self.supervisor.on_pair(event)
            else:
                self.supervisor.on_load(event)
        told = (await self.watch.frame(0)).same_family_pair
        return told.found, told.reason


@asynccontextmanager
async def heard(state: Path, *, retry_s: float = 300.0) -> AsyncIterator[Heard]:
    """Watch a supervisor that does nothing."""
    supervisor = Supervisor(["/does/not/exist"], hang_s=1, cancel_grace_s=1)
    with closing(Store(state)) as store:
        watch = CapabilityWatch(supervisor, RunManager(store, supervisor), retry_s=retry_s)
        yield Heard(supervisor, watch)


@pytest.mark.parametrize("error", [LoadFailed("it is cut short"), OutOfMemory("it is cut short")])
async def test_unfit_until_the_files_change(tmp_path: Path, error: AgentError) -> None:
    """A pair that could not be loaded is not found, however often it is looked for, until its files change."""
    unfit = (False, "the pair could not be loaded: it is cut short")
    async with heard(tmp_path) as it:
        assert await it.pair(PAIR) == (True, "one vocabulary")
        assert await it.pair(error) == unfit
        assert await it.pair(PAIR) == unfit
        assert await it.pair(OTHER) == (True, "one vocabulary")
        assert await it.pair(error, OTHER) == unfit


async def test_unfit_until_loaded(tmp_path: Path) -> None:
    """A pair that could be loaded after all is found again."""
    async with heard(tmp_path) as it:
        await it.pair(PAIR, LoadFailed("it is cut short"))
        assert (await it.pair(None))[0]
        assert (await it.pair(PAIR))[0]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (LoadFailed("only 20 of 33 layers are on the GPU"), True),
        (OutOfMemory("it does not fit"), True),
        (WorkerDied("the decode worker was ended by SIGKILL"), True),
    ],
)
async def test_unfit_for_a_while(tmp_path: Path, error: AgentError, found: bool) -> None:
    """Memory may be free again later, and a driver mended, so no failure is held against the files for good."""
    async with heard(tmp_path, retry_s=0) as it:
        assert (await it.pair(PAIR, error, PAIR))[0] is found


# Watching: a real scout process, a store that is a value, and a stand-in for the process that decodes.


@dataclass
class Watching:
    """A watch that looks, with what it looks at."""

    watch: CapabilityWatch
    supervisor: Supervisor
    scout: Supervisor
    pictures: list[object]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be so."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def found(self) -> bool:
        """Tell whether a pair is told of now."""
        return (await self.watch.frame(PATIENCE)).same_family_pair.found


@asynccontextmanager
async def watching(state: Path, *worker: str, again_s: float = 1e6) -> AsyncIterator[Watching]:
    """Watch with a scripted scout and a scripted decoder."""
    command = [sys.executable, str(SCRIPTED), *worker]
    supervisor, scout = (Supervisor(command, hang_s=PATIENCE, cancel_grace_s=PATIENCE) for _ in range(2))
    pictures: list[object] = ["first"]
    with closing(Store(state)) as store:
        runs = RunManager(store, supervisor)
        watch = CapabilityWatch(
            supervisor, runs, scout=scout, picture=lambda: pictures[-1], look_s=0.01, again_s=again_s
        )
        watch.start()
        try:
            yield Watching(watch, supervisor, scout, pictures)
        finally:
            await watch.close()
            await supervisor.close()


async def test_looks_when_something_changed(tmp_path: Path) -> None:
    """A pair is looked for at the start and whenever the picture changes, each time by a process that ends then."""
    async with watching(tmp_path) as it:
        assert await it.found()
        await it.until(lambda: it.scout.worker_pid is None)
        assert (it.scout.starts, it.supervisor.starts) == (1, 0)
        it.pictures.append("second")
        await it.until(lambda: it.scout.starts == 2)
        await it.until(lambda: it.scout.worker_pid is None)
        assert it.scout.deaths == Counter()


async def test_looks_again_in_time(tmp_path: Path) -> None:
    """A pair is looked for again after a while even if the picture is the same."""
    async with watching(tmp_path, again_s=0) as it:
        await it.until(lambda: it.scout.starts >= 3)


async def test_change_is_seen_during_a_run(tmp_path: Path) -> None:
    """A change is noticed while a run is decoded, and leaves the run alone; looking just in case waits."""
    async with watching(tmp_path, again_s=0) as it:
        assert await it.found()
        request = {"prompt": "wait"}
        begun = asyncio.Event()
        run = asyncio.create_task(
            it.supervisor.run("r", request, deadline=float("inf"), on_progress=lambda _: begun.set())
        )
        await begun.wait()
        await it.until(lambda: it.scout.worker_pid is None)
        await asyncio.sleep(0)  # a look that was under way ends here
        before = it.scout.starts
        it.pictures.append("second")
        await it.until(lambda: it.scout.starts > before and it.scout.worker_pid is None)
        assert it.supervisor.worker_pid is not None
        os.kill(it.supervisor.worker_pid, signal.SIGUSR1)
        assert (await run).run_id == "r"


async def test_failed_look_is_made_again(tmp_path: Path) -> None:
    """A scout that dies is told of, and replaced at the next look."""
    async with watching(tmp_path, "--pair", "die") as it:
        frame = await it.watch.frame(PATIENCE)
        assert frame.same_family_pair.reason == (
            "looking for a pair failed: the decode worker exited with status 3"
        )
        assert frame.energy.label == "UNAVAILABLE" and frame.models == []
        await it.until(lambda: it.scout.starts >= 3)
        assert it.scout.deaths["WORKER_DIED"] >= 2


async def test_picture_that_cannot_be_taken(tmp_path: Path) -> None:
    """A store that cannot even be looked at does not end the watch."""
    async with watching(tmp_path) as it:
        assert await it.found()
        kept, it.pictures[:] = list(it.pictures), []  # an empty list has no last picture
        await it.until(lambda: it.scout.starts >= 2)
        it.pictures[:] = kept
        await it.until(lambda: it.scout.starts >= 3)
        assert await it.found()


async def test_ready(tmp_path: Path) -> None:
    """Readiness is shown by decoding a step, once, and then for an hour by having done so."""
    async with watching(tmp_path) as it:
        assert it.watch.ready() == (False, "the agent is still looking for a pair")
        assert await it.found()
        assert it.watch.ready(prove=False) == (False, "the pair has not decoded lately")
        await asyncio.sleep(0)
        assert it.supervisor.starts == 0
        assert it.watch.ready() == (False, "the pair is being tried")
        await it.until(lambda: it.watch.ready()[0])
        assert it.watch.ready() == (True, "the pair has decoded lately")
        assert it.supervisor.starts == 1
        assert it.supervisor.last_decode_at is not None
        it.supervisor.last_decode_at -= LATELY_S + 1
        assert it.watch.ready() == (False, "the pair is being tried")
        await it.until(lambda: it.watch.ready()[0])


async def test_ready_after_a_failure(tmp_path: Path) -> None:
    """A run whose worker dies takes the proof away, until a step is decoded again; a cancelled one does not."""
    async with watching(tmp_path) as it:
        assert await it.found()
        it.watch.ready()
        await it.until(lambda: it.watch.ready()[0])
        for prompt, ready in (("fail CANCELLED", True), ("fail INTERNAL", False)):
            with pytest.raises(AgentError):
                await it.supervisor.run(
                    "r", {"prompt": prompt}, deadline=float("inf"), on_progress=lambda _: None
                )
            assert it.watch.ready(prove=False)[0] is ready
        await it.until(lambda: it.watch.ready()[0])


async def test_ready_with_another_pair(tmp_path: Path) -> None:
    """That one pair has decoded says nothing of the next one."""
    async with watching(tmp_path) as it:
        assert await it.found()
        it.watch.ready()
        await it.until(lambda: it.watch.ready()[0])
        it.supervisor.on_pair(OTHER)
        assert not it.watch.ready(prove=False)[0]


async def test_failed_proof_is_told(tmp_path: Path) -> None:
    """A pair that cannot be loaded for a proof is no pair for clients either."""
    async with watching(tmp_path, "--prove", "fail") as it:
        assert await it.found()
        it.watch.ready()
        await it.until(lambda: not it.watch.ready(prove=False)[1].startswith("the pair has not"))
        told = (await it.watch.frame(0)).same_family_pair
        assert (told.found, told.reason) == (False, "the pair could not be loaded: it does not fit")


async def test_not_ready(tmp_path: Path) -> None:
    """A pair that does not decode is not ready, and says why."""
    async with watching(tmp_path, "--prove", "fail") as it:
        assert await it.found()
        assert not it.watch.ready()[0]
        await it.until(lambda: it.watch.ready()[1] == "the pair could not be loaded: it does not fit")
        assert not it.watch.ready()[0]
    async with watching(tmp_path, "--pair", "none") as it:
        assert not await it.found()
        assert it.watch.ready() == (False, "no two models of one family")


async def test_many_models(tmp_path: Path) -> None:
    """Of a store whose list would not fit a frame the first models are told, and the frame can be sent."""
    models = [{"name": f"m{i}", "loadable": False, "reason": "ж" * 900} for i in range(600)]
    async with heard(tmp_path) as it:
        await it.pair(PAIR.model_copy(update={"models": models}))
        frame = await it.watch.frame(0)
    assert [model.name for model in frame.models] == [f"m{i}" for i in range(len(frame.models))]
    assert 250 < len(frame.models) < 350
    assert len(encode(frame)) < 256 * 1024


async def test_store_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs is told of and waited for by one thread alone; once it answers, a pair is looked for."""
    monkeypatch.setattr(capability, "PICTURE_S", 0.05)
    answer = threading.Event()
    async with watching(tmp_path) as it:
        assert await it.found()
        before, threads = it.scout.starts, threading.active_count()
        it.watch._picture = lambda: answer.wait(PATIENCE)
        await it.until(lambda: it.watch.ready(prove=False)[1] == "the store of models does not answer")
        assert not await it.found()
        await asyncio.sleep(0.2)  # as long as several more pictures would take
        assert threading.active_count() <= threads + 1 and it.scout.starts == before
        answer.set()
        await it.until(lambda: it.scout.starts > before)
        await it.until(lambda: it.watch.ready(prove=False)[1] == "the pair has not decoded lately")


async def test_no_scout_is_sent_to_a_store_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hang there as well, and the next one, and the next."""
    monkeypatch.setattr(capability, "PICTURE_S", 0.02)
    answer = threading.Event()
    async with watching(tmp_path, again_s=0) as it:
        it.watch._picture = lambda: answer.wait(PATIENCE)
        # The first picture may have been taken already.
        await it.until(lambda: it.watch.ready(prove=False)[1] == "the store of models does not answer")
        await it.until(lambda: it.scout.worker_pid is None)
        before = it.scout.starts
        await asyncio.sleep(0.3)  # as long as several looks would take
        assert it.scout.starts == before
        answer.set()


async def test_thread_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is short of threads for a while does not end the watch."""
    async with watching(tmp_path) as it:
        assert await it.found()
        asked: list[None] = []

        def fail(_: object) -> None:
            asked.append(None)
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(capability, "in_thread", fail)
            await it.until(lambda: len(asked) >= 2)
        before = it.scout.starts
        it.pictures.append("second")
        await it.until(lambda: it.scout.starts > before)
        assert it.watch.alive


async def test_watch_that_has_ended_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Should the watch end after all, the log says so at once, and the agent is not ready."""
    async with watching(tmp_path) as it:
        assert await it.found()

        async def end() -> None:
            raise ZeroDivisionError

        def told() -> list[logging.LogRecord]:
            return [record for record in caplog.records if record.levelno == logging.CRITICAL]

        it.watch._take_picture = end  # type: ignore[method-assign]
        await it.until(lambda: bool(told()))
        assert it.watch.ready() == (False, "models are no longer watched; see the log")
        (record,) = told()
        assert record.data == {"work": "the watch over models"}  # type: ignore[attr-defined]


async def test_nothing_is_tried_after_the_end(tmp_path: Path) -> None:
    """A question for readiness that comes while the agent ends starts no worker."""
    async with watching(tmp_path) as it:
        assert await it.found()
        await it.watch.close()
        it.watch._watching = None
        assert not it.watch.ready()[0]
        assert it.watch._proving is None


async def test_not_ready_without_a_store(tmp_path: Path) -> None:
    """An agent that cannot remember runs is not ready, as it would refuse them."""
    async with watching(tmp_path) as it:
        assert await it.found()
        it.watch.ready()
        await it.until(lambda: it.watch.ready()[0])
        it.watch._runs.store_trouble = "the run store cannot take a run"
        it.watch._runs._store_tried_at = asyncio.get_running_loop().time()
        assert it.watch.ready() == (False, "the run store cannot take a run")
