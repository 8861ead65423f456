"""Receipts: their fields, their digest and the published way to check it."""

from __future__ import annotations

import base64
import hashlib
import json
import math

import pytest

from shared.canonical import CanonicalError
from shared.errors import SpecdecError
from shared.receipts import build_receipt, unsigned_signature
from tests.shared.build import NOW, golden, measured_payload


def test_receipt_fields() -> None:
    """A receipt has exactly the published fields around the payload."""
    case = golden("receipts")["cases"][0]
    assert build_receipt(case["payload"], unsigned_signature("no signer"), NOW) == {
        "schema": "szl.a11oy.specdec.receipt.v1",
        "payload": case["payload"],
        "payload_sha3_256": case["sha3_256"],
        "digest_alg": "sha3_256",
        "digest_canonicalization": (
            'json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False), '
            "UTF-8; the exact bytes are in payload_canonical_base64"
        ),
        "payload_canonical_base64": case["canonical_base64"],
        "signature": {"signed": False, "status": "DSSE_PLACEHOLDER", "note": "no signer"},
        "generated_at": NOW,
    }


def test_the_published_check() -> None:
    """After a trip over HTTP as JSON, the published one-liner recomputes the digest."""
    r = json.loads(json.dumps(build_receipt(measured_payload(), unsigned_signature("n"), NOW)))
    line = json.dumps(r["payload"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    assert hashlib.sha3_256(line).hexdigest() == r["payload_sha3_256"]
    assert base64.b64decode(r["payload_canonical_base64"], validate=True) == line


def test_no_receipt_over_nan() -> None:
    """A payload with a number that is not finite gets no receipt."""
    with pytest.raises(CanonicalError, match="not finite"):
        build_receipt({"accepted_rate": math.nan}, unsigned_signature("n"), NOW)


def test_errors_are_one_sentence() -> None:
    """An error reads as cause and remedy, or as its cause alone, and keeps its parts."""
    error = SpecdecError("CODE", "the tower is down", "start it")
    assert (str(error), error.code, error.cause, error.remedy) == (
        "the tower is down; start it",
        "CODE",
        "the tower is down",
        "start it",
    )
    assert str(SpecdecError("CODE", "the tower is down")) == "the tower is down"
