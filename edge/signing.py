"""Who signs receipts: a key file, AWS KMS, or nobody.

A receipt is answered whatever becomes of its signature: where signing fails it says that it is not signed, and why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from edge.aws import CALL_S, AwsFailed, AwsNoTime, AwsPaused, AwsService
from edge.deadline import NEVER, Deadline
from edge.settings import EdgeSettings
from shared.dsse import PAYLOAD_TYPE, pae, signature_block, statement, statement_bytes
from shared.errors import SpecdecError
from shared.keyfile import KeyFileError, SigningKey, load_existing, load_or_create
from shared.keys import P256_ALG, BadKey, TrustedKey, load_keys
from shared.receipts import unsigned_signature

logger = logging.getLogger(__name__)

NO_SIGNER = "no signer is configured on this edge; the digest shows damage, not who made the receipt"
OTHER_KEY = "the key service signed with another key than the one that is published"
NOT_P256 = "the key in the key service is not P-256"


class SigningFailed(Exception):
    """No signature could be had; the message says why, for receipts."""


class Signer(Protocol):
    """Signs messages with one key."""

    @property
    def worst_s(self) -> float:
        """How long the next signature may take at worst, in seconds."""
        ...

    @property
    def keyid(self) -> str | None:
        """The key's id; None as long as it is not known."""
        ...

    def sign(self, message: bytes, by: Deadline = NEVER) -> tuple[bytes, str, str]:
        """Returns the signature of a message, the key's id and the algorithm's name.

        Args:
            message: What to sign.
            by: When this must be done; nothing is begun that may last longer.

        Raises:
            SigningFailed: If there is none to be had now.
        """
        ...

    def public_pem(self) -> str:
        """Returns the public key.

        Raises:
            SigningFailed: If it cannot be had now.
        """
        ...


class FileSigner:
    """Signs with a key in this process's memory."""

    worst_s = 0.0

    def __init__(self, key: SigningKey) -> None:
        """Keeps the key."""
        self._key = key

    @property
    def keyid(self) -> str:
        """The key's id."""
        return self._key.keyid

    def sign(self, message: bytes, by: Deadline = NEVER) -> tuple[bytes, str, str]:
        """Returns signature, key id and algorithm."""
        return self._key.sign(message), self._key.keyid, self._key.alg

    def public_pem(self) -> str:
        """Returns the public key."""
        return self._key.pem


class KmsSigner:
    """Signs with a P-256 key that never leaves AWS KMS.

    Messages go there RAW (at most 4,096 bytes), so that KMS hashes them itself. The public key is fetched once, unless
    it is given, and each signature is verified with it: what does not verify is not handed out. Needs `kms:Sign`, and
    `kms:GetPublicKey` where the public key is not given.
    """

    def __init__(
        self,
        key_arn: str,
        public_pem: str | None = None,
        *,
        client: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the key's id or ARN; nothing is fetched yet.

        Args:
            key_arn: Id or ARN.
            public_pem: Its public key, if it is known.
            client: Makes the KMS client.
            clock: Seconds, for the pause after a failure.
        """
        self._key_id = key_arn
        self._pem = public_pem
        self._trusted: tuple[TrustedKey, str] | None = None
        self._kms = AwsService("kms", "the key service", client, clock)

    @property
    def worst_s(self) -> float:
        """How long the next signature may take at worst: one call, and one more while the public key is not known."""
        return CALL_S if self._pem is not None or self._trusted is not None else 2 * CALL_S

    def sign(self, message: bytes, by: Deadline = NEVER) -> tuple[bytes, str, str]:
        """Returns signature, key id and algorithm."""
        key, _ = self._public(by)
        answer = self._call("sign", by, Message=message, MessageType="RAW", SigningAlgorithm=P256_ALG)
        signature: bytes = answer["Signature"]
        if not key.verifies(signature, message):
            raise self._failed(OTHER_KEY)
        return signature, key.keyid, key.alg

    @property
    def keyid(self) -> str | None:
        """The key's id, once the public key is at hand."""
        return None if self._trusted is None else self._trusted[0].keyid

    def public_pem(self) -> str:
        """Returns the public key."""
        return self._public()[1]

    def _public(self, by: Deadline = NEVER) -> tuple[TrustedKey, str]:
        if self._trusted is None:
            pem = self._fetched(by) if self._pem is None else self._pem
            try:
                (key,) = load_keys(pem.encode())
            except BadKey:
                raise self._failed(NOT_P256) from None
            if key.alg != P256_ALG:
                raise self._failed(NOT_P256)
            self._trusted = key, pem
        return self._trusted

    def _fetched(self, by: Deadline) -> str:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

        der = self._call("get_public_key", by)["PublicKey"]
        try:
            pem = load_der_public_key(der).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        except (ValueError, UnsupportedAlgorithm):
            raise self._failed(NOT_P256) from None
        return pem.decode("ascii")

    def _call(self, operation: str, by: Deadline, **parameters: Any) -> dict[str, Any]:
        try:
            return self._kms.call(operation, by, KeyId=self._key_id, **parameters)
        except (AwsNoTime, AwsPaused) as failure:
            raise SigningFailed(str(failure)) from None
        except AwsFailed as failure:
            raise self._failed(str(failure)) from None

    def _failed(self, why: str) -> SigningFailed:
        self._kms.pause()
        logger.error("receipt not signed: %s", why)
        return SigningFailed(why)


def signature(
    signer: Signer | None,
    payload: dict[str, Any],
    generated_at: str,
    why_not: str = NO_SIGNER,
    by: Deadline = NEVER,
) -> dict[str, Any]:
    """Returns the `signature` of a receipt: signed, or unsigned with the reason.

    Args:
        signer: Who signs, or None.
        payload: The receipt's payload.
        generated_at: The receipt's time.
        why_not: Why there is no signer, where there is none.
        by: When this must be done.
    """
    if signer is None:
        return unsigned_signature(why_not)
    try:
        body = statement_bytes(statement(payload, generated_at))
        value, keyid, alg = signer.sign(pae(PAYLOAD_TYPE, body), by)
    except SigningFailed as failure:
        return unsigned_signature(f"not signed: {failure}")
    except SpecdecError as error:
        logger.error("receipt not signed: %s", error.code)
        return unsigned_signature(f"not signed: {error.cause}")
    return signature_block(body, value, keyid=keyid, alg=alg)


def open_signer(settings: EdgeSettings, published_pem: str | None) -> Signer | None:
    """Returns the signer that the settings name, None for none.

    Args:
        settings: The settings.
        published_pem: The public key that `GET /keys` gives as the edge's present one, if the settings name it.

    Raises:
        shared.keyfile.KeyFileError: If the key file cannot be used.
    """
    if settings.signer == "file" and settings.signing_key_file is not None:
        file = settings.signing_key_file
        if settings.signing_keyid is None:
            return FileSigner(load_or_create(file, "P-256"))
        key = load_existing(file)
        if key.keyid != settings.signing_keyid:
            raise KeyFileError(
                "BAD_KEY_FILE", f"{file.name} was changed while the edge ran", "start the edge again"
            )
        return FileSigner(key)
    if settings.signer == "kms" and settings.kms_key_id is not None:
        return KmsSigner(settings.kms_key_id, published_pem)
    return None
