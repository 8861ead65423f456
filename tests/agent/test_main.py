"""Tests of agent.__main__: the agent as a process, started and ended as a user or a mishap would."""

import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from websockets.exceptions import InvalidMessage, InvalidStatus

from agent.token_command import main as token_command
from agent.tokens import NAME, read_tokens
from shared.wire import (
    AcceptedFrame,
    CapabilityFrame,
    FailedFrame,
    ProbeFrame,
    ProgressFrame,
    ResultFrame,
    RunFrame,
)
from tests.agent.scripted_worker import OUTPUT
from tests.agent.support import (
    PATIENCE,
    ROOT,
    AgentProcess,
    agent_process,
    await_exit,
    client,
    headers,
    run_frame,
    status,
)
from tests.certificates import Authority, serial


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
        (
            ["--state", "/nowhere"],
            "agent: there is no token; name one with --token-file or SPECDEC_TOWER_TOKEN",
        ),
        (["--port", "x"], "agent: --port must be an integer"),
        (
            ["--insecure", "--tls-cert", __file__, "--tls-key", __file__],
            "agent: the certificate and its key cannot be used (no PEM, or a key with a password);"
            " see --tls-cert and --tls-key",
        ),
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
        base = f"http://127.0.0.1:{port}"
        text = httpx.get(f"{base}/metrics", headers=headers(), timeout=PATIENCE).text
        assert 'specdec_run_seconds_count{outcome="result"} 1.0' in text
        assert httpx.get(f"{base}/readyz", timeout=PATIENCE).json()["ready"] is True
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
    """A run that ends within the grace is told to who waits for it, and kept; a new one finds no place."""
    run = run_frame("wait")
    with agent_process(tmp_path / "state", shutdown_grace_s=str(PATIENCE)) as agent:
        async with client(agent.url) as it:
            await it.send(run)
            while (await it.until(ProgressFrame)).phase != "measuring":
                pass
            agent.process.send_signal(signal.SIGTERM)
            agent.until_logged("stopping")
            await it.send(run_frame("finish"))
            refused = await it.until(FailedFrame)
            assert (refused.code, refused.detail.split(";")[0]) == ("BUSY", "the agent is shutting down")
            with pytest.raises(OSError):
                async with client(agent.url):
                    pass
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
        for word in ("fail", "die", "garbage", "nonsense", "load"):
            async with client(agent.url) as it:
                await it.send(run_frame(f"{word} marmalade zeppelin"))
                await it.until(FailedFrame)
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


async def test_token_is_changed_without_a_restart(tmp_path: Path) -> None:
    """A new token is let in at once, the old one until it is dropped, and who is connected stays."""
    state = tmp_path / "state"
    state.mkdir()
    assert token_command(["new", "--state", str(state)]) == 0
    (old,) = read_tokens(state / NAME)

    async def let_in(token: str) -> bool:
        try:
            async with client(agent.url, additional_headers=headers(token)) as it:
                return isinstance(await it.ask(ProbeFrame()), CapabilityFrame)
        except InvalidStatus as refusal:
            assert refusal.response.status_code == 401
            return False

    with agent_process(state, tower_token="") as agent:
        async with client(agent.url, additional_headers=headers(old)) as it:
            assert token_command(["new", "--state", str(state)]) == 0
            new = read_tokens(state / NAME)[0]
            assert [await let_in(token) for token in (new, old, "guess")] == [True, True, False]
            assert token_command(["drop-old", "--state", str(state)]) == 0
            assert [await let_in(token) for token in (new, old)] == [True, False]
            (state / NAME).write_text("one\ntwo\nthree\n")
            assert [await let_in(token) for token in (new, "one")] == [True, False]
            assert isinstance(await it.ask(ProbeFrame()), CapabilityFrame)
        log = agent.log.read_text()
    assert "tokens kept as they were" in log
    assert not any(secret in log for secret in (old, new, "three"))


async def test_tls(tmp_path: Path) -> None:
    """With a certificate the agent speaks TLS, says so, and takes a renewed certificate while it serves."""
    authority = Authority.new()
    cert, key = authority.issue(tmp_path)
    trust = ssl.create_default_context(cadata=authority.pem)
    with agent_process(tmp_path / "state", "--tls-cert", str(cert), "--tls-key", str(key)) as agent:
        assert agent.ready.startswith("agent listening on wss://127.0.0.1:")

        async def shown() -> int:
            async with client(agent.url, ssl=trust) as it:
                assert isinstance(await it.ask(ProbeFrame()), CapabilityFrame)
                tls = it.connection.transport.get_extra_info("ssl_object")
                der: bytes = tls.getpeercert(binary_form=True)
                return x509.load_der_x509_certificate(der).serial_number

        assert await shown() == serial(cert)
        authority.issue(tmp_path)
        assert await shown() == serial(cert)
        with pytest.raises(ssl.SSLCertVerificationError):
            async with client(agent.url):
                pass
        with pytest.raises(InvalidMessage):
            async with client(agent.url.replace("wss:", "ws:")):
                pass
        base = agent.url.replace("wss:", "https:").removesuffix("/specdec")
        assert httpx.get(f"{base}/healthz", verify=trust, timeout=PATIENCE).text == "ok\n"


@pytest.mark.parametrize("command", ["token", "install", "uninstall", "selfcheck"])
def test_commands(command: str) -> None:
    """Each command explains itself."""
    status, out, err = refused(command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: python -m agent {command} ")


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
