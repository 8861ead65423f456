"""Tests of agent.capability: how long a pair that could not be loaded is held unfit; the rest is in test_server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.capability import CapabilityWatch
from agent.errors import AgentError, LoadFailed, OutOfMemory, WorkerDied
from agent.pairs import ModelFile
from agent.pipe import PairEvent
from agent.runs import RunManager
from agent.store import Store
from agent.supervisor import Supervisor

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
        told = (await self.watch.frame()).same_family_pair
        return told.found, told.reason


@asynccontextmanager
async def heard(state: Path, *, retry_s: float = 300.0) -> AsyncIterator[Heard]:
    """Watch a supervisor that does nothing."""
    supervisor = Supervisor(["/does/not/exist"], hang_s=1, cancel_grace_s=1)
    with closing(Store(state)) as store:
        watch = CapabilityWatch(supervisor, RunManager(store, supervisor), ttl_s=1e6, retry_s=retry_s)
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
        (LoadFailed("it is cut short"), False),
        (OutOfMemory("it does not fit"), True),
        (WorkerDied("the decode worker was ended by SIGKILL"), True),
    ],
)
async def test_unfit_for_a_while(tmp_path: Path, error: AgentError, found: bool) -> None:
    """Memory may be free again later, so only a failure that is the files' own is held against them for good."""
    async with heard(tmp_path, retry_s=0) as it:
        assert (await it.pair(PAIR, error, PAIR))[0] is found
