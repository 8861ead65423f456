"""Tests of agent.notify: real datagrams, and the real agent as systemd would start it."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.notify import Notifier
from tests.agent.support import PATIENCE, SCALE, agent_process


class Systemd:
    """The end of the socket at which systemd listens."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        """Listen at an address, as it stands in the environment."""
        self.socket = sock
        self.address = address
        sock.settimeout(PATIENCE)

    def heard(self) -> str:
        """Return the next message."""
        return self.socket.recv(65536).decode()

    def until(self, message: str) -> list[str]:
        """Return the messages up to and with this one."""
        messages = [self.heard()]
        while messages[-1] != message:
            messages.append(self.heard())
        return messages


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    """A socket with a place in the file system, and one without."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        if request.param == "path":
            sock.bind(str(tmp_path / "notify"))
            yield Systemd(sock, str(tmp_path / "notify"))
        else:
            name = f"specdec-test-{os.getpid()}"
            sock.bind(f"\0{name}")
            yield Systemd(sock, f"@{name}")


def test_send(systemd: Systemd) -> None:
    """Assignments arrive as one datagram, a line each."""
    Notifier({"NOTIFY_SOCKET": systemd.address}).send("READY=1", "STATUS=it serves")
    assert systemd.heard() == "READY=1\nSTATUS=it serves"


def test_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without systemd nothing is sent, and a socket that is gone is told and no error."""
    with caplog.at_level(logging.INFO):
        Notifier({}).send("READY=1")
        assert not caplog.records
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("READY=1")
        assert [record.getMessage() for record in caplog.records] == ["systemd not told"]


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
    ],
)
def test_watchdog_interval(environ: dict[str, str], seconds: float | None) -> None:
    """The watchdog is fed if it is there, and meant for this process."""
    assert Notifier({"NOTIFY_SOCKET": "/run/x", **environ}).watchdog_s == seconds
    assert Notifier(environ).watchdog_s is None


async def test_watchdog_starves_when_unhealthy(systemd: Systemd) -> None:
    """The watchdog is fed while all is well, not while it is not, and a status is told when it changes."""
    notifier = Notifier({"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": str(int(20_000 * SCALE))})
    healthy, status, asked = True, "one", 0

    def is_healthy() -> bool:
        nonlocal asked
        asked += 1
        return healthy

    async def tell_status() -> str:
        if status == "broken":
            raise ValueError
        return status

    async def asked_again(times: int) -> None:
        until = asked + times
        async with asyncio.timeout(PATIENCE):
            while asked < until:
                await asyncio.sleep(0)

    telling = asyncio.create_task(notifier.keep_telling(is_healthy, tell_status))
    await asked_again(3)
    assert [systemd.heard() for _ in range(3)] == ["WATCHDOG=1", "STATUS=one", "WATCHDOG=1"]
    healthy, status = False, "two"
    await asked_again(2)
    healthy, status = True, "broken"
    await asked_again(3)
    telling.cancel()
    with suppress(asyncio.CancelledError):
        await telling
    notifier.send("END")
    rest = systemd.until("END")
    # The two turns or more in which it was not healthy have told the status, and fed nobody.
    assert rest.count("STATUS=two") == 1
    assert 2 + rest.count("WATCHDOG=1") <= asked - 2
    # A status that cannot be told stops nothing.
    assert rest.index("STATUS=two") < len(rest) - 3


async def test_no_telling_without_systemd() -> None:
    """Without systemd there is nothing to keep telling."""

    async def status() -> str:
        raise AssertionError

    await asyncio.wait_for(Notifier({}).keep_telling(lambda: True, status), PATIENCE)


def test_agent(tmp_path: Path, systemd: Systemd) -> None:
    """The agent says that it is ready when it serves and knows its pair, feeds the watchdog, and says that it stops."""
    environ = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": str(int(200_000 * SCALE))}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        with agent_process(tmp_path / "state") as agent:
            assert systemd.heard() == "READY=1"
            assert systemd.heard() == "WATCHDOG=1"
            assert systemd.heard() == f"STATUS={agent.url}: one vocabulary"
            systemd.until("WATCHDOG=1")
            assert agent.stop(signal.SIGTERM) == 0
            assert "STOPPING=1" in systemd.until("STOPPING=1")
