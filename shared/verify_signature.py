"""Who vouches for a receipt: the edge's signature, the tower's attestation, and when both say they were made.

The trust root is what the caller pins. A key inside a receipt, or the word VERIFIED, proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from shared import labels
from shared.attestation import attested_in_payload, check_attestation
from shared.closeness import same_json
from shared.dsse import DsseError, open_envelope, statement, verify_envelope
from shared.errors import SpecdecError
from shared.keys import CLOCK_SKEW, BadKey, TrustedKey, load_keys, published
from shared.report import Check, Status

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


@dataclass(frozen=True)
class Pins:
    """What the verifier trusts and asks for.

    Attributes:
        key_pem: The edge's pinned keys (see `keys.load_keys`), or None.
        tower_pem: The tower's pinned keys, or None; a saved `GET /keys` answer in `key_pem` may hold them too.
        require_signature: Fail a receipt whose signature is missing or cannot be checked.
        now: The time by this machine's clock.
    """

    key_pem: bytes | None
    tower_pem: bytes | None
    require_signature: bool
    now: datetime


def check_origin(receipt: dict[str, Any], pins: Pins) -> Iterator[Check]:
    """Check times, attestation and signature of a receipt, whose payload is an object."""
    yield _times(receipt, pins.now)
    if receipt["payload"].get("measured") == labels.MEASURED:
        yield _attestation(receipt["payload"], pins)
    yield _signature(receipt, receipt["payload"], pins)


def _times(receipt: dict[str, Any], now: datetime) -> Check:
    made, measured = _time(receipt.get("generated_at")), _time(receipt["payload"].get("generated_at"))
    if made is None or measured is None:
        if receipt.get("generated_at") is None or receipt["payload"].get("generated_at") is None:
            return Check("time", "skipped", "receipt or payload is not dated")
        return Check("time", "failed", "a date is not a UTC time like 2026-11-30T00:00:00Z")
    if measured - made > CLOCK_SKEW:
        return Check("time", "failed", "the payload is dated after the receipt that holds it")
    if made - now > CLOCK_SKEW:
        ahead = str(made - now).partition(".")[0]
        detail = f"the receipt is dated {ahead} ahead of this machine's clock; one of the two is wrong"
        return Check("time", "warning", detail)
    return Check("time", "ok", f"made at {receipt['generated_at']}")


def _time(text: Any) -> datetime | None:
    """The time that a text names as receipts write it, None if it names none, or in another way."""
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _attestation(payload: dict[str, Any], pins: Pins) -> Check:
    tower = payload.get("tower", {"attested": labels.UNPINNED})
    if not isinstance(tower, dict) or tower.get("attested") not in (labels.UNPINNED, labels.VERIFIED):
        return Check("attestation", "failed", "tower.attested must be UNPINNED or VERIFIED in a measured run")
    try:
        keys = _tower_keys(pins)
    except BadKey as error:
        return Check("attestation", "failed", error.cause)
    envelope = tower.get("attestation")
    if envelope is None:
        if tower["attested"] == labels.VERIFIED:
            return Check("attestation", "failed", "tower.attested is VERIFIED, yet there is no attestation")
        status: Status = "warning" if keys is None else "failed"
        return Check("attestation", status, "the tower has not signed this measurement")
    try:
        key = check_attestation(envelope, attested_in_payload(payload), keys)
    except SpecdecError as error:
        return Check("attestation", "failed", error.cause)
    if tower.get("keyid") != envelope["signatures"][0].get("keyid"):
        return Check("attestation", "failed", "tower.keyid is not the one that the attestation names")
    if key is None:
        detail = "signed by a tower whose key is not pinned here, so not checked"
        return Check("attestation", "warning", detail)
    wrong = _out_of_date(key, "measurement", payload.get("generated_at"))
    if wrong:
        return Check("attestation", "failed", wrong)
    return Check("attestation", "ok", f"the measurement is signed by the pinned tower key {key.keyid[:16]}")


def _tower_keys(pins: Pins) -> list[TrustedKey] | None:
    """The tower's pinned keys, None if there are none."""
    if pins.tower_pem is not None:
        return load_keys(pins.tower_pem, "tower")
    if pins.key_pem is not None and pins.key_pem.lstrip().startswith(b"{"):
        if any(entry.kind == "tower" for entry in published(pins.key_pem)):
            return load_keys(pins.key_pem, "tower")
    return None


