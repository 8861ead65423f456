"""Starts an agent and a local edge on this machine, as a user would, and stops both."""

from __future__ import annotations

import fcntl
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.attest import PUBLIC

PATIENCE_S = 60 * float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))
"""Seconds a process may take until it listens, and until it has stopped."""


@dataclass(frozen=True)
class Stack:
    """A running agent and edge: where they listen, and their processes."""

    edge_url: str
    tower_url: str
    agent: subprocess.Popen[str]
    edge: subprocess.Popen[str]


@contextmanager
def running(
    state: Path,
    *,
    agent: Sequence[str] = ("--embedded",),
    edge: Sequence[str] = (),
    port: int = 0,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Stack]:
    """Runs both for the length of the block.

    Args:
        state: Folder for the run store, the token, both keys, the receipts, and the processes' logs.
        agent: Further arguments of `python -m agent`.
        edge: Further arguments of `python -m edge`.
        port: The edge's port; 0 picks a free one.
        environ: Further environment variables of both.

    Raises:
        RuntimeError: If one of them does not start; its last words are in the message.
    """
    token = state / "token"
    both = {**os.environ, **(environ or {})}
    tower_arguments = ["--port", "0", "--state", str(state), "--token-file", str(token), *agent]
    with ExitStack() as stack:
        stack.enter_context(_alone(state))
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(32))
        tower, tower_url = stack.enter_context(listening("agent", tower_arguments, state, both))
        edge_arguments = ["--port", str(port), "--tower-url", tower_url, "--token-file", str(token)]
        edge_arguments += [
            "--tower-public-key",
            str(state / PUBLIC),
            "--signing-key-file",
            str(state / "edge-key.pem"),
        ]
        edge_arguments += ["--receipts-dir", str(state / "receipts"), *edge]
        server, edge_url = stack.enter_context(listening("edge", edge_arguments, state, both))
        yield Stack(edge_url, tower_url, tower, server)


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Keeps a second stack out of the folder: its new token would lock the first one's edge out of its agent.

    Raises:
        RuntimeError: If there is one.
    """
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another one is running with the folder {state}: use that, or stop it with Ctrl-C first"
            ) from None
        yield


def leave_on_sigterm() -> None:
    """Lets SIGTERM, a caller's timeout for instance, end this process by its `finally`s: nothing is left running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def listening(
    module: str, arguments: Sequence[str], state: Path, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs `python -m module` until the block ends; yields it and the address that it says it listens on."""
    log = state / f"{module}.log"
    before = log.stat().st_size if log.exists() else 0
    with log.open("a") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            env=environ,
        )
    try:
        yield process, _address(module, process, log, before)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def _address(module: str, process: subprocess.Popen[str], log: Path, before: int) -> str:
    if process.stdout is None:
        raise RuntimeError("its output cannot be read")
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        end = time.monotonic() + PATIENCE_S
        while selector.select(max(0.0, end - time.monotonic())):
            line = process.stdout.readline()
            if not line:
                break
            if " listening on " in line:
                return line.split()[-1]
    said = log.read_bytes()[before:].decode(errors="replace").splitlines()
    raise RuntimeError(f"the {module} did not start: {said[-1] if said else f'see {log}'}")
