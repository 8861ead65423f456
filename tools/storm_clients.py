"""What the clients of `tools.storm` do: ask all that can be asked, at once, and keep every answer for the checks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from shared.labels import BASE_PATH

SCALE: Final = float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))
PATIENCE_S: Final = 60 * SCALE
PAUSE_S: Final = 1.0
"""Clients pause for up to so long between two things they do."""

POLLS: Final = 8
MARK: Final = "zeppelin"
"""Stands in every prompt, so that a prompt that gets out is seen."""

BAD: Final[tuple[tuple[str, str, Any, int], ...]] = (
    ("GET", "/curve?k=65", None, 422),
    ("GET", "/curve?alpha=2", None, 422),
    ("GET", "/curve?a=%", None, 422),
    ("GET", "/receipts/" + "0" * 64, None, 404),
    ("GET", "/runs/none", None, 404),
    ("GET", "/nothing", None, 404),
    ("DELETE", "/health", None, 405),
    ("POST", "/run", {"prompt": MARK, "k": 0}, 422),
    ("POST", "/run", {"prompt": ""}, 422),
    ("POST", "/run", [], 422),
)
"""Method, path, body, and the status that is due."""


@dataclass(frozen=True)
class Seen:
    """One question and its answer.

    Attributes:
        kind: What was asked, as `storm_checks` calls it.
        asked: What the answer must fit: parameters of a curve, fields of a run, a run id, a digest, a status.
        status: HTTP status; 0 if there was no answer, and `body` says why.
        headers: The answer's, under lower-case names.
        body: The answer's.
        began: When it was asked, on the monotonic clock.
        ended: When the answer was there.
    """

    kind: str
    asked: Mapping[str, Any]
    status: int
    headers: Mapping[str, str]
    body: bytes
    began: float
    ended: float

    def receipt(self) -> dict[str, Any] | None:
        """Returns the receipt in it, if there is one."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) and "payload_sha3_256" in value else None


@dataclass
class Clients:
    """All clients of one storm.

    Attributes:
        http: Carries their questions.
        base: The edge's address with the base path.
        until: When they cease to begin anything, on the monotonic clock.
        seen: All answers.
        linked: Digests of the receipts that answers said are stored.
    """

    http: httpx.AsyncClient
    base: str
    until: float
    seen: list[Seen] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    _number: int = 0

    @classmethod
    def of(cls, edge_url: str, until: float) -> Clients:
        """Returns clients of an edge; close `http` after use."""
        # Less than the server keeps idle connections, so that no question meets one that is just being closed.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
        http = httpx.AsyncClient(timeout=PATIENCE_S, limits=limits, trust_env=False, verify=False)  # noqa: S501 - no TLS
        return cls(http, edge_url + BASE_PATH, until)

    async def ask(
        self, kind: str, method: str, path: str, asked: Mapping[str, Any] | None = None, **more: Any
    ) -> Seen:
        """Asks one question and keeps the answer."""
        began = time.monotonic()
        try:
            answer = await self.http.request(method, self.base + path, **more)
            status, headers, body = answer.status_code, dict(answer.headers), answer.content
        except httpx.HTTPError as error:
            status, headers, body = 0, {}, type(error).__name__.encode()
        one = Seen(kind, asked or {}, status, headers, body, began, time.monotonic())
        self.seen.append(one)
        if "link" in headers and (receipt := one.receipt()):
            self.linked.append(receipt["payload_sha3_256"])
        return one

    async def live(self, chance: random.Random) -> None:
        """Lives one client's life."""
        names, weights = zip(*_DEEDS.items(), strict=True)
        while time.monotonic() < self.until:
            await chance.choices(names, weights)[0](self, chance)
            await asyncio.sleep(PAUSE_S * chance.random())

    async def run(
        self, chance: random.Random, prefer: str | None, key: str | None = None, fields: Any = None
    ) -> Seen:
        """Asks for a short run that no other question asks for."""
        if fields is None:
            self._number += 1
            fields = {"prompt": f"And the {MARK} came to pass {self._number}", "seed": self._number}
            fields |= {"k": chance.randint(1, 3), "n": chance.randint(1, 2)}
            fields |= {"temperature": chance.choice([0.0, 0.0, 0.8])}
        headers = {} if prefer is None else {"Prefer": prefer}
        headers |= {} if key is None else {"Idempotency-Key": key}
        return await self.ask("run", "POST", "/run", {**fields, "key": key}, json=fields, headers=headers)

    async def follow(self, run: Seen, polls: int = POLLS) -> Seen:
        """Asks after a run until it has ended, or the storm has, or that often."""
        last = run
        receipt = run.receipt()
        if run.status != 202 or receipt is None:
            return run
        location = receipt["payload"]["run_id"]
        for _ in range(polls):
            if last.status not in (202, 503) or time.monotonic() >= self.until:
                break
            await asyncio.sleep(float(last.headers.get("retry-after", 1)))
            asked = {**run.asked, "run_id": location, "since": run.began}
            last = await self.ask("poll", "GET", f"/runs/{location}", asked)
        return last


