"""Asks before a pair is loaded whether it fits: by llama.cpp's own estimate, against what is free now.

A second model that does not fit fails late and badly: at the first long prompt, or by pushing everything else on the
machine into swap. llama.cpp itself tells what it will take: a model opened with `no_alloc` goes through all of
loading and through the making of a context, and allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.errors import OutOfMemory
from agent.llama import dry_load

RESERVE = 512 * 1024**2
"""Bytes to leave: what a CUDA context takes by itself, and room for buffers that grow."""

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Need:
    """Bytes a model takes: its weights, its cache at a context length, and llama.cpp's work buffers."""

    weights: int
    cache: int
    compute: int

    @property
    def total(self) -> int:
        """All three, bytes."""
        return self.weights + self.cache + self.compute


def needed(path: Path, name: str, *, capacity: int, gpu_layers: int) -> Need:
    """Returns what llama.cpp says a model and a context of `capacity` tokens take.

    Raises:
        LoadFailed: If llama.cpp refuses the file.
    """
    return Need(*dry_load(path, name, capacity=capacity, gpu_layers=gpu_layers))


def free_memory() -> int | None:
    """Returns the bytes of main memory this process can have without swapping; None if the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    limit = _cgroup_room()
    return free if limit is None else min(free, limit)


def _cgroup_room() -> int | None:
    """Returns what the control group still allows, its reclaimable file cache included."""
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
        own = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
        group = _CGROUPS / own.lstrip("/")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(stat["inactive_file"]))
    except (OSError, KeyError, ValueError, StopIteration):
        return None


def check_room(needs: list[tuple[str, Need]], free: int | None, where: str) -> None:
    """Refuses models that do not fit together.

    Args:
        needs: Each model's name and need.
        free: Bytes that are free; None where nobody says, and nothing is refused.
        where: What is free there, for the error: "GPU memory", "memory".

    Raises:
        OutOfMemory: If they need more than is free.
    """
    total = sum(need.total for _, need in needs) + RESERVE
    if free is not None and total > free:
        parts = ", ".join(f"{name} {_mib(need.total)}" for name, need in needs)
        raise OutOfMemory(f"the pair needs {_mib(total)} of {where} ({parts}) and {_mib(free)} is free")


def _mib(size: int) -> str:
    return f"{size / 1024**2:,.0f} MiB"
