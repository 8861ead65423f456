"""The edge and the agent through a tunnel that drops connections on which nothing moves, or any it likes."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
from websockets.exceptions import ConnectionClosed

from agent.runs import RunManager
from tests.agent import support
from tests.agent.support import PATIENCE, SCALE, Agent, agent_here
from tests.edge.support import Client, Reply, assert_roadmap, client

IDLE_S = 1.0 * SCALE
"""The tunnel drops what is idle for so long: ten times as long as the agent keeps silent here, as with Cloudflare's."""


class Tunnel:
    """A TCP proxy on loopback.

    Attributes:
        cuts: How many connections it has dropped because nothing moved on them.
    """

    def __init__(self, url: str) -> None:
        """Lead to the port of an agent."""
        self._port = int(url.split(":")[2].split("/")[0])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}/specdec"
        self.cuts = 0
        self._open: dict[socket.socket, float] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def open_for(self) -> float:
        """Return for how long the oldest connection is open; 0 if none is."""
        return max((time.monotonic() - since for since in list(self._open.values())), default=0.0)

    def cut(self) -> None:
        """Drop all connections."""
        for sock in list(self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more connections, and drop those there are."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with (
            near,
            socket.create_connection(("127.0.0.1", self._port)) as far,
            selectors.DefaultSelector() as selector,
            suppress(OSError),
        ):
            self._open[near] = time.monotonic()
            try:
                selector.register(near, selectors.EVENT_READ, far)
                selector.register(far, selectors.EVENT_READ, near)
                while ready := selector.select(IDLE_S):
                    for key, _ in ready:
                        assert isinstance(key.fileobj, socket.socket)
                        data = key.fileobj.recv(65536)
                        if not data:
                            return
                        key.data.sendall(data)
                self.cuts += 1
            finally:
                del self._open[near]


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent in this process."""
    async with agent_here(tmp_path) as agent:
        yield agent


@pytest_asyncio.fixture
async def tunnel(agent: Agent) -> AsyncIterator[Tunnel]:
    """A tunnel to it."""
    tunnel = Tunnel(agent.url)
    yield tunnel
    tunnel.close()


@pytest.fixture
def edge(tunnel: Tunnel) -> Client:
    """An edge on the other side of the tunnel."""
    return client(tunnel.url, tower_token=support.TOKEN)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01 * SCALE)


def is_measuring(runs: RunManager) -> bool:
    """Tell whether a run is being decoded, as its worker says."""
    run = runs._running
    return run is not None and run.progress is not None and run.progress.phase == "measuring"


def ask(edge: Client, prompt: str, wait: str = "wait=25") -> asyncio.Task[Reply]:
    """Ask the edge for a run, in a thread."""
    return asyncio.create_task(asyncio.to_thread(edge.post, {"prompt": prompt}, {"prefer": wait}))


async def test_run_keeps_its_connection_open(agent: Agent, tunnel: Tunnel, edge: Client) -> None:
    """While a run goes on its frames keep the connection open, for as long as it takes."""
    answer = ask(edge, "wait")
    await until(lambda: is_measuring(agent.runs) and tunnel.open_for() > 2 * IDLE_S)
    assert tunnel.cuts == 0
    agent.release()
    reply = await answer
    assert (reply.status, reply.payload["measured"], tunnel.cuts) == (200, "MEASURED", 0)


async def test_tunnel_does_drop_what_is_idle(agent: Agent, tunnel: Tunnel) -> None:
    """A connection on which no run is waited for is dropped by this tunnel: it is as bad as it says."""
    async with support.client(tunnel.url) as it:
        with pytest.raises(ConnectionClosed):
            await it.receive()
    assert tunnel.cuts == 1


async def test_cut_connection_loses_no_run(agent: Agent, tunnel: Tunnel, edge: Client) -> None:
    """A run whose connection is cut goes on, is told to be running, and is fetched by polling."""
    answer = ask(edge, "wait")
    await until(lambda: is_measuring(agent.runs))
    tunnel.cut()
    reply = await answer
    assert reply.status == 202
    run_id = assert_roadmap(reply, "RUNNING")["run_id"]
    agent.release()
    await until(lambda: not agent.runs.queue().running)
    fetched = await asyncio.to_thread(edge.get, f"/runs/{run_id}")
    assert (fetched.status, fetched.payload["measured"], fetched.payload["run_id"]) == (
        200,
        "MEASURED",
        run_id,
    )
