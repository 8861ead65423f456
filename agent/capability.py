"""What the agent can do now: watches for a pair that comes or goes, and tells it without making anyone wait.

The store is looked at every few seconds, cheaply and without llama.cpp (`picture`). Only when something has changed
is a pair looked for anew, in a short-lived process of its own (the scout): it goes on while a run is decoded, and a
file on which llama.cpp dies costs no run.
"""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from agent import __version__
from agent.background import in_background
from agent.errors import AgentError
from agent.pairs import ModelFile
from agent.pipe import PairEvent
from agent.runs import RunManager
from agent.supervisor import GENTLE_CODES, Supervisor
from agent.threads import in_thread
from shared.labels import UNAVAILABLE
from shared.schemas import Energy, EnergyUnavailable, ModelListing, Pair, QueueState
from shared.wire import CapabilityFrame, encode

log = logging.getLogger(__name__)

LOOK_S = 3.0
"""How often the store is looked at: what is asked for is ten seconds from a change to its being told."""

PICTURE_S = 10.0
"""A store that takes longer to look at does not answer, as on a network drive whose server is gone."""

REST = 10
"""After each picture the watch rests for so many times what it took: a large store must not cost all the time."""

AFTER_FAILURE = 3
"""After a look that failed so many others are left out."""

AGAIN_S = 300.0
"""A pair is looked for this often even if the store is as it was: a GPU or its meter may have come or gone."""

PATIENCE_S = 1.0
"""How long a probe waits for the first answer."""

RETRY_S = 300.0
"""How long a pair that could not be loaded is held unfit, unless its files change; memory may be free again later."""

LATELY_S = 3600.0
"""How long a decoded step proves that the pair decodes."""

PROVE_AGAIN_S = 60.0
"""A proof that failed is not tried again before."""

MAX_MODELS, MAX_MODELS_BYTES = 500, 128 * 1024
"""As many models as a capability frame may list, and as much of it as they may take."""

_NOTHING = object()
_NOT_LOOKED = Pair(found=False, reason="the agent is still looking for a pair")
_NOT_READ = EnergyUnavailable(
    label=UNAVAILABLE, code="NOT_READ", reason="the meter has not been looked for yet"
)
_ENERGY: TypeAdapter[Energy] = TypeAdapter(Energy)


@dataclass(frozen=True)
class _Unfit:
    """A pair that could not be loaded: its files with their versions, why, and until when that is believed."""

    files: tuple[ModelFile | None, ModelFile | None]
    reason: str
    until: float


@dataclass(frozen=True)
class _Told:
    """What the last look has found, in the protocol's terms."""

    files: tuple[ModelFile | None, ModelFile | None]
    pair: Pair
    models: list[ModelListing]
    event: PairEvent
    energy: Energy = _NOT_READ


