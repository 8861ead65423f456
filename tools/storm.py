"""Many clients at once on the local edge while its agent is killed and restarted, and a worker of the edge killed, too.

`python -m tools.storm --clients 200 --seconds 60` starts an agent with the embedded pair and a local edge as a user
would, lets the clients ask all that can be asked, and ends with 0 only if every answer was documented, well-formed, its
own, honest and in time, every receipt that was said to be stored can be fetched as it was, every measured run can be
asked after again, memory stayed as it was, and a run is measured once all is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

import httpx

from agent.attest import PUBLIC
from shared import labels
from tools.soak import children, growth, weigh, zombies
from tools.stack import leave_on_sigterm, listening
from tools.storm_checks import QUICK_S, RUN_KINDS, Storm, judge, payload_of
from tools.storm_clients import MARK, PATIENCE_S, Clients, Seen, fetch

KILLS: Final = (0.25, 0.6)
"""At these parts of the time the agent is killed."""

WORKER_KILL: Final = 0.45
DOWN_S: Final = 1.0
"""So long the agent stays down, beside what its start takes."""

SAMPLE_S: Final = 0.5
JUDGED: Final = 60
"""So many samples of memory are enough to judge it by."""

FLAT: Final = 1.1
"""Memory may be this many times what it was."""


@dataclass
class Service:
    """The processes, and what they weigh.

    Attributes:
        state: Folder of all that they keep.
        memory: Resident bytes of the edge's server, its workers, the agent, and its workers, over time.
        worker: Resident bytes of each worker of the edge, over time.
    """

    state: Path
    environ: Mapping[str, str]
    edge_url: str = ""
    memory: dict[str, list[int]] = field(default_factory=dict)
    worker: dict[int, list[int]] = field(default_factory=dict)
    _agent: ExitStack = field(default_factory=ExitStack)
    _agent_process: Popen[str] | None = None
    _edge_process: Popen[str] | None = None
    _tower_url: str = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs both for the length of the block."""
        token = self.state / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(32))
        with ExitStack() as stack:
            stack.callback(lambda: self._agent.close())
            self.start_agent()
            flags = ["--port", "0", "--tower-url", self._tower_url, "--token-file", str(token)]
            flags += ["--tower-public-key", str(self.state / PUBLIC)]
            flags += ["--signing-key-file", str(self.state / "edge-key.pem")]
            flags += ["--receipts-dir", str(self.state / "receipts")]
            started = stack.enter_context(listening("edge", flags, self.state, self.environ))
            self._edge_process, self.edge_url = started
            yield

    def start_agent(self) -> None:
        """Starts the agent, on the port that it had before."""
        port = self._tower_url.rpartition(":")[2].partition("/")[0] or "0"
        flags = ["--embedded", "--port", port, "--state", str(self.state)]
        flags += ["--token-file", str(self.state / "token")]
        started = self._agent.enter_context(listening("agent", flags, self.state, self.environ))
        self._agent_process, self._tower_url = started

    def kill_agent(self) -> None:
        """Kills the agent as a machine's failure does."""
        if self._agent_process is not None:
            self._agent_process.kill()
        self._agent.close()

    def kill_worker(self, chance: random.Random) -> None:
        """Kills one of the edge's workers; returns when it is dead."""
        if self._edge_process is not None:
            pid = chance.choice(children(self._edge_process.pid))
            os.kill(pid, signal.SIGKILL)
            while pid in children(self._edge_process.pid) and pid not in zombies(self._edge_process.pid):
                time.sleep(0.001)

    def alive(self) -> bool:
        """Whether neither has ended by itself."""
        both = (self._agent_process, self._edge_process)
        return all(process is not None and process.poll() is None for process in both)

    def sample(self) -> None:
        """Weighs all processes."""
        for name, process in (("edge", self._edge_process), ("agent", self._agent_process)):
            if process is None or process.poll() is not None:
                continue
            own, others = 0, 0
            with suppress(OSError):
                own = weigh(process.pid)[0]
                for pid in children(process.pid):
                    size = weigh(pid)[0]
                    others += size
                    if name == "edge":
                        self.worker.setdefault(pid, []).append(size)
            self.memory.setdefault(name, []).append(own)
            self.memory.setdefault(f"{name}'s workers", []).append(others)


