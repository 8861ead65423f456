"""Tests of agent.server: real websockets on loopback, a real worker process that does as the prompt says."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agent.pairs import EMBEDDED
from shared.schemas import Pair
from shared.wire import (
    MAX_FRAME,
    AcceptedFrame,
    CapabilityFrame,
    ErrorCode,
    FailedFrame,
    ProbeFrame,
    ProgressFrame,
    ResultFrame,
    RunFrame,
)
from tests.agent.scripted_worker import OUTPUT
from tests.agent.support import (
    GOLDEN,
    PATIENCE,
    Agent,
    Client,
    agent_here,
    agent_process,
    cancel,
    client,
    headers,
    run_frame,
    status,
)


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent in this process."""
    async with agent_here(tmp_path) as agent:
        yield agent


async def start(it: Client, run: RunFrame) -> ProgressFrame:
    """Ask for a run, and return the progress that shows it under way."""
    assert isinstance(await it.ask(run), AcceptedFrame)
    while (progress := await it.until(ProgressFrame)).phase != "measuring":
        pass
    return progress


async def refusal(url: str, **options: Any) -> tuple[int, str]:
    """Connect where that must be refused; return the HTTP status and who is asked to authenticate how."""
    with pytest.raises(InvalidStatus) as caught:
        async with client(url, **options):
            pass
    response = caught.value.response
    return response.status_code, response.headers.get("WWW-Authenticate", "")


# Who may connect.


@pytest.mark.parametrize(
    "given",
    [
        headers(None),
        headers("wrong"),
        headers(""),
        {"Authorization": "Basic correct-horse-battery"},
        {"Authorization": "correct-horse-battery"},
        {"Authorization": "Bearer \xfcmlaut"},
        [*headers().items(), *headers("wrong").items()],
    ],
)
async def test_unauthorized(agent: Agent, given: Any) -> None:
    """Without the token there is no upgrade, only a 401."""
    assert await refusal(agent.url, additional_headers=given) == (401, "Bearer")


async def test_scheme_in_any_case(agent: Agent) -> None:
    """The name of the scheme may be written in any case."""
    given = {"Authorization": "bearer correct-horse-battery"}
    async with client(agent.url, additional_headers=given) as it:
        assert isinstance(await it.ask(ProbeFrame()), CapabilityFrame)


async def test_paths(agent: Agent) -> None:
    """The websocket is at / and at /specdec, and nowhere else."""
    base = agent.url.removesuffix("/specdec")
    async with client(f"{base}/"), client(f"{base}/specdec?from=test"):
        pass
    assert await refusal(f"{base}/other") == (404, "")


async def test_subprotocol_is_required(agent: Agent) -> None:
    """A client that does not speak the protocol is refused."""
    assert (await refusal(agent.url, subprotocols=None))[0] == 400


async def test_web_pages_are_refused(agent: Agent) -> None:
    """A browser names its page's origin, and none is welcome, token or not."""
    assert (await refusal(agent.url, origin="https://example.org"))[0] == 403


async def test_connection_cap(tmp_path: Path) -> None:
    """Over the cap clients get a 503, refused ones do not count, and a place freed can be taken."""
    async with agent_here(tmp_path, max_connections=2) as agent:
        for _ in range(3):
            await refusal(agent.url, additional_headers=headers("wrong"))
            await refusal(agent.url, subprotocols=None)
        async with client(agent.url) as first:
            async with client(agent.url):
                assert (await refusal(agent.url))[0] == 503
                assert isinstance(await first.ask(ProbeFrame()), CapabilityFrame)
            async with client(agent.url):
                pass


# What frames are answered with.


@pytest.mark.parametrize(
    ("given", "logged"),
    [
        ("JKJaXmPLvHcESHA=", "JKJaXmPLvHcESHA="),
        ("a" * 64, "a" * 64),
        ("AZaz09=_+/-", "AZaz09=_+/-"),
        (None, None),
        ("", None),
        ("a" * 65, None),
        ("two words", None),
        ("a, b", None),
        ('"quoted"', None),
        ("id\u00e9", None),
        (["first", "second"], None),
    ],
)
async def test_correlation_id(
    agent: Agent, caplog: pytest.LogCaptureFixture, given: str | list[str] | None, logged: str | None
) -> None:
    """A run that is taken, or found again, is logged with the client's id for it, if that has the form of one."""
    caplog.set_level(logging.INFO, "agent")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    sent = [*headers().items(), *(("X-Correlation-Id", one) for one in ids), ("X-Other", "nobody's business")]
    run, unknown = run_frame("a secret"), run_frame("another")
    async with client(agent.url, additional_headers=sent) as it:
        await it.ask(ProbeFrame())
        assert isinstance(await it.ask(status(unknown)), FailedFrame)
        for _ in range(2):
            await it.send(run)
            await it.until(ResultFrame)
        assert isinstance(await it.ask(status(run)), ResultFrame)
    lines = [record.data for record in caplog.records if hasattr(record, "data")]
    taken = [line for line in lines if "correlation_id" in line]
    assert taken == ([{"run_id": run.run_id, "correlation_id": logged}] * 2 if logged else [])
    assert "business" not in str(lines) + caplog.text and "secret" not in str(lines) + caplog.text
    for one in ids:
        assert logged or not one or one not in str(lines) + caplog.text