def _signature(receipt: dict[str, Any], payload: dict[str, Any], pins: Pins) -> Check:
    block = receipt.get("signature")
    if not isinstance(block, dict) or not isinstance(block.get("signed"), bool):
        return Check("signature", "failed", "the receipt does not say whether it is signed")
    unproven: Status = "failed" if pins.require_signature else "warning"
    if not block["signed"]:
        if block.get("status") != labels.UNSIGNED_STATUS or "envelope" in block:
            return Check("signature", "failed", "an unsigned receipt must say DSSE_PLACEHOLDER")
        return Check("signature", unproven, "the receipt is not signed")
    if block.get("status") != labels.SIGNED_STATUS:
        return Check("signature", "failed", "a signed receipt must say DSSE")
    envelope: Any = block.get("envelope")
    key: TrustedKey | None = None
    try:
        if pins.key_pem is None:
            claimed = open_envelope(envelope)[0]
        else:
            claimed, key = verify_envelope(envelope, load_keys(pins.key_pem, "edge"))
    except (DsseError, BadKey) as error:
        return Check("signature", "failed", error.cause)
    wrong = _statement(claimed, statement(payload, str(receipt.get("generated_at"))))
    if wrong:
        return Check("signature", "failed", wrong)
    if block.get("keyid") != envelope["signatures"][0].get("keyid"):
        return Check("signature", "failed", "signature.keyid is not the one that the envelope names")
    if key is None:
        return Check("signature", unproven, "the signature cannot be checked without a pinned key")
    if (block.get("keyid"), block.get("alg")) != (key.keyid, key.alg):
        return Check("signature", "failed", "signature.keyid or alg is not that of the key that signed")
    wrong = _out_of_date(key, "receipt", receipt.get("generated_at"))
    if wrong:
        return Check("signature", "failed", wrong)
    return Check("signature", "ok", f"signed by the pinned edge key {key.keyid[:16]}")


def _statement(claimed: dict[str, Any], expected: dict[str, Any]) -> str | None:
    """What is wrong with a signed statement, if anything is."""
    for name in ("_type", "predicateType"):
        if claimed.get(name) != expected[name]:
            return f"the signed statement's {name} is not ours"
    subjects = claimed.get("subject")
    if not isinstance(subjects, list) or len(subjects) != 1 or not isinstance(subjects[0], dict):
        return "the signed statement does not have one subject"
    if subjects[0].get("digest") != expected["subject"][0]["digest"]:
        return "the signed statement is about another payload"
    predicate = claimed.get("predicate")
    for name, value in expected["predicate"].items():
        if not isinstance(predicate, dict) or not same_json(predicate.get(name), value):
            return f"the signed statement's {name} is not the receipt's"
    return None


def _out_of_date(key: TrustedKey, what: str, dated: Any) -> str | None:
    """What is wrong with a receipt or a measurement of this date under a key, if anything is."""
    made = _time(dated)
    if made is None:
        return f"the {what} is not dated" if key.valid_from or key.valid_to else None
    if key.valid_from is not None and key.valid_from - made > CLOCK_SKEW:
        return f"the key that signed it is valid from {_text(key.valid_from)}, and the {what} is older"
    if key.valid_to is not None and made - key.valid_to > CLOCK_SKEW:
        return f"the key that signed it was valid until {_text(key.valid_to)}, and the {what} is newer"
    return None


def _text(time: datetime) -> str:
    return time.replace(tzinfo=None).isoformat() + "Z"
