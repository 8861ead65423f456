"""The keys that an edge publishes: its own, old ones, and the tower's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import load_der_public_key
from moto import mock_aws

from edge.keyring import Keyring
from edge.signing import SigningFailed, signature
from shared.canonical import sha256_hex
from shared.keyfile import KeyFileError, load_or_create
from shared.keys import BadKey, key_id, load_keys
from shared.settings import SettingsError
from tests.edge.support import settings
from tests.edge.test_signing import Kms, aws_environment
from tests.shared.build import NOW, roadmap_payload
from tests.shared.test_dsse import pem

FROM, TO = "2026-01-01T00:00:00Z", "2026-06-30T12:00:00Z"
OLD, PRESENT = (pem(ec.generate_private_key(ec.SECP256R1())).decode() for _ in range(2))
TOWER, TOWER_2 = (pem(ed25519.Ed25519PrivateKey.generate()).decode() for _ in range(2))


def entry(
    text: str, kind: str = "edge", since: str | None = None, until: str | None = None
) -> dict[str, Any]:
    """One entry of a list of keys."""
    return {"kind": kind, "pem": text, "valid_from": since, "valid_to": until}


def listed(*entries: dict[str, Any]) -> str:
    """A list of keys as the settings take it."""
    return json.dumps({"keys": entries})


def keyring(**changes: str) -> Keyring:
    """The keyring of these settings."""
    return Keyring(settings(**changes))


def told(ring: Keyring) -> list[tuple[str, str, str | None, str | None]]:
    """Kind, key and times of what a keyring publishes, after checking ids and algorithms."""
    answer = ring.answer()
    assert set(answer) == {"keys"}
    for key in answer["keys"]:
        assert set(key) == {"keyid", "kind", "alg", "pem", "jwk", "valid_from", "valid_to"}
        (trusted,) = load_keys(key["pem"][key["pem"].index("-----BEGIN") :].encode())
        assert (key["keyid"], key["alg"]) == (trusted.keyid, trusted.alg)
        assert (key["jwk"]["kid"], key["jwk"]["use"]) == (trusted.keyid, "sig")
    return [(key["kind"], key["pem"], key["valid_from"], key["valid_to"]) for key in answer["keys"]]


@pytest.fixture
def key_file(tmp_path: Path) -> dict[str, str]:
    """Settings of an edge that signs with a key file."""
    return {"signer": "file", "signing_key_file": str(tmp_path / "edge.pem")}


def own(key_file: dict[str, str]) -> str:
    """The public key of that file."""
    return load_or_create(Path(key_file["signing_key_file"]), "P-256").pem


def test_nothing_to_publish() -> None:
    """An edge without signer, list and tower key publishes an empty list."""
    ring = keyring()
    assert told(ring) == []
    assert ring.signer is None
    assert ring.tower_keys is None


def test_present_key_is_added(key_file: dict[str, str]) -> None:
    """The key that signs is published, though nobody listed it."""
    ring = keyring(**key_file)
    assert told(ring) == [("edge", own(key_file), None, None)]
    block = signature(ring.signer, roadmap_payload(), NOW)
    assert block["keyid"] == ring.answer()["keys"][0]["keyid"]


def test_present_key_is_not_added_twice(key_file: dict[str, str]) -> None:
    """A listed key keeps its place and times, however its PEM is written down; old ones keep theirs too."""
    written = own(key_file).replace("\n", "\r\n")
    keys = listed(entry(OLD, until=TO, since=FROM), entry(written, since=TO), entry(TOWER, "tower"))
    assert told(keyring(**key_file, keys=keys)) == [
        ("edge", OLD, FROM, TO),
        ("edge", own(key_file), TO, None),
        ("tower", TOWER, None, None),
    ]


def test_present_key_is_added_after_old_ones(key_file: dict[str, str]) -> None:
    """A list of old keys alone gets the present one at its end."""
    keys = listed(entry(OLD, until=TO, since=FROM))
    assert told(keyring(**key_file, keys=keys)) == [
        ("edge", OLD, FROM, TO),
        ("edge", own(key_file), None, None),
    ]


@pytest.mark.parametrize(
    "beside", ["the first one", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"]
)
def test_nothing_beside_a_key(key_file: dict[str, str], beside: str) -> None:
    """An entry with more than its public key, a private one for example, stops the start: /keys would publish it."""
    written = f"{beside}\n{own(key_file)}"
    with pytest.raises(BadKey, match="does not hold one PEM public key"):
        keyring(**key_file, keys=listed(entry(written)))


def test_key_that_signed_twice(key_file: dict[str, str]) -> None:
    """A key that is listed for two periods keeps both."""
    text = own(key_file)
    keys = listed(entry(text, until=FROM), entry(text, since=TO))
    assert told(keyring(**key_file, keys=keys)) == [("edge", text, None, FROM), ("edge", text, TO, None)]


def test_list_in_a_file(key_file: dict[str, str], tmp_path: Path) -> None:
    """The list may be a file, and a saved answer of GET /keys is such a list."""
    first = keyring(**key_file, keys=listed(entry(OLD, until=TO)), tower_public_key=TOWER)
    saved = tmp_path / "keys.json"
    saved.write_text(json.dumps(first.answer()))
    again = keyring(**key_file, keys=str(saved), tower_public_key=TOWER)
    assert again.answer() == first.answer()


def test_tower_keys() -> None:
    """Pinned tower keys are published as the tower's, each once, and are what results are checked with."""
    ring = keyring(tower_public_key=TOWER + TOWER_2 + TOWER, keys=listed(entry(TOWER_2, "tower", since=FROM)))
    assert told(ring) == [("tower", TOWER_2, FROM, None), ("tower", TOWER, None, None)]
    assert ring.tower_keys is not None
    assert [key.keyid for key in ring.tower_keys] == [
        key_id(text.encode()) for text in (TOWER, TOWER_2, TOWER)
    ]


