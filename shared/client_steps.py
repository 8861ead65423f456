"""The steps of a conversation with the service: what is sent, what is waited out, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

from shared.canonical import CanonicalError, strict_loads
from shared.errors import SpecdecError

MAX_ANSWER: Final = 4 * 1024 * 1024  # bytes
MIN_POLL_S: Final = 0.05
DEFAULT_POLL_S: Final = 1.0
HEADERS: Final = {"Accept-Encoding": "identity"}
"""Of every request."""


class ClientError(SpecdecError):
    """The question was bad, the service did not answer, or its answer cannot be believed."""


@dataclass(frozen=True)
class Request:
    """One request to be sent; what comes of it is an `Answer`, or a `ClientError` if there is none."""

    method: str
    url: str
    deadline: float
    options: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice does nothing twice."""
        return self.method != "POST" or "Idempotency-Key" in self.headers

    def httpx_options(self) -> dict[str, Any]:
        """What httpx is told beside method and URL; a request gets all the time that is left."""
        left = max(self.deadline - time.monotonic(), 0.001)
        return {**self.options, "headers": self.headers, "timeout": left}


@dataclass(frozen=True)
class Pause:
    """So many seconds in which nothing is asked."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """One answer: its body, empty if it was no JSON object, and whether it was one."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]
    sound: bool

    @property
    def retry_after(self) -> float:
        """Seconds after which to ask again: a number, or a date, which proxies send (RFC 9110 section 10.2.3)."""
        said = self.headers.get("Retry-After", "")
        try:
            seconds = float(said)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(said).timestamp() - time.time()
            except (TypeError, ValueError):
                return DEFAULT_POLL_S
        return max(seconds, MIN_POLL_S) if seconds < float("inf") else DEFAULT_POLL_S


class Body:
    """An answer's body as it arrives: bounded in size, and in time for the whole call."""

    def __init__(self, request: Request) -> None:
        """Start empty."""
        self._request = request
        self._data = bytearray()

    def begin(self, headers: Mapping[str, str]) -> None:
        """Look at how it comes.

        Raises:
            ClientError: If it is compressed: what it unfolds to could not be bounded, and nobody asked for that.
        """
        if headers.get("Content-Encoding", "identity") != "identity":
            raise ClientError("BAD_ANSWER", "the service's answer is compressed, which was not asked for")

    def add(self, chunk: bytes) -> None:
        """Take the next piece.

        Raises:
            ClientError: If it is too large by now, or too late.
        """
        self._data += chunk
        if len(self._data) > MAX_ANSWER:
            raise ClientError("BAD_ANSWER", "the service's answer is too large")
        if time.monotonic() > self._request.deadline:
            raise ClientError("TIMEOUT", "the service did not answer in time")

    def answer(self, status: int, headers: Mapping[str, str]) -> Answer:
        """The whole answer, now that all of it is here."""
        try:
            body = strict_loads(bytes(self._data))
        except CanonicalError:
            body = None
        return Answer(status, headers, body if isinstance(body, dict) else {}, isinstance(body, dict))


T = TypeVar("T")
Step = Request | Pause
Steps = Generator[Step, Answer | ClientError, T]
"""A conversation: it is sent what came of each request, nothing after a pause, and returns its result."""
