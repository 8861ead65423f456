"""The websocket client that talks to the tower: one connection per invocation.

A Lambda sandbox is frozen between invocations and thaws with dead sockets, so no connection is kept. Every
way in which a tower can fail becomes a `TowerFault`, within the deadline that the caller set.
"""

from __future__ import annotations

import logging
import queue
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from edge.credentials import TokenSource
from edge.deadline import Deadline
from edge.tls import client_context
from shared.wire import MAX_FRAME, SUBPROTOCOL, AgentFrame, ClientFrame, WireError, encode, parse_agent_frame

OPEN_TIMEOUT_S = 3.0
# A tower that has gone silent would hold the closing handshake for all of this.
CLOSE_TIMEOUT_S = 0.3

# At DEBUG, websockets logs frames, and frames hold prompts. This logger ignores what the root is set to.
_frame_logger = logging.getLogger("edge.tower.frames")
_frame_logger.setLevel(logging.CRITICAL)

_RECEIVER_GAVE_UP = {1002, 1007, 1009}  # RFC 6455 section 7.4: protocol error, bad text, too big


class FaultKind(StrEnum):
    """What went wrong with the tower; the values are codes in receipts."""

    UNREACHABLE = "TOWER_UNREACHABLE"
    REFUSED = "TOWER_REFUSED"
    BUSY = "TOWER_BUSY"
    SILENT = "TOWER_SILENT"
    CLOSED = "TOWER_CLOSED"
    GARBLED = "REPLY_REFUSED"


