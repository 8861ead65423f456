"""Signatures: DSSE v1 envelopes over an in-toto Statement that names a payload by its digests.

Sources: secure-systems-lab/dsse protocol.md v1.0.2 (PAE, envelope); in-toto attestation Statement v1. The
statement is small on purpose: AWS KMS signs at most 4,096 bytes in RAW mode. Keys: ECDSA P-256 with SHA-256
(DER signatures, what KMS gives) and Ed25519 (RFC 8032).
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final

from shared.canonical import CanonicalError, canonical_bytes, sha3_256_hex, sha256_hex, strict_loads
from shared.errors import SpecdecError
from shared.labels import SIGNED_STATUS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    PublicKey = EllipticCurvePublicKey | Ed25519PublicKey

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://a-11-oy.com/specdec/receipt/v1"
MAX_PAE: Final = 4096  # bytes: the KMS limit for MessageType RAW

_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII)
_PEM: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)


class DsseError(SpecdecError):
    """The envelope, the statement or the key cannot be accepted."""


def pae(payload_type: str, body: bytes) -> bytes:
    """Pre-authentication encoding, the bytes that get signed (DSSE protocol.md)."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def statement(payload: dict[str, Any], generated_at: str) -> dict[str, Any]:
    """The in-toto Statement for a payload: its two digests, and what it says about itself.

    Args:
        payload: The receipt's payload.
        generated_at: The receipt's `generated_at`.
    """
    data = canonical_bytes(payload)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": "payload", "digest": {"sha3_256": sha3_256_hex(data), "sha256": sha256_hex(data)}}
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "label": payload.get("label"),
            "run_id": payload.get("run_id"),
            "generated_at": generated_at,
        },
    }


def statement_bytes(value: dict[str, Any]) -> bytes:
    """The bytes of a statement that go into its envelope; `pae(PAYLOAD_TYPE, ...)` of them gets signed.

    Raises:
        DsseError: If their PAE would exceed 4,096 bytes.
    """
    body = canonical_bytes(value)
    if len(pae(PAYLOAD_TYPE, body)) > MAX_PAE:
        raise DsseError("TOO_LARGE", f"the statement exceeds {MAX_PAE} bytes")
    return body


def signature_block(body: bytes, signature: bytes, *, keyid: str, alg: str) -> dict[str, Any]:
    """The `signature` of a signed receipt.

    Args:
        body: From `statement_bytes`.
        signature: Over `pae(PAYLOAD_TYPE, body)`.
        keyid: A hint to the key, from `key_id`; verifiers do not rely on it.
        alg: Name of the algorithm, for people: `ECDSA_SHA_256` or `ED25519`.
    """
    envelope = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(body).decode("ascii"),
        "signatures": [{"keyid": keyid, "sig": base64.b64encode(signature).decode("ascii")}],
    }
    return {"signed": True, "status": SIGNED_STATUS, "keyid": keyid, "alg": alg, "envelope": envelope}


def strict_base64(text: object) -> bytes:
    """Decode padded base64, standard or URL-safe alphabet (DSSE asks for both), and nothing looser.

    Raises:
        DsseError: On whitespace, wrong padding, stray bits or anything but text.
    """
    if isinstance(text, str):
        standard = text.replace("-", "+").replace("_", "/")
        if _BASE64.fullmatch(standard):
            data = base64.b64decode(standard)
            if base64.b64encode(data).decode("ascii") == standard:  # no stray bits under the padding
                return data
    raise DsseError("BAD_BASE64", "the base64 is not strict")


def open_envelope(envelope: Any) -> tuple[dict[str, Any], bytes, bytes]:
    """Read an envelope without trusting it.

    Returns:
        The statement, the PAE that was signed, the one signature.

    Raises:
        DsseError: If it is not a DSSE envelope with one signature over a JSON object of our type.
    """
    if not isinstance(envelope, dict) or envelope.get("payloadType") != PAYLOAD_TYPE:
        raise DsseError("BAD_ENVELOPE", f"the envelope's payloadType is not {PAYLOAD_TYPE}")
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise DsseError("BAD_ENVELOPE", "the envelope must hold exactly one signature")
    body = strict_base64(envelope.get("payload"))
    message = pae(PAYLOAD_TYPE, body)
    if len(message) > MAX_PAE:
        raise DsseError("TOO_LARGE", f"the statement exceeds {MAX_PAE} bytes")
    try:
        value = strict_loads(body)
    except CanonicalError as error:
        raise DsseError("BAD_ENVELOPE", f"the statement cannot be read: {error.cause}") from None
    if not isinstance(value, dict):
        raise DsseError("BAD_ENVELOPE", "the statement is not a JSON object")
    return value, message, strict_base64(signatures[0].get("sig"))


def verify_envelope(envelope: Any, pem: bytes) -> dict[str, Any]:
    """Verify an envelope against pinned keys and return the statement that was signed.

    Args:
        envelope: The DSSE envelope.
        pem: Trusted public keys, see `load_keys`; any one of them may have signed.

    Raises:
        DsseError: If the envelope is malformed, the keys are unusable or none of them made the signature.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    keys = load_keys(pem)
    value, message, signature = open_envelope(envelope)
    for key in keys:
        try:
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
            else:
                key.verify(signature, message)
        except InvalidSignature:
            continue
        return value
    raise DsseError("BAD_SIGNATURE", "no trusted key made this signature")


def load_keys(data: bytes) -> list[PublicKey]:
    """Read trusted public keys.

    Args:
        data: One or more PEM blocks (SubjectPublicKeyInfo), or a saved `GET /keys` answer, whose `keys` list
            objects with `pem`.

    Raises:
        DsseError: If there is none, or one is neither P-256 nor Ed25519.
    """
    if data.lstrip().startswith(b"{"):
        data = _pems_of_answer(data)
    blocks = _PEM.findall(data)
    if not blocks:
        raise DsseError(
            "BAD_KEY", "the key holds no PEM public key", "pass a file made by GET /keys or openssl"
        )
    return [_load_key(block) for block in blocks]


def key_id(pem: bytes) -> str:
    """SHA-256 of the key's SubjectPublicKeyInfo in DER, hex.

    Raises:
        DsseError: If `pem` is not one usable public key.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = load_keys(pem)[0].public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256_hex(der)


def _pems_of_answer(data: bytes) -> bytes:
    try:
        answer = strict_loads(data)
    except CanonicalError as error:
        raise DsseError("BAD_KEY", f"the keys cannot be read: {error.cause}") from None
    keys = answer.get("keys") if isinstance(answer, dict) else None
    pems = [key.get("pem") for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []
    return "\n".join(pem for pem in pems if isinstance(pem, str)).encode("utf-8")


def _load_key(block: bytes) -> PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(block)
    except (ValueError, UnsupportedAlgorithm):
        raise DsseError("BAD_KEY", "the PEM public key cannot be read") from None
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    raise DsseError("BAD_KEY", "the key is neither P-256 nor Ed25519")
