"""Signatures: DSSE v1 envelopes over an in-toto Statement that names a payload by its digests.

Sources: secure-systems-lab/dsse protocol.md v1.0.2 (PAE, envelope); in-toto attestation Statement v1. The
statement is small on purpose: AWS KMS signs at most 4,096 bytes in RAW mode.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, Final

from shared.canonical import CanonicalError, canonical_bytes, sha3_256_hex, sha256_hex, strict_loads
from shared.errors import SpecdecError
from shared.keys import TrustedKey
from shared.labels import SIGNED_STATUS

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://a-11-oy.com/specdec/receipt/v1"
MAX_PAE: Final = 4096  # bytes: the KMS limit for MessageType RAW

_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII)


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
    predicate = {
        "label": payload.get("label"),
        "run_id": payload.get("run_id"),
        "generated_at": generated_at,
    }
    return make_statement("payload", payload, PREDICATE_TYPE, predicate)


def make_statement(name: str, subject: Any, predicate_type: str, predicate: dict[str, Any]) -> dict[str, Any]:
    """An in-toto Statement v1 about one JSON value, named by the digests of its canonical bytes."""
    data = canonical_bytes(subject)
    digest = {"sha3_256": sha3_256_hex(data), "sha256": sha256_hex(data)}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": digest}],
        "predicateType": predicate_type,
        "predicate": predicate,
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
        keyid: A hint to the key, from `keys.key_id`; verifiers do not rely on it.
        alg: Name of the algorithm, for people: `ECDSA_SHA_256` or `ED25519`.
    """
    envelope = make_envelope(body, signature, keyid)
    return {"signed": True, "status": SIGNED_STATUS, "keyid": keyid, "alg": alg, "envelope": envelope}


def make_envelope(body: bytes, signature: bytes, keyid: str) -> dict[str, Any]:
    """A DSSE envelope around `body`, with one signature over `pae(PAYLOAD_TYPE, body)`."""
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(body).decode("ascii"),
        "signatures": [{"keyid": keyid, "sig": base64.b64encode(signature).decode("ascii")}],
    }


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


def verify_envelope(envelope: Any, keys: Sequence[TrustedKey]) -> tuple[dict[str, Any], TrustedKey]:
    """Verify an envelope against pinned keys.

    The key ids that it names are hints and decide nothing (DSSE envelope.md); that they are those of the key that did
    sign is for the caller to check, if it matters.

    Args:
        envelope: The DSSE envelope.
        keys: Trusted public keys; any one of them may have signed.

    Returns:
        The statement that was signed, and the key that signed it.

    Raises:
        DsseError: If the envelope is malformed or none of the keys made the signature.
    """
    value, message, signature = open_envelope(envelope)
    for key in keys:
        if key.verifies(signature, message):
            return value, key
    raise DsseError("BAD_SIGNATURE", "no trusted key made this signature")
