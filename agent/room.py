"""The room a pair has where it is decoded: memory in all and free, and who else is there."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from agent.device import Device
from agent.errors import GpuBusy
from agent.nvml import NvmlError
from agent.preflight import RESERVE, free_memory

if TYPE_CHECKING:
    from agent.gpu import Gpu

UNLOAD_PATIENCE_S = 15.0
"""How long Ollama may take to let go of its models once asked."""

_LOOK_S = 0.2

log = logging.getLogger(__name__)


def gpu_of(device: Device) -> Gpu | None:
    """Returns the GPU that decodes, as NVML knows it; None on the processor or where NVML does not tell."""
    from agent.gpu import find_gpu

    return find_gpu(device.uuid).gpu if device.uuid else None


def memory_bytes(device: Device) -> int | None:
    """Returns the bytes a pair may take at most when nothing else is there; None if nobody says."""
    if device.kind == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - RESERVE
    gpu = gpu_of(device)
    return None if gpu is None else gpu.memory_total - RESERVE


def free_bytes(device: Device) -> int | None:
    """Returns the bytes that are free for a pair now; None if nobody says."""
    if device.kind == "cpu":
        return free_memory()
    gpu = gpu_of(device)
    return None if gpu is None else gpu.memory_free()


def make_room(device: Device, *, ollama_url: str = "", foreign: str = "mark") -> None:
    """Sees to it that a run may begin: Ollama's models go if they are to, and nobody else computes if nobody may.

    Args:
        device: What decodes.
        ollama_url: The Ollama server to ask to unload its models; empty to ask nobody.
        foreign: "refuse" to run only where no other program computes on the GPU; "mark" leaves that to the verdict.

    Raises:
        GpuBusy: If another program computes there.
    """
    if ollama_url:
        _unload(ollama_url)
    if foreign == "refuse" and (gpu := gpu_of(device)) is not None:
        try:
            others = len(gpu.device.compute_pids() - {os.getpid()})
        except NvmlError as failure:
            raise GpuBusy(f"nobody can tell who else computes on the GPU: {failure.cause}") from None
        if others:
            raise GpuBusy(
                f"{others} other {'program computes' if others == 1 else 'programs compute'} on the GPU"
            )


def _unload(url: str) -> None:
    """Asks Ollama to unload what it holds, and waits a while until it has; that it does not answer is no fault."""
    from agent.ollama.api import Ollama

    with Ollama(url) as ollama:
        until = time.monotonic() + UNLOAD_PATIENCE_S
        names = [model.name for model in ollama.ps().models]
        for name in names:
            if time.monotonic() < until:
                ollama.unload(name)
        while names and ollama.ps().models and time.monotonic() < until:
            time.sleep(_LOOK_S)
    if names:
        log.info("ollama was asked to unload", extra={"data": {"models": len(names)}})
