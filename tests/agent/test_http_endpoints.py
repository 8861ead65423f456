"""Tests of agent.http_endpoints: plain HTTP on the websocket's port, from a real agent with a scripted worker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.http11 import Request

from agent.http_endpoints import Endpoints
from shared.wire import FailedFrame, ProbeFrame, ResultFrame
from tests.agent.support import (
    PATIENCE,
    SCALE,
    TOKEN,
    Agent,
    agent_here,
    agent_process,
    client,
    headers,
    run_frame,
)
from tests.agent.test_metrics import one, read
from tests.agent.test_server import refusal, start


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent in this process."""
    async with agent_here(tmp_path) as agent:
        yield agent


async def ask(agent: Agent, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    """Ask an agent over HTTP."""
    base = agent.url.replace("ws:", "http:").removesuffix("/specdec")
    async with httpx.AsyncClient(base_url=base, timeout=PATIENCE) as http:
        return await http.request(method, path, **options)


async def until_ready(agent: Agent) -> httpx.Response:
    """Ask whether the agent is ready until it is."""
    async with asyncio.timeout(PATIENCE):
        while (answer := await ask(agent, "/readyz")).status_code != 200:
            await asyncio.sleep(0.01 * SCALE)
    return answer


async def test_healthz(agent: Agent) -> None:
    """The agent lives, and says so to anyone."""
    answer = await ask(agent, "/healthz?from=probe")
    assert (answer.status_code, answer.text) == (200, "ok\n")
    assert answer.headers["Cache-Control"] == "no-store"


async def test_readyz(tmp_path: Path) -> None:
    """Readiness is proved by a run under way or a decode lately, and told with its reason to anyone."""
    async with agent_here(tmp_path, pair="none") as agent:
        async with client(agent.url) as it:
            await it.ask(ProbeFrame())
        answer = await ask(agent, "/readyz")
        assert answer.status_code == 503 and answer.headers["Content-Type"] == "application/json"
        assert answer.json() == {
            "ready": False,
            "reason": "no two models of one family",
            "last_decode_seconds_ago": None,
        }
        assert answer.text.count("\n") == 1


async def test_readyz_during_and_after_a_run(agent: Agent) -> None:
    """While a run is decoded the agent is ready, and afterwards, as it has decoded lately."""
    async with client(agent.url) as it:
        await start(it, run_frame("wait"))
        during = await until_ready(agent)
        assert during.json()["reason"] == "a run is being decoded"
        agent.release()
        await it.until(ResultFrame)
    after = await until_ready(agent)
    assert after.json()["ready"] is True and 0 <= after.json()["last_decode_seconds_ago"] < PATIENCE


async def test_metrics(agent: Agent) -> None:
    """Metrics count what has happened, by code and by reason, and name no run and no prompt."""
    run = run_frame("finish zeppelin")
    async with client(agent.url) as it:
        await it.send(run)
        await it.until(ResultFrame)
        await it.send(run_frame("fail NO_PAIR"))
        await it.until(FailedFrame)
        await refusal(agent.url, additional_headers=headers("wrong"))
        await refusal(agent.url, additional_headers=headers(None))
        await refusal(agent.url.removesuffix("specdec") + "other")
        await refusal(agent.url, origin="https://example.org")
        await refusal(agent.url, subprotocols=None)
        answer = await ask(agent, "/metrics", headers=headers())
    assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/plain")
    samples = read(answer.content)
    assert one(samples, "specdec_runs_total", code="OK") == 1
    assert one(samples, "specdec_runs_total", code="NO_PAIR") == 1
    assert one(samples, "specdec_run_seconds_count", outcome="result") == 1
    assert one(samples, "specdec_worker_starts_total") >= 1
    assert one(samples, "specdec_pair_found") == 1
    # The client's own; those that were refused have gone.
    assert one(samples, "specdec_connections") == 1
    refused = {
        dict(labels)["reason"]: value
        for (name, labels), value in samples.items()
        if name == "specdec_handshakes_refused_total"
    }
    assert refused == {"unauthorized": 2, "path": 1, "origin": 1, "malformed": 1}
    for secret in ("zeppelin", run.run_id, run.run_id.split(".")[0], TOKEN):
        assert secret not in answer.text


async def test_full_house_is_counted(tmp_path: Path) -> None:
    """A client that finds no room is counted as such, and what is asked over plain HTTP takes no room."""
    async with agent_here(tmp_path, max_connections=1) as agent, client(agent.url):
        assert (await refusal(agent.url))[0] == 503
        assert (await ask(agent, "/healthz")).status_code == 200
        samples = read((await ask(agent, "/metrics", headers=headers())).content)
    assert one(samples, "specdec_handshakes_refused_total", reason="full") == 1


@pytest.mark.parametrize("given", [headers(None), headers("wrong"), {"Authorization": f"Basic {TOKEN}"}])
async def test_metrics_ask_for_the_token(agent: Agent, given: dict[str, str]) -> None:
    """Without the token there are no metrics, and the refusal is not one of a handshake."""
    answer = await ask(agent, "/metrics", headers=given)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "specdec_" not in answer.text
    assert "refused_total{" not in (await ask(agent, "/metrics", headers=headers())).text


@pytest.mark.parametrize("path", sorted(Endpoints.paths))
async def test_head(agent: Agent, path: str) -> None:
    """HEAD is answered as GET is, without the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(agent.url.split(":")[2].split("/")[0]))
    request = f"HEAD {path} HTTP/1.1\r\nHost: tower\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(request.encode())
    async with asyncio.timeout(PATIENCE):
        head, end, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.split()[1] in (b"200", b"503") and end and body == b""
    lengths = [line for line in head.splitlines() if line.startswith(b"Content-Length: ")]
    assert len(lengths) == 1 and int(lengths[0].split()[1]) > 0


@pytest.mark.parametrize("path", sorted(Endpoints.paths))
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods(agent: Agent, path: str, method: str) -> None:
    """Other methods are refused, and told which ones are not."""
    answer = await ask(agent, path, method, headers=headers())
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_unknown_paths(agent: Agent) -> None:
    """Beside the websocket and these three there is nothing."""
    assert (await ask(agent, "/metricsx", headers=headers())).status_code == 404
    assert (await ask(agent, "/metricsx")).status_code == 401
    assert (await ask(agent, "/specdec", headers=headers())).status_code == 426


class Hung:
    """A supervisor whose worker does not answer, and that never did."""

    alive = False
    last_decode_at = None


class Found:
    """A capability watch that is content."""

    def ready(self) -> tuple[bool, str]:
        """Tell of a pair."""
        return True, "the pair has decoded lately"

    async def frame(self, patience_s: float) -> Any:
        """Be asked nothing else."""
        raise AssertionError


async def test_hung_worker_is_not_ready() -> None:
    """A worker that hangs makes the tower unready, whatever is known of the pair."""
    endpoints = Endpoints(Found(), Hung(), metrics=None, tokens=None)  # type: ignore[arg-type]
    answer = await endpoints.answer("/readyz", Request("/readyz", headers=None))  # type: ignore[arg-type]
    assert answer.status_code == 503 and b"the decode worker does not answer" in answer.body


def test_insecure_agent_tells_anyone(tmp_path: Path) -> None:
    """Where the websocket asks for no token the metrics do not either."""
    with agent_process(tmp_path / "state", "--insecure", tower_token="") as agent:
        base = agent.url.replace("ws:", "http:").removesuffix("/specdec")
        answer = httpx.get(f"{base}/metrics", timeout=PATIENCE)
        assert answer.status_code == 200 and "specdec_build_info" in answer.text