async def test_run_that_is_refused_is_not_correlated(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """Only runs that are taken are logged with a client's id."""
    caplog.set_level(logging.INFO, "agent")
    run = run_frame("a secret")
    other = run.model_copy(update={"nonce": "0" * 64})
    async with client(agent.url, additional_headers={**headers(), "X-Correlation-Id": "an-id"}) as it:
        await it.send(run)
        await it.until(ResultFrame)
        refused = await it.ask(other)
        assert isinstance(refused, FailedFrame) and refused.code == ErrorCode.CONFLICT
        assert refused.busy_s is None
    assert [record.message for record in caplog.records].count("run taken") == 1


async def test_golden_frames(agent: Agent) -> None:
    """Each client frame of the contract is answered as the contract shows."""
    probe, run, ask, stop = GOLDEN["client"]
    expected = {frame["type"]: frame for frame in GOLDEN["agent"][:4]}
    async with client(agent.url) as it:

        async def answer(frame: dict[str, Any]) -> dict[str, Any]:
            await it.connection.send(json.dumps(frame))
            return (await it.receive()).model_dump(mode="json")

        capability = await answer(probe)
        for name in ("energy", "agent_version"):
            assert capability.pop(name)
            expected["capability"].pop(name)
        assert capability == expected["capability"]
        assert await answer(run) == expected["accepted"] | {"k": run["request"]["k"]}
        result = (await it.until(ResultFrame)).model_dump(mode="json")
        assert result.pop("energy")["label"] == "UNAVAILABLE" and "ended_at" in result
        expected["result"].pop("energy")
        assert result["busy_s"] >= 0
        own = {name: result[name] for name in ("ended_at", "busy_s")}
        assert result == expected["result"] | own
        for frame in (ask, stop):
            again = await answer(frame)
            assert again.pop("energy")
            assert again == result


@pytest.mark.parametrize(
    "message",
    [
        "",
        "not json",
        "[]",
        "null",
        "{}",
        '{"type": "shutdown"}',
        '{"type": ["probe"]}',
        '{"type": "status"}',
        '{"type": "status", "run_id": "short"}',
        '{"type": "probe", "type": "probe"}',
        '{"type": "probe", "x": NaN}',
        '{"type": "probe", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"type": "capability"}',
        b'{"type": "probe"}',
        b"\xff\x00",
    ],
)
async def test_malformed_frame(agent: Agent, message: str | bytes) -> None:
    """A malformed frame is answered with BAD_MESSAGE, the connection is closed, and the agent lives on."""
    async with client(agent.url) as it:
        await it.connection.send(message)
        frame = await it.receive()
        assert isinstance(frame, FailedFrame)
        assert (frame.run_id, frame.code) == (None, ErrorCode.BAD_MESSAGE)
        with pytest.raises(ConnectionClosed):
            await it.receive()
        assert it.connection.close_code == 1008
    async with client(agent.url) as it:
        assert isinstance(await it.ask(ProbeFrame()), CapabilityFrame)


async def test_malformed_run_does_not_echo(agent: Agent) -> None:
    """What is refused is not quoted."""
    frame = run_frame("finish").model_dump(mode="json")
    frame["request"] |= {"prompt": "marmalade zeppelin", "k": 99}
    async with client(agent.url) as it:
        await it.connection.send(json.dumps(frame))
        answer = await it.receive()
        assert isinstance(answer, FailedFrame) and "k must be" in answer.detail
        assert "zeppelin" not in answer.model_dump_json()


async def test_oversized_frame(agent: Agent) -> None:
    """A frame over the limit closes the connection, and the agent lives on."""
    async with client(agent.url) as it:
        await it.connection.send('{"type": "probe", "x": "' + "x" * MAX_FRAME + '"}')
        with pytest.raises(ConnectionClosed):
            await it.receive()
        assert it.connection.close_code == 1009
    async with client(agent.url) as it:
        assert isinstance(await it.ask(ProbeFrame()), CapabilityFrame)


async def test_run_id_of_another_request(agent: Agent) -> None:
    """A run id that is not bound to the request is refused, and the connection stays."""
    frame = run_frame("finish")
    swapped = frame.model_copy(update={"request": frame.request.model_copy(update={"n": 51})})
    async with client(agent.url) as it:
        answer = await it.ask(swapped)
        assert isinstance(answer, FailedFrame)
        assert (answer.run_id, answer.code) == (frame.run_id, ErrorCode.BAD_REQUEST)
        assert isinstance(await it.ask(ProbeFrame()), CapabilityFrame)


async def test_unknown_run(agent: Agent) -> None:
    """Asking about a run nobody started is answered with NOT_FOUND."""
    async with client(agent.url) as it:
        for frame in (status(run := run_frame("finish")), cancel(run)):
            answer = await it.ask(frame)
            assert isinstance(answer, FailedFrame) and answer.code == ErrorCode.NOT_FOUND


# How runs go.


async def test_run(agent: Agent) -> None:
    """A run is accepted, shows progress and ends with its result, output included if asked for."""
    run = run_frame("finish", include_output=True)
    async with client(agent.url) as it:
        assert await it.ask(run) == AcceptedFrame(run_id=run.run_id, position=0, k=4)
        result = await it.until(ResultFrame)
    assert (result.run_id, result.nonce, result.output) == (run.run_id, run.nonce, OUTPUT)


async def test_status(agent: Agent) -> None:
    """Status is one frame at once: position while waiting, progress while running, the end when over."""
    running, waiting = run_frame("wait"), run_frame("finish")
    async with client(agent.url) as it, client(agent.url) as other:
        await start(it, running)
        await it.send(waiting)
        progress = await other.ask(status(running))
        assert progress == ProgressFrame(run_id=running.run_id, phase="measuring", done=12, total=50, k=4)
        assert await other.ask(status(waiting)) == AcceptedFrame(run_id=waiting.run_id, position=1, k=4)
        agent.release()
        ends = {(await it.until(ResultFrame)).run_id for _ in range(2)}
        assert ends == {running.run_id, waiting.run_id}
        assert isinstance(await other.ask(status(waiting)), ResultFrame)


async def test_keepalive(agent: Agent) -> None:
    """Whoever waits for a run, running or queued, hears of it again and again though nothing changes."""
    running, waiting = run_frame("wait"), run_frame("finish")
    async with client(agent.url) as it, client(agent.url) as other:
        shown = await start(it, running)
        await other.ask(waiting)
        for _ in range(2):
            assert await it.until(ProgressFrame) == shown
            queued = ProgressFrame(run_id=waiting.run_id, phase="queued", done=0, total=50, k=4)
            assert await other.until(ProgressFrame) == queued
        agent.release()
        await other.until(ResultFrame)


async def test_busy(tmp_path: Path) -> None:
    """A run that finds the queue full is told to come back, and when."""
    async with agent_here(tmp_path, queue_limit=1) as agent, client(agent.url) as it:
        await start(it, run_frame("wait"))
        await it.send(run_frame("finish"))
        await it.send(run_frame("finish"))
        refused = await it.until(FailedFrame)
        assert refused.code == ErrorCode.BUSY
        assert refused.retry_after is not None and refused.retry_after > 0
        agent.release()


async def test_conflict(agent: Agent) -> None:
    """An ID sent again with another request is refused."""
    async with client(agent.url) as it:
        await it.ask(run_frame("finish", id_bytes=bytes(16)))
        await it.until(ResultFrame)
        answer = await it.ask(run_frame("finish", id_bytes=bytes(16), n=51))
        assert isinstance(answer, FailedFrame) and answer.code == ErrorCode.CONFLICT


async def test_attach(agent: Agent) -> None:
    """Two clients that ask for the same run get the same result of one decode."""
    run = run_frame("wait")
    async with client(agent.url) as one, client(agent.url) as two:
        await start(one, run)
        await start(two, run)
        agent.release()
        assert await one.until(ResultFrame) == await two.until(ResultFrame)
        # One release has let one decode go on: were there a second, it would be waiting now.
        assert isinstance(await one.ask(run), AcceptedFrame)
        assert isinstance(await one.receive(), ResultFrame)
        assert not agent.runs.queue().running


async def test_cancel_running(agent: Agent) -> None:
    """A running run can be cancelled by another client; both hear of it once, and the next run succeeds."""
    run = run_frame("wait")
    async with client(agent.url) as it, client(agent.url) as other:
        shown = await start(it, run)
        assert await other.ask(cancel(run)) == shown
        answer = await other.until(FailedFrame)
        assert (answer.run_id, answer.code) == (run.run_id, ErrorCode.CANCELLED)
        assert await it.until(FailedFrame) == answer
        assert await it.ask(status(run)) == answer
        await it.send(run_frame("finish"))
        await it.until(ResultFrame)


async def test_cancel_not_heeded(agent: Agent) -> None:
    """A cancel is answered at once though the worker does not stop, and progress follows."""
    run = run_frame("hang")
    async with client(agent.url) as it, client(agent.url) as other:
        shown = await start(it, run)
        for _ in range(3):
            assert await other.ask(cancel(run)) == shown
        for _ in range(3):
            assert await other.receive() == shown
        assert agent.runs.queue().running


async def test_cancel_own_run(agent: Agent) -> None:
    """A client that cancels runs it waits for, running or queued, is told once that each has ended."""
    running, waiting = run_frame("wait"), run_frame("finish")
    async with client(agent.url) as it:
        await start(it, running)
        await it.send(waiting)
        await it.until(AcceptedFrame)
        for run in (waiting, running):
            await it.send(cancel(run))
            failed = await it.until(FailedFrame)
            assert (failed.run_id, failed.code) == (run.run_id, ErrorCode.CANCELLED)
        assert isinstance(await it.ask(ProbeFrame()), CapabilityFrame)


async def test_cancel_queued(agent: Agent) -> None:
    """A cancel of a waiting run ends that one only."""
    running, waiting = run_frame("wait"), run_frame("finish")
    async with client(agent.url) as it, client(agent.url) as other:
        await start(it, running)
        await other.ask(waiting)
        await other.send(cancel(waiting))
        answer = await other.until(FailedFrame)
        assert (answer.run_id, answer.code) == (waiting.run_id, ErrorCode.CANCELLED)
        async with client(agent.url) as third:
            assert await third.ask(cancel(waiting)) == answer
        agent.release()
        assert (await it.until(ResultFrame)).run_id == running.run_id


async def test_cancel_finished(agent: Agent) -> None:
    """A cancel that comes too late is answered with the result."""
    run = run_frame("finish")
    async with client(agent.url) as it:
        await it.send(run)
        result = await it.until(ResultFrame)
        assert await it.ask(cancel(run)) == result


async def test_client_goes_away(agent: Agent) -> None:
    """A run goes on without the client that asked for it, and its result can be fetched."""
    run = run_frame("wait")
    async with client(agent.url) as it:
        await start(it, run)
        it.connection.transport.abort()
    async with client(agent.url) as it:
        assert isinstance(await it.ask(status(run)), ProgressFrame)
        await it.send(run)
        agent.release()
        result = await it.until(ResultFrame)
        assert await it.ask(status(run)) == result


async def test_worker_killed(agent: Agent) -> None:
    """A worker that is killed costs its run, and only that."""
    run = run_frame("wait")
    async with client(agent.url) as it:
        await start(it, run)
        assert agent.supervisor.worker_pid is not None
        os.kill(agent.supervisor.worker_pid, signal.SIGKILL)
        failed = await it.until(FailedFrame)
        assert (failed.run_id, failed.code) == (run.run_id, ErrorCode.WORKER_DIED)
        await it.send(run_frame("finish"))
        await it.until(ResultFrame)


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("fail NO_PAIR", ErrorCode.NO_PAIR),
        ("fail OUT_OF_MEMORY", ErrorCode.OUT_OF_MEMORY),
        ("fail SOMETHING_NEW", ErrorCode.INTERNAL),
        ("nonsense", ErrorCode.INTERNAL),
        ("flood", ErrorCode.WORKER_DIED),
    ],
)
async def test_failures(agent: Agent, prompt: str, code: ErrorCode) -> None:
    """Whatever goes wrong in the worker ends the run with a code of the closed list."""
    async with client(agent.url) as it:
        await it.send(run_frame(prompt))
        assert (await it.until(FailedFrame)).code == code


