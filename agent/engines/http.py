"""One server over HTTP: plain errors, no redirects, no proxy, and a key that stays in its header."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from agent.engines.errors import EngineAnswer, EngineInput, EngineUnreachable
from shared.settings import is_token

CONNECT_S: Final = 10.0
A = TypeVar("A", bound="Answer")


class Answer(BaseModel):
    """A JSON object of which only the named fields are read; numbers are finite."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, protected_namespaces=())


class Http:
    """The connection to one server.

    No proxy of the environment is used: what it adds would be measured too. A redirect is an error: the key is meant
    for the server that was named.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 300.0) -> None:
        """Names the server.

        Args:
            url: Scheme, host and optionally port; a path before the server's own routes may follow.
            api_key: Sent as a bearer token.
            timeout_s: Longest silence while an answer is awaited.

        Raises:
            EngineInput: If URL or key cannot be used.
        """
        try:
            base = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        except (httpx.InvalidURL, UnicodeError):
            base = httpx.URL("")
        plain = re.fullmatch(rb"[A-Za-z0-9._:-]+", base.raw_host)  # httpx takes almost any text for a host
        if base.scheme not in ("http", "https") or not plain or base.query or base.fragment or base.userinfo:
            raise EngineInput(
                "a server's URL must be like http://host:port, without a user name, a password or a query"
            )
        if api_key is not None and not is_token(api_key):
            raise EngineInput("the API key holds more than printable ASCII without spaces")
        self.origin = str(base.copy_with(path="/")).rstrip("/")
        self._base = str(base).rstrip("/")
        self._timeout_s = timeout_s
        self._client = httpx.Client(
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            follow_redirects=False,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        """Returns the connection itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connection."""
        self._client.close()

    def ask(self, answer: type[A], path: str, body: dict[str, Any] | None = None) -> A:
        """Gets `path`, or posts `body` to it, and reads the answer.

        Raises:
            EngineUnreachable: If there is no answer, or the server is still loading.
            EngineAnswer: If the answer is an error or not what it should be.
        """
        response = self._send(path, body)
        if response.status_code in (401, 403):
            raise EngineAnswer(f"{self.origin} wants an API key, or another one", "set its variable")
        if response.status_code == 503:
            raise EngineUnreachable(f"{self.origin} is not ready (503)", "wait until it has loaded its model")
        if response.status_code != 200:
            raise EngineAnswer(f"{self.origin} answered {response.status_code} to {path}")
        try:
            return answer.model_validate_json(response.content)
        except ValidationError:
            raise EngineAnswer(f"{self.origin} answered {path} with something else than expected") from None

    def text(self, path: str) -> str | None:
        """Gets a text; None if the server has none to give there.

        Raises:
            EngineUnreachable: If there is no answer.
        """
        response = self._send(path, None)
        return response.text if response.status_code == 200 else None

    def _send(self, path: str, body: dict[str, Any] | None) -> httpx.Response:
        method = "GET" if body is None else "POST"
        try:
            return self._client.request(method, self._base + path, json=body)
        except httpx.TimeoutException:
            raise EngineUnreachable(
                f"{self.origin} did not answer within {self._timeout_s:g} s", "look at that server's log"
            ) from None
        except httpx.RequestError as exc:
            raise EngineUnreachable(f"{self.origin} cannot be reached ({type(exc).__name__})") from None
