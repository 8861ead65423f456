"""One websocket to the tower: the handshake, and frames checked against the protocol.

Loaded by the first connection that the tower accepts: `websockets` takes long to import, and a tower that is down needs
none of it.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Mapping
from contextlib import ExitStack

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from edge.deadline import Deadline
from edge.faults import FaultKind, TowerFault
from shared.wire import MAX_FRAME, SUBPROTOCOL, AgentFrame, ClientFrame, WireError, encode, parse_agent_frame

# A tower that has gone silent would hold the closing handshake for all of this.
CLOSE_TIMEOUT_S = 0.3

# At DEBUG, websockets logs frames, and frames hold prompts. This logger ignores what the root is set to.
_frame_logger = logging.getLogger("edge.session.frames")
_frame_logger.setLevel(logging.CRITICAL)

_RECEIVER_GAVE_UP = {1002, 1007, 1009}  # RFC 6455 section 7.4: protocol error, bad text, too big


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


def open_session(
    url: str,
    sock: socket.socket,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None,
    deadline: Deadline,
    stack: ExitStack,
) -> TowerSession:
    """Shake hands over a TCP connection.

    Args:
        url: The websocket's.
        sock: The connection; it is this function's from now on.
        headers: What the tower is shown.
        tls: Whom to trust; None for a connection without TLS.
        deadline: When to give up.
        stack: Closes the session.

    Raises:
        TowerFault: If the tower did not let us in.
    """
    try:
        connection = stack.enter_context(
            connect(
                url,
                sock=sock,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers=headers,
                ssl=tls,
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
        reason = "the tower's certificate is not from an authority that the edge trusts, or not for its name"
        raise TowerFault(FaultKind.UNREACHABLE, reason) from None
    except (ValueError, InvalidURI):
        # A redirect: websockets follows none on a socket that it was handed, and none to what is no websocket.
        reason = "what stands before the tower redirected the edge, as one does that wants a login"
        raise TowerFault(FaultKind.UNREACHABLE, reason) from None
    except (OSError, EOFError, WebSocketException):
        raise TowerFault(FaultKind.UNREACHABLE, "the tower did not complete the handshake") from None
    if connection.subprotocol != SUBPROTOCOL:
        raise TowerFault(FaultKind.GARBLED, f"the tower does not speak {SUBPROTOCOL}")
    return TowerSession(connection)


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