async def _health(clients: Clients, _: random.Random) -> None:
    await clients.ask("health", "GET", "/health")


async def _curve(clients: Clients, chance: random.Random) -> None:
    store = chance.random() < 0.15
    k = chance.randint(0, 64)
    # So few stored ones that all of a worker's are not used up by the first seconds.
    ratio = chance.choice([0.1, 0.2]) if store else round(chance.uniform(0, 10), 3)
    alphas = sorted({round(chance.random(), chance.randint(1, 6)) for _ in range(chance.randint(1, 5))})
    if store:
        k, alphas = chance.randint(1, 3), [0.5]
    query = [("k", str(k)), ("cost_ratio", repr(ratio)), *(("alpha", repr(alpha)) for alpha in alphas)]
    asked = {"k": k, "cost_ratio": ratio, "alphas": alphas, "store": store}
    await clients.ask("curve", "GET", "/curve", asked, params=query + [("store", "1")] * store)


async def _run_waiting(clients: Clients, chance: random.Random) -> None:
    prefer = chance.choice([None, "wait=0", "wait=5", "wait=20"])
    await clients.follow(await clients.run(chance, prefer))


async def _run_twice(clients: Clients, chance: random.Random) -> None:
    key = f"{chance.getrandbits(64):x}"
    first = await clients.run(chance, "respond-async", key)
    await clients.follow(first)
    fields = {name: value for name, value in first.asked.items() if name != "key"}
    await clients.run(chance, "wait=5", key, fields)
    if chance.random() < 0.3:
        await clients.run(chance, "respond-async", key, {**fields, "seed": fields["seed"] + 10**9})


async def _cancelled_run(clients: Clients, chance: random.Random) -> None:
    run = await clients.run(chance, "respond-async")
    receipt = run.receipt()
    if run.status == 202 and receipt is not None:
        run_id = receipt["payload"]["run_id"]
        asked = {**run.asked, "run_id": run_id, "since": run.began}
        await clients.ask("cancel", "DELETE", f"/runs/{run_id}", asked)
        await clients.ask("poll", "GET", f"/runs/{run_id}", {**asked, "cancelled": True})


async def _receipt(clients: Clients, chance: random.Random) -> None:
    if clients.linked:
        await fetch(clients, chance.choice(clients.linked))


async def fetch(clients: Clients, digest: str) -> None:
    """Fetches a stored receipt, and its payload's bytes."""
    await clients.ask("receipt", "GET", f"/receipts/{digest}", {"digest": digest})
    await clients.ask("payload", "GET", f"/receipts/{digest}/payload", {"digest": digest})


async def _other(clients: Clients, chance: random.Random) -> None:
    kind, path = chance.choice([("keys", "/keys"), ("openapi", "/openapi.json"), ("page", "")])
    await clients.ask(kind, "GET", path)


async def _bad(clients: Clients, chance: random.Random) -> None:
    method, path, body, status = chance.choice(BAD)
    more = {} if body is None else {"json": body}
    await clients.ask("bad", method, path, {"status": status}, **more)


_DEEDS: Final[dict[Callable[[Clients, random.Random], Awaitable[None]], int]] = {
    _health: 4,
    _curve: 5,
    _run_waiting: 3,
    _run_twice: 2,
    _cancelled_run: 1,
    _receipt: 3,
    _other: 1,
    _bad: 2,
}
"""What clients do, and how often."""
