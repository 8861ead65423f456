"""Where the bearer token for the tower comes from."""

from __future__ import annotations

import logging
from typing import Protocol

from edge.settings import EdgeSettings
from shared.settings import is_token

logger = logging.getLogger(__name__)

AWS_TIMEOUT_S = 2


class TokenSource(Protocol):
    """Something that knows the tower's token."""

    def current(self) -> str | None:
        """Return the token in hand, without any network call."""

    def pending(self) -> bool:
        """Tell whether there is no token in hand, and `renew` may get one."""

    def renew(self) -> bool:
        """Fetch the token again; True when that gave another one."""


class FixedToken:
    """A token given in the environment, or none at all."""

    def __init__(self, token: str | None) -> None:
        """Keep the token."""
        self._token = token

    def current(self) -> str | None:
        """Return the token."""
        return self._token

    def pending(self) -> bool:
        """Return False: what is not here will never be."""
        return False

    def renew(self) -> bool:
        """Return False: there is nowhere to get another one."""
        return False


class SecretToken:
    """A token kept in AWS Secrets Manager.

    It is fetched by the first run that finds none in hand, and again when the tower answers 401 to a run, so
    that ``/health`` needs neither an AWS SDK nor an AWS call. Needs ``secretsmanager:GetSecretValue``.
    """

    def __init__(self, secret_id: str, token: str | None = None) -> None:
        """Take the secret's name or ARN, and the token that it held at deployment, if known."""
        self._secret_id = secret_id
        self._token = token

    def current(self) -> str | None:
        """Return the token fetched last."""
        return self._token

    def pending(self) -> bool:
        """Tell whether the token was neither given nor fetched."""
        return self._token is None

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
        token = value.strip() if isinstance(value, str) else ""
        if not is_token(token):
            logger.error("tower token not fetched: the secret is not visible ASCII text")
            return False
        changed = token != self._token
        self._token = token
        return changed


def token_source(settings: EdgeSettings) -> TokenSource:
    """Return the source that the settings name; nothing is fetched yet."""
    token = None if settings.tower_token is None else settings.tower_token.get_secret_value()
    if settings.tower_token_secret is None:
        return FixedToken(token)
    return SecretToken(settings.tower_token_secret, token)
