"""Public keys: pinned ones to verify with, and the form in which an edge publishes its own.

An auditor pins either PEM blocks or a saved `GET /keys` answer. The answer also says what a key is for (edge or tower)
and from when to when it signs; bare PEM blocks do not, so for them both are the caller's word.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ValidationError

from shared.canonical import CanonicalError, sha256_hex, strict_loads
from shared.errors import SpecdecError
from shared.models import Trimmed, explain
from shared.schemas import UtcTime

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    PublicKey = EllipticCurvePublicKey | Ed25519PublicKey

Role = Literal["edge", "tower"]

CLOCK_SKEW: Final = timedelta(minutes=5)
"""How far two honest clocks may be apart."""

P256_ALG: Final = "ECDSA_SHA_256"
ED25519_ALG: Final = "ED25519"

_PEM: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)


class BadKey(SpecdecError):
    """A public key cannot be used."""


class PublishedKey(Trimmed):
    """One entry of `GET /keys`.

    Attributes:
        kind: Whose signatures it checks: the edge's on receipts, or the tower's on measurements.
        pem: The key (SubjectPublicKeyInfo).
        valid_from: Since when it signs; None if that is not known.
        valid_to: When it ceased to sign; None while it does.
    """

    kind: Role = "edge"
    pem: str
    valid_from: UtcTime | None = None
    valid_to: UtcTime | None = None


class _Answer(Trimmed):
    keys: list[PublishedKey]


@dataclass(frozen=True)
class TrustedKey:
    """A pinned key.

    Attributes:
        key: The key.
        keyid: SHA-256 of its SubjectPublicKeyInfo in DER, hex.
        alg: `ECDSA_SHA_256` (P-256) or `ED25519`.
        valid_from: Since when it signs, if that is known.
        valid_to: When it ceased to sign, if it did.
    """

    key: PublicKey
    keyid: str
    alg: str
    valid_from: datetime | None = None
    valid_to: datetime | None = None

    def is_valid(self, at: datetime) -> bool:
        """Whether the key signs at this time, give or take what honest clocks may be apart."""
        since, until = self.valid_from, self.valid_to
        return (since is None or since - at <= CLOCK_SKEW) and (until is None or at - until <= CLOCK_SKEW)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether this key made this signature: ECDSA over SHA-256 in DER (FIPS 186-5), or Ed25519 (RFC 8032)."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            if isinstance(self.key, ec.EllipticCurvePublicKey):
                self.key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
            else:
                self.key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


def load_keys(data: bytes, role: Role = "edge") -> list[TrustedKey]:
    """Read pinned keys.

    Args:
        data: PEM blocks (SubjectPublicKeyInfo), which are taken for keys of this role, or a saved `GET /keys`
            answer, of which only the keys of this role are taken.
        role: What the keys are to verify.

    Raises:
        BadKey: If there is none, or one is neither P-256 nor Ed25519.
    """
    if data.lstrip().startswith(b"{"):
        keys = [trusted(entry) for entry in published(data) if entry.kind == role]
    else:
        keys = [_key(block) for block in _PEM.findall(data)]
    if not keys:
        raise BadKey(
            "BAD_KEY", "the key file holds no public key for this", "pass a saved GET /keys answer or PEM"
        )
    return keys


def published(data: bytes) -> list[PublishedKey]:
    """Read a saved `GET /keys` answer.

    Raises:
        BadKey: If it is none.
    """
    try:
        return _Answer.model_validate(strict_loads(data)).keys
    except CanonicalError as error:
        raise BadKey("BAD_KEY", f"the keys cannot be read: {error.cause}") from None
    except ValidationError as error:
        raise BadKey("BAD_KEY", f"the keys cannot be read: {explain(error)}") from None


def key_id(pem: bytes) -> str:
    """SHA-256 of the key's SubjectPublicKeyInfo in DER, hex.

    Raises:
        BadKey: If `pem` is not one usable public key.
    """
    return load_keys(pem)[0].keyid


def keys_answer(keys: Sequence[PublishedKey]) -> dict[str, Any]:
    """The body of `GET /keys`: each key as PEM and as JWK (RFC 7517, 8037), with its id, use and validity.

    Raises:
        BadKey: If one of them is not usable.
    """
    return {"keys": [_entry(key) for key in keys]}


def public_pem(key: TrustedKey) -> str:
    """A key as PEM (SubjectPublicKeyInfo)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def _entry(entry: PublishedKey) -> dict[str, Any]:
    key = trusted(entry)
    return {
        "keyid": key.keyid,
        "kind": entry.kind,
        "alg": key.alg,
        "pem": public_pem(key),  # written anew, so that nothing else in the entry gets out
        "jwk": {**_jwk(key.key), "kid": key.keyid, "use": "sig"},
        "valid_from": entry.valid_from,
        "valid_to": entry.valid_to,
    }


def trusted(entry: PublishedKey) -> TrustedKey:
    """The key of an entry.

    Raises:
        BadKey: If it is not usable.
    """
    text = entry.pem.encode("utf-8", "replace").strip()
    blocks = _PEM.findall(text)
    if blocks != [text]:  # a private key beside it, for example, has no business here
        raise BadKey("BAD_KEY", "an entry of the keys does not hold one PEM public key")
    times = [
        None if text is None else datetime.fromisoformat(text) for text in (entry.valid_from, entry.valid_to)
    ]
    return _key(blocks[0], *times)


def _key(block: bytes, valid_from: datetime | None = None, valid_to: datetime | None = None) -> TrustedKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    try:
        key = load_pem_public_key(block)
    except (ValueError, UnsupportedAlgorithm):
        raise BadKey("BAD_KEY", "the PEM public key cannot be read") from None
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        alg = P256_ALG
    elif isinstance(key, ed25519.Ed25519PublicKey):
        alg = ED25519_ALG
    else:
        raise BadKey("BAD_KEY", "the key is neither P-256 nor Ed25519")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return TrustedKey(key, sha256_hex(der), alg, valid_from, valid_to)


def _jwk(key: PublicKey) -> dict[str, str]:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    def text(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")

    if isinstance(key, ec.EllipticCurvePublicKey):
        numbers = key.public_numbers()
        x, y = (text(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        return {"kty": "EC", "crv": "P-256", "alg": "ES256", "x": x, "y": y}
    return {
        "kty": "OKP",
        "crv": "Ed25519",
        "alg": "EdDSA",
        "x": text(key.public_bytes(Encoding.Raw, PublicFormat.Raw)),
    }
