"""Who vouches for a receipt: times, attestation and signature, each refusal with the sentence that a user sees."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from shared import labels
from shared.attestation import attestation_statement, attested, attested_in_payload, check_attestation
from shared.dsse import PAYLOAD_TYPE, DsseError, make_envelope, pae, statement_bytes
from shared.keys import key_id, load_keys
from shared.receipts import build_receipt
from shared.report import Report
from shared.verify import verify_receipt
from tests.shared.build import NOW, example_measurement, measured_payload, receipt, result, roadmap_payload
from tests.shared.test_dsse import ED25519, P256, pem, signed

TOWER = ed25519.Ed25519PrivateKey.generate()
TOWER_ID = key_id(pem(TOWER))
AT = datetime.fromisoformat(NOW)


def attest(content: dict[str, Any], key: Any = TOWER) -> dict[str, Any]:
    """A tower's envelope over a result."""
    body = statement_bytes(attestation_statement(content))
    return make_envelope(body, key.sign(pae(PAYLOAD_TYPE, body)), key_id(pem(key)))


def attested_payload(word: str = labels.VERIFIED, **change: Any) -> dict[str, Any]:
    """A measured payload whose tower has signed it, changed afterwards."""
    payload = measured_payload()
    envelope = attest(attested_in_payload(payload))
    payload["tower"] = {"id": "gpu.example", "attested": word, "keyid": TOWER_ID, "attestation": envelope}
    return {**payload, **change}


def check(report: Report, name: str) -> tuple[str, str]:
    """Status and sentence of one check."""
    return next((one.status, one.detail) for one in report.checks if one.name == name)


def answer(**edge: str | None) -> bytes:
    """A saved `GET /keys` answer with the edge's key, valid as given, and the tower's."""
    entries = [
        {"kind": "edge", "pem": pem(ED25519).decode(), **edge},
        {"kind": "tower", "pem": pem(TOWER).decode()},
    ]
    return json.dumps({"keys": entries}).encode()


# --- the tower's attestation ----------------------------------------------------------------------------------------


def test_frame_and_payload_give_the_same_statement() -> None:
    """What the tower signs as a result frame is what a verifier rebuilds from the payload."""
    frame = {**result(example_measurement()), "ended_at": NOW}
    assert attested(frame) == attested_in_payload(measured_payload())
    content = attested(frame)
    key = check_attestation(attest(content), content, load_keys(pem(TOWER)))
    assert key is not None and key.keyid == TOWER_ID
    assert check_attestation(attest(content), content, None) is None


@pytest.mark.parametrize(
    "name", ["run_id", "nonce", "request", "measurement", "energy", "output_sha3_256", "ended_at"]
)
def test_another_result_is_not_attested(name: str) -> None:
    """A true attestation moved to a result that differs in any part is refused, with and without the key."""
    content = attested({**result(example_measurement()), "ended_at": NOW})
    other = {**content, name: {"another": 1}}
    for keys in (None, load_keys(pem(TOWER))):
        with pytest.raises(DsseError, match="the tower's attestation is about another result"):
            check_attestation(attest(content), other, keys)


def test_a_measurement_signed_by_a_pinned_tower() -> None:
    """The tower's key is pinned as PEM or in a saved answer; without it the attestation is there but unchecked."""
    good = receipt(attested_payload(), signed(attested_payload()))
    fine = "ok", f"the measurement is signed by the pinned tower key {TOWER_ID[:16]}"
    assert check(verify_receipt(good, tower_pem=pem(TOWER)), "attestation") == fine
    report = verify_receipt(good, key_pem=answer(), require_signature=True, now=AT)
    assert report.ok and check(report, "attestation") == fine
    assert {one.status for one in report.checks} == {"ok"}
    unchecked = "warning", "signed by a tower whose key is not pinned here, so not checked"
    assert check(verify_receipt(good), "attestation") == unchecked
    assert check(verify_receipt(good, key_pem=pem(ED25519)), "attestation") == unchecked