# What probes are answered with.


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("none", "no two models of one family"),
        ("die", "looking for a pair failed: the decode worker exited with status 3"),
        ("fail", "looking for a pair failed: the store cannot be read"),
        ("odd", "the decode worker's answer about the pair is not valid"),
    ],
)
async def test_no_pair(tmp_path: Path, mode: str, reason: str) -> None:
    """Without a pair the capability says why."""
    async with agent_here(tmp_path, pair=mode) as agent, client(agent.url) as it:
        answer = await it.ask(ProbeFrame())
        assert isinstance(answer, CapabilityFrame)
        assert (answer.same_family_pair.found, answer.same_family_pair.reason) == (False, reason)


async def test_probe_does_not_wait(tmp_path: Path) -> None:
    """A probe is answered though looking for a pair takes long, and better once that has ended."""
    async with agent_here(tmp_path, pair="slow") as agent, client(agent.url) as it:
        answer = await it.ask(ProbeFrame())
        assert isinstance(answer, CapabilityFrame)
        assert answer.same_family_pair.reason == "the agent is still looking for a pair"
        agent.release()
        async with asyncio.timeout(PATIENCE):
            while not answer.same_family_pair.found:
                answer = await it.ask(ProbeFrame())
                assert isinstance(answer, CapabilityFrame)


