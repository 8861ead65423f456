"""DSSE envelopes with real keys: what is signed, what verifies and what does not."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from shared.dsse import (
    MAX_PAE,
    PAYLOAD_TYPE,
    DsseError,
    pae,
    signature_block,
    statement,
    statement_bytes,
    strict_base64,
    verify_envelope,
)
from shared.keys import TrustedKey, key_id, load_keys
from tests.shared.build import NOW, golden, measured_payload, roadmap_payload

P256 = ec.generate_private_key(ec.SECP256R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()


def pem(key: Any) -> bytes:
    """The public half in PEM."""
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def sign_p256(message: bytes) -> bytes:
    """ECDSA over SHA-256, as KMS signs."""
    return P256.sign(message, ec.ECDSA(hashes.SHA256()))


def keys(key: Any) -> list[TrustedKey]:
    """A private key's public half, pinned."""
    return load_keys(pem(key))


SIGNERS: dict[str, tuple[Callable[[bytes], bytes], bytes]] = {
    "ECDSA_SHA_256": (sign_p256, pem(P256)),
    "ED25519": (ED25519.sign, pem(ED25519)),
}


def signed(payload: dict[str, Any], alg: str = "ED25519") -> dict[str, Any]:
    """The signature block of a payload."""
    sign, public = SIGNERS[alg]
    body = statement_bytes(statement(payload, NOW))
    return signature_block(body, sign(pae(PAYLOAD_TYPE, body)), keyid=key_id(public), alg=alg)


def test_golden_pae() -> None:
    """The published PAE vector holds, and lengths count bytes, not characters."""
    vector = golden("receipts")["dsse_pae"]
    assert pae(vector["payloadType"], vector["payload"].encode()) == vector["pae"].encode()
    assert pae("é", "ü".encode()) == "DSSEv1 2 é 2 ü".encode()
    assert pae("", b"") == b"DSSEv1 0  0 "


def test_statement() -> None:
    """The statement names the payload by both digests and repeats label, run id and time."""
    case = golden("receipts")["cases"][0]
    assert statement(case["payload"], NOW) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "payload", "digest": {"sha3_256": case["sha3_256"], "sha256": case["sha256"]}}],
        "predicateType": "https://a-11-oy.com/specdec/receipt/v1",
        "predicate": {"label": "SPEC-DECODE ROADMAP", "run_id": None, "generated_at": NOW},
    }


def test_statement_is_small() -> None:
    """A whole measured payload's statement stays far under the KMS limit; one beyond it is refused."""
    assert len(pae(PAYLOAD_TYPE, statement_bytes(statement(measured_payload(), NOW)))) < 1000
    with pytest.raises(DsseError, match="exceeds 4096 bytes"):
        statement_bytes(statement(roadmap_payload(run_id="x" * MAX_PAE), NOW))


@pytest.mark.parametrize("alg", SIGNERS)
def test_signed_and_verified(alg: str) -> None:
    """Either kind of key verifies its own envelope and returns the signed statement."""
    block = signed(measured_payload(), alg)
    assert (block["signed"], block["status"], block["alg"]) == (True, "DSSE", alg)
    assert block["keyid"] == block["envelope"]["signatures"][0]["keyid"] == key_id(SIGNERS[alg][1])
    assert verify_envelope(block["envelope"], load_keys(SIGNERS[alg][1]))[0] == statement(
        measured_payload(), NOW
    )


def test_any_pinned_key() -> None:
    """Of several pinned keys any may have signed, and the one that did is told."""
    envelope = signed(roadmap_payload(), "ECDSA_SHA_256")["envelope"]
    value, key = verify_envelope(envelope, [*keys(ED25519), *keys(P256)])
    assert value["predicate"]["generated_at"] == NOW
    assert (key.keyid, key.alg) == (key_id(pem(P256)), "ECDSA_SHA_256")


