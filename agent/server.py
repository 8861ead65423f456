"""The agent's websocket: who may connect and what each frame is answered with, not how runs are made."""

import asyncio
import http
import logging
import re
import ssl
from collections import Counter
from contextlib import suppress

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.typing import Subprotocol

from agent.capability import CapabilityWatch
from agent.http_endpoints import Endpoints
from agent.runs import Run, RunManager, failed
from agent.tokens import TokenStore, authorized
from shared.errors import SpecdecError
from shared.wire import (
    MAX_FRAME,
    SUBPROTOCOL,
    AgentFrame,
    CancelFrame,
    ClientFrame,
    FailedFrame,
    ProbeFrame,
    ResultFrame,
    RunFrame,
    StatusFrame,
    WireError,
    encode,
    parse_client_frame,
)

log = logging.getLogger(__name__)

PATHS = frozenset({"/", "/specdec"})

OPEN_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0
PING_S = 20.0
MAX_QUEUE = 4
"""Frames a connection may have waiting to be read; with `MAX_FRAME` this bounds its memory."""

TICK_S = 0.5
"""Progress is sent at most this often."""

KEEPALIVE_S = 10.0
"""Progress is sent at least this often, changed or not; the protocol promises 15 s."""

CORRELATION_HEADER = "X-Correlation-Id"
"""By it a client says for which request of its own it has connected; the log repeats it, so its form is strict."""

_CORRELATION_ID = re.compile(r"[A-Za-z0-9=_+/-]{1,64}")

REFUSALS = {401: "unauthorized", 403: "origin", 404: "path", 503: "full"}
"""What a handshake is refused for, by HTTP status; any other is a malformed one."""


class Traffic:
    """Who is connected, and who was not let in.

    Attributes:
        refused: How many handshakes were refused, by reason.
    """

    def __init__(self) -> None:
        """Start with nobody."""
        self.refused: Counter[str] = Counter()
        self._admitted: set[ServerConnection] = set()

    @property
    def connections(self) -> int:
        """How many clients are connected, or about to be."""
        # Counted from when they are let in and not from the handler: the library has no cap, and handshakes take time.
        self._admitted = {one for one in self._admitted if one.state is not State.CLOSED}
        return len(self._admitted)

    def admit(self, connection: ServerConnection) -> None:
        """Count a client in until its connection is closed."""
        self._admitted.add(connection)


