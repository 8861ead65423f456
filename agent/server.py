"""The agent's websocket: who may connect and what each frame is answered with, not how runs are made."""

import asyncio
import hmac
import http
import logging
from contextlib import suppress

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.typing import Subprotocol

from agent.capability import CapabilityWatch
from agent.runs import Run, RunManager, failed
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


class AgentServer:
    """Answers the frames of the wire protocol."""

    def __init__(
        self,
        runs: RunManager,
        capability: CapabilityWatch,
        *,
        token: str | None,
        max_connections: int = 8,
        tick_s: float = TICK_S,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        """Prepare; `listen` opens the port.

        Args:
            runs: Where runs live.
            capability: What probes are answered with.
            token: What a client must present; None lets everyone in.
            max_connections: How many clients may be connected at a time.
            tick_s: Progress is sent at most this often.
            keepalive_s: Progress is sent at least this often.
        """
        self._runs = runs
        self._capability = capability
        self._credentials = None if token is None else token.encode()
        self._max_connections = max_connections
        self._tick_s = tick_s
        self._keepalive_s = keepalive_s
        self._admitted: set[ServerConnection] = set()

    async def listen(self, host: str, port: int) -> Server:
        """Open the port; the server returned serves until it is closed.

        Raises:
            OSError: The port cannot be opened.
        """
        return await serve(
            self._handle,
            host,
            port,
            process_request=self._admit,
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

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse a connection before the upgrade, or let it go on (None)."""
        if not self._authorized(request):
            response = connection.respond(http.HTTPStatus.UNAUTHORIZED, "A bearer token is needed.\n")
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if request.path.partition("?")[0] not in PATHS:
            return connection.respond(http.HTTPStatus.NOT_FOUND, "The websocket is at /specdec.\n")
        # Counted from here and not from the handler: the library has no cap, and handshakes take time.
        self._admitted = {other for other in self._admitted if other.state is not State.CLOSED}
        if len(self._admitted) >= self._max_connections:
            response = connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.\n")
            response.headers["Retry-After"] = "1"
            return response
        self._admitted.add(connection)
        return None

    def _authorized(self, request: Request) -> bool:
        if self._credentials is None:
            return True
        values = request.headers.get_all("Authorization")
        if len(values) != 1:
            return False
        scheme, _, token = values[0].partition(" ")
        right = hmac.compare_digest(token.strip().encode(), self._credentials)
        return right and scheme.lower() == "bearer"

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
            await self.send(await self._capability.frame())
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