class CapabilityWatch:
    """Knows the pair there is, and whether it decodes."""

    def __init__(
        self,
        supervisor: Supervisor,
        runs: RunManager,
        *,
        scout: Supervisor | None = None,
        picture: Callable[[], Hashable] = lambda: None,
        look_s: float = LOOK_S,
        again_s: float = AGAIN_S,
        retry_s: float = RETRY_S,
    ) -> None:
        """Take over what both supervisors hear about the pair and how loading it went; `start` begins to look.

        Args:
            supervisor: Decodes.
            runs: Tells how busy it is.
            scout: Looks for a pair; None leaves that to `supervisor`.
            picture: Returns something that changes when the models at hand do; called in a thread.
            look_s: Seconds between two pictures.
            again_s: Seconds after which a pair is looked for whatever the picture.
            retry_s: Seconds for which a pair that could not be loaded is held unfit.
        """
        self._supervisor = supervisor
        self._runs = runs
        self._scout = scout or supervisor
        self._picture = picture
        self._look_s = look_s
        self._again_s = again_s
        self._retry_s = retry_s
        self._told: _Told | None = None
        self._unfit: _Unfit | None = None
        self._trouble: str | None = None
        self._seen: Hashable = None
        self._taking: asyncio.Future[Hashable] | None = None
        self._first = asyncio.Event()
        self._closed = False
        self._watching: asyncio.Task[None] | None = None
        self._proving: asyncio.Task[None] | None = None
        self._proof: tuple[float, str | None] | None = None
        self._pair_since = -math.inf
        self._framed: tuple[object, CapabilityFrame] | None = None
        self._encoded: tuple[CapabilityFrame, str] | None = None
        for one in {supervisor, self._scout}:
            one.on_pair = self._hear
        supervisor.on_load = self._hear_of_load

    @property
    def alive(self) -> bool:
        """Whether it looks, if it was begun."""
        return self._watching is None or not self._watching.done()

    def start(self) -> None:
        """Begin to look."""
        self._watching = in_background(self._watch(), "the watch over models")

    async def frame(self, patience_s: float = PATIENCE_S) -> CapabilityFrame:
        """Return what the agent can do, after at most `patience_s` seconds."""
        if not self._first.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._first.wait()
        told, current = self._told, self._told if not self._trouble else None
        holds = (told, current, self._pair(), self._runs.queue())
        if self._framed is None or self._framed[0] != holds:
            self._framed = holds, _frame(*holds)
        return self._framed[1]

    async def encoded(self) -> str:
        """Return that as it is sent: probes come often, and what they are told changes seldom."""
        frame = await self.frame()
        if self._encoded is None or self._encoded[0] is not frame:
            self._encoded = frame, encode(frame)
        return self._encoded[1]

    def ready(self, *, prove: bool = True) -> tuple[bool, str]:
        """Tell whether runs are decoded, with the reason: there is a pair, and it decodes now or has done so lately.

        Where that was longer ago, one step is decoded to find out, and until then the answer is no; with `prove` false
        that is left for somebody else to ask for.
        """
        pair = self._pair()
        if not self.alive:
            return False, "models are no longer watched; see the log"
        if not pair.found:
            return False, pair.reason
        if not self._runs.remembers():
            return False, self._runs.store_trouble
        if self._runs.decoding:
            return True, "a run is being decoded"
        now = asyncio.get_running_loop().time()
        decoded, failed = self._supervisor.last_decode_at, self._supervisor.last_failure_at
        since = max(self._pair_since, now - LATELY_S, -math.inf if failed is None else failed)
        if decoded is not None and decoded >= since:
            return True, "the pair has decoded lately"
        if self._proof is not None and now - self._proof[0] <= PROVE_AGAIN_S and self._proof[1]:
            return False, f"the pair does not decode: {self._proof[1]}"
        if not prove:
            return False, "the pair has not decoded lately"
        if self._proving is None and not self._closed:
            self._proving = asyncio.create_task(self._prove())
        return False, "the pair is being tried"

    async def close(self) -> None:
        """Stop looking."""
        self._closed = True
        tasks = {task for task in (self._watching, self._proving) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._scout is not self._supervisor:
            await self._scout.close()

    async def _watch(self) -> None:
        now = asyncio.get_running_loop().time
        next_at = not_before = -math.inf
        while True:
            began = now()
            picture = await self._take_picture()
            cost = now() - began
            # Unless something has changed, looking can wait for the run that it would disturb.
            due = picture != self._seen or (now() >= next_at and not self._supervisor.busy)
            # A scout sent to a store that does not answer would hang there, perhaps for good.
            if due and picture is not _NOTHING and now() >= not_before:
                if await self._look():
                    self._seen, next_at = picture, now() + self._again_s
                else:
                    not_before = now() + AFTER_FAILURE * self._look_s
            await asyncio.sleep(max(self._look_s, REST * cost))

    async def _take_picture(self) -> Hashable:
        """Returns the picture; a store that does not answer is told of, and waited for without holding anything up."""
        try:
            if self._taking is None:
                self._taking = in_thread(self._picture)
            async with asyncio.timeout(PICTURE_S):
                picture = await asyncio.shield(self._taking)
        except TimeoutError:
            if self._taking is not None and not self._taking.done():
                self._note_trouble("the store of models does not answer")
                self._first.set()
                # Whatever it shows once it answers is something new.
                self._seen = _NOTHING
                return self._seen
            picture = None
        except Exception:
            log.exception("the store cannot be looked at")
            picture = None
        self._taking = None
        return picture

    async def _look(self) -> bool:
        """Have a pair looked for; return whether that could be done."""
        try:
            await self._scout.pair()
            if self._scout is not self._supervisor:
                await self._scout.close()
        except AgentError as exc:
            self._note_trouble(f"looking for a pair failed: {exc.cause}")
            return False
        except Exception:
            log.exception("unexpected error")
            self._note_trouble("looking for a pair failed")
            return False
        finally:
            self._first.set()
        return True

    async def _prove(self) -> None:
        trouble: str | None = None
        try:
            await self._supervisor.prove()
            self._hear_of_load(None)
        except AgentError as exc:
            trouble = exc.cause
            log.warning("the pair does not decode", extra={"data": {"code": exc.code, "cause": exc.cause}})
            if exc.code not in GENTLE_CODES:
                self._hear_of_load(exc)
        finally:
            self._proof = asyncio.get_running_loop().time(), trouble
            self._proving = None

    def _pair(self) -> Pair:
        """Return the pair as it is to be told now."""
        if self._trouble is not None:
            return Pair(found=False, reason=self._trouble)
        if self._told is None:
            return _NOT_LOOKED
        unfit = self._unfit
        if unfit and (unfit.files != self._told.files or asyncio.get_running_loop().time() >= unfit.until):
            self._unfit = unfit = None
        pair = self._told.pair
        return pair.model_copy(update={"found": False, "reason": unfit.reason}) if unfit else pair

    def _hear_of_load(self, error: AgentError | None) -> None:
        if self._told is None:
            return
        self._unfit = None
        if error is not None:
            until = asyncio.get_running_loop().time() + self._retry_s
            self._unfit = _Unfit(self._told.files, f"the pair could not be loaded: {error.cause}", until)
            log.info("pair", extra={"data": {"found": False, "reason": self._unfit.reason}})

    def _hear(self, event: PairEvent) -> None:
        before = self._told
        if before is not None and self._trouble is None and event.ollama is None:
            # The decoder, which does not ask Ollama, has found what the scout has: that is the fuller answer.
            same = (event.found, event.reason, event.draft, event.target)
            if same == (before.event.found, before.event.reason, *before.files):
                return
        try:
            told = _Told(
                files=(event.draft, event.target),
                pair=Pair(
                    found=event.found,
                    reason=event.reason,
                    draft=event.draft.name if event.draft else None,
                    target=event.target.name if event.target else None,
                    family=event.family,
                ),
                models=_fitting([ModelListing.model_validate(model) for model in event.models[:MAX_MODELS]]),
                event=event,
                energy=_NOT_READ if event.energy is None else _ENERGY.validate_python(event.energy),
            )
        except ValidationError:
            log.error("the worker's answer about the pair is not valid")
            self._note_trouble("the decode worker's answer about the pair is not valid")
            return
        if self._told is None or told.pair != self._told.pair or self._trouble:
            log.info("pair", extra={"data": {"found": told.pair.found, "reason": told.pair.reason}})
        if self._told is None or told.files != self._told.files:
            self._proof, self._pair_since = None, asyncio.get_running_loop().time()
        self._told, self._trouble = told, None

    def _note_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("pair", extra={"data": {"found": False, "reason": trouble}})
        self._trouble = trouble


def _frame(told: _Told | None, current: _Told | None, pair: Pair, queue: QueueState) -> CapabilityFrame:
    """Returns what is told; `current` is `told`, or nothing while there is trouble."""
    frame = CapabilityFrame(
        agent_version=__version__,
        same_family_pair=pair,
        models=current.models if current else [],
        queue=queue,
        energy=told.energy if told else _NOT_READ,
    )
    more = current.event.model_dump(include={"device", "ranked", "ollama"}) if current else {}
    return frame.model_copy(update={name: value for name, value in more.items() if value})


def _fitting(models: list[ModelListing]) -> list[ModelListing]:
    """Returns the first models that fit a frame; those that can be used come first."""
    sizes = itertools.accumulate(len(model.model_dump_json().encode()) for model in models)
    return [model for model, size in zip(models, sizes, strict=True) if size <= MAX_MODELS_BYTES]
