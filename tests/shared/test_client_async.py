"""The asyncio client against a real HTTP service: the same answers as the other one, and clean cancelling."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared import labels
from shared.client import AsyncSpecdec, ClientError, Progress
from shared.client_protocol import TRIES
from shared.curve import accounting_modeled
from tests.shared.build import KEYS, PROMPT, measured_payload, receipt, roadmap_payload
from tests.shared.service import Answer, serve

BASE = labels.BASE_PATH
MEASURED = measured_payload()
RUN_ID = MEASURED["run_id"]
DONE = receipt(MEASURED)
LOCATION = f"{BASE}/runs/{RUN_ID}"
SOON = {"Retry-After": "0"}
PENDING = {"Location": LOCATION, **SOON}
RUNNING = receipt(
    roadmap_payload(
        run_id=RUN_ID,
        request=MEASURED["request"],
        prompt_commitment=MEASURED["prompt_commitment"],
        roadmap={"reason": "running", "code": "RUNNING"},
        progress={"phase": "timing", "done": 3, "total": 6},
    )
)
CURVE = {
    "schema": labels.PAYLOAD_SCHEMA,
    "label": labels.CURVE_LABEL,
    "measured": labels.UNAVAILABLE,
    "accounting_modeled": accounting_modeled(4, 0.2),
}
PATIENCE_S = 60.0


async def test_health_and_curve() -> None:
    """Health and curve come back as from the other client."""
    with serve(Answer(200, {"status": "LIVE"}), Answer(200, receipt(CURVE))) as service:
        async with AsyncSpecdec(service.url) as client:
            assert await client.health() == {"status": "LIVE"}
            assert (await client.curve(k=4)).label == "SPEC-DECODE MODELED"
    assert [request[:2] for request in service.requests] == [
        ("GET", f"{BASE}/health"),
        ("GET", f"{BASE}/curve?k=4"),
    ]


async def test_a_run_is_followed() -> None:
    """A run is polled until it has ended, its progress told, and its receipt comes back typed and with its salt."""
    salt = KEYS.salt(bytes(range(16))).hex()
    told: list[Progress] = []
    answers = [
        Answer(202, {**RUNNING, "prompt_salt": salt}, PENDING),
        Answer(503, {"detail": "busy"}, SOON),
        Answer(202, RUNNING, PENDING),
        Answer(200, DONE),
    ]
    with serve(*answers) as service:
        async with AsyncSpecdec(service.url) as client:
            got = await client.run(PROMPT, wait=1, idempotency_key="mine", on_progress=told.append)
    assert got == {**DONE, "prompt_salt": salt}
    assert got.speedup_measured is not None and got.speedup_measured.pairs == 8
    assert told == [Progress(RUN_ID, "timing", done=3, total=6)] * 2
    headers = service.requests[0][3]
    assert (headers["prefer"], headers["idempotency-key"]) == ("wait=1", "mine")
    assert [request[0] for request in service.requests] == ["POST", "GET", "GET", "GET"]


async def test_get_and_cancel() -> None:
    """A run is fetched and cancelled by its id."""
    with serve(Answer(202, RUNNING, PENDING), Answer(200, DONE)) as service:
        async with AsyncSpecdec(service.url) as client:
            assert (await client.get_run(RUN_ID)).roadmap_reason == "running"
            assert (await client.cancel(RUN_ID)).measured
    assert [request[:2] for request in service.requests] == [("GET", LOCATION), ("DELETE", LOCATION)]


@pytest.mark.parametrize(
    ("answers", "ask", "code"),
    [
        ([Answer(200, {**DONE, "payload_sha3_256": "0" * 64})], lambda c: c.run(PROMPT), "BAD_RECEIPT"),
        ([Answer(200, DONE)], lambda c: c.run(PROMPT, k=5), "BAD_ANSWER"),
        ([Answer(200, DONE)], lambda c: c.run(PROMPT, k=17), "BAD_INPUT"),
        ([Answer(200, b"<html>")], lambda c: c.health(), "BAD_ANSWER"),
        ([Answer(410, {"detail": "gone"})], lambda c: c.get_run(RUN_ID), "HTTP_410"),
        ([Answer(503, {"detail": "no"})] * TRIES, lambda c: c.health(), "HTTP_503"),
        ([Answer(202, RUNNING, {**PENDING, "Retry-After": "999"})], lambda c: c.run(PROMPT), "TIMEOUT"),
        (
            [Answer(202, RUNNING, {"Location": "http://127.0.0.2/"})],
            lambda c: c.run(PROMPT),
            "FOREIGN_LOCATION",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
async def test_errors(
    answers: list[Answer], ask: Callable[[AsyncSpecdec], Awaitable[Any]], code: str
) -> None:
    """What the other client refuses this one refuses, by the same code."""
    with serve(*answers) as service:
        async with AsyncSpecdec(service.url) as client:
            with pytest.raises(ClientError) as error:
                await ask(client)
    assert error.value.code == code


async def test_nobody_there() -> None:
    """A port where nobody listens is said to be unreachable."""
    with serve() as service:
        url = service.url
    async with AsyncSpecdec(url) as client:
        with pytest.raises(ClientError) as error:
            await client.health()
    assert error.value.code == "UNREACHABLE"


async def test_asked_again() -> None:
    """A question that fails in passing is asked again when the service says."""
    busy = [Answer(429, {"detail": "slow down"}, SOON)] * 4
    with serve(*busy, Answer(200, {"status": "LIVE"})) as service:
        async with AsyncSpecdec(service.url) as client:
            assert await client.health() == {"status": "LIVE"}
    assert len(service.requests) == 5


async def test_questions_at_the_same_time() -> None:
    """One client asks several questions at once: none waits for another's answer."""
    together = threading.Barrier(3, timeout=PATIENCE_S)
    answers = [Answer(200, {"status": "LIVE"}, before=together.wait) for _ in range(3)]
    with serve(*answers) as service:
        async with AsyncSpecdec(service.url) as client:
            assert await asyncio.gather(*(client.health() for _ in range(3))) == [{"status": "LIVE"}] * 3


