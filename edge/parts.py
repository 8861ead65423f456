"""The parts of an edge, each made when it is first needed: a cold start pays only for what its first call uses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edge.problems import Problem
from edge.settings import EdgeSettings
from edge.tower import Tower
from shared.labels import BASE_PATH

if TYPE_CHECKING:
    from edge.issuer import Issuer
    from edge.keyring import Keyring
    from edge.quota import Quota
    from edge.runs import Runs


class Parts:
    """What the routes are made of."""

    def __init__(self, settings: EdgeSettings, tower: Tower) -> None:
        """Takes the settings.

        Raises:
            shared.errors.SpecdecError: If a key that is given cannot be used.
        """
        self._settings = settings
        self._tower = tower
        if settings.signer == "file" or settings.keys is not None or settings.tower_public_key is not None:
            _ = self._keyring  # a key that cannot be used stops start-up

    @cached_property
    def issuer(self) -> Issuer:
        """Makes receipts."""
        from edge.issuer import Issuer, open_store

        return Issuer(self._keyring, open_store(self._settings))

    @cached_property
    def runs(self) -> Runs:
        """The run routes."""
        from edge.runs import Runs
        from shared.runid import RunKeys

        secret = self._settings.run_secret
        keys = RunKeys(secret.get_secret_value().encode()) if secret else None
        return Runs(self._settings, keys, self._tower, self.issuer, self._keyring.tower_keys, self._quota())

    def keys(self) -> dict[str, Any]:
        """Returns the body of `GET /keys`.

        Raises:
            Problem: 503 if the present key must be fetched and cannot be.
        """
        from edge.signing import SigningFailed

        try:
            return self._keyring.answer()
        except SigningFailed:
            raise Problem(503, "The edge's public key cannot be had now.", {"Retry-After": "20"}) from None

    def _quota(self) -> Quota:
        from edge.limits import Allowance, Limits, LocalLimits
        from edge.quota import Quota

        settings = self._settings
        allowance = Allowance(settings.runs_per_minute, settings.run_burst, settings.gpu_seconds_per_day)
        shared: Limits | None = None
        if settings.limits_table is not None:
            from edge.limits_dynamodb import DynamoLimits

            shared = DynamoLimits(settings.limits_table, allowance)
        elif settings.limits_file is not None:
            shared = LocalLimits(allowance, settings.limits_file)
        return Quota(allowance, settings.run_deadline_s, shared)

    @cached_property
    def _keyring(self) -> Keyring:
        from edge.keyring import Keyring

        return Keyring(self._settings)


def receipt_link(receipt: Mapping[str, Any]) -> str:
    """Where a stored receipt is to be had (RFC 8288)."""
    return f'<{BASE_PATH}/receipts/{receipt["payload_sha3_256"]}>; rel="canonical"'