async def test_probe_during_run(tmp_path: Path) -> None:
    """While a run goes on the old answer is given, with the queue as it is, and the worker is left alone."""
    async with agent_here(tmp_path, again_s=0) as agent, client(agent.url) as it:
        assert isinstance(before := await it.ask(ProbeFrame()), CapabilityFrame)
        await start(it, run_frame("wait"))
        await it.send(ProbeFrame())
        during = await it.until(CapabilityFrame)
        assert during.same_family_pair == before.same_family_pair
        assert during.queue.running and not before.queue.running
        agent.release()
        await it.until(ResultFrame)


async def test_probe_after_failed_load(tmp_path: Path) -> None:
    """A pair that could not be loaded is no pair, whatever a look at its files says, until a run could load it."""
    async with agent_here(tmp_path, again_s=0) as agent, client(agent.url) as it:

        async def pair() -> Pair:
            answer = await it.ask(ProbeFrame())
            assert isinstance(answer, CapabilityFrame)
            return answer.same_family_pair

        assert (await pair()).found
        await it.send(run_frame("load LOAD_FAILED"))
        assert (await it.until(FailedFrame)).code == ErrorCode.LOAD_FAILED
        assert await pair() == Pair(
            found=False,
            reason="the pair could not be loaded: it cannot be loaded",
            draft="llama3.2:1b",
            target="llama3.1:8b",
            family="llama",
        )
        await it.send(run_frame("finish"))
        await it.until(ResultFrame)
        assert (await pair()).found


