"""`make soak`: many short runs through an agent to which everything happens that happens in months, in minutes.

A real agent with a store laid out as Ollama's, and clients that stay, go away, come back, or cancel, while its worker
is killed, its token is changed, and a model leaves its store and returns. Ends with 0 only if every run ended in a way
that what was done to it explains, what ended can be fetched again as it was, no process was left behind, and memory and
file descriptors are as they were before.
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
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from agent.pairs import EMBEDDED
from shared.runid import RunKeys, prompt_commitment
from shared.schemas import RunRequest
from shared.wire import (
    SUBPROTOCOL,
    AgentFrame,
    CancelFrame,
    CapabilityFrame,
    ClientFrame,
    FailedFrame,
    ProbeFrame,
    ResultFrame,
    RunFrame,
    StatusFrame,
    encode,
    parse_agent_frame,
)
from tools.ollama_store import add_model, build_store, remove_model
from tools.stack import leave_on_sigterm, listening

SCALE = float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))
STUCK_S = 180 * SCALE
"""A run that has not ended after so many seconds is stuck; each is given 120 s by its deadline."""

CHANCE = 2
"""So many file descriptors more say nothing."""

CLIENTS = 4
FLAT = 1.05
"""Memory and file descriptors may be this many times what they were."""

LONG_LIFE = 100
"""Runs that a worker must have seen for its memory to be judged: the first dozens warm its caches up."""

DRAFT, TARGET = "specdec:1m", "specdec:9m"
PROMPTS = (
    "And it came to pass",
    "def read(path):",
    "In the beginning",
    "class Store:",
    "For he said unto them",
)

EXPLAINED = {
    "stay": {"OK"},
    "leave": {"OK"},
    "cancel": {"OK", "CANCELLED"},
}
"""How a run may end by what its client did; a killed worker or a missing model explains two more."""


@dataclass
class Soak:
    """What was done and what was seen."""

    url: str
    pid: int
    store: Path
    token_file: Path
    log: Path
    random: random.Random
    tokens: list[str]
    keys: RunKeys = field(default_factory=lambda: RunKeys(b"soak-run-secret-"))
    outcomes: dict[str, AgentFrame] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    done_to: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    workers: dict[int, list[int]] = field(default_factory=dict)
    disturbed: int = 0

    def headers(self) -> dict[str, str]:
        """Presents the newest token."""
        return {"Authorization": f"Bearer {self.tokens[0]}"}

    def connect(self) -> connect:
        """Returns a connection to enter."""
        return connect(
            self.url,
            additional_headers=self.headers(),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            proxy=None,
            open_timeout=STUCK_S,
        )

    async def ask(self, frame: ClientFrame) -> AgentFrame:
        """Returns the first answer to a frame, on a connection of its own."""
        async with asyncio.timeout(STUCK_S), self.connect() as connection:
            await connection.send(encode(frame))
            return parse_agent_frame(await connection.recv())


async def one_run(soak: Soak, number: int) -> None:
    """Asks for a run, does one of the things that clients do, and sees how it ends."""
    request = RunRequest(
        prompt=f"{soak.random.choice(PROMPTS)} {number}",
        k=soak.random.randint(1, 3),
        n=soak.random.randint(1, 2),
        temperature=soak.random.choice([0.0, 0.0, 0.8]),
        seed=number,
    )
    id_bytes = soak.keys.new_id()
    run_id = soak.keys.run_id(id_bytes, request.model_dump())
    frame = RunFrame(
        run_id=run_id,
        nonce=soak.keys.nonce(run_id),
        request=request,
        deadline_s=120.0,
        prompt_commitment=prompt_commitment(soak.keys.salt(id_bytes), request.prompt),
    )
    behaviour = soak.random.choices(["stay", "leave", "cancel"], [4, 4, 1])[0]
    soak.done_to[behaviour] += 1
    before = soak.disturbed
    try:
        async with asyncio.timeout(STUCK_S):
            outcome = await followed(soak, frame, behaviour)
    except TimeoutError:
        soak.faults.append(f"run {number} is stuck ({behaviour})")
        return
    code = "OK" if isinstance(outcome, ResultFrame) else outcome.code
    soak.ends[code] += 1
    explained = EXPLAINED[behaviour] | (
        {"WORKER_DIED", "NO_PAIR", "LOAD_FAILED"} if soak.disturbed else set()
    )
    if code not in explained:
        soak.faults.append(f"run {number} ({behaviour}) ended with {code}: {getattr(outcome, 'detail', '')}")
    if code == "WORKER_DIED" and not soak.done_to["worker killed"]:
        soak.faults.append(
            f"run {number}'s worker died by itself, {soak.disturbed - before} disturbances later"
        )
    soak.outcomes[run_id] = outcome


async def followed(soak: Soak, frame: RunFrame, behaviour: str) -> ResultFrame | FailedFrame:
    """Returns how a run ended, seen on its own connection or, after leaving that, by asking."""
    async with soak.connect() as connection:
        await connection.send(encode(frame))
        if behaviour == "stay":
            return await end(connection)
        if behaviour == "cancel":
            await connection.send(encode(CancelFrame(run_id=frame.run_id)))
            return await end(connection)
        await connection.recv()
        # No closing handshake: the client is gone, as when its machine is switched off.
        connection.transport.abort()
    while True:
        answer = await soak.ask(StatusFrame(run_id=frame.run_id))
        if isinstance(answer, ResultFrame | FailedFrame):
            return answer
        await asyncio.sleep(0.1)


async def end(connection: ClientConnection) -> ResultFrame | FailedFrame:
    """Returns the last frame of the run on a connection."""
    while True:
        frame = parse_agent_frame(await connection.recv())
        if isinstance(frame, ResultFrame | FailedFrame):
            return frame


# What happens to the agent meanwhile.


async def kill_worker(soak: Soak) -> None:
    """Kills the decode worker, or the scout, whichever there is."""
    for pid in children(soak.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            soak.done_to["worker killed"] += 1


async def change_token(soak: Soak) -> None:
    """Puts a new token before the present one; the one before that is refused from then on."""
    refused = soak.tokens[1] if len(soak.tokens) > 1 else None
    soak.tokens = [secrets.token_urlsafe(24), soak.tokens[0]]
    new = soak.token_file.with_suffix(".new")
    new.write_text("\n".join(soak.tokens) + "\n")
    new.chmod(0o600)
    new.replace(soak.token_file)
    soak.done_to["token changed"] += 1
    if refused is not None:
        try:
            async with connect(
                soak.url,
                additional_headers={"Authorization": f"Bearer {refused}"},
                proxy=None,
                compression=None,
            ):
                soak.faults.append("a token that is no longer valid was let in")
        except InvalidStatus as refusal:
            if refusal.response.status_code != 401:
                soak.faults.append(f"an old token was answered with {refusal.response.status_code}")


async def change_store(soak: Soak) -> None:
    """Takes the draft out of the store until the agent tells so, and puts it back until the agent tells that."""
    remove_model(soak.store, DRAFT)
    await told(soak, found=False)
    add_model(soak.store, DRAFT, EMBEDDED / "draft.gguf")
    await told(soak, found=True)
    soak.done_to["store changed"] += 1


async def told(soak: Soak, *, found: bool) -> None:
    """Waits until the agent tells that there is a pair, or none."""
    try:
        async with asyncio.timeout(STUCK_S):
            while True:
                with suppress(WebSocketException, OSError):
                    answer = await soak.ask(ProbeFrame())
                    if isinstance(answer, CapabilityFrame) and answer.same_family_pair.found is found:
                        return
                await asyncio.sleep(0.2)
    except TimeoutError:
        soak.faults.append(f"the agent did not notice that a pair {'came' if found else 'went'}")


# What is seen from outside.


def children(pid: int) -> list[int]:
    """Returns the processes a process has started and not yet seen off."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def weigh(pid: int) -> tuple[int, int]:
    """Returns a process's resident bytes and how many file descriptors it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def zombies(pid: int) -> list[int]:
    """Returns the children that have ended and were not waited for."""
    found = []
    for child in children(pid):
        with suppress(OSError):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                found.append(child)
    return found


def growth(samples: Sequence[int], of: Callable[[Sequence[int]], float] = statistics.median) -> float:
    """Returns how many times the middle third the last third is, by medians: the first third warms caches up."""
    third = max(1, len(samples) // 3)
    return of(samples[-third:]) / of(samples[third : 2 * third] or samples[:third])


async def soak_agent(soak: Soak, runs: int) -> None:
    """Makes the runs, and disturbs the agent all along."""
    numbers = iter(range(runs))
    disturbances = [kill_worker, change_token, change_store]

    async def work() -> None:
        for number in numbers:
            await one_run(soak, number)
            if number % 5 == 0:
                soak.memory.append(weigh(soak.pid))
            for pid in children(soak.pid):
                with suppress(OSError):
                    soak.workers.setdefault(pid, []).append(weigh(pid)[0])
            if number % 17 == 16:
                soak.disturbed += 1
                await soak.random.choice(disturbances)(soak)

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    for disturb in disturbances:  # each at least once, however few the runs
        await disturb(soak)
    await told(soak, found=True)
    for run_id, outcome in soak.outcomes.items():
        again = await soak.ask(StatusFrame(run_id=run_id))
        if again != outcome:
            soak.faults.append(
                f"a run that ended cannot be fetched as it was: {getattr(again, 'detail', '')}"
            )
    left = zombies(soak.pid)
    if left:
        soak.faults.append(f"{len(left)} processes have ended and were not waited for")
    if len(children(soak.pid)) > 2:
        soak.faults.append(
            f"{len(children(soak.pid))} processes are at work where a worker and a scout would do"
        )
    memory, descriptors = zip(*soak.memory, strict=True)
    # Each connection has a descriptor, so that the fewest of a while tell of a leak, and the usual number does not.
    # One or two more are a pipe or a socket that was just then open; so many runs would leak more than that.
    few = min(descriptors[-(len(descriptors) // 3 or 1) :]) <= min(descriptors) + CHANCE
    grown = {"memory": growth(memory), "file descriptors": 1.0 if few else growth(descriptors, min)}
    grown |= {"worker's memory": worker_growth(soak)}
    for what, times in grown.items():
        if times > FLAT:
            soak.faults.append(f"the agent's {what} grew to {times:.3f} times what it was")


def worker_growth(soak: Soak) -> float:
    """Returns the most that the memory of a worker grew which lived long enough to tell."""
    return max((growth(sizes) for sizes in soak.workers.values() if len(sizes) >= LONG_LIFE), default=1.0)


def report(soak: Soak) -> dict[str, Any]:
    """Returns what was done and seen, as JSON."""
    memory, descriptors = zip(*soak.memory, strict=True)
    return {
        "runs": sum(soak.ends.values()),
        "ended": dict(soak.ends),
        "done": dict(soak.done_to),
        "resident_mib": [round(min(memory) / 2**20, 1), round(max(memory) / 2**20, 1)],
        "resident_growth": round(growth(memory), 4),
        "worker_growth": round(worker_growth(soak), 4),
        "descriptors": [min(descriptors), max(descriptors)],
        "descriptor_growth": round(growth(descriptors, min), 4),
        "faults": soak.faults,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the soak; returns 0 if nothing was found wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description="Many runs, many disturbances.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    leave_on_sigterm()
    told = soak_local(args.runs, args.seed)
    print(json.dumps(told, indent=1))
    return 1 if told["faults"] else 0


def soak_local(runs: int, seed: int) -> dict[str, Any]:
    """Starts an agent with a store of models and soaks it; returns what was done and seen, and what was wrong."""
    with tempfile.TemporaryDirectory(prefix="specdec-soak-") as folder:
        root = Path(folder)
        store = root / "models"
        build_store(store, {DRAFT: EMBEDDED / "draft.gguf", TARGET: EMBEDDED / "target.gguf"})
        token_file = root / "token"
        token_file.touch(mode=0o600)
        tokens = [secrets.token_urlsafe(24)]
        token_file.write_text(tokens[0] + "\n")
        state = root / "state"
        state.mkdir()
        flags = ["--port", "0", "--state", str(state), "--token-file", str(token_file)]
        environ = {
            **os.environ,
            "SPECDEC_LOOK_S": "0.5",
            "SPECDEC_THREADS": "1",
            "SPECDEC_MAX_CONNECTIONS": "16",
        }
        flags += ["--ollama-models", str(store)]
        with listening("agent", flags, state, environ) as (process, url):
            chance = random.Random(seed)  # noqa: S311 - what happens when, not a secret
            soak = Soak(url, process.pid, store, token_file, state / "agent.log", chance, tokens)
            try:
                asyncio.run(soak_agent(soak, runs))
            except Exception as exc:
                soak.faults.append(f"the soak itself failed with {type(exc).__name__}: {exc}")
            if process.poll() is not None:
                soak.faults.append(f"the agent ended with status {process.returncode}")
        said = soak.log.read_text()
        soak.faults += [f"the log holds the prompt {prompt!r}" for prompt in PROMPTS if prompt in said]
    return report(soak)


if __name__ == "__main__":
    sys.exit(main())