def test_tower_key_in_one_line() -> None:
    """A PEM block may be given in one line, as environment variables have them."""
    assert told(keyring(tower_public_key=TOWER.replace("\n", "\\n"))) == [("tower", TOWER, None, None)]


def test_tower_keys_keep_their_times() -> None:
    """Tower keys that are pinned by an answer of GET /keys keep their times; edge keys in it are not taken."""
    pinned = listed(entry(TOWER, "tower", FROM, TO), entry(TOWER_2, "tower", TO), entry(OLD))
    assert told(keyring(tower_public_key=pinned)) == [
        ("tower", TOWER, FROM, TO),
        ("tower", TOWER_2, TO, None),
    ]


def test_one_key_in_two_roles(key_file: dict[str, str]) -> None:
    """A key that is listed in one role is added in the other one too."""
    text = own(key_file)
    ring = keyring(**key_file, keys=listed(entry(text, "tower")), tower_public_key=text)
    assert told(ring) == [("tower", text, None, None), ("edge", text, None, None)]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("{", "the keys cannot be read: the text is not JSON"),
        ('{"keys":[],"keys":[]}', "the keys cannot be read: an object names a key twice"),
        (PRESENT, "the keys cannot be read: the text is not JSON"),
        ("{}", "the keys cannot be read: keys is required"),
        ('{"keys":5}', "the keys cannot be read: keys must be a list"),
        (listed({"kind": "edge"}), "the keys cannot be read: keys[0].pem is required"),
        (
            listed(entry(OLD, "root")),
            "the keys cannot be read: keys[0].kind must be 'edge' or 'tower'",
        ),
        (
            listed(entry(OLD), entry(OLD, since="yesterday")),
            "the keys cannot be read: keys[1].valid_from must be a UTC time like 2026-11-30T00:00:00Z",
        ),
        (
            listed(entry(OLD, until="2026-02-30T00:00:00Z")),
            "the keys cannot be read: keys[0].valid_to must be a UTC time like 2026-11-30T00:00:00Z",
        ),
        (listed(entry("a key")), "an entry of the keys does not hold one PEM public key"),
        (listed(entry(OLD + PRESENT)), "an entry of the keys does not hold one PEM public key"),
        (
            listed(entry("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----")),
            "the PEM public key cannot be read",
        ),
        (
            listed(entry(pem(ec.generate_private_key(ec.SECP384R1())).decode())),
            "the key is neither P-256 nor Ed25519",
        ),
    ],
)
def test_unusable_lists(keys: str, sentence: str) -> None:
    """A list that cannot be read, or holds a key that is of no use, stops the start with one sentence."""
    with pytest.raises(BadKey) as caught:
        keyring(keys=keys)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (
            "-----BEGIN nothing",
            "the key file holds no public key for this; pass a saved GET /keys answer or PEM",
        ),
        (
            listed(entry(OLD)),
            "the key file holds no public key for this; pass a saved GET /keys answer or PEM",
        ),
        (
            pem(ec.generate_private_key(ec.SECP384R1())).decode(),
            "the key is neither P-256 nor Ed25519",
        ),
        ("{", "the keys cannot be read: the text is not JSON"),
    ],
)
def test_unusable_tower_keys(key: str, sentence: str) -> None:
    """A tower key that cannot be used stops the start with one sentence."""
    with pytest.raises(BadKey) as caught:
        keyring(tower_public_key=key)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", ["keys", "tower_public_key"])
def test_missing_file(name: str) -> None:
    """A file that is not there is a wrong setting, told by the variable's name."""
    with pytest.raises(SettingsError) as caught:
        keyring(**{name: "/nowhere/keys.json"})
    assert str(caught.value) == (f"SPECDEC_{name.upper()} must be the text itself or a file that can be read")


def test_unusable_key_file(key_file: dict[str, str]) -> None:
    """A private key that cannot be used stops the start."""
    Path(key_file["signing_key_file"]).write_text("junk")
    Path(key_file["signing_key_file"]).chmod(0o600)
    with pytest.raises(KeyFileError, match="^edge.pem holds no PEM private key without a password$"):
        keyring(**key_file)


