"""What the agent's port answers besides the websocket: does it live, could it measure, and how is it doing?

``/healthz`` and ``/readyz`` ask for no token, as probes have none; they say nothing that the public `/health` does not.
``/metrics`` asks for the token wherever the websocket does: behind a tunnel or a proxy every client seems to be on
loopback, so that where one comes from proves nothing. None of them is for a proxy to pass on.
"""

import asyncio
import http
import json
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from agent.metrics import Metrics
from agent.tokens import TokenStore, authorized
from shared.wire import CapabilityFrame

TEXT, JSON = "text/plain; charset=utf-8", "application/json"


class Capability(Protocol):
    """What is read of the capability watch."""

    def ready(self) -> tuple[bool, str]:
        """Whether a run could be measured now, and why or why not."""

    async def frame(self, patience_s: float) -> CapabilityFrame:
        """What the agent can do."""


class Worker(Protocol):
    """What is read of the supervisor."""

    @property
    def alive(self) -> bool:
        """Whether the worker is as it should be."""

    @property
    def last_decode_at(self) -> float | None:
        """When a run last gave a result, on the event loop's clock."""


class Endpoints:
    """Answers plain GET and HEAD requests."""

    paths = frozenset({"/healthz", "/readyz", "/metrics"})

    def __init__(
        self, capability: Capability, worker: Worker, metrics: Metrics, tokens: TokenStore | None
    ) -> None:
        """Take what is to be told, and the tokens of which metrics ask for one."""
        self._capability = capability
        self._worker = worker
        self._metrics = metrics
        self._tokens = tokens

    async def answer(self, path: str, request: Request) -> Response:
        """Return the answer to a request for one of the paths."""
        if request.method not in ("GET", "HEAD"):
            allow = {"Allow": "GET, HEAD"}
            return _response(http.HTTPStatus.METHOD_NOT_ALLOWED, b"Only GET and HEAD.\n", TEXT, allow)
        if path == "/healthz":
            response = _response(http.HTTPStatus.OK, b"ok\n", TEXT)
        elif path == "/readyz":
            response = self._readiness()
        elif authorized(self._tokens, request.headers):
            text = self._metrics.render(await self._capability.frame(0.0))
            response = _response(http.HTTPStatus.OK, text, CONTENT_TYPE_LATEST)
        else:
            wanted = {"WWW-Authenticate": "Bearer"}
            response = _response(http.HTTPStatus.UNAUTHORIZED, b"A bearer token is needed.\n", TEXT, wanted)
        if request.method == "HEAD":
            response.body = b""
        return response

    def _readiness(self) -> Response:
        ready, reason = self._capability.ready()
        if not self._worker.alive:
            ready, reason = False, "the decode worker does not answer"
        decoded_at = self._worker.last_decode_at
        ago = None if decoded_at is None else round(asyncio.get_running_loop().time() - decoded_at, 1)
        told = {"ready": ready, "reason": reason, "last_decode_seconds_ago": ago}
        status = http.HTTPStatus.OK if ready else http.HTTPStatus.SERVICE_UNAVAILABLE
        return _response(status, json.dumps(told).encode() + b"\n", JSON)


def _response(
    status: http.HTTPStatus, body: bytes, kind: str, more: dict[str, str] | None = None
) -> Response:
    headers = Headers(
        {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Connection": "close",
            **(more or {}),
        }
    )
    return Response(status.value, status.phrase, headers, body)