async def storm(service: Service, count: int, seconds: float, seed: int) -> dict[str, Any]:
    """Lets the storm loose; returns what was done and seen, and what was wrong."""
    chance = random.Random(seed)  # noqa: S311 - who does what when, not a secret
    began = time.monotonic()
    clients = Clients.of(service.edge_url, began + seconds)
    async with clients.http:
        keys = await clients.ask("keys", "GET", "/keys")
        done = Storm(keys.body)
        lives = [clients.live(random.Random(chance.random())) for _ in range(count)]  # noqa: S311 - as above
        over = asyncio.Event()
        disturbing = asyncio.gather(
            _weigh(service, done, over),
            _kill_agent(service, done, seconds),
            _kill_worker(service, done, seconds, chance),
        )
        await asyncio.gather(*lives)
        ended = time.monotonic()
        over.set()
        await disturbing
        faults = await _settle(clients)
    faults += judge(done, clients.seen)
    faults += [] if service.alive() else ["the agent or the edge has ended by itself"]
    faults += _logs(service.state) + _memory(service)
    return {
        "clients": count,
        "seconds": round(ended - began, 1),
        "answers": len(clients.seen),
        "by_kind": _by_kind(clients),
        "roadmaps": dict(_codes(clients)),
        "measured": sum(_label(one) == labels.RUN_MEASURED for one in clients.seen if one.kind != "receipt"),
        "receipts_stored": len(set(clients.linked)),
        "agent_down_s": [round(until - since, 1) for since, until in done.down],
        "workers_killed": len(done.workers_killed),
        "answers_lost_with_a_worker": done.losses,
        "silences_while_up": done.silences,
        "storm_late_s": round(done.lag, 2),
        "quick_ms_in_the_edge": _own_time(service.state),
        "mib_least_median_most": {name: _mib(sizes) for name, sizes in service.memory.items()},
        "memory_growth": _growth(service),
        "faults": faults,
    }


def storm_local(clients: int, seconds: float, seed: int, state: Path | None = None) -> dict[str, Any]:
    """Starts an agent and an edge and lets the storm loose on them.

    Args:
        clients: How many ask at once.
        seconds: For how long.
        seed: For who does what when.
        state: Folder to keep logs in; None keeps none.

    Raises:
        RuntimeError: If they do not start.
        httpx.HTTPError: If the edge is not there at the start or at the end.
    """
    with ExitStack() as stack:
        folder = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specdec-storm-")))
        folder.mkdir(exist_ok=True)
        service = Service(folder, {**os.environ, "SPECDEC_THREADS": "1"})
        with service.running():
            return asyncio.run(storm(service, clients, seconds, seed))


async def _weigh(service: Service, done: Storm, over: asyncio.Event) -> None:
    """Weighs the processes all along, and sees how late this one is."""
    while not over.is_set():
        due = time.monotonic() + SAMPLE_S
        service.sample()
        with suppress(TimeoutError):
            async with asyncio.timeout(SAMPLE_S):
                await over.wait()
        done.lag = max(done.lag, time.monotonic() - due)


async def _kill_agent(service: Service, done: Storm, seconds: float) -> None:
    began = time.monotonic()
    for part in KILLS:
        await asyncio.sleep(max(0.0, began + part * seconds - time.monotonic()))
        since = time.monotonic()
        # Until it is up again, it is down: answers of meanwhile are judged when all is over.
        done.down.append((since, float("inf")))
        await asyncio.to_thread(service.kill_agent)
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(service.start_agent)
        done.down[-1] = (since, time.monotonic())


async def _kill_worker(service: Service, done: Storm, seconds: float, chance: random.Random) -> None:
    await asyncio.sleep(WORKER_KILL * seconds)
    since = time.monotonic()
    # Beside the clients: they go on asking, and what they are told meanwhile is judged when all is over.
    await asyncio.to_thread(service.kill_worker, chance)
    done.workers_killed.append((since, time.monotonic()))


async def _settle(clients: Clients) -> list[str]:
    """Fetches again what must not be lost, and has one more run measured; returns what was wrong."""
    faults = []
    wanted: dict[str, bytes] = {}
    measured: dict[str, Seen] = {}
    running: dict[str, Seen] = {}
    for one in clients.seen:
        receipt = one.receipt()
        if receipt is None:
            continue
        if "link" in one.headers:
            wanted[receipt["payload_sha3_256"]] = payload_of(receipt)
        if one.kind in RUN_KINDS and one.status in (200, 202) and "run_id" in receipt["payload"]:
            run_id = receipt["payload"]["run_id"]
            if one.status == 202:
                running.setdefault(run_id, one)
            elif _label(one) == labels.RUN_MEASURED:
                measured[run_id] = one
    for digest, data in wanted.items():
        await fetch(clients, digest)
        again, payload = clients.seen[-2:]
        receipt = again.receipt()
        if receipt is None or payload_of(receipt) != data or payload.body != data:
            faults.append("a stored receipt is lost, or is not what it was")
    for run_id, one in measured.items():
        again = await clients.ask("poll", "GET", f"/runs/{run_id}", _about(one, run_id))
        before, receipt = one.receipt(), again.receipt()
        if before is None or receipt is None or receipt["payload_sha3_256"] != before["payload_sha3_256"]:
            faults.append(f"a measured run cannot be asked after as it was ({again.status})")
    for run_id, one in running.items():
        if run_id not in measured:  # so that nothing is ahead of the last run
            await clients.ask("cancel", "DELETE", f"/runs/{run_id}", _about(one, run_id))
    clients.until = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < clients.until:
        last = await clients.run(random.Random(0), "wait=20")  # noqa: S311 - not a secret
        if _label(await clients.follow(last, polls=1000)) == labels.RUN_MEASURED:
            return faults
        await asyncio.sleep(1)
    return [*faults, "no run is measured after the storm"]


