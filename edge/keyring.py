"""The public keys that this edge tells auditors to pin: its own, old and new, and the tower's.

Old keys stay in the list with the time at which they ceased to sign, so that old receipts keep verifying. The list
comes from `SPECDEC_KEYS`; the present key is added where it is missing there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from edge.settings import EdgeSettings
from edge.signing import FileSigner, Signer, open_signer
from shared.keys import BadKey, PublishedKey, TrustedKey, keys_answer, load_keys, published, trusted


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
        if isinstance(self.signer, FileSigner):
            self._refuse_retired(self.signer.keyid)
        self._tower: list[TrustedKey] | None = None
        if settings.tower_public_key is not None:
            self._tower = load_keys(settings.tower_public_key.encode("utf-8"), "tower")

    def _refuse_retired(self, keyid: str) -> None:
        edge = [trusted(entry) for entry in self._listed if entry.kind == "edge"]
        listed = [key for key in edge if key.keyid == keyid]
        if listed and not any(key.is_valid(datetime.now(UTC)) for key in listed):
            raise BadKey(
                "BAD_KEY", "the key that is to sign is listed as valid at another time", "use the new key"
            )

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
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = key.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")
    times = [
        None if time is None else time.strftime("%Y-%m-%dT%H:%M:%SZ")
        for time in (key.valid_from, key.valid_to)
    ]
    return PublishedKey(kind="tower", pem=pem, valid_from=times[0], valid_to=times[1])
