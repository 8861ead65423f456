"""Pinned keys: what is read, what is refused, and the form in which an edge publishes its own."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from shared.keys import BadKey, PublishedKey, key_id, keys_answer, load_keys, published
from tests.shared.test_dsse import ED25519, P256, pem

FROM, TO = "2026-01-01T00:00:00Z", "2026-06-30T12:00:00Z"


def answer(*entries: dict[str, Any]) -> bytes:
    """A saved answer of `GET /keys`."""
    return json.dumps({"keys": list(entries)}).encode()


EDGE = {"kind": "edge", "pem": pem(P256).decode(), "valid_from": FROM, "valid_to": TO}
TOWER = {"kind": "tower", "pem": pem(ED25519).decode()}


def test_pem_blocks() -> None:
    """Several PEM blocks in one file are several keys, in order, for whichever role the caller says."""
    both = pem(ED25519) + b"some words\n" + pem(P256)
    for role in ("edge", "tower"):
        found = load_keys(both, role)
        assert [key.alg for key in found] == ["ED25519", "ECDSA_SHA_256"]
        assert [key.valid_from for key in found] == [None, None]


def test_an_answer_keeps_roles_apart() -> None:
    """From a saved answer only keys of the role are taken, with their times: a tower cannot sign receipts."""
    saved = answer(EDGE, TOWER)
    (edge,), (tower,) = load_keys(saved, "edge"), load_keys(b"\n" + saved, "tower")
    assert (edge.keyid, tower.keyid) == (key_id(pem(P256)), key_id(pem(ED25519)))
    assert edge.valid_from == datetime(2026, 1, 1, tzinfo=UTC)
    assert edge.valid_to == datetime(2026, 6, 30, 12, tzinfo=UTC)
    assert tower.valid_from is tower.valid_to is None
    with pytest.raises(BadKey, match="holds no public key for this"):
        load_keys(answer(EDGE), "tower")


def test_key_id_is_the_digest_of_the_key_in_der() -> None:
    """The id is SHA-256 of the SubjectPublicKeyInfo: `openssl pkey -pubin -outform DER | sha256sum` prints it too."""
    der = P256.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert key_id(pem(P256)) == hashlib.sha256(der).hexdigest()


def test_published_form() -> None:
    """Each entry has PEM and JWK of the same key, its id, use and times; it is read back as it was."""
    told = keys_answer([PublishedKey.model_validate(EDGE), PublishedKey.model_validate(TOWER)])
    edge, tower = told["keys"]
    numbers = P256.public_key().public_numbers()
    assert edge["keyid"] == edge["jwk"]["kid"] == key_id(pem(P256))
    assert (edge["kind"], edge["alg"], edge["valid_from"], edge["valid_to"]) == (
        "edge",
        "ECDSA_SHA_256",
        FROM,
        TO,
    )
    assert {name: edge["jwk"][name] for name in ("kty", "crv", "alg", "use")} == {
        "kty": "EC",
        "crv": "P-256",
        "alg": "ES256",
        "use": "sig",
    }
    for name, number in (("x", numbers.x), ("y", numbers.y)):
        assert int.from_bytes(base64.urlsafe_b64decode(edge["jwk"][name] + "="), "big") == number
    raw = ED25519.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert (tower["jwk"]["kty"], tower["jwk"]["crv"], tower["jwk"]["alg"]) == ("OKP", "Ed25519", "EdDSA")
    assert base64.urlsafe_b64decode(tower["jwk"]["x"] + "=") == raw
    assert (tower["kind"], tower["alg"], tower["valid_to"]) == ("tower", "ED25519", None)
    saved = json.dumps(told).encode()
    assert [key.keyid for role in ("edge", "tower") for key in load_keys(saved, role)] == [
        edge["keyid"],
        tower["keyid"],
    ]
    assert published(saved)[0].valid_to == TO


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"{}",
        b'{"keys":5}',
        b'{"keys":[{"pem":5}]}',
        b'{"keys":[{"pem":"x"}]}',
        b'{"keys":[]}',
        b'{"keys":',
        b"\xff\xfe",
        answer({**EDGE, "kind": "root"}),
        answer({**EDGE, "valid_from": "yesterday"}),
        answer({**EDGE, "pem": (pem(P256) * 2).decode()}),
        answer(
            {
                **EDGE,
                "pem": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n" + pem(P256).decode(),
            }
        ),
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
        pem(ec.generate_private_key(ec.SECP384R1())),
        pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
    ],
    ids=lambda data: ascii(data)[:24],
)
def test_unusable_keys(data: bytes) -> None:
    """A file without a key, with a broken entry, or with a key of a kind we do not use, is refused as BAD_KEY."""
    with pytest.raises(BadKey) as refused:
        load_keys(data)
    assert refused.value.code == "BAD_KEY"


def test_signatures() -> None:
    """A key verifies what its private half signed, and nothing else; another key's signature is no error."""
    other = ed25519.Ed25519PrivateKey.generate()
    (key,) = load_keys(pem(ED25519))
    assert key.verifies(ED25519.sign(b"message"), b"message")
    assert not key.verifies(ED25519.sign(b"message"), b"massage")
    assert not key.verifies(other.sign(b"message"), b"message")
    (edge,) = load_keys(pem(P256))
    for junk in (b"", b"\x30\x00", b"x" * 72):
        assert not edge.verifies(junk, b"message")