@pytest.mark.parametrize(
    ("tower", "sentence"),
    [
        ({"attested": labels.FAILED}, "tower.attested must be UNPINNED or VERIFIED in a measured run"),
        ({"attested": None}, "tower.attested must be UNPINNED or VERIFIED in a measured run"),
        ("gpu", "tower.attested must be UNPINNED or VERIFIED in a measured run"),
        ({"attested": labels.VERIFIED}, "tower.attested is VERIFIED, yet there is no attestation"),
        (
            {"attested": labels.VERIFIED, "keyid": TOWER_ID, "attestation": {}},
            "the envelope's payloadType is not application/vnd.in-toto+json",
        ),
        (
            {**attested_payload()["tower"], "keyid": "0" * 64},
            "tower.keyid is not the one that the attestation names",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # what else it holds is made anew each time
)
def test_what_a_receipt_says_of_its_tower(tower: Any, sentence: str) -> None:
    """A receipt that says more of its tower than it shows fails, whatever is pinned."""
    for tower_pem in (None, pem(TOWER)):
        report = verify_receipt(receipt(measured_payload() | {"tower": tower}), tower_pem=tower_pem)
        assert check(report, "attestation") == ("failed", sentence)


def test_another_towers_key() -> None:
    """An attestation by another key fails under the pinned one; a tower that did not sign fails once one is pinned."""
    payload = measured_payload()
    other = ed25519.Ed25519PrivateKey.generate()
    envelope = attest(attested_in_payload(payload), other)
    payload["tower"] = {"attested": "VERIFIED", "keyid": key_id(pem(other)), "attestation": envelope}
    report = verify_receipt(receipt(payload), tower_pem=pem(TOWER))
    assert check(report, "attestation") == ("failed", "no trusted key made this signature")
    silent = verify_receipt(receipt(measured_payload()), tower_pem=pem(TOWER))
    assert check(silent, "attestation") == ("failed", "the tower has not signed this measurement")
    unusable = verify_receipt(receipt(attested_payload()), tower_pem=b"no key")
    assert check(unusable, "attestation") == ("failed", "the key file holds no public key for this")


def test_a_key_id_that_is_not_the_signers() -> None:
    """An attestation that names another key than the one that signed is refused."""
    payload = attested_payload()
    for place in (payload["tower"], payload["tower"]["attestation"]["signatures"][0]):
        place["keyid"] = "0" * 64
    report = verify_receipt(receipt(payload), tower_pem=pem(TOWER))
    sentence = "the tower's attestation names another key than the one that signed"
    assert check(report, "attestation") == ("failed", sentence)


def test_roles_are_kept_apart() -> None:
    """A tower's key in a saved answer signs no receipts, and the edge's attests no measurement."""
    body = attestation_statement(attested_in_payload(measured_payload()))
    by_edge = make_envelope(
        statement_bytes(body), ED25519.sign(pae(PAYLOAD_TYPE, statement_bytes(body))), key_id(pem(ED25519))
    )
    tower = {"attested": "VERIFIED", "keyid": key_id(pem(ED25519)), "attestation": by_edge}
    report = verify_receipt(receipt(measured_payload() | {"tower": tower}), key_pem=answer())
    assert check(report, "attestation") == ("failed", "no trusted key made this signature")


# --- the edge's signature -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"keyid": "0" * 64}, "signature.keyid is not the one that the envelope names"),
        ({"alg": "ECDSA_SHA_256"}, "signature.keyid or alg is not that of the key that signed"),
        ({"alg": None}, "signature.keyid or alg is not that of the key that signed"),
    ],
    ids=str,
)
def test_what_a_signature_says_of_its_key(change: dict[str, Any], sentence: str) -> None:
    """Key id and algorithm are for people, and must still be true."""
    block = {**signed(roadmap_payload()), **change}
    assert check(verify_receipt(receipt(roadmap_payload(), block), key_pem=pem(ED25519)), "signature") == (
        "failed",
        sentence,
    )


@pytest.mark.parametrize(
    ("valid", "outcome"),
    [
        ({"valid_from": NOW}, None),
        ({"valid_from": "2026-11-30T00:05:00Z"}, None),  # clocks may be five minutes apart
        (
            {"valid_from": "2026-11-30T00:05:01Z"},
            "the key that signed it is valid from 2026-11-30T00:05:01Z, and the receipt is older",
        ),
        ({"valid_to": NOW}, None),
        ({"valid_to": "2026-11-29T23:55:00Z"}, None),
        (
            {"valid_to": "2026-11-29T23:54:59Z"},
            "the key that signed it was valid until 2026-11-29T23:54:59Z, and the receipt is newer",
        ),
    ],
    ids=str,
)
def test_a_key_signs_within_its_time(valid: dict[str, str], outcome: str | None) -> None:
    """A receipt dated outside the time in which its key signed fails: a key that leaked later makes no old receipts."""
    report = verify_receipt(receipt(roadmap_payload(), signed(roadmap_payload())), key_pem=answer(**valid))
    expected = (
        ("failed", outcome)
        if outcome
        else ("ok", f"signed by the pinned edge key {key_id(pem(ED25519))[:16]}")
    )
    assert check(report, "signature") == expected


