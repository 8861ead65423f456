"""The receipt around a payload."""

from __future__ import annotations

import base64
from typing import Any, Final

from shared.canonical import canonical_bytes, sha3_256_hex
from shared.labels import RECEIPT_SCHEMA, UNSIGNED_STATUS

DIGEST_ALG: Final = "sha3_256"
DIGEST_CANONICALIZATION: Final = (
    'json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False), UTF-8; '
    "the exact bytes are in payload_canonical_base64"
)


def build_receipt(payload: dict[str, Any], signature: dict[str, Any], generated_at: str) -> dict[str, Any]:
    """Wrap a payload: digest, exact canonical bytes, signature.

    Args:
        payload: The payload, JSON values only.
        signature: From `unsigned_signature` or `dsse.signature_block`.
        generated_at: RFC 3339 time in UTC, for example `2026-11-30T00:00:00Z`.

    Raises:
        shared.canonical.CanonicalError: If the payload has no canonical form.
    """
    data = canonical_bytes(payload)
    return {
        "schema": RECEIPT_SCHEMA,
        "payload": payload,
        "payload_sha3_256": sha3_256_hex(data),
        "digest_alg": DIGEST_ALG,
        "digest_canonicalization": DIGEST_CANONICALIZATION,
        "payload_canonical_base64": base64.b64encode(data).decode("ascii"),
        "signature": signature,
        "generated_at": generated_at,
    }


def unsigned_signature(note: str) -> dict[str, Any]:
    """The signature block of a receipt that nobody signed; `note` says why."""
    return {"signed": False, "status": UNSIGNED_STATUS, "note": note}
