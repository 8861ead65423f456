"""A stand-in for NVIDIA's NVML library, built from C, that replays a scenario under the real pynvml.

A process of its own loads it by name, as pynvml always does, with `LD_LIBRARY_PATH` (`Stub.environ`). Tests in this
process hand it to pynvml instead (`Stub.here`). A scenario may be changed while it is replayed.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.agent.nvml_stub.scenario import Value, energy, write
from tests.agent.support import PATIENCE, ROOT

SOURCE = Path(__file__).with_name("nvml_stub.c")
NAME = "libnvidia-ml.so.1"


@functools.cache
def library(without: tuple[str, ...] = ()) -> Path:
    """Build the library, once per process and variant; `without` are functions that it shall not have."""
    folder = Path(tempfile.mkdtemp(prefix="nvml-stub-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    hidden = "".join(f"{name}; " for name in without)
    (folder / "symbols").write_text(f"{{ global: nvml*; local: {hidden}*; }};")
    command = ["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{NAME}"]
    command += [f"-Wl,--version-script={folder / 'symbols'}", "-o", str(folder / NAME), str(SOURCE), "-lm"]
    subprocess.run([*command, "-lpthread"], check=True)
    return folder / NAME


class Stub:
    """The library and a scenario."""

    def __init__(self, folder: Path, *, without: tuple[str, ...] = (), **keys: Value) -> None:
        """Keep the scenario in a folder of the test's own; see the C source for its keys."""
        self.library = library(without)
        self.scenario = folder / "nvml-scenario"
        self.keys: dict[str, Value] = {}
        self.set(keys)

    def set(self, keys: dict[str, Value] | None = None, **more: Value) -> None:
        """Change the scenario; who replays it sees the old one or the new."""
        self.keys |= {**(keys or {}), **more}
        write(self.scenario, self.keys)

    def here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have pynvml use it in this process, until the test is over."""
        monkeypatch.setenv("NVML_STUB_SCENARIO", str(self.scenario))
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(self.library)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def environ(self) -> dict[str, str]:
        """Return the environment of a process in which the library is found by its name."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library.parent),
            "NVML_STUB_SCENARIO": str(self.scenario),
        }

    def meter(self, **task: Any) -> dict[str, Any]:
        """Measure energy in a process of its own, and return what it reports (`nvml_stub.child`)."""
        return run_child(self.environ(), **task)

    def joules(self, began: float, ended: float) -> float:
        """Return the energy that the scenario has used between two moments of the monotonic clock."""
        return energy(self.keys, ended) - energy(self.keys, began)


def run_child(environ: dict[str, str], **task: Any) -> dict[str, Any]:
    """Run `nvml_stub.child` on a task; it reports in JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.agent.nvml_stub.child", json.dumps(task)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report
