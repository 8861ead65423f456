"""TCP to the tower within one deadline, for names and all addresses."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from edge.deadline import Deadline
from edge.faults import FaultKind, TowerFault

UNREAD_MS = 5000
"""A connection whose other end has not taken what was sent to it for so long is given up (tcp(7), TCP_USER_TIMEOUT)."""

_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def dial(url: str, deadline: Deadline) -> socket.socket:
    """Connect; unlike `socket.create_connection`, within one deadline.

    Raises:
        TowerFault: If there was no connection by then.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    addresses = _resolve(parts.hostname or "", port, deadline)
    timed_out = False
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:  # a family that this machine does not have, or too many open files
            timed_out = False
            continue
        try:
            # An equal share for each address left; never 0, which would mean "do not block".
            sock.settimeout(max(0.01, deadline.remaining() / (len(addresses) - index)))
            sock.connect(address)
            sock.settimeout(None)
            # What is sent has no other limit: a tower that has gone, or reads no more, would hold the invocation.
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux, and so Lambda
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
            return sock
        except OSError as error:
            timed_out = isinstance(error, TimeoutError)
            sock.close()
    if timed_out:
        raise TowerFault(FaultKind.SILENT, "the tower did not accept a connection in time")
    raise TowerFault(FaultKind.UNREACHABLE, "the tower refused the connection")


def _resolve(host: str, port: int, deadline: Deadline) -> Sequence[_Address]:
    """Look a name up in a thread, because getaddrinfo knows no timeout; an address is no name and needs none."""
    answer: queue.SimpleQueue[Sequence[_Address]] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            # As bytes where it is ASCII: of text Python would load the tables of international names.
            name = host.encode("ascii") if host.isascii() else host
            answer.put(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            answer.put([])

    if _is_address(host):
        look_up()
    else:
        threading.Thread(target=look_up, daemon=True).start()
    try:
        addresses = answer.get(timeout=deadline.remaining())
    except queue.Empty:
        raise TowerFault(FaultKind.SILENT, "the tower's name was not resolved in time") from None
    if not addresses:
        raise TowerFault(FaultKind.UNREACHABLE, "the tower's name could not be resolved")
    return addresses


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return True
    return False