async def test_cancelled_while_it_waits_for_an_answer() -> None:
    """A cancelled task ends at once, though no answer has come, and the client can be used on."""
    asked, release = threading.Event(), threading.Event()

    def silent() -> None:
        asked.set()
        release.wait(PATIENCE_S)

    with serve(Answer(200, DONE, before=silent), Answer(200, {"status": "LIVE"})) as service:
        try:
            async with AsyncSpecdec(service.url, PATIENCE_S) as client:
                task = asyncio.create_task(client.run(PROMPT))
                assert await asyncio.to_thread(asked.wait, PATIENCE_S)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not release.is_set()
                assert await client.health() == {"status": "LIVE"}
        finally:
            release.set()
    assert [request[0] for request in service.requests] == ["POST", "GET"]


async def test_cancelled_between_two_polls() -> None:
    """A task cancelled while it pauses asks no more; the run's id has been told, and cancels it."""
    later = {**PENDING, "Retry-After": "50"}
    cancelled = receipt(roadmap_payload(run_id=RUN_ID, roadmap={"reason": "cancelled", "code": "CANCELLED"}))
    told: asyncio.Queue[Progress] = asyncio.Queue()
    with serve(Answer(202, RUNNING, later), Answer(200, cancelled)) as service:
        async with AsyncSpecdec(service.url, PATIENCE_S) as client:
            started = time.monotonic()
            task = asyncio.create_task(client.run(PROMPT, on_progress=told.put_nowait))
            run_id = (await asyncio.wait_for(told.get(), PATIENCE_S)).run_id
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - started < 50
            assert run_id is not None
            assert (await client.cancel(run_id)).roadmap_code == "CANCELLED"
    assert [request[0] for request in service.requests] == ["POST", "DELETE"]
