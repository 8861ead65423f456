"""Writes results to bench/results/, with the machine that they are of."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agent.llama import system_info

RESULTS = Path(__file__).parent / "results"


def about(command: str, load_before: str) -> dict[str, str]:
    """Returns what a reader must know of the circumstances; nothing of where files lie.

    Args:
        command: The command line that gives these results.
        load_before: `load()` from before the measurement.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = len(os.sched_getaffinity(0))
    return {
        "command": command,
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"{processor()}, {cores} processors, {memory:.0f} GiB, {platform.system()} {platform.machine()}",
        "load average": f"before {load_before}, after {load()}",
        "library": f"llama-cpp-python {version('llama-cpp-python')}",
        "llama.cpp": system_info(),
        "spin count": os.environ.get("GOMP_SPINCOUNT", "OpenMP's own"),
    }


def load() -> str:
    """Returns the load averages over 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the processor's model name."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown processor")


def write(
    name: str, heading: dict[str, str], result: dict[str, Any], table: str, folder: Path = RESULTS
) -> None:
    """Writes `folder`/`name`.json and .md, and prints the table."""
    folder.mkdir(exist_ok=True)
    text = json.dumps({**heading, **result}, indent=1) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    lines = [f"{what}: {value}  " for what, value in heading.items()]
    page = "\n".join([f"# {name.capitalize()}", "", *lines, "", table, ""])
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    print(table, flush=True)
