"""Asks Ollama's server, which need not be there: whatever goes wrong is no answer, with a reason, and never raised.

Nothing depends on its answers but notes in the listing of models, and the memory it is asked to give back.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar

import httpx
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from shared.models import one_line

CONNECT_S = 1.0
READ_S = 2.0
TOTAL_S = 4.0
"""How long a connection, a pause within an answer, and a whole answer may take."""

MOST_BYTES = 16 * 1024 * 1024
"""Largest answer that is read: a list of thousands of models, or the licence and templates of one."""

T = TypeVar("T", bound=BaseModel)
_Text = Annotated[str, Field(min_length=1, max_length=500)]
_Bytes = Annotated[int, Field(ge=0)]


MOST_VERSION = 80
"""Characters of a version; it is shown at terminals, so that it is also made one printable line."""


class _Answer(BaseModel):
    """What is used of an answer; of the right type, or there was no answer."""

    model_config = ConfigDict(strict=True, frozen=True)


class Tag(_Answer):
    """A model the server lists; `digest` is the SHA-256 of its manifest, in hex."""

    name: _Text
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Loaded(_Answer):
    """A model the server holds in memory: its bytes on the GPU, and until when it stays unless it is asked."""

    name: _Text
    size_vram: _Bytes = 0
    expires_at: AwareDatetime | None = None


class _Tags(_Answer):
    models: list[Tag]


class _Running(_Answer):
    models: list[Loaded]


class _Show(_Answer):
    details: dict[str, Any] = {}
    capabilities: list[_Text] = []


class _Unload(_Answer):
    done: bool


class _Version(_Answer):
    version: _Text


@dataclass(frozen=True)
class Tags:
    """The models the server lists; `reason` says why there is no answer."""

    models: tuple[Tag, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Running:
    """The models in the server's memory; `reason` says why there is no answer."""

    models: tuple[Loaded, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Shown:
    """What the server says of one model; `reason` says why there is no answer."""

    family: str | None = None
    parameter_size: str | None = None
    quantization: str | None = None
    capabilities: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Unloaded:
    """Whether the server has let go of a model, or why not."""

    done: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class Version:
    """The server's version, or why there is no answer."""

    version: str | None = None
    reason: str | None = None


class _NoAnswerError(Exception):
    """There is no answer that can be used, and why."""


class Ollama:
    """A server at an address; to be closed."""

    def __init__(self, url: str, *, total_s: float = TOTAL_S) -> None:
        """Speaks to one server, and never through a proxy.

        Args:
            url: For example ``http://127.0.0.1:11434``; empty for none.
            total_s: Seconds that one question may take.
        """
        self._url = url.rstrip("/")
        self._total_s = total_s
        self._client: httpx.Client | None = None

    def __enter__(self) -> Self:
        """Returns itself; closes at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connection."""
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def tags(self) -> Tags:
        """Returns the models that the server has."""
        try:
            return Tags(tuple(self._ask("GET", "/api/tags", _Tags).models))
        except _NoAnswerError as exc:
            return Tags(reason=str(exc))

    def ps(self) -> Running:
        """Returns the models that the server holds in memory."""
        try:
            return Running(tuple(self._ask("GET", "/api/ps", _Running).models))
        except _NoAnswerError as exc:
            return Running(reason=str(exc))

    def show(self, name: str) -> Shown:
        """Returns what the server says of a model."""
        try:
            shown = self._ask("POST", "/api/show", _Show, {"model": name})
        except _NoAnswerError as exc:
            return Shown(reason=str(exc))
        family, size, kind = (
            value if isinstance(value, str) else None
            for value in map(shown.details.get, ("family", "parameter_size", "quantization_level"))
        )
        return Shown(family, size, kind, tuple(shown.capabilities))

    def unload(self, name: str) -> Unloaded:
        """Asks the server to take a model out of memory, which it does once nobody uses it."""
        body = {"model": name, "keep_alive": 0, "stream": False}
        try:
            return Unloaded(self._ask("POST", "/api/generate", _Unload, body).done)
        except _NoAnswerError as exc:
            return Unloaded(reason=str(exc))

    def version(self) -> Version:
        """Returns the server's version."""
        try:
            return Version(one_line(self._ask("GET", "/api/version", _Version).version, MOST_VERSION))
        except _NoAnswerError as exc:
            return Version(reason=str(exc))

    def _ask(self, method: str, path: str, kind: type[T], body: dict[str, Any] | None = None) -> T:
        """Returns the answer.

        Raises:
            _NoAnswerError: If there is none that can be used.
        """
        # No reason holds the address: it may hold a password, and reasons are shown to everyone.
        if not self._url:
            raise _NoAnswerError("no Ollama server is configured")
        try:
            return kind.model_validate_json(self._in_time(method, path, body))
        except httpx.TimeoutException:
            raise _NoAnswerError("Ollama does not answer in time") from None
        except httpx.ConnectError:
            raise _NoAnswerError("no Ollama server answers") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise _NoAnswerError("the address of the Ollama server is none") from None
        except httpx.HTTPError:
            raise _NoAnswerError("Ollama's answer broke off") from None
        except (ValidationError, ValueError):
            raise _NoAnswerError("Ollama's answer cannot be used") from None

    def _in_time(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        """Returns the answer's content, unless it takes too long as a whole: httpx bounds each pause alone.

        Raises:
            _NoAnswerError: If it takes too long, or cannot be used.
            httpx.HTTPError: If it cannot be had.
        """
        client = self._client = self._client or _client()
        answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(_content(client, method, self._url + path, body))
            except Exception as exc:
                answers.put(exc)

        threading.Thread(target=ask, daemon=True).start()
        try:
            answer = answers.get(timeout=self._total_s)
        except queue.Empty:
            self.close()  # which also ends the thread, at its next read
            raise _NoAnswerError("Ollama does not answer in time") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def _client() -> httpx.Client:
    return httpx.Client(
        timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
        follow_redirects=False,
        trust_env=False,
        # Unpacked it could be of any size.
        headers={"Accept-Encoding": "identity"},
    )


def _content(client: httpx.Client, method: str, url: str, body: dict[str, Any] | None) -> bytes:
    content = bytearray()
    with client.stream(method, url, json=body) as answer:
        if answer.status_code != httpx.codes.OK:
            raise _NoAnswerError(f"Ollama answers with status {answer.status_code}")
        # Raw: an answer that is packed nonetheless is not unpacked, and so no JSON.
        for piece in answer.iter_raw():
            content += piece
            if len(content) > MOST_BYTES:
                raise _NoAnswerError("Ollama's answer is too large")
    return bytes(content)
