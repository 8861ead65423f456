"""The tower's own signature over what it measured.

The edge signs receipts, but it did not measure. So the agent signs each result, with an Ed25519 key that never leaves
the tower: a DSSE envelope over an in-toto Statement whose subject is everything that the result says, run id, nonce and
bound request included. It is carried in the result frame and then in the receipt's payload, where anyone who has pinned
the tower's key can check it, whatever the edge says about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shared.dsse import DsseError, make_statement, open_envelope, verify_envelope
from shared.keys import TrustedKey

ATTESTATION_TYPE: Final = "https://a-11-oy.com/specdec/attestation/v1"

# What a result says. In a payload `ended_at` is called `generated_at`.
_PARTS: Final = ("run_id", "nonce", "request", "measurement", "energy", "output_sha3_256")


def attested(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a result frame, as JSON, that the tower signs."""
    return {**{name: result.get(name) for name in _PARTS}, "ended_at": result.get("ended_at")}


def attested_in_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as the payload of a measured run repeats it."""
    return {**{name: payload.get(name) for name in _PARTS}, "ended_at": payload.get("generated_at")}


def attestation_statement(content: Mapping[str, Any]) -> dict[str, Any]:
    """The statement over `content`, from `attested` or `attested_in_payload`."""
    predicate = {name: content[name] for name in ("run_id", "nonce", "ended_at")}
    return make_statement("result", dict(content), ATTESTATION_TYPE, predicate)


def check_attestation(
    envelope: Any, content: Mapping[str, Any], keys: Sequence[TrustedKey] | None
) -> TrustedKey | None:
    """Check a tower's envelope against what it should be about.

    Args:
        envelope: The DSSE envelope.
        content: From `attested` or `attested_in_payload`.
        keys: The tower's pinned keys, or None if there are none: then the signature itself stays unchecked.

    Returns:
        The key that signed, None where none was pinned.

    Raises:
        DsseError: If it is malformed, about something else, signed by another key, or names another key than the
            one that signed.
    """
    if keys is None:
        statement, key = open_envelope(envelope)[0], None
    else:
        statement, key = verify_envelope(envelope, keys)
    if statement != attestation_statement(content):
        raise DsseError("OTHER_SUBJECT", "the tower's attestation is about another result")
    if key is not None and envelope["signatures"][0].get("keyid") != key.keyid:
        raise DsseError("BAD_SIGNATURE", "the tower's attestation names another key than the one that signed")
    return key