# The present key in KMS


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kms]:
    """A KMS that works."""
    aws_environment(monkeypatch)
    with mock_aws():
        yield Kms()


def in_kms(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], str]:
    """Settings of an edge that signs with KMS, and the public key there; the client's calls are kept."""
    arn = kms.create()
    der = kms.client.get_public_key(KeyId=arn)["PublicKey"]
    kms.calls.clear()
    monkeypatch.setattr(boto3, "client", lambda *_, **__: kms())

    class Half:
        """What `pem` takes the public half of."""

        @staticmethod
        def public_key() -> Any:
            """The public half."""
            return load_der_public_key(der)

    public = pem(Half()).decode()
    assert key_id(public.encode()) == sha256_hex(der)
    return {"signer": "kms", "kms_key_id": arn}, public


def test_kms_key_is_fetched_once(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in KMS that nobody listed is fetched when it is first needed, and not again by this instance."""
    chosen, public = in_kms(kms, monkeypatch)
    ring = keyring(**chosen, keys=listed(entry(OLD, until=TO)))
    assert (kms.made, kms.calls) == (0, [])
    for _ in range(3):
        assert told(ring) == [("edge", OLD, None, TO), ("edge", public, None, None)]
    assert signature(ring.signer, roadmap_payload(), NOW)["keyid"] == key_id(public.encode())
    assert kms.asked() == ["GetPublicKey", "Sign"]
    told(keyring(**chosen))
    assert kms.asked() == ["GetPublicKey", "Sign", "GetPublicKey"]


def test_listed_kms_key_is_not_fetched(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """One present edge key in the list is taken for the one in KMS: publishing it needs no call, signing one."""
    chosen, public = in_kms(kms, monkeypatch)
    keys = listed(entry(OLD, until=TO), entry(public, since=TO), entry(TOWER, "tower"))
    ring = keyring(**chosen, keys=keys)
    assert told(ring) == [("edge", OLD, None, TO), ("edge", public, TO, None), ("tower", TOWER, None, None)]
    assert kms.calls == []
    assert signature(ring.signer, roadmap_payload(), NOW)["signed"] is True
    assert kms.asked() == ["Sign"]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["first", "last"])
def test_two_present_keys(kms: Kms, monkeypatch: pytest.MonkeyPatch, order: slice) -> None:
    """With two present edge keys in the list it is KMS that says which one signs; none is added."""
    chosen, public = in_kms(kms, monkeypatch)
    pems = [public, PRESENT][order]
    ring = keyring(**chosen, keys=listed(*map(entry, pems)))
    assert told(ring) == [("edge", text, None, None) for text in pems]
    assert signature(ring.signer, roadmap_payload(), NOW)["keyid"] == key_id(public.encode())
    assert kms.asked() == ["GetPublicKey", "Sign"]


def test_two_present_keys_of_which_none_is_in_kms(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that does sign is published beside whatever else is listed."""
    chosen, public = in_kms(kms, monkeypatch)
    ring = keyring(**chosen, keys=listed(entry(OLD), entry(PRESENT)))
    assert told(ring) == [("edge", text, None, None) for text in (OLD, PRESENT, public)]


def test_listed_key_is_not_the_one_in_kms(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the list names another key than KMS signs with, receipts are unsigned and say so."""
    chosen, _ = in_kms(kms, monkeypatch)
    ring = keyring(**chosen, keys=listed(entry(PRESENT)))
    assert told(ring) == [("edge", PRESENT, None, None)]
    block = signature(ring.signer, roadmap_payload(), NOW)
    assert block["note"] == (
        "not signed: the key service signed with another key than the one that is published"
    )


def test_tower_key_is_not_taken_for_the_edges(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tower's key in the list is never the one that receipts are checked with."""
    chosen, public = in_kms(kms, monkeypatch)
    ring = keyring(**chosen, keys=listed(entry(PRESENT, "tower")))
    assert told(ring) == [("tower", PRESENT, None, None), ("edge", public, None, None)]


def test_kms_down(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that cannot be told whole are not told at all; the reason comes first, then the pause."""
    in_kms(kms, monkeypatch)
    ring = keyring(signer="kms", kms_key_id="alias/missing", keys=listed(entry(OLD, until=TO)))
    with pytest.raises(SigningFailed, match="^the key service refused: NotFoundException$"):
        ring.answer()
    with pytest.raises(
        SigningFailed, match="^the key service failed a moment ago and is left alone for some sec"
    ):
        ring.answer()
    assert kms.asked() == ["GetPublicKey"]


def test_key_in_kms_of_another_kind(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the edge cannot sign with is a failure of signing, not a fault of the edge."""
    in_kms(kms, monkeypatch)
    ring = keyring(signer="kms", kms_key_id=kms.create("RSA_2048"))
    with pytest.raises(SigningFailed, match="^the key in the key service is not P-256$"):
        ring.answer()