def test_rotation() -> None:
    """After a rotation a saved answer holds both keys: receipts of either time verify, each under its own key."""
    new = ec.generate_private_key(ec.SECP256R1())
    entries = [
        {"kind": "edge", "pem": pem(ED25519).decode(), "valid_from": "2026-01-01T00:00:00Z", "valid_to": NOW},
        {"kind": "edge", "pem": pem(P256).decode(), "valid_from": NOW, "valid_to": None},
    ]
    keys = json.dumps({"keys": entries}).encode()
    payload = roadmap_payload()
    for alg in ("ED25519", "ECDSA_SHA_256"):
        assert verify_receipt(receipt(payload, signed(payload, alg)), key_pem=keys, require_signature=True).ok
    # Who saved the answer before the rotation is told that the key is unknown.
    report = verify_receipt(receipt(payload, signed(payload, "ECDSA_SHA_256")), key_pem=pem(new))
    assert check(report, "signature") == ("failed", "no trusted key made this signature")


# --- times ----------------------------------------------------------------------------------------------------------


def dated(payload_at: Any, receipt_at: Any) -> dict[str, Any]:
    """An unsigned receipt with these dates."""
    payload = {**roadmap_payload(), "generated_at": payload_at}
    return build_receipt(payload, receipt(payload)["signature"], receipt_at)


@pytest.mark.parametrize(
    ("payload_at", "receipt_at", "status", "sentence"),
    [
        (NOW, NOW, "ok", f"made at {NOW}"),
        ("2026-11-29T00:00:00Z", NOW, "ok", f"made at {NOW}"),
        ("2026-11-30T00:05:00Z", NOW, "ok", f"made at {NOW}"),
        ("2026-11-30T00:05:01Z", NOW, "failed", "the payload is dated after the receipt that holds it"),
        (NOW, "2026-11-30T01:05:00Z", "ok", "made at 2026-11-30T01:05:00Z"),
        (
            NOW,
            "2026-11-30T01:05:01Z",
            "warning",
            "the receipt is dated 0:05:01 ahead of this machine's clock; one of the two is wrong",
        ),
        (None, NOW, "skipped", "receipt or payload is not dated"),
        (NOW, "yesterday", "failed", "a date is not a UTC time like 2026-11-30T00:00:00Z"),
        (5, NOW, "failed", "a date is not a UTC time like 2026-11-30T00:00:00Z"),
        (NOW, "2026-13-30T00:00:00Z", "failed", "a date is not a UTC time like 2026-11-30T00:00:00Z"),
        (NOW, "20261130T000000Z", "failed", "a date is not a UTC time like 2026-11-30T00:00:00Z"),
        (NOW, "2026-11-30\x1b00:00:00Z", "failed", "a date is not a UTC time like 2026-11-30T00:00:00Z"),
        (NOW, "2026-11-30T00:00:00.5Z", "failed", "a date is not a UTC time like 2026-11-30T00:00:00Z"),
        (NOW, "Z", "failed", "a date is not a UTC time like 2026-11-30T00:00:00Z"),
    ],
    ids=str,
)
def test_dates(payload_at: Any, receipt_at: Any, status: str, sentence: str) -> None:
    """A payload is no newer than its receipt; a receipt from the future is doubtful, as either clock may be wrong."""
    report = verify_receipt(dated(payload_at, receipt_at), now=AT + timedelta(hours=1))
    assert check(report, "time") == (status, sentence)


EXTREMES = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")


