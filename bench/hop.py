"""What the websocket to the tower adds: the edge's probe of an agent, over a bare connection with one echo.

Both servers are processes of their own on loopback, without TLS and without compression. The edge's side is what
`/health` does: connect, probe, check the answer, close. The bare side connects, sends a text as long as the agent's
answer, takes it back, and closes. They take turns, round after round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import connect

from bench.versus import ratio
from edge.credentials import FixedToken
from edge.health import Prober
from edge.tower import Tower
from shared.wire import CapabilityFrame, encode
from tools.stack import PATIENCE_S, listening

LIMIT: Final = 1.5
BATCH: Final = 20
"""Connections of each way a round."""

_ECHO: Final = """
import asyncio
from websockets.asyncio.server import serve

async def echo(connection):
    async for message in connection:
        await connection.send(message)

async def main():
    async with serve(echo, "127.0.0.1", 0, compression=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

asyncio.run(main())
"""


def measure(rounds: int) -> dict[str, Any]:
    """Returns milliseconds of both ways, round by round, and the bytes of the frame."""
    with tempfile.TemporaryDirectory(dir=".") as folder, _agent(Path(folder)) as tower_url, _echo() as url:
        tower = Tower(tower_url, FixedToken(None))
        text = encode(_found(tower))

        def bare() -> None:
            with connect(url, compression=None, proxy=None, ping_interval=None) as connection:
                connection.send(text)
                if connection.recv() != text:
                    raise RuntimeError("the echo is another")

        taken: dict[str, list[float]] = {"edge": [], "bare": []}
        ways = {"edge": lambda: _probe(tower), "bare": bare}
        for number in range(rounds + 1):  # the first is to warm up
            for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
                taken[name].append(_timed(ways[name]))
    return {"frame_bytes": len(text.encode()), "ms": {name: ms[1:] for name, ms in taken.items()}}


def _timed(way: Callable[[], Any]) -> float:
    began = time.perf_counter()
    for _ in range(BATCH):
        way()
    return 1000 * (time.perf_counter() - began) / BATCH


def _probe(tower: Tower) -> CapabilityFrame:
    answer = Prober(tower).capability()
    if not isinstance(answer, CapabilityFrame):
        raise RuntimeError(f"the agent did not answer: {answer.reason}")
    return answer


def _found(tower: Tower) -> CapabilityFrame:
    """Waits until the agent has found its pair, so that all its answers are alike, and returns one."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        answer = _probe(tower)
        if answer.same_family_pair.found:
            return answer
        time.sleep(0.1)
    raise RuntimeError("the agent has found no pair")


@contextmanager
def _agent(state: Path) -> Iterator[str]:
    arguments = ["--embedded", "--insecure", "--port", "0", "--state", str(state)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_TOWER")}
    with listening("agent", arguments, state, kept) as (_, url):
        yield url


@contextmanager
def _echo() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None  # noqa: S101 - it was opened as a pipe
            yield f"ws://127.0.0.1:{json.loads(server.stdout.readline())}"
        finally:
            server.terminate()


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns medians and the ratio, by rounds."""
    edge, bare = result["ms"]["edge"], result["ms"]["bare"]
    return {
        "edge_ms": statistics.median(edge),
        "bare_ms": statistics.median(bare),
        "edge_over_bare": ratio(edge, bare),
        "connections": BATCH * len(edge),
    }


def markdown(result: Mapping[str, Any]) -> str:
    """Renders what `measure` returned."""
    one = summary(result)
    found = one["edge_over_bare"]
    met = "met" if found["median"] <= LIMIT else "MISSED"
    return "\n".join(
        [
            "| the hop | edge's probe ms | bare connection, one echo ms | edge / bare | connections of each |",
            "|---|---|---|---|---|",
            f"| frames of {result['frame_bytes']} bytes | {one['edge_ms']:.2f} | {one['bare_ms']:.2f} "
            f"| {found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f}) | {one['connections']} |",
            "",
            f"Target: edge / bare at most {LIMIT} {met}",
        ]
    )
