"""TCP to the tower: every address is tried, and whatever is wrong with one ends in a fault."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from edge.deadline import Deadline
from edge.dial import UNREAD_MS, dial
from edge.faults import FaultKind, TowerFault
from tests.edge.support import SCALE, client


class NoSocket(OSError):
    """What `socket.socket` raises for a family that the machine does not have."""


def _addresses(*ports: int) -> list[Any]:
    """Return addresses as getaddrinfo gives them, the first of a family that is refused."""
    return [
        (socket.AF_INET6 if index == 0 else socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        for index, port in enumerate(ports)
    ]


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that makes no socket of IPv6."""
    real = socket.socket

    def make(family: int, *rest: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise NoSocket(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest)

    monkeypatch.setattr("edge.dial.socket.socket", make)


def test_address_of_a_family_that_is_off(without_ipv6: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address is tried."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr("edge.dial.socket.getaddrinfo", lambda *_, **__: _addresses(port, port))
        with dial("ws://tower:1/", Deadline.after(10 * SCALE)) as sock:
            assert sock.getpeername() == ("127.0.0.1", port)


def test_no_address_can_be_used(without_ipv6: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the only address is of no use, health and run say that the tower cannot be reached."""
    monkeypatch.setattr("edge.dial.socket.getaddrinfo", lambda *_, **__: _addresses(1))
    edge = client("ws://tower:1/")
    assert edge.get("/health").json["tower_reachable"] is False
    assert edge.run().payload["roadmap"]["code"] == "TOWER_UNREACHABLE"


def test_what_is_sent_is_not_waited_for_without_end() -> None:
    """The system gives a connection up whose other end takes nothing: sending has no limit of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}/"
        with dial(url, Deadline.after(10 * SCALE)) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_MS


@pytest.mark.parametrize("host", ["[fe80::1%25nosuch]", "[fe80::1%nosuch]", "256.0.0.1", "xn--a", "b" * 64])
def test_hosts_that_are_none(host: str) -> None:
    """An address of an interface that is not there, and names that cannot be, are faults like others."""
    with pytest.raises(TowerFault) as caught:
        dial(f"ws://{host}:1/", Deadline.after(10 * SCALE))
    assert caught.value.kind in (FaultKind.UNREACHABLE, FaultKind.SILENT)
