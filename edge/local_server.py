"""The local edge: real HTTP, as API Gateway would hand it to the Lambda function.

The gateway's limits and its own short error bodies are kept, so that what works here works there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from edge.gateway_event import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    build_event,
    header_bytes,
    http_answer,
    is_ambiguous,
)
from edge.pool import PoolBusy, WorkerDied, WorkerPool
from shared.labels import BASE_PATH

# A client may still be sending when its body is found too large; reading on lets it see the answer.
MAX_DRAINED_BYTES = 4 * MAX_PAYLOAD_BYTES
# A client gets this long to send its body.
PAYLOAD_TIMEOUT_S = 30.0
RETRY_AFTER_S = 5
SHUTDOWN_S = 1
RUN_PATHS = f"{BASE_PATH}/run"
# What follows on the connection cannot be told from the rest of this request.
CLOSE = (b"connection", b"close")


class _ClientGone(Exception):
    """The client left before its request was whole."""


class Gateway:
    """ASGI application in front of the workers."""

    def __init__(
        self, quick: WorkerPool, runs: WorkerPool, payload_timeout_s: float = PAYLOAD_TIMEOUT_S
    ) -> None:
        """Take the pools that answer.

        Args:
            quick: For what never waits long, which is all but the run routes.
            runs: For the run routes, which may hold each of its workers for half a minute.
            payload_timeout_s: How long a client may take to send its body.
        """
        self._quick = quick
        self._runs = runs
        self._payload_timeout_s = payload_timeout_s

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        try:
            status, headers, body = await self._answer(scope, receive)
        except _ClientGone:
            return
        headers = [(name, value) for name, value in headers if name != b"content-length"]
        # What has no body by nature has no length either, or another one than nought (RFC 9110 section 8.6).
        if scope["method"] != "HEAD" and status not in (204, 304):
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _answer(
        self, scope: Scope, receive: ASGIReceiveCallable
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        if is_ambiguous(scope):
            return _message(400, "Bad Request", CLOSE)
        if header_bytes(scope) > MAX_HEADER_BYTES:
            return _message(431, "Request Header Fields Too Large")
        try:
            async with asyncio.timeout(self._payload_timeout_s):
                payload = await _payload(receive)
        except TimeoutError:
            return _message(408, "Request Timeout", CLOSE)
        if payload is None:
            return _message(413, "Request Entity Too Large")
        try:
            event = build_event(scope, payload)
            pool = self._runs if event["rawPath"].startswith(RUN_PATHS) else self._quick
            result = await pool.invoke(event)
        except PoolBusy:
            return _message(429, "Too Many Requests", (b"retry-after", b"%d" % RETRY_AFTER_S))
        except TimeoutError:
            return _message(503, "Service Unavailable")
        except WorkerDied:
            return _message(502, "Bad Gateway")
        try:
            return http_answer(result)
        except (AttributeError, KeyError, TypeError, ValueError):
            return _message(500, "Internal Server Error")


async def _payload(receive: ASGIReceiveCallable) -> bytes | None:
    """Return the request's body, or None when it is too large.

    Raises:
        _ClientGone: If the body ended before it was whole: half a request is not to be carried out.
    """
    body = bytearray()
    size = 0
    more = True
    while more and size <= MAX_DRAINED_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            raise _ClientGone
        chunk = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(chunk)
        if size <= MAX_PAYLOAD_BYTES:
            body += chunk
    return bytes(body) if size <= MAX_PAYLOAD_BYTES else None


def _message(
    status: int, text: str, *headers: tuple[bytes, bytes]
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    body = json.dumps({"message": text}).encode()
    return status, [(b"content-type", b"application/json"), *headers], body


class _Server(uvicorn.Server):
    """A server that announces itself and leaves signals to `serve`."""

    def __init__(self, config: uvicorn.Config, url: str, about: str) -> None:
        super().__init__(config)
        self._url = url
        self._about = about

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"edge: {self._about}", file=sys.stderr, flush=True)
        print(f"edge listening on {self._url}", flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise the signal again after stopping, before the workers are ended.
        yield


async def serve(host: str, port: int, quick: WorkerPool, runs: WorkerPool, about: str = "") -> None:
    """Serve until SIGTERM or SIGINT; port 0 takes a free one.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        quick: See `Gateway`; one of its workers is started first.
        runs: See `Gateway`; its workers are started as they are needed.
        about: What to say on standard error once it listens.

    Raises:
        OSError: If the address cannot be used.
        WorkerDied: If the first worker did not get ready.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=128)
    # asyncio sets it on sockets of its own making; without it answers on a kept connection wait for acknowledgements.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        Gateway(quick, runs),
        lifespan="off",
        ws="none",
        log_level="warning",
        access_log=False,
        # The caller, to whom an Idempotency-Key belongs, is whoever connected, whatever X-Forwarded-For says.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        h11_max_incomplete_event_size=16 * MAX_HEADER_BYTES,
    )
    server = _Server(config, f"http://{shown}:{sock.getsockname()[1]}", about)

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await quick.start()
        await server.serve(sockets=[sock])
    finally:
        sock.close()
        await asyncio.gather(quick.close(), runs.close())
