"""Tests of agent.__main__: the agent as a process, started and ended as a user or a mishap would."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.wire import AcceptedFrame, FailedFrame, ProgressFrame, ResultFrame, RunFrame
from tests.agent.scripted_worker import OUTPUT
from tests.agent.support import (
    PATIENCE,
    ROOT,
    AgentProcess,
    agent_process,
    await_exit,
    client,
    run_frame,
    status,
)


async def finish(agent: AgentProcess, run: RunFrame) -> ResultFrame:
    """Have a run decoded."""
    async with client(agent.url) as it:
        await it.send(run)
        return await it.until(ResultFrame)


async def begin(agent: AgentProcess, run: RunFrame) -> None:
    """Have a run begun, and go away."""
    async with client(agent.url) as it:
        assert isinstance(await it.ask(run), AcceptedFrame)
        while (await it.until(ProgressFrame)).phase != "measuring":
            pass


def refused(*flags: str, **environ: str) -> tuple[int, str, str]:
    """Start an agent that must not start; return its exit status, stdout and stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_")}
    done = subprocess.run(
        [sys.executable, "-m", "agent", *flags],
        cwd=ROOT,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "agent: there is no token; name one with --token-file or SPECDEC_TOWER_TOKEN"),
        (["--port", "x"], "agent: --port must be an integer"),
        (["--bogus"], "agent: unrecognized arguments: --bogus; see python -m agent --help"),
    ],
)
def test_wrong_settings(flags: list[str], line: str) -> None:
    """A wrong setting ends the start with status 2 and one line."""
    assert refused(*flags) == (2, "", line + "\n")


async def test_start_and_stop(tmp_path: Path) -> None:
    """One line says where it listens, it serves, and SIGTERM ends it and its worker with status 0."""
    with agent_process(tmp_path / "state") as agent:
        port = agent.url.split(":")[2].split("/")[0]
        assert agent.ready == f"agent listening on ws://127.0.0.1:{port}/specdec\n" and port != "0"
        await finish(agent, run_frame("finish"))
        worker = agent.worker_pid()
        assert agent.stop() == 0
        assert agent.process.stdout is not None and agent.process.stdout.read() == ""
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_insecure(tmp_path: Path) -> None:
    """On loopback it starts without a token when told to, and SIGINT ends it as well."""
    with agent_process(tmp_path / "state", "--insecure", tower_token="") as agent:
        assert agent.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("prompt", ["hang", "deaf"])
async def test_stop_during_run(tmp_path: Path, prompt: str) -> None:
    """A run that does not end within the grace is stopped with its worker, however stubborn."""
    run = run_frame(prompt)
    with agent_process(tmp_path / "state", shutdown_grace_s="0.1", cancel_grace_s="0.1") as agent:
        await begin(agent, run)
        worker = agent.worker_pid()
        assert agent.stop() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
    with agent_process(tmp_path / "state") as agent:
        async with client(agent.url) as it:
            answer = await it.ask(status(run))
    assert isinstance(answer, FailedFrame) and answer.code == "EXPIRED"


async def test_stop_lets_a_run_end(tmp_path: Path) -> None:
    """A run that ends within the grace is told to who waits for it, and kept."""
    run = run_frame("wait")
    with agent_process(tmp_path / "state", shutdown_grace_s=str(PATIENCE)) as agent:
        async with client(agent.url) as it:
            await it.send(run)
            while (await it.until(ProgressFrame)).phase != "measuring":
                pass
            agent.process.send_signal(signal.SIGTERM)
            os.kill(agent.worker_pid(), signal.SIGUSR1)
            assert (await it.until(ResultFrame)).run_id == run.run_id
        assert agent.process.wait(PATIENCE) == 0
    with agent_process(tmp_path / "state") as agent:
        async with client(agent.url) as it:
            assert isinstance(await it.ask(status(run)), ResultFrame)


async def test_agent_killed(tmp_path: Path) -> None:
    """After kill -9 no worker is left, what had finished is still known, and what had not is lost."""
    finished, running, waiting = run_frame("finish"), run_frame("hang"), run_frame("finish")
    with agent_process(tmp_path / "state") as agent:
        result = await finish(agent, finished)
        await begin(agent, running)
        async with client(agent.url) as it:
            assert await it.ask(waiting) == AcceptedFrame(run_id=waiting.run_id, position=1, k=4)
        worker = agent.worker_pid()
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
        await_exit(worker)
    with agent_process(tmp_path / "state") as agent:
        async with client(agent.url) as it:
            assert await it.ask(status(finished)) == result
            for run in (running, waiting):
                for frame in (status(run), run):
                    answer = await it.ask(frame)
                    assert isinstance(answer, FailedFrame) and answer.code == "EXPIRED"
                    assert "the agent restarted" in answer.detail


async def test_nothing_private_is_written(tmp_path: Path) -> None:
    """Neither prompts nor outputs nor the token are in the log or in the store, but run ids are in both."""
    run = run_frame("shout marmalade zeppelin \U0001f9c7", include_output=True)
    with agent_process(tmp_path / "state") as agent:
        async with client(agent.url) as it:
            await it.connection.send('{"type": "run", "prompt": "marmalade zeppelin"}')
            await it.until(FailedFrame)
        assert (await finish(agent, run)).output == OUTPUT
        await begin(agent, run_frame("hang marmalade zeppelin"))
        written = {path: path.read_bytes() for path in (tmp_path / "state").iterdir()} | {
            agent.log: agent.log.read_bytes()
        }
        agent.entries()  # each line is JSON
    assert any(path.suffix == ".sqlite3" for path in written)
    for path, content in written.items():
        for secret in (
            b"zeppelin",
            b"secret output",
            b"correct-horse",
            "\U0001f9c7".encode(),
            b"\\ud83e\\uddc7",
        ):
            assert secret not in content, path
    assert run.run_id.encode() in written[agent.log]
    assert any(run.run_id.encode() in content for path, content in written.items() if path != agent.log)


def test_second_agent_on_one_state(tmp_path: Path) -> None:
    """Two agents cannot share a state directory: the second says so in one line."""
    with agent_process(tmp_path / "state"):
        code, out, err = refused("--state", str(tmp_path / "state"), "--port", "0", SPECDEC_TOWER_TOKEN="x")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("agent: the run store") and "database is locked" in err


def test_port_taken(tmp_path: Path) -> None:
    """A port that is taken is told in one line."""
    with agent_process(tmp_path / "state") as agent:
        port = agent.url.split(":")[2].split("/")[0]
        code, out, err = refused("--state", str(tmp_path / "other"), "--port", port, SPECDEC_TOWER_TOKEN="x")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"agent: cannot listen on 127.0.0.1:{port} (") and "address already in use" in err
