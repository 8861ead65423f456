"""What the decode worker decodes with: llama.cpp, none of which is imported before it is needed."""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from agent.errors import LoadFailed

if TYPE_CHECKING:
    from agent.device import Device
    from agent.filefacts import FileFacts
    from agent.measure import LoadedPair, RunOutcome
    from agent.pairs import PairChoice


class Engine(Protocol):
    """What decodes: `LlamaEngine`, or a stand-in in a test."""

    def choose(self, *, compare: bool = False) -> "PairChoice":
        """Look for a pair; `compare` asks Ollama's server, too, what it has."""

    def surroundings(self) -> dict[str, Any]:
        """Tell what would decode, and whether energy can be read there: `device` and `energy` of a pair event."""

    def make_room(self, *, unload: bool = True) -> None:
        """See to it that a run may begin on this device now; `unload` lets others be asked to leave it."""

    def load(self, choice: "PairChoice") -> "LoadedPair":
        """Load a pair."""

    def run(
        self,
        pair: "LoadedPair",
        request: dict[str, Any],
        *,
        on_progress: Callable[[str, int, int], None],
        should_stop: Callable[[], str | None],
        deadline: float,
    ) -> "RunOutcome":
        """Decode and measure one request."""

    def prove(self, pair: "LoadedPair") -> None:
        """Decode one step."""


class LlamaEngine:
    """Decodes with llama.cpp; nothing of it is imported before it is needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Take the worker's command line."""
        self._options = options
        self._idle: tuple[float, float] | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Meter what the GPU takes while there is nothing to do; on the processor, and before it is known, nothing."""
        self._idle = None
        gpu = None
        if "device" in self.__dict__ and self.device.kind == "gpu":
            from agent.room import gpu_of

            gpu = gpu_of(self.device)
        if gpu is None:
            yield
            return
        from agent.idle import IdleMeter

        with IdleMeter(gpu, {os.getpid()}) as meter:
            yield
        self._idle = meter.watts()

    @cached_property
    def facts(self) -> "FileFacts":
        """What is known of model files."""
        from agent.filefacts import FileFacts

        return FileFacts(self._options.facts)

    @cached_property
    def device(self) -> "Device":
        """What decodes.

        Raises:
            LoadFailed: There is a GPU that cannot be used, or none where one was asked for.
        """
        from agent.device import choose_device

        options = self._options
        return choose_device(options.device, options.gpu, embedded=options.embedded)

    def choose(self, *, compare: bool = False) -> "PairChoice":
        """Look for a pair where the command line says."""
        from agent.pairs import PairPolicy, choose_pair
        from agent.room import memory_bytes

        options = self._options
        unusable = memory = None
        try:
            memory = memory_bytes(self.device)
        except LoadFailed as exc:
            unusable = str(exc)
        choice = choose_pair(
            draft=options.draft,
            target=options.target,
            embedded=options.embedded,
            ollama_models=options.ollama_models,
            policy=PairPolicy(
                pin_draft=options.pin_draft,
                pin_target=options.pin_target,
                forbid=tuple(options.forbid),
                memory_bytes=memory,
                context=options.context,
            ),
            facts=self.facts,
            ollama_url=options.ollama_url if compare else "",
        )
        return replace(choice, found=False, reason=unusable, draft=None, target=None) if unusable else choice

    def surroundings(self) -> dict[str, Any]:
        """Tell what would decode, and whether energy can be read there."""
        from agent.energy import probe, unavailable
        from agent.room import gpu_of

        try:
            device = self.device
        except LoadFailed as exc:
            return {"device": {"kind": None, "reason": str(exc)}}
        if device.kind == "cpu":
            energy = unavailable("ON_CPU", "the pair is decoded on the processor, and the meter is a GPU's")
        else:
            energy = probe(gpu_of(device))
        return {"device": asdict(device), "energy": energy}

    def make_room(self, *, unload: bool = True) -> None:
        """Ask Ollama to unload if the operator says so, and refuse to run beside others if the operator says so."""
        from agent.room import make_room

        options = self._options
        url = options.ollama_url if options.ollama_unload and unload else ""
        make_room(self.device, ollama_url=url, foreign=options.foreign)

    def load(self, choice: "PairChoice") -> "LoadedPair":
        """Load a pair."""
        from agent.measure import load_pair
        from agent.room import free_bytes

        options = self._options
        return load_pair(
            choice,
            n_ctx=options.context,
            threads=options.threads,
            calibrations=options.calibrations,
            device=self.device,
            facts=self.facts,
            free=lambda: free_bytes(self.device),
        )

    def run(
        self,
        pair: "LoadedPair",
        request: dict[str, Any],
        *,
        on_progress: Callable[[str, int, int], None],
        should_stop: Callable[[], str | None],
        deadline: float,
    ) -> "RunOutcome":
        """Decode and measure one request."""
        from agent.measure import run

        return run(
            pair,
            request,
            on_progress=on_progress,
            should_stop=should_stop,
            deadline=deadline,
            idle=self._idle,
        )

    def prove(self, pair: "LoadedPair") -> None:
        """Decode one step."""
        from agent.measure import prove

        prove(pair)
