"""Where the bearer token for the tower comes from, and what else its door is shown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from edge.aws import AwsFailed, AwsNoTime, AwsPaused, AwsService
from edge.deadline import NEVER, Deadline
from edge.headers import Credentials, parse_headers, parse_secret
from edge.settings import EdgeSettings

logger = logging.getLogger(__name__)


class TokenSource(Protocol):
    """Something that knows the tower's token."""

    def current(self) -> str | None:
        """Return the token in hand, without any network call."""

    def headers(self) -> Mapping[str, str]:
        """Return the further headers in hand."""

    def pending(self) -> bool:
        """Tell whether there is no token in hand, and `renew` may get one."""

    def renew(self, by: Deadline = NEVER) -> bool:
        """Fetch both again by then, or leave it; True when that gave something else."""


class FixedToken:
    """A token given in the environment, or none at all."""

    def __init__(self, token: str | None, headers: Mapping[str, str] | None = None) -> None:
        """Keep the token and the headers."""
        self._token = token
        self._headers = headers or {}

    def current(self) -> str | None:
        """Return the token."""
        return self._token

    def headers(self) -> Mapping[str, str]:
        """Return the headers."""
        return self._headers

    def pending(self) -> bool:
        """Return False: what is not here will never be."""
        return False

    def renew(self, by: Deadline = NEVER) -> bool:
        """Return False: there is nowhere to get another one."""
        return False


class SecretToken:
    """A token kept in AWS Secrets Manager, by itself or with headers (`edge.headers.parse_secret`).

    It is fetched by the first run that finds none in hand, and again when the tower answers 401 to a run, so
    that ``/health`` needs neither an AWS SDK nor an AWS call. Needs ``secretsmanager:GetSecretValue``.
    """

    def __init__(
        self,
        secret_id: str,
        held: Credentials | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        client: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the way to the secret; nothing is fetched yet.

        Args:
            secret_id: Its name or ARN.
            held: What it held at deployment, if known.
            headers: Headers that it may outrank.
            client: Makes the Secrets Manager client.
            clock: Seconds, for the pause after a failure.
        """
        self._manager = AwsService("secretsmanager", "the service that keeps secrets", client, clock)
        self._secret_id = secret_id
        self._held = held or Credentials()
        self._headers = headers or {}

    def current(self) -> str | None:
        """Return the token fetched last."""
        return self._held.token

    def headers(self) -> Mapping[str, str]:
        """Return the headers given, and those fetched last."""
        return _merged(self._headers, self._held.headers)

    def pending(self) -> bool:
        """Tell whether the token was neither given nor fetched."""
        return self._held.token is None

    def renew(self, by: Deadline = NEVER) -> bool:
        """Fetch the secret; on failure keep the old token and say so in the log."""
        try:
            value = self._manager.call("get_secret_value", by, SecretId=self._secret_id).get("SecretString")
        except AwsFailed as failure:
            if not isinstance(failure, AwsNoTime | AwsPaused):
                self._manager.pause()
            logger.error("tower token not fetched: %s", failure)
            return False
        try:
            held = parse_secret(value if isinstance(value, str) else "")
        except ValueError as error:
            logger.error("tower token not fetched: the secret %s", error)
            return False
        changed = held != self._held
        self._held = held
        return changed


def token_source(settings: EdgeSettings) -> TokenSource:
    """Return the source that the settings name; nothing is fetched yet."""
    text, headers = (
        None if secret is None else secret.get_secret_value()
        for secret in (settings.tower_token, settings.tower_headers)
    )
    held = Credentials() if text is None else parse_secret(text)
    given = {} if headers is None else parse_headers(headers)
    if settings.tower_token_secret is None:
        return FixedToken(held.token, _merged(given, held.headers))
    return SecretToken(settings.tower_token_secret, held, given)


def _merged(headers: Mapping[str, str], stronger: Mapping[str, str]) -> dict[str, str]:
    """Return both, whatever the case of their names; a header of one name is sent once."""
    over = {name.lower() for name in stronger}
    return {name: value for name, value in headers.items() if name.lower() not in over} | dict(stronger)
