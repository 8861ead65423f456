"""What the agent can do now, told without making anyone wait for it."""

import asyncio
import logging
import math
from dataclasses import dataclass

from pydantic import ValidationError

from agent import __version__
from agent.errors import AgentError, LoadFailed
from agent.pairs import ModelFile
from agent.pipe import PairEvent
from agent.runs import ENERGY, RunManager
from agent.supervisor import Supervisor
from shared.schemas import ModelListing, Pair
from shared.wire import CapabilityFrame

log = logging.getLogger(__name__)

TTL_S = 10.0
"""How long an answer about the pair is taken to be current."""

PATIENCE_S = 1.0
"""How long a probe waits for a new answer before it gets the old one."""

RETRY_S = 300.0
"""How long a pair that could not be loaded is held unfit, unless its files are to blame: then until they change."""

MAX_MODELS = 500
"""As many models as a capability frame may list."""


@dataclass(frozen=True)
class _Unfit:
    """A pair that could not be loaded: its files with their versions, why, and until when that is believed."""

    files: tuple[ModelFile | None, ModelFile | None]
    reason: str
    until: float


class CapabilityWatch:
    """Keeps the last answer about the pair, and has it refreshed when it is old and the worker is idle."""

    def __init__(
        self, supervisor: Supervisor, runs: RunManager, *, ttl_s: float = TTL_S, retry_s: float = RETRY_S
    ) -> None:
        """Take over what the supervisor hears about the pair and how loading it went."""
        self._supervisor = supervisor
        self._runs = runs
        self._ttl_s = ttl_s
        self._retry_s = retry_s
        self._heard: PairEvent | None = None
        self._unfit: _Unfit | None = None
        self._pair: Pair | None = None
        self._models: list[ModelListing] = []
        self._at = 0.0
        self._refresh: asyncio.Task[None] | None = None
        supervisor.on_pair = self._hear
        supervisor.on_load = self._hear_of_load

    async def frame(self, patience_s: float = PATIENCE_S) -> CapabilityFrame:
        """Return what the agent can do, after at most `patience_s` seconds."""
        fresh = self._pair is not None and asyncio.get_running_loop().time() - self._at <= self._ttl_s
        if not fresh:
            if self._refresh is None and not self._supervisor.busy:
                self._refresh = asyncio.create_task(self._look())
            if self._refresh is not None:
                await asyncio.wait({self._refresh}, timeout=patience_s)
        return CapabilityFrame(
            agent_version=__version__,
            same_family_pair=self._pair or Pair(found=False, reason="the agent is still looking for a pair"),
            models=self._models,
            queue=self._runs.queue(),
            energy=ENERGY,
        )

    async def close(self) -> None:
        """Stop looking."""
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait({self._refresh})

    async def _look(self) -> None:
        try:
            await self._supervisor.pair()
        except AgentError as exc:
            self._keep(Pair(found=False, reason=f"looking for a pair failed: {exc.cause}"), [])
        finally:
            self._refresh = None

    def _hear_of_load(self, error: AgentError | None) -> None:
        if self._heard is None or (error is None and self._unfit is None):
            return
        self._unfit = None
        if error is not None:
            now = asyncio.get_running_loop().time()
            until = math.inf if error.code == LoadFailed.code else now + self._retry_s
            self._unfit = _Unfit(_files(self._heard), f"the pair could not be loaded: {error.cause}", until)
        self._hear(self._heard)

    def _hear(self, event: PairEvent) -> None:
        self._heard = event
        unfit = self._unfit
        if unfit and (unfit.files != _files(event) or asyncio.get_running_loop().time() >= unfit.until):
            self._unfit = unfit = None
        try:
            self._keep(
                Pair(
                    found=event.found and unfit is None,
                    reason=unfit.reason if unfit else event.reason,
                    draft=event.draft.name if event.draft else None,
                    target=event.target.name if event.target else None,
                    family=event.family,
                ),
                [ModelListing.model_validate(model) for model in event.models[:MAX_MODELS]],
            )
        except ValidationError:
            log.error("the worker's answer about the pair is not valid")
            self._keep(Pair(found=False, reason="the decode worker's answer about the pair is not valid"), [])

    def _keep(self, pair: Pair, models: list[ModelListing]) -> None:
        if self._pair is None or pair.reason != self._pair.reason:
            log.info("pair", extra={"data": {"found": pair.found, "reason": pair.reason}})
        self._pair, self._models = pair, models
        self._at = asyncio.get_running_loop().time()


def _files(event: PairEvent) -> tuple[ModelFile | None, ModelFile | None]:
    return event.draft, event.target