def _about(one: Seen, run_id: str) -> dict[str, Any]:
    """Returns what an answer about the run of another answer must fit."""
    return {"since": one.began, **one.asked, "run_id": run_id, "cancelled": True}


def _label(one: Seen) -> str | None:
    receipt = one.receipt()
    return None if receipt is None else str(receipt["payload"]["label"])


def _codes(clients: Clients) -> Counter[str]:
    receipts = (one.receipt() for one in clients.seen)
    return Counter(
        one["payload"]["roadmap"]["code"] for one in receipts if one and "roadmap" in one["payload"]
    )


def _by_kind(clients: Clients) -> dict[str, Any]:
    """Returns the number of answers by status, and how long they took, queueing included."""
    table: dict[str, Any] = {}
    for kind in sorted({one.kind for one in clients.seen}):
        ones = [one for one in clients.seen if one.kind == kind]
        took = sorted(one.ended - one.began for one in ones)
        table[kind] = {
            "statuses": dict(Counter(one.status for one in ones)),
            "median_s": round(statistics.median(took), 2),
            "longest_s": round(took[-1], 2),
        }
    return table


def _lines(state: Path) -> list[dict[str, Any]]:
    """Returns the lines that the edge's workers have logged."""
    lines = (state / "edge.log").read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def _own_time(state: Path) -> dict[str, float]:
    """Returns the longest that each quick route took in its worker, without waiting for it, in milliseconds."""
    longest: dict[str, float] = {}
    for line in _lines(state):
        if "ms" in line and not str(line["route"]).startswith("/run"):
            longest[line["route"]] = max(longest.get(line["route"], 0.0), line["ms"])
    return longest


def _logs(state: Path) -> list[str]:
    """Returns what is wrong with the logs: a prompt, a failure, an answer that took its worker too long."""
    faults = []
    for name in ("edge.log", "agent.log"):
        text = (state / name).read_text(errors="replace")
        faults += [f"{name} holds a prompt"] if MARK in text else []
        faults += [f"{name} holds a traceback"] if "Traceback" in text else []
    slow = {route: ms for route, ms in _own_time(state).items() if ms > 1000 * QUICK_S}
    return faults + [f"{route} took its worker {ms:.0f} ms" for route, ms in slow.items()]


def _growth(service: Service) -> dict[str, float]:
    """Returns how many times what it was memory is; where there are too few samples, nothing."""
    # The edge starts workers as it needs them, so their sum says less than the one that grew most.
    judged = {name: service.memory[name] for name in ("edge", "agent")}
    found = {name: growth(sizes) for name, sizes in judged.items() if len(sizes) >= JUDGED}
    lives = [growth(sizes) for sizes in service.worker.values() if len(sizes) >= JUDGED]
    found |= {"that worker of the edge which grew most": max(lives)} if lives else {}
    return {name: round(by, 3) for name, by in found.items()}


def _memory(service: Service) -> list[str]:
    grown = {name: by for name, by in _growth(service).items() if by > FLAT}
    return [f"the memory of {name} grew to {by} times what it was" for name, by in grown.items()]


def _mib(sizes: Sequence[int]) -> list[float]:
    return [round(one(sizes) / 2**20, 1) for one in (min, statistics.median, max)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the storm; returns 0 if nothing was found wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.storm", description="Many clients, failing parts.")
    parser.add_argument("--clients", type=int, default=200, help="clients at once (default 200)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they ask (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="for who does what when (default 1)")
    parser.add_argument("--state", type=Path, help="folder to keep logs in (default: none is kept)")
    options = parser.parse_args(argv)
    leave_on_sigterm()
    try:
        told = storm_local(options.clients, options.seconds, options.seed, options.state)
    except (RuntimeError, httpx.HTTPError) as error:
        print(f"storm: {error}", file=sys.stderr)
        return 1
    print(json.dumps(told, indent=1))
    return 1 if told["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