# The whole agent, with the pair that comes with it.


async def test_embedded_pair(tmp_path: Path) -> None:
    """The agent measures its embedded pair: rates within bounds, counts that add up, output that was asked for."""
    with agent_process(tmp_path / "state", "--embedded", module="agent.worker") as agent:
        async with client(agent.url) as it:
            capability = await it.ask(ProbeFrame())
            assert isinstance(capability, CapabilityFrame)
            assert capability.same_family_pair.found, capability.same_family_pair.reason
            run = run_frame("And it came to pass", n=12, k=3, include_output=True, ignore_eos=True)
            await it.send(run)
            async with asyncio.timeout(4 * PATIENCE):
                while isinstance(frame := await it.receive(), AcceptedFrame | ProgressFrame):
                    pass
            assert isinstance(frame, ResultFrame), frame
            assert (frame.measurement.n, frame.measurement.k) == (12, 3)
            assert sum(frame.measurement.acceptance_histogram) == 12
            assert frame.measurement.quality.identical_rate == 1.0
            assert frame.output
        assert agent.stop() == 0
        assert "came to pass" not in agent.log.read_text()
        assert frame.output not in agent.log.read_text()


async def test_damaged_pair(tmp_path: Path) -> None:
    """Files that are cut short are no pair, with llama.cpp's reason and without a path, and a run says so too."""
    files = []
    for name in ("draft", "target"):
        whole = (EMBEDDED / f"{name}.gguf").read_bytes()
        files += [f"--{name}", str(tmp_path / f"{name}.gguf")]
        (tmp_path / f"{name}.gguf").write_bytes(whole[: len(whole) // 2])
    with agent_process(tmp_path / "state", *files, module="agent.worker") as agent:
        async with client(agent.url) as it:
            told = await it.ask(ProbeFrame())
            assert isinstance(told, CapabilityFrame) and not told.same_family_pair.found
            reason = told.same_family_pair.reason
            assert reason.startswith("draft cannot be used: llama.cpp cannot load it (tensor ")
            await it.send(run_frame("And it came to pass"))
            failed = await it.until(FailedFrame)
            assert failed.code == ErrorCode.NO_PAIR and failed.detail.startswith(reason)
        assert str(tmp_path) not in reason + failed.detail