@pytest.mark.parametrize("at", EXTREMES)
def test_the_ends_of_time(at: str) -> None:
    """Dates at either end of the calendar are compared like any other, in receipts and keys."""
    assert check(verify_receipt(dated(at, at), now=AT), "time")[0] == (
        "ok" if at == EXTREMES[0] else "warning"
    )
    for valid in ({"valid_from": at}, {"valid_to": at}):
        report = verify_receipt(
            receipt(roadmap_payload(), signed(roadmap_payload())), key_pem=answer(**valid)
        )
        inside = valid in ({"valid_from": EXTREMES[0]}, {"valid_to": EXTREMES[1]})
        assert check(report, "signature")[0] == ("ok" if inside else "failed")


def test_a_tower_signs_within_its_time() -> None:
    """A measurement dated outside of the time in which the tower's key signed fails too."""
    entry = {"kind": "tower", "pem": pem(TOWER).decode(), "valid_to": "2026-11-29T00:00:00Z"}
    keys = json.dumps({"keys": [entry, {"pem": pem(ED25519).decode()}]}).encode()
    report = verify_receipt(receipt(attested_payload(), signed(attested_payload())), key_pem=keys, now=AT)
    sentence = "the key that signed it was valid until 2026-11-29T00:00:00Z, and the measurement is newer"
    assert check(report, "attestation") == ("failed", sentence)
    assert check(report, "signature")[0] == "ok"


def test_an_unusable_tower_key_is_no_unpinned_one() -> None:
    """A saved answer whose tower key cannot be read fails the attestation; it is not as if none were pinned."""
    keys = json.dumps({"keys": [{"kind": "tower", "pem": "x"}, {"pem": pem(ED25519).decode()}]}).encode()
    report = verify_receipt(receipt(attested_payload(), signed(attested_payload())), key_pem=keys, now=AT)
    assert check(report, "attestation") == ("failed", "an entry of the keys does not hold one PEM public key")


# --- any change at all ----------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in a JSON value that is no container."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))
    else:
        yield path


def changed(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind, as near as can be."""
    if isinstance(value, bool):
        return not value
    if value is None:
        return rng.choice([0, "", False])
    if isinstance(value, int):
        return value + rng.choice([-1, 1])
    if isinstance(value, float):
        return value + rng.choice([-1, 1]) * max(abs(value) * 1e-12, 5e-324)
    at = rng.randrange(len(value) + 1)
    if at == len(value):
        return value + "A"
    other = rng.choice([c for c in "Aa0_é" if c != value[at]])
    return value[:at] + other + value[at + 1 :]


@pytest.mark.parametrize("alg", ["ED25519", "ECDSA_SHA_256"])
def test_a_thousand_changes_are_refused(alg: str) -> None:
    """On a receipt signed by edge and tower every single change of any value fails, by a check that has a name."""
    payload = attested_payload()
    good = receipt(payload, signed(payload, alg))
    keys = pem(ED25519) if alg == "ED25519" else pem(P256)
    assert {
        one.status for one in verify_receipt(good, key_pem=keys, tower_pem=pem(TOWER), now=AT).checks
    } == {"ok"}
    rng = random.Random(4)
    everywhere = list(places(good))
    caught: dict[str, int] = {}
    for number in range(1000):
        path = everywhere[number % len(everywhere)] if number < len(everywhere) else rng.choice(everywhere)
        altered = copy.deepcopy(good)
        place: Any = altered
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = changed(place[path[-1]], rng)
        report = verify_receipt(altered, key_pem=keys, tower_pem=pem(TOWER), now=AT)
        assert not report.ok, path
        for one in report.checks:
            caught[one.name] = caught.get(one.name, 0) + (one.status == "failed")
    assert len(everywhere) < 1000
    assert {"receipt", "digest", "exact_bytes", "signature"} <= {
        name for name, count in caught.items() if count
    }


def test_a_thousand_changes_by_an_edge_are_refused() -> None:
    """Whoever holds the edge's key, and signs anew, can still change nothing that the tower has measured and signed."""
    payload = attested_payload()
    rng = random.Random(5)
    names = ("run_id", "nonce", "request", "measurement", "energy", "output_sha3_256", "generated_at")
    everywhere = [path for path in places(payload) if path[0] in names]
    for _ in range(1000):
        altered = copy.deepcopy(payload)
        place: Any = altered
        path = rng.choice(everywhere)
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = changed(place[path[-1]], rng)
        report = verify_receipt(receipt(altered, signed(altered)), key_pem=pem(ED25519), tower_pem=pem(TOWER))
        assert check(report, "attestation") == (
            "failed",
            "the tower's attestation is about another result",
        ), path
