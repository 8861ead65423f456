"""What the agent's tests share: scaled timeouts, frames, clients, agents in this process and in another."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from agent.capability import CapabilityWatch
from agent.http_endpoints import Endpoints
from agent.metrics import Metrics
from agent.runs import RunManager
from agent.server import AgentServer, Traffic
from agent.store import Store
from agent.supervisor import Supervisor
from agent.tokens import TokenStore
from shared.runid import RunKeys, prompt_commitment
from shared.schemas import RunRequest
from shared.wire import (
    SUBPROTOCOL,
    AgentFrame,
    CancelFrame,
    ClientFrame,
    RunFrame,
    StatusFrame,
    encode,
    parse_agent_frame,
)

ROOT = Path(__file__).parents[2]
SCRIPTED = ROOT / "tests" / "agent" / "scripted_worker.py"
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "golden" / "wire.json").read_text())

SCALE = float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))
PATIENCE = 30 * SCALE
"""Nothing that is waited for takes longer; reaching it is a failure."""
SHORT = 0.2 * SCALE
"""A limit that a test means to reach."""

TOKEN = "correct-horse-battery"
KEYS = RunKeys(b"golden-run-secret")

F = TypeVar("F")


def run_frame(
    prompt: str, *, id_bytes: bytes | None = None, deadline_s: float = 120.0, **fields: Any
) -> RunFrame:
    """Return the frame that asks for a run, with a run id as the edge makes it."""
    id_bytes = id_bytes or KEYS.new_id()
    request = RunRequest(prompt=prompt, **fields)
    run_id = KEYS.run_id(id_bytes, request.model_dump())
    return RunFrame(
        run_id=run_id,
        nonce=KEYS.nonce(run_id),
        request=request,
        deadline_s=deadline_s,
        prompt_commitment=prompt_commitment(KEYS.salt(id_bytes), prompt),
    )


def status(run: RunFrame) -> StatusFrame:
    """Return the frame that asks how a run is doing."""
    return StatusFrame(run_id=run.run_id)


def cancel(run: RunFrame) -> CancelFrame:
    """Return the frame that takes a run back."""
    return CancelFrame(run_id=run.run_id)


class Client:
    """A connected client that speaks in frames."""

    def __init__(self, connection: ClientConnection) -> None:
        """Speak through an open connection."""
        self.connection = connection

    async def send(self, frame: ClientFrame) -> None:
        """Send a frame."""
        await self.connection.send(encode(frame))

    async def receive(self) -> AgentFrame:
        """Return the next frame."""
        async with asyncio.timeout(PATIENCE):
            return parse_agent_frame(await self.connection.recv())

    async def ask(self, frame: ClientFrame) -> AgentFrame:
        """Send a frame and return the next one that comes."""
        await self.send(frame)
        return await self.receive()

    async def until(self, kind: type[F]) -> F:
        """Return the next frame of a kind, letting others pass."""
        while True:
            frame = await self.receive()
            if isinstance(frame, kind):
                return frame


def headers(token: str | None = TOKEN) -> dict[str, str]:
    """Return the headers that present a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Client]:
    """Connect a client."""
    settings: dict[str, Any] = {
        "additional_headers": headers(),
        "subprotocols": [Subprotocol(SUBPROTOCOL)],
        "compression": None,
        "proxy": None,
        "open_timeout": PATIENCE,
        "close_timeout": PATIENCE,
        **options,
    }
    async with connect(url, **settings) as connection:
        yield Client(connection)


@dataclass
class Agent:
    """An agent in this process."""

    url: str
    runs: RunManager
    supervisor: Supervisor
    store: Store

    def release(self) -> None:
        """Let the scripted worker go on with what it waits in."""
        assert self.supervisor.worker_pid is not None
        os.kill(self.supervisor.worker_pid, signal.SIGUSR1)


@asynccontextmanager
async def agent_here(
    state: Path, *, pair: str = "found", max_connections: int = 8, again_s: float = 300.0, **limits: Any
) -> AsyncIterator[Agent]:
    """Run an agent with a scripted worker in this process."""
    store = Store(state)
    supervisor = Supervisor(
        [sys.executable, str(SCRIPTED), "--pair", pair], hang_s=PATIENCE, cancel_grace_s=PATIENCE
    )
    runs = RunManager(store, supervisor, **limits)
    capability = CapabilityWatch(supervisor, runs, look_s=0.02 * SCALE, again_s=again_s)
    tokens, traffic = TokenStore([], TOKEN), Traffic()
    metrics = Metrics(runs, supervisor, traffic)
    runs.on_end = metrics.observe
    agent = AgentServer(
        runs,
        capability,
        tokens=tokens,
        traffic=traffic,
        endpoints=Endpoints(capability, supervisor, metrics, tokens),
        max_connections=max_connections,
        tick_s=0.02 * SCALE,
        keepalive_s=0.1 * SCALE,
    )
    server = await agent.listen("127.0.0.1", 0)
    runs.start()
    capability.start()
    try:
        port = server.sockets[0].getsockname()[1]
        yield Agent(f"ws://127.0.0.1:{port}/specdec", runs, supervisor, store)
    finally:
        server.close()
        await runs.close(0)
        await capability.close()
        await supervisor.close()
        await server.wait_closed()
        store.close()


class AgentProcess:
    """An agent in a process of its own, as a user starts it."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        """Wait for its ready line."""
        self.process = process
        self.log = log
        assert process.stdout is not None
        self.ready = process.stdout.readline()
        assert self.ready.startswith(("agent listening on ws://", "agent listening on wss://")), (
            log.read_text()
        )
        self.url = self.ready.split()[-1]

    def entries(self) -> list[dict[str, Any]]:
        """Return its log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def until_logged(self, message: str) -> None:
        """Wait until it has logged something."""
        until = time.monotonic() + PATIENCE
        while not any(entry["message"] == message for entry in self.entries()):
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.01)

    def worker_pid(self) -> int:
        """Return the process id of the worker started last."""
        return [int(entry["worker"]) for entry in self.entries() if entry["message"] == "worker started"][-1]

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(signum)
        return self.process.wait(PATIENCE)


@contextmanager
def agent_process(
    state: Path, *flags: str, module: str = "tests.agent.scripted_worker", **settings: str
) -> Iterator[AgentProcess]:
    """Run an agent in a process of its own; it is killed at the end if it has not ended by then."""
    log = state.with_suffix(".log")
    environ = {**os.environ, "SPECDEC_TOWER_TOKEN": TOKEN, "SPECDEC_WORKER_MODULE": module}
    environ |= {f"SPECDEC_{name.upper()}": value for name, value in settings.items()}
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "agent", "--port", "0", "--state", str(state), *flags],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    with process:
        try:
            yield AgentProcess(process, log)
        finally:
            process.kill()


def await_exit(pid: int) -> None:
    """Wait for a process that need not be a child of ours to be gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([handle], [], [], PATIENCE)
        assert ready, f"process {pid} is still there"
    finally:
        os.close(handle)