class AgentServer:
    """Answers the frames of the wire protocol."""

    def __init__(
        self,
        runs: RunManager,
        capability: CapabilityWatch,
        *,
        tokens: TokenStore | None,
        traffic: Traffic | None = None,
        endpoints: Endpoints | None = None,
        max_connections: int = 8,
        tick_s: float = TICK_S,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        """Prepare; `listen` opens the port.

        Args:
            runs: Where runs live.
            capability: What probes are answered with.
            tokens: Of which a client must present one; None lets everyone in.
            traffic: Where to count who comes.
            endpoints: What else the port answers.
            max_connections: How many clients may be connected at a time.
            tick_s: Progress is sent at most this often.
            keepalive_s: Progress is sent at least this often.
        """
        self._runs = runs
        self._capability = capability
        self._tokens = tokens
        self._traffic = traffic or Traffic()
        self._endpoints = endpoints
        self._max_connections = max_connections
        self._tick_s = tick_s
        self._keepalive_s = keepalive_s

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> Server:
        """Open the port; the server returned serves until it is closed.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 picks a free one.
            tls: Certificate to serve with; None serves without TLS.

        Raises:
            OSError: The port cannot be opened.
        """
        return await serve(
            self._handle,
            host,
            port,
            ssl=tls,
            process_request=self._admit,
            process_response=self._count,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            # Only browsers send an Origin, and no web page has any business here, with or without a token.
            origins=[None],
            # A small message that inflates without bound is not worth the bandwidth saved.
            compression=None,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            max_size=MAX_FRAME,
            max_queue=MAX_QUEUE,
        )

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse a connection before the upgrade, or let it go on (None)."""
        path = request.path.partition("?")[0]
        if self._endpoints is not None and path in self._endpoints.paths:
            return await self._endpoints.answer(path, request)
        if not authorized(self._tokens, request.headers):
            response = connection.respond(http.HTTPStatus.UNAUTHORIZED, "A bearer token is needed.\n")
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if path not in PATHS:
            return connection.respond(http.HTTPStatus.NOT_FOUND, "The websocket is at /specdec.\n")
        if self._traffic.connections >= self._max_connections:
            response = connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.\n")
            response.headers["Retry-After"] = "1"
            return response
        self._traffic.admit(connection)
        return None

    def _count(self, _: ServerConnection, request: Request, response: Response) -> None:
        """Count a refusal, whether it is ours or the library's."""
        served = self._endpoints is not None and request.path.partition("?")[0] in self._endpoints.paths
        if response.status_code != http.HTTPStatus.SWITCHING_PROTOCOLS and not served:
            self._traffic.refused[REFUSALS.get(response.status_code, "malformed")] += 1

    async def _handle(self, connection: ServerConnection) -> None:
        session = _Session(connection, self._runs, self._capability, self._tick_s, self._keepalive_s)
        try:
            async for message in connection:
                try:
                    frame = parse_client_frame(message)
                except WireError as exc:
                    await session.send(failed(None, exc))
                    await connection.close(CloseCode.POLICY_VIOLATION, "bad message")
                    return
                await session.answer(frame)
        except ConnectionClosed:
            pass  # A client may go away at any time; its runs go on without it.
        finally:
            await session.close()


class _Session:
    """One connection: answers its frames, and follows the runs it has asked for."""

    def __init__(
        self,
        connection: ServerConnection,
        runs: RunManager,
        capability: CapabilityWatch,
        tick_s: float,
        keepalive_s: float,
    ) -> None:
        self._connection = connection
        self._runs = runs
        self._capability = capability
        self._tick_s = tick_s
        self._keepalive_s = keepalive_s
        self._followed: dict[str, asyncio.Task[None]] = {}

    async def send(self, frame: AgentFrame) -> None:
        await self._connection.send(encode(frame))

    async def answer(self, frame: ClientFrame) -> None:
        if isinstance(frame, ProbeFrame):
            await self._connection.send(await self._capability.encoded())
            return
        try:
            await self._answer_about_run(frame)
        except SpecdecError as exc:
            await self.send(failed(frame.run_id, exc))

    async def close(self) -> None:
        """Stop following; the runs themselves go on."""
        for task in self._followed.values():
            task.cancel()
        await asyncio.gather(*self._followed.values(), return_exceptions=True)

    async def _answer_about_run(self, frame: RunFrame | StatusFrame | CancelFrame) -> None:
        match frame:
            case RunFrame():
                run = self._runs.submit(frame)
                self._correlate(run)
                await self.send(self._runs.accepted(run))
                self._follow(run)
            case StatusFrame():
                await self.send(self._runs.report(self._runs.find(frame.run_id)))
            case CancelFrame():
                run = self._runs.cancel(frame.run_id)
                # At once, for the worker may take long to stop; a run followed here that is over now answers itself.
                if run.outcome is None or run.run_id not in self._followed:
                    report = self._runs.report(run)
                    await self.send(report)
                    if not isinstance(report, ResultFrame | FailedFrame):
                        self._follow(run)

    def _correlate(self, run: Run) -> None:
        """Log for which of the client's requests a run has been taken, or found."""
        request = self._connection.request
        given = request.headers.get_all(CORRELATION_HEADER) if request is not None else []
        if len(given) == 1 and _CORRELATION_ID.fullmatch(given[0]):
            log.info("run taken", extra={"data": {"run_id": run.run_id, "correlation_id": given[0]}})

    def _follow(self, run: Run) -> None:
        """Send progress and the end of a run, once per connection however often it is asked for."""
        if run.run_id not in self._followed:
            task = asyncio.create_task(self._send_until_ended(run))
            self._followed[run.run_id] = task
            task.add_done_callback(lambda _: self._followed.pop(run.run_id, None))

    async def _send_until_ended(self, run: Run) -> None:
        now = asyncio.get_running_loop().time
        shown, shown_at = run.progress, now()
        with suppress(ConnectionClosed):
            while not await run.ends_within(self._tick_s):
                progress = run.progress
                due = progress != shown or now() - shown_at >= self._keepalive_s
                if progress is not None and due:
                    await self.send(progress)
                    shown, shown_at = progress, now()
            if run.outcome is not None:
                await self.send(run.outcome)