def test_another_key() -> None:
    """An envelope signed by a key that is not pinned is refused, whatever its keyid claims."""
    envelope = signed(roadmap_payload(), "ED25519")["envelope"]
    other = pem(ed25519.Ed25519PrivateKey.generate())
    envelope["signatures"][0]["keyid"] = key_id(other)
    for pinned in (other, pem(P256)):
        with pytest.raises(DsseError, match="no trusted key made this signature"):
            verify_envelope(envelope, load_keys(pinned))


PINNED = {alg: load_keys(public) for alg, (_, public) in SIGNERS.items()}
ENVELOPES = {alg: signed(roadmap_payload(), alg)["envelope"] for alg in SIGNERS}


@given(st.sampled_from(list(SIGNERS)), st.sampled_from(["payload", "sig"]), st.integers(0, 8 * 600 - 1))
def test_any_altered_bit(alg: str, name: str, bit: int) -> None:
    """An envelope with any bit of statement or signature flipped is refused."""
    envelope = copy.deepcopy(ENVELOPES[alg])
    place = envelope if name == "payload" else envelope["signatures"][0]
    raw = bytearray(base64.b64decode(place[name]))
    bit %= 8 * len(raw)
    raw[bit // 8] ^= 1 << bit % 8
    place[name] = base64.b64encode(raw).decode()
    with pytest.raises(DsseError):
        verify_envelope(envelope, PINNED[alg])


def test_url_safe_base64() -> None:
    """An envelope in the URL-safe alphabet verifies too, as DSSE asks."""
    envelope = signed(roadmap_payload())["envelope"]
    for place, name in ((envelope, "payload"), (envelope["signatures"][0], "sig")):
        place[name] = place[name].replace("+", "-").replace("/", "_")
    assert verify_envelope(envelope, keys(ED25519))[0]["_type"] == "https://in-toto.io/Statement/v1"


@pytest.mark.parametrize(
    "text", ["YQ", "YQ=", "YQ==\n", " YQ==", "YR==", "Y Q==", "YQ==YQ==", "=", "é===", 5, None, b"YQ=="]
)
def test_strict_base64(text: Any) -> None:
    """Missing padding, whitespace, stray bits, trailing text and anything but text are refused."""
    assert strict_base64("YQ==") == b"a" and strict_base64("") == b""
    with pytest.raises(DsseError, match="not strict"):
        strict_base64(text)


@pytest.mark.parametrize(
    "change",
    [
        {"payloadType": "application/json"},
        {"payloadType": None},
        {"payload": "!"},
        {"payload": base64.b64encode(b"not json").decode()},
        {"payload": base64.b64encode(b"[]").decode()},
        {"signatures": []},
        {"signatures": None},
        {"signatures": ["x"]},
        {"signatures": [{}, {}]},
        {"signatures": [{"sig": None}]},
    ],
    ids=str,
)
def test_malformed_envelopes(change: dict[str, Any]) -> None:
    """An envelope of another type or form, or with two signatures, is refused."""
    envelope = copy.deepcopy(signed(roadmap_payload())["envelope"])
    with pytest.raises(DsseError):
        verify_envelope({**envelope, **change}, keys(ED25519))


def test_one_small_statement() -> None:
    """Truly signed, but with a second signature or beyond the size limit, an envelope is refused."""
    envelope = signed(roadmap_payload())["envelope"]
    with pytest.raises(DsseError, match="exactly one signature"):
        verify_envelope({**envelope, "signatures": envelope["signatures"] * 2}, keys(ED25519))
    body = b'{"x":"' + b"x" * MAX_PAE + b'"}'
    large = signature_block(body, ED25519.sign(pae(PAYLOAD_TYPE, body)), keyid="k", alg="ED25519")
    with pytest.raises(DsseError, match="exceeds 4096 bytes"):
        verify_envelope(large["envelope"], keys(ED25519))


def test_type_is_signed() -> None:
    """A signature over the same body under another type does not verify."""
    body = statement_bytes(statement(roadmap_payload(), NOW))
    block = signature_block(body, ED25519.sign(pae("text/plain", body)), keyid="k", alg="ED25519")
    with pytest.raises(DsseError, match="no trusted key"):
        verify_envelope(block["envelope"], keys(ED25519))
