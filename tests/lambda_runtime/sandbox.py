"""The artifact as Lambda runs it: its Python, its bootstrap, its environment, and nothing of this machine's."""

from __future__ import annotations

import os
import platform
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.canonical import sha256_hex
from tests.edge.support import SCALE
from tests.lambda_runtime.runtime_api import ARN, Outcome, RuntimeApi
from tools import build

RUNTIME = Path(sys.prefix) / f"lambda{build.PYTHON.replace('.', '')}"
"""What stands in for Lambda's /var/runtime: the runtime interface client alone. `tools/setup.sh` puts it there."""

LAYER = Path(__file__).with_name("layer")
"""What stands in for a layer's /opt/python: handlers that only tests need."""

_WHEELS = Path(sys.prefix) / f"lambda-wheels-{sha256_hex((build.ROOT / build.LOCK).read_bytes())[:16]}"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(_WHEELS)} if _WHEELS.is_dir() else {}
"""What makes pip take the locked wheels that `tools/setup.sh` fetched; nothing, if the lock has changed since."""

ARCH = {"x86_64": "x86_64", "aarch64": "arm64"}.get(platform.machine(), "x86_64")
"""This machine's, in Lambda's words."""

CREDENTIALS = {
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
}

PATIENCE_S = 60 * SCALE


def lambda_python() -> str:
    """Returns the Python that Lambda runs the artifact with; a test that needs it fails without."""
    name = f"python{build.PYTHON}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*sorted(map(str, pyenv.glob(f"{build.PYTHON}.*/bin/{name}"))), shutil.which(name)]
    for one in filter(None, reversed(found)):
        if subprocess.run([one, "-c", ""], check=False, capture_output=True).returncode == 0:
            return one
    pytest.fail(
        f"{name}, which Lambda runs the artifact with, is not installed: put it on PATH or into pyenv"
    )


@dataclass(frozen=True)
class Sandbox:
    """One running instance of the function."""

    process: subprocess.Popen[bytes]
    api: RuntimeApi
    output: Path

    def send(self, event: Any) -> Outcome:
        """Invokes the function and returns what became of it."""
        request_id = self.api.push(event)
        outcome = self.outcome()
        assert outcome.about in ("response", "error"), (outcome, self.said)
        assert outcome.request_id == request_id
        return outcome

    def answer(self, event: Any) -> dict[str, Any]:
        """Invokes the function and returns its answer, in payload format 2.0."""
        outcome = self.send(event)
        assert outcome.about == "response", outcome.value
        answer: dict[str, Any] = outcome.value
        return answer

    def outcome(self) -> Outcome:
        """Waits for the next word of the function."""
        try:
            return self.api.outcomes.get(timeout=PATIENCE_S)
        except queue.Empty:
            pytest.fail(f"the function does not answer: {self.said}")

    @property
    def said(self) -> list[str]:
        """The lines that it has printed, whole once an invocation is over."""
        return self.output.read_text("utf-8").splitlines()


@contextmanager
def sandbox(
    artifact: Path,
    scratch: Path,
    *,
    handler: str = "edge.app.lambda_handler",
    path: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Sandbox]:
    """Starts the function; the process is gone when the block ends.

    Args:
        artifact: The unpacked artifact.
        scratch: Folder for what it prints.
        handler: The function's handler.
        path: What is importable beside the artifact, the runtime and the standard library.
        environ: The function's variables.
    """
    if not (RUNTIME / "awslambdaric").is_dir():
        pytest.fail("awslambdaric is missing: run `make setup`, on Linux")
    output = scratch / "stdout.txt"
    with RuntimeApi() as api, output.open("wb") as stream:
        # -S: nothing that is installed for this Python is importable, as nothing is on Lambda.
        process = subprocess.Popen(
            [lambda_python(), "-S", "-m", "awslambdaric", handler],
            cwd=artifact,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**_environment(artifact, api, handler, path), **(environ or {})},
        )

        def watch() -> None:
            process.wait()
            api.outcomes.put(Outcome("exit", value=process.returncode))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield Sandbox(process, api, output)
        finally:
            process.kill()
            watcher.join()


def _environment(artifact: Path, api: RuntimeApi, handler: str, path: Sequence[Path]) -> dict[str, str]:
    """What Lambda sets (developer guide, "Defined runtime environment variables"), and nothing of this machine's."""
    return {
        "_HANDLER": handler,
        "AWS_LAMBDA_RUNTIME_API": api.address,
        "LAMBDA_TASK_ROOT": str(artifact),
        "LAMBDA_RUNTIME_DIR": str(RUNTIME),
        "AWS_EXECUTION_ENV": f"AWS_Lambda_python{build.PYTHON}",
        "AWS_LAMBDA_FUNCTION_NAME": ARN.rpartition(":")[2],
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/specdec-edge",
        "AWS_LAMBDA_LOG_STREAM_NAME": "2026/11/30/[$LATEST]0123456789abcdef0123456789abcdef",
        **CREDENTIALS,
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        "PATH": "/var/lang/bin:/usr/local/bin:/usr/bin/:/bin:/opt/bin",
        "PYTHONPATH": os.pathsep.join(map(str, (*path, RUNTIME))),
        # Lambda's disk is read-only; compiled files go elsewhere, and are shared by all instances.
        "PYTHONPYCACHEPREFIX": str(artifact.with_name("pycache")),
    }
