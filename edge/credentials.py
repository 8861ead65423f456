"""Where the bearer token for the tower comes from, and what else its door is shown."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from edge.headers import Credentials, parse_headers, parse_secret
from edge.settings import EdgeSettings

logger = logging.getLogger(__name__)

AWS_TIMEOUT_S = 2


class TokenSource(Protocol):
    """Something that knows the tower's token."""

    def current(self) -> str | None:
        """Return the token in hand, without any network call."""

    def headers(self) -> Mapping[str, str]:
        """Return the further headers in hand."""

    def pending(self) -> bool:
        """Tell whether there is no token in hand, and `renew` may get one."""

    def renew(self) -> bool:
        """Fetch both again; True when that gave something else."""


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

    def renew(self) -> bool:
        """Return False: there is nowhere to get another one."""
        return False


class SecretToken:
    """A token kept in AWS Secrets Manager, by itself or with headers (`edge.headers.parse_secret`).

    It is fetched by the first run that finds none in hand, and again when the tower answers 401 to a run, so
    that ``/health`` needs neither an AWS SDK nor an AWS call. Needs ``secretsmanager:GetSecretValue``.
    """

    def __init__(
        self, secret_id: str, held: Credentials | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Take the secret's name or ARN, what it held at deployment, if known, and headers that it may outrank."""
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

    def renew(self) -> bool:
        """Fetch the secret; on failure keep the old token and say so in the log."""
        # Imported here because it loads boto3, which edges with a fixed token do without.
        from aws_lambda_powertools.utilities import parameters
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=AWS_TIMEOUT_S, read_timeout=AWS_TIMEOUT_S, retries={"total_max_attempts": 2}
        )
        try:
            provider = parameters.SecretsProvider(boto_config=config)
            value = provider.get(self._secret_id, force_fetch=True)
        except (parameters.exceptions.GetParameterError, BotoCoreError) as error:
            logger.error("tower token not fetched: %s", type(error).__name__)
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
