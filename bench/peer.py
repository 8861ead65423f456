"""llama.cpp's own server, built from the sources that our llama-cpp-python was built from, running on our libraries.

The server's executable is compiled with the same compiler and flags, and then started with llama-cpp-python's own
libllama and libggml in front of its own: both sides execute the same kernels from the same files. That is checked in
/proc/PID/maps; where it does not hold there is no ratio.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import httpx
import llama_cpp

from bench.models import CACHE

LIBRARIES = Path(llama_cpp.__file__).parent / "lib"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "ON",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
START_S = 60.0
_started: list[subprocess.Popen[bytes]] = []


class PeerError(RuntimeError):
    """The server cannot be built, started, or compared with."""


def server_binary(root: Path | None = None) -> Path:
    """Returns the server's executable, built the first time (ten minutes on two cores).

    Args:
        root: Where builds are kept; by default the user's cache.

    Raises:
        PeerError: If it cannot be built.
    """
    release = version("llama-cpp-python")
    folder = (root or CACHE / "peer") / release
    binary = folder / "build" / "bin" / "llama-server"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _build(folder, release)
        except (OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
            raise PeerError(f"llama.cpp's server could not be built: {error}") from error
    return binary


def download_command(folder: Path, release: str) -> list[str]:
    """Returns pip's command line that fetches the sources of llama-cpp-python, llama.cpp's among them."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    return [*pip, "--no-binary", "llama-cpp-python", "-d", str(folder), f"llama-cpp-python=={release}"]


def configure_command(sources: Path, build: Path) -> list[str]:
    """Returns CMake's command line that configures a build."""
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    return ["cmake", "-S", str(sources), "-B", str(build), *options]


def build_command(build: Path) -> list[str]:
    """Returns CMake's command line that builds the server and no more."""
    return ["cmake", "--build", str(build), "--target", "llama-server", "-j", str(os.cpu_count() or 1)]


def _build(folder: Path, release: str) -> None:
    subprocess.run(download_command(folder, release), check=True)
    archive = folder / f"llama_cpp_python-{release}.tar.gz"
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    sources = folder / f"llama_cpp_python-{release}" / "vendor" / "llama.cpp"
    subprocess.run(configure_command(sources, folder / "build"), check=True)
    subprocess.run(build_command(folder / "build"), check=True)
    archive.unlink()


def server_command(
    binary: Path, port: int, target: Path, threads: int, context: int, draft: Path | None, k: int
) -> list[str]:
    """Returns the server's command line: one slot, and a draft of exactly k tokens if there is one."""
    command = [str(binary), "-m", str(target), "--host", "127.0.0.1", "--port", str(port), "-c", str(context)]
    command += ["-np", "1", "-t", str(threads), "-tb", str(threads), "--no-cache-prompt", "--cache-ram", "0"]
    if draft is not None:
        command += ["-md", str(draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(k)]
        command += ["-td", str(threads), "-tbd", str(threads)]
    return command


@dataclass
class Server:
    """A running server."""

    url: str
    pid: int

    def complete(self, prompt: str, count: int) -> dict[str, Any]:
        """Decodes `count` tokens greedily and returns the server's answer.

        Of its samplers it is asked for one alone: greedy tokens are the same, and it has less to do for each.
        """
        body = {
            "prompt": prompt,
            "n_predict": count,
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": False,
            "return_tokens": True,
            "ignore_eos": True,
        }
        answer = httpx.post(f"{self.url}/completion", json=body, timeout=600)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    @property
    def peak_memory_mb(self) -> float:
        """The process's largest resident set so far, in megabytes."""
        return peak_memory_mb(self.pid)


def system_info(binary: Path) -> str:
    """Returns what the server says of its build and processor; it says so on its way to a model that is not there."""
    command = [str(binary), "-lv", "10", "-m", os.devnull]
    environ = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=START_S, check=False)
    said = next((line for line in (done.stdout + done.stderr).splitlines() if "system_info" in line), "")
    return said.partition("|")[2].strip().strip("|").strip() or "not told"


def peak_memory_mb(pid: int) -> float:
    """Returns a process's VmHWM in megabytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM"))) / 1024


@contextmanager
def running(
    binary: Path, target: Path, *, threads: int, context: int, draft: Path | None = None, k: int = 0
) -> Iterator[Server]:
    """Runs a server until the block ends.

    Raises:
        PeerError: If it does not start, or does not execute our libraries.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = server_command(binary, port, target, threads, context, draft, k)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)
        _started.append(process)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process, log)
            foreign = foreign_libraries(Path(f"/proc/{process.pid}/maps").read_text())
            if foreign:
                raise PeerError(f"the server does not run on our libraries but on {', '.join(foreign)}")
            yield Server(url, process.pid)
        finally:
            process.kill()
            process.wait()
            _started.remove(process)


def leave(*_: Any) -> NoReturn:
    """Ends every server and this process; for SIGTERM, which may come where an exception would be swallowed."""
    for process in _started:
        process.kill()
        process.wait()
    os._exit(143)


def foreign_libraries(maps: str, ours: Path = LIBRARIES) -> list[str]:
    """Returns libllama and libggml files in a process's memory map that are not those of llama-cpp-python."""
    files = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    kernels = {f for f in files if Path(f).name.startswith(("libggml", "libllama.so"))}
    if not kernels:
        return ["no library at all"]
    return sorted(f for f in kernels if Path(f).parent != ours.resolve())


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health", timeout=1).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    tail = log.read_text(errors="replace")[-500:]
    raise PeerError(f"the server did not start: {tail}")
