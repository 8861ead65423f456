"""The public keys that this edge tells auditors to pin: its own, old and new, and the tower's.

Old keys stay in the list with the time at which they ceased to sign, so that old receipts keep verifying. The list
comes from `SPECDEC_KEYS`; the present key is added where it is missing there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from edge.settings import EdgeSettings
from edge.signing import Signer, open_signer
from shared.keys import (
    BadKey,
    PublishedKey,
    TrustedKey,
    keys_answer,
    load_keys,
    public_pem,
    published,
    trusted,
)


class Keyring:
    """The signer, and the keys that are published.

    Attributes:
        signer: Signs receipts; None if nobody does.
    """

    def __init__(self, settings: EdgeSettings) -> None:
        """Reads the list and opens the signer.

        Raises:
            shared.keys.BadKey: If the list or the tower's key cannot be read.
            shared.keyfile.KeyFileError: If the key file cannot be used.
        """
        self._listed = [] if settings.keys is None else published(settings.keys.encode("utf-8"))
        keys_answer(self._listed)  # refuses what is not usable
        present = [key.pem for key in self._listed if key.kind == "edge" and key.valid_to is None]
        self.signer: Signer | None = open_signer(settings, present[-1] if len(present) == 1 else None)
        why = self.why_not_signing(datetime.now(UTC))
        if why is not None:
            raise BadKey("BAD_KEY", why, "use the new key")
        self._tower: list[TrustedKey] | None = None
        if settings.tower_public_key is not None:
            self._tower = load_keys(settings.tower_public_key.encode("utf-8"), "tower")

    def why_not_signing(self, now: datetime) -> str | None:
        """Says why the signer's key must not sign now: it is listed, and for other times only. None if it may."""
        keyid = None if self.signer is None else self.signer.keyid
        edge = [trusted(entry) for entry in self._listed if entry.kind == "edge"] if keyid else []
        times = [(key.valid_from, key.valid_to) for key in edge if key.keyid == keyid]
        if not times or any((not since or since <= now) and (not to or now < to) for since, to in times):
            return None
        return "the key that is to sign is listed as valid at another time"

    @property
    def tower_keys(self) -> list[TrustedKey] | None:
        """The tower's pinned keys, None if none is pinned."""
        return self._tower

    def answer(self) -> dict[str, Any]:
        """Returns the body of `GET /keys`.

        Raises:
            edge.signing.SigningFailed: If the present key must be fetched and cannot be.
        """
        used = [] if self.signer is None else [PublishedKey(kind="edge", pem=self.signer.public_pem())]
        used += [_published(key) for key in self._tower or []]
        answer = keys_answer(self._listed)
        known = {(entry["kind"], entry["keyid"]) for entry in answer["keys"]}
        for entry in keys_answer(used)["keys"]:
            if (entry["kind"], entry["keyid"]) not in known:
                known.add((entry["kind"], entry["keyid"]))
                answer["keys"].append(entry)
        return answer


def _published(key: TrustedKey) -> PublishedKey:
    times = [
        None if time is None else time.strftime("%Y-%m-%dT%H:%M:%SZ")
        for time in (key.valid_from, key.valid_to)
    ]
    return PublishedKey(kind="tower", pem=public_pem(key), valid_from=times[0], valid_to=times[1])
