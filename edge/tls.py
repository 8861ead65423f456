"""TLS sockets that one thread may read while another writes.

OpenSSL forbids two calls at a time on one connection, and Python does not see to it: a TLS 1.3 server's session tickets
arrive just when the websocket's handshake is sent, and a read that takes them in beside that write loses it (about
once in 300 connections on loopback). `websockets` reads in a thread of its own, so its sockets must be of this kind.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class DuplexSocket(ssl.SSLSocket):
    """A TLS socket whose calls to OpenSSL wait for each other, but never for the network."""

    _turn: threading.RLock

    def __new__(cls, *args: Any, **kwargs: Any) -> DuplexSocket:
        """Make one; `ssl` calls no `__init__` of its own sockets."""
        self = super().__new__(cls, *args, **kwargs)
        self._turn = threading.RLock()
        return self

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return what has arrived, waiting for it if need be."""
        while True:
            with self._at_once() as timeout, suppress(ssl.SSLWantReadError):
                return super().recv(buflen, flags)
            self._wait(select.POLLIN, timeout)

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """Send what can be sent, waiting for room if need be; return how many bytes that was."""
        while True:
            with self._at_once() as timeout, suppress(ssl.SSLWantWriteError):
                return super().send(data, flags)
            self._wait(select.POLLOUT, timeout)

    def settimeout(self, value: float | None) -> None:
        """Set how long later calls may wait."""
        with self._turn:
            super().settimeout(value)

    def close(self) -> None:
        """Close it, and end the wait of whoever reads."""
        with suppress(OSError):
            socket.socket.shutdown(self, socket.SHUT_RDWR)
        super().close()

    @contextmanager
    def _at_once(self) -> Iterator[float | None]:
        """Have the socket to oneself, for a call that does not wait; yield the timeout that waiting has."""
        with self._turn:
            timeout = self.gettimeout()
            super().settimeout(0.0)
            try:
                yield timeout
            finally:
                super().settimeout(timeout)

    def _wait(self, event: int, timeout: float | None) -> None:
        if timeout == 0.0:
            raise BlockingIOError
        poll = select.poll()
        poll.register(self, event)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise TimeoutError("timed out")


def client_context(authority: str | None = None) -> ssl.SSLContext:
    """Return a context for connections to servers with certificates of an authority (PEM), or of the usual ones."""
    context = ssl.create_default_context(cadata=authority)
    context.sslsocket_class = DuplexSocket
    return context