class TowerFault(Exception):
    """The tower did not do its part."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        """Say which part, and in words for people, free of anything that the tower sent."""
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class TowerSession:
    """One open connection."""

    def __init__(self, connection: ClientConnection) -> None:
        """Wrap a connection that is open."""
        self._connection = connection

    def send(self, frame: ClientFrame) -> None:
        """Send one frame."""
        try:
            self._connection.send(encode(frame))
        except ConnectionClosed:
            raise _closed() from None

    def receive(self, deadline: Deadline) -> AgentFrame:
        """Return the next frame, checked against the protocol.

        Raises:
            TowerFault: If none came in time, or what came is not a frame of the protocol.
        """
        remaining = deadline.remaining()
        if not remaining:
            # Asked first: a tower that talks without pause must not outlast the deadline.
            raise TowerFault(FaultKind.SILENT, "the tower did not answer in time")
        try:
            text = self._connection.recv(remaining)
        except TimeoutError:
            raise TowerFault(FaultKind.SILENT, "the tower did not answer in time") from None
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code in _RECEIVER_GAVE_UP:
                raise TowerFault(FaultKind.GARBLED, "the tower sent an oversize or broken frame") from None
            raise _closed() from None
        except UnicodeDecodeError:
            raise TowerFault(FaultKind.GARBLED, "the tower sent a frame that is not UTF-8") from None
        if not isinstance(text, str):
            raise TowerFault(FaultKind.GARBLED, "the tower sent a binary frame")
        try:
            return parse_agent_frame(text)
        except WireError as error:
            reason = f"the tower sent a frame that is not {SUBPROTOCOL}: {error}"
            raise TowerFault(FaultKind.GARBLED, reason) from None


@dataclass(frozen=True)
class Tower:
    """Where the tower is and how to be let in.

    Attributes:
        url: Its websocket.
        token: What it is shown.
        authority: PEM of the authority whose certificates to trust; None trusts the usual ones.
    """

    url: str
    token: TokenSource
    authority: str | None = None

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        return client_context(self.authority) if urlsplit(self.url).scheme == "wss" else None

    @contextmanager
    def session(self, deadline: Deadline, *, fetch_token: bool = True) -> Iterator[TowerSession]:
        """Connect, and close at the end.

        Args:
            deadline: When to give up connecting.
            fetch_token: Fetch the token if there is none yet; on 401, fetch it again and try once more. That
                may need an AWS call.

        Raises:
            TowerFault: If the tower could not be reached or did not let us in.
        """
        pending = self.token.pending()
        if pending and not fetch_token:
            reason = "the edge has not fetched the tower's token yet; the first run does"
            raise TowerFault(FaultKind.REFUSED, reason)
        if pending:
            self.token.renew()
        with ExitStack() as stack:
            try:
                connection = self._open(deadline, stack)
            except TowerFault as fault:
                may_renew = fetch_token and not pending and fault.kind is FaultKind.REFUSED
                if not (may_renew and self.token.renew()):
                    raise
                connection = self._open(deadline, stack)
            yield TowerSession(connection)

    def _open(self, deadline: Deadline, stack: ExitStack) -> ClientConnection:
        deadline = deadline.sooner(OPEN_TIMEOUT_S)
        token = self.token.current()
        headers = {**self.token.headers(), **({"Authorization": f"Bearer {token}"} if token else {})}
        sock = _dial(self.url, deadline)
        try:
            connection = stack.enter_context(
                connect(
                    self.url,
                    sock=sock,
                    subprotocols=[Subprotocol(SUBPROTOCOL)],
                    additional_headers=headers,
                    ssl=self._tls,
                    compression=None,
                    proxy=None,
                    open_timeout=deadline.remaining(),
                    ping_interval=None,
                    close_timeout=CLOSE_TIMEOUT_S,
                    max_size=MAX_FRAME,
                    max_queue=4,
                    logger=_frame_logger,
                )
            )
        except TimeoutError:
            raise TowerFault(FaultKind.SILENT, "the tower did not answer the handshake in time") from None
        except InvalidStatus as refusal:
            raise _refused(refusal.response.status_code) from None
        except ssl.SSLCertVerificationError:
            reason = (
                "the tower's certificate is not from an authority that the edge trusts, or not for its name"
            )
            raise TowerFault(FaultKind.UNREACHABLE, reason) from None
        except (ValueError, InvalidURI):
            # A redirect: websockets follows none on a socket that it was handed, and none to what is no websocket.
            reason = "what stands before the tower redirected the edge, as one does that wants a login"
            raise TowerFault(FaultKind.UNREACHABLE, reason) from None
        except (OSError, EOFError, WebSocketException):
            raise TowerFault(FaultKind.UNREACHABLE, "the tower did not complete the handshake") from None
        if connection.subprotocol != SUBPROTOCOL:
            raise TowerFault(FaultKind.GARBLED, f"the tower does not speak {SUBPROTOCOL}")
        return connection


def _closed() -> TowerFault:
    return TowerFault(FaultKind.CLOSED, "the tower closed the connection")


def _refused(status: int) -> TowerFault:
    if status == 401:
        return TowerFault(FaultKind.REFUSED, "the tower refused the edge's token")
    if status == 403:
        return TowerFault(FaultKind.REFUSED, "what stands before the tower refused the edge")
    if status == 503:
        return TowerFault(FaultKind.BUSY, "the tower takes no more connections now")
    return TowerFault(FaultKind.UNREACHABLE, f"the tower answered HTTP {status} instead of a websocket")


def _dial(url: str, deadline: Deadline) -> socket.socket:
    """Connect by TCP; unlike `socket.create_connection`, within one deadline for names and all addresses."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    addresses = _resolve(parts.hostname or "", port, deadline)
    timed_out = False
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            # An equal share for each address left; never 0, which would mean "do not block".
            sock.settimeout(max(0.01, deadline.remaining() / (len(addresses) - index)))
            sock.connect(address)
            sock.settimeout(None)
            return sock
        except OSError as error:
            timed_out = isinstance(error, TimeoutError)
            sock.close()
    if timed_out:
        raise TowerFault(FaultKind.SILENT, "the tower did not accept a connection in time")
    raise TowerFault(FaultKind.UNREACHABLE, "the tower refused the connection")


_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def _resolve(host: str, port: int, deadline: Deadline) -> Sequence[_Address]:
    """Look a name up in a thread, because getaddrinfo knows no timeout."""
    answer: queue.SimpleQueue[Sequence[_Address]] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answer.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            answer.put([])

    threading.Thread(target=look_up, daemon=True).start()
    try:
        addresses = answer.get(timeout=deadline.remaining())
    except queue.Empty:
        raise TowerFault(FaultKind.SILENT, "the tower's name was not resolved in time") from None
    if not addresses:
        raise TowerFault(FaultKind.UNREACHABLE, "the tower's name could not be resolved")
    return addresses
