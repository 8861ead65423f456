"""TLS sockets that are read and written at once, over real connections."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.tls import DuplexSocket, client_context
from tests.certificates import Authority
from tests.edge.support import SCALE

PATIENCE = 30 * SCALE


@contextmanager
def pair(directory: Path) -> Iterator[tuple[DuplexSocket, ssl.SSLSocket]]:
    """Yield a connected client and server; the server has sent its session tickets."""
    authority = Authority.new()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*authority.issue(directory))
    with ExitStack() as stack:
        near, far = map(stack.enter_context, socket.socketpair())
        for one in (near, far):
            one.settimeout(PATIENCE)
        servers: list[ssl.SSLSocket] = []
        thread = threading.Thread(target=lambda: servers.append(served.wrap_socket(far, server_side=True)))
        thread.start()
        tls = client_context(authority.pem).wrap_socket(near, server_hostname="127.0.0.1")
        thread.join()
        assert isinstance(tls, DuplexSocket) and tls.version() == "TLSv1.3"
        tls.settimeout(None)
        yield stack.enter_context(tls), stack.enter_context(servers[0])


class Spy:
    """Stands before OpenSSL, and notices calls that overlap."""

    def __init__(self, real: Any) -> None:
        """Pass calls on to a connection."""
        self._real = real
        self._busy = threading.Lock()
        self.overlaps = 0
        self.reading = threading.Event()
        self.go_on = threading.Event()

    def read(self, *arguments: Any) -> Any:
        """Read, and stay in the call until told to go on, as one that takes in a ticket might."""
        return self._alone(self._real.read, *arguments, linger=True)

    def write(self, *arguments: Any) -> Any:
        """Write."""
        return self._alone(self._real.write, *arguments)

    def _alone(self, call: Any, *arguments: Any, linger: bool = False) -> Any:
        if not self._busy.acquire(blocking=False):
            self.overlaps += 1
            return call(*arguments)
        try:
            if linger:
                self.reading.set()
                self.go_on.wait(PATIENCE)
            return call(*arguments)
        finally:
            self._busy.release()

    def __getattr__(self, name: str) -> Any:
        """Pass on what is not spied upon."""
        return getattr(self._real, name)


def test_calls_do_not_overlap(tmp_path: Path) -> None:
    """A write that comes while a read is inside OpenSSL waits for it, and arrives."""
    with pair(tmp_path) as (near, far):
        anything: Any = near
        anything._sslobj = spy = Spy(anything._sslobj)
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(near.recv(100)))
        reader.start()
        assert spy.reading.wait(PATIENCE)
        writer = threading.Thread(target=lambda: near.sendall(b"question"))
        writer.start()
        writer.join(0.1 * SCALE)
        assert writer.is_alive()
        spy.go_on.set()
        writer.join(PATIENCE)
        assert far.recv(100) == b"question"
        far.sendall(b"answer")
        reader.join(PATIENCE)
        assert got == [b"answer"] and spy.overlaps == 0


def test_reading_does_not_keep_from_writing(tmp_path: Path) -> None:
    """Who waits for data, tickets taken in, lets others write meanwhile."""
    with pair(tmp_path) as (near, far):
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(near.recv(100)))
        reader.start()
        for number in range(100):
            near.sendall(b"%d\n" % number)
        received = b""
        while received.count(b"\n") < 100:
            received += far.recv(1000)
        assert received.split() == [b"%d" % number for number in range(100)]
        assert reader.is_alive()
        far.sendall(b"x")
        reader.join(PATIENCE)
        assert got == [b"x"]


def test_more_than_fits(tmp_path: Path) -> None:
    """Large data waits for room, in both directions at once."""
    with pair(tmp_path) as (near, far):
        large = bytes(range(256)) * 40_000
        got: dict[str, bytes] = {}

        def collect(name: str, sock: ssl.SSLSocket) -> None:
            data = bytearray()
            while len(data) < len(large):
                data += sock.recv(65536)
            got[name] = bytes(data)

        def echo() -> None:
            collect("far", far)
            far.sendall(large)

        threads = [
            threading.Thread(target=echo),
            threading.Thread(target=collect, args=("near", near)),
            threading.Thread(target=near.sendall, args=(large,)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert got == {"far": large, "near": large}


def test_close_ends_a_read(tmp_path: Path) -> None:
    """Closing ends the wait of whoever reads, though the other side keeps silent."""
    with pair(tmp_path) as (near, _):
        ended: list[bytes | None] = []

        def read() -> None:
            try:
                ended.append(near.recv(100))
            except OSError:
                ended.append(None)

        reader = threading.Thread(target=read)
        reader.start()
        reader.join(0.1 * SCALE)
        assert reader.is_alive()
        near.close()
        reader.join(PATIENCE)
        assert ended in ([b""], [None])


def test_timeouts(tmp_path: Path) -> None:
    """A read gives up after the time set, at once where that is none, and the setting stays."""
    with pair(tmp_path) as (near, far):
        near.settimeout(0.01)
        with pytest.raises(TimeoutError):
            near.recv(100)
        assert near.gettimeout() == 0.01
        near.settimeout(0)
        with pytest.raises(BlockingIOError):
            near.recv(100)
        near.settimeout(PATIENCE)
        far.sendall(b"x")
        assert near.recv(100) == b"x"
        far.close()
        assert near.recv(100) == b""


def test_usual_authorities() -> None:
    """Without an authority the system's are trusted, and certificates are checked."""
    context = client_context()
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    assert context.sslsocket_class is DuplexSocket
    assert len(client_context(Authority.new().pem).get_ca_certs()) == 1
