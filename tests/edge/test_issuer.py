"""Receipts of one edge instance: signed and stored once, answered whatever fails, curves equal within an hour."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from edge.aws import CALL_S
from edge.deadline import NEVER, Deadline
from edge.issuer import (
    CURVE_PERIOD_S,
    CURVES_SIGNED,
    CURVES_STORED,
    ROADMAPS_SIGNED,
    Issuer,
    open_store,
)
from edge.keyring import Keyring
from edge.payloads import curve_payload
from edge.problems import Problem
from edge.signing import NO_SIGNER, FileSigner, KmsSigner, SigningFailed
from edge.store import DirectoryStore, Receipt, StoreAlarm, StoreDown
from edge.store_dynamodb import DynamoStore
from shared.keyfile import SigningKey
from shared.schemas import CurveQuery
from shared.verify import verify_receipt
from tests.edge.support import settings
from tests.edge.test_signing import unsigned
from tests.edge.test_store import exact, place
from tests.shared.build import NOW, measured_payload, roadmap_payload

T0 = 1_796_040_000.0
"""The beginning of an hour: 2026-11-30T12:00:00Z."""
HOUR, NEXT_HOUR = "2026-11-30T12:00:00Z", "2026-11-30T13:00:00Z"

PAYLOAD = {**measured_payload(), "generated_at": "2026-11-30T11:59:00Z"}
BUSY = "it is busy"
LATER = Deadline.after(1e6)


class Signer:
    """Signs with a key of its own, counts, and fails when it is told to."""

    def __init__(self) -> None:
        """Make a key."""
        self.inner = FileSigner(SigningKey(ec.generate_private_key(ec.SECP256R1())))
        self.worst_s = 0.0
        self.signed = 0
        self.asked = 0
        self.fails = False

    def sign(self, message: bytes, by: Deadline = NEVER) -> tuple[bytes, str, str]:
        """Sign."""
        self.asked += 1
        if self.fails:
            raise SigningFailed(BUSY)
        self.signed += 1
        return self.inner.sign(message)

    @property
    def keyid(self) -> str:
        """Return the key's id."""
        return self.inner.keyid

    def public_pem(self) -> str:
        """Return the public key."""
        return self.inner.public_pem()


class Store:
    """A directory of receipts that counts what it is asked, and fails as it is told to."""

    def __init__(self, folder: Path) -> None:
        """Name the folder."""
        self.inner = DirectoryStore(folder)
        self.worst_s = 0.0
        self.puts: list[Receipt] = []
        self.on_put: Exception | None = None
        self.on_get: Exception | None = None

    def put(self, receipt: Receipt, by: Deadline = NEVER) -> Receipt:
        """Store."""
        self.puts.append(receipt)
        if self.on_put is not None:
            raise self.on_put
        return self.inner.put(receipt)

    def get(self, digest: str, by: Deadline = NEVER) -> Receipt | None:
        """Find."""
        if self.on_get is not None:
            raise self.on_get
        return self.inner.get(digest)


class Edge:
    """One instance of an edge, on a clock that stands still."""

    def __init__(self, signer: Signer | None, store: Store | None, now: float = T0) -> None:
        """Put it together."""
        keyring = Keyring(settings())
        keyring.signer = signer
        self.now = now
        self.issuer = Issuer(keyring, store, clock=lambda: self.now)

    def curve(
        self, k: int = 4, *, store: bool = False, usual: bool = False, **query: Any
    ) -> tuple[Receipt, bool]:
        """Ask for a curve."""
        return self.issuer.curve(CurveQuery(k=k, **query), LATER, store=store, usual=usual)


@pytest.fixture
def signer() -> Signer:
    """A signer that works."""
    return Signer()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path)


def problem(call: Callable[[], Any]) -> tuple[int, str, dict[str, str]]:
    """What a call is refused with."""
    with pytest.raises(Problem) as caught:
        call()
    return caught.value.status, caught.value.detail, caught.value.headers


def assert_signed(receipt: Receipt, signer: Signer) -> None:
    """Check that a receipt verifies with the signer's key, and with no other."""
    report = verify_receipt(receipt, key_pem=signer.public_pem().encode(), require_signature=True)
    assert [check.name for check in report.checks if check.status == "failed"] == []
    other = verify_receipt(receipt, key_pem=Signer().public_pem().encode(), require_signature=True)
    assert [check.name for check in other.checks if check.status == "failed"] == ["signature"]


# Runs


def test_signed_and_stored_once(signer: Signer, store: Store) -> None:
    """A run's receipt is signed and stored at the first asking; whoever asks later gets that one, byte for byte."""
    edge = Edge(signer, store)
    first, stored = edge.issuer.measured(PAYLOAD, LATER)
    assert stored
    assert_signed(first, signer)
    edge.now += 100
    for _ in range(3):
        again, stored = edge.issuer.measured(PAYLOAD, LATER)
        assert stored and exact(again) == exact(first)
    assert (signer.signed, len(store.puts)) == (1, 1)
    assert exact(edge.issuer.stored(first["payload_sha3_256"])) == exact(first)


def test_another_instance_gives_the_same(signer: Signer, store: Store) -> None:
    """What one instance has signed and stored another one gives, with no signature of its own."""
    first, _ = Edge(signer, store).issuer.measured(PAYLOAD, LATER)
    other = Signer()
    assert exact(Edge(other, store, T0 + 1000).issuer.measured(PAYLOAD, LATER)[0]) == exact(first)
    assert exact(Edge(None, store).issuer.measured(PAYLOAD, LATER)[0]) == exact(first)
    assert other.asked == 0


def test_receipt_is_dated_when_it_is_signed(signer: Signer) -> None:
    """A signed receipt is dated when it is signed, never before its payload; without a signer it is dated as that."""
    edge = Edge(signer, None)
    receipt, _ = edge.issuer.measured(PAYLOAD, LATER)
    assert receipt["generated_at"] == HOUR
    edge.now -= 1000
    assert edge.issuer.measured(PAYLOAD, LATER)[0]["generated_at"] == PAYLOAD["generated_at"]
    assert_signed(receipt, signer)
    assert Edge(None, None).issuer.measured(PAYLOAD, LATER)[0]["generated_at"] == PAYLOAD["generated_at"]


def test_nobody_signs(store: Store) -> None:
    """Without a signer the receipt is stored unsigned; equal payloads have equal receipts at any time."""
    edge = Edge(None, store)
    first, stored = edge.issuer.measured(PAYLOAD, LATER)
    assert stored and first["signature"] == unsigned(NO_SIGNER)
    edge.now += 5000
    again, stored = edge.issuer.measured(PAYLOAD, LATER)
    assert stored and exact(again) == exact(first)


def test_unsigned_until_the_signer_is_back(signer: Signer, store: Store) -> None:
    """While nobody can sign, the first unsigned receipt is given; once somebody can, it is signed for good."""
    edge = Edge(signer, store)
    signer.fails = True
    first, stored = edge.issuer.measured(PAYLOAD, LATER)
    assert stored and first["signature"] == unsigned(f"not signed: {BUSY}")
    edge.now += 10
    assert exact(edge.issuer.measured(PAYLOAD, LATER)[0]) == exact(first)
    assert (signer.asked, signer.signed) == (2, 0)
    signer.fails = False
    edge.now += 10
    signed, stored = edge.issuer.measured(PAYLOAD, LATER)
    assert stored and signed["generated_at"] == "2026-11-30T12:00:20Z"
    assert_signed(signed, signer)
    signer.fails = True
    assert exact(edge.issuer.measured(PAYLOAD, LATER)[0]) == exact(signed)
    assert (signer.asked, signer.signed) == (3, 1)
    assert exact(edge.issuer.stored(signed["payload_sha3_256"])) == exact(signed)


def test_without_a_store(signer: Signer, caplog: pytest.LogCaptureFixture) -> None:
    """An edge that keeps no receipts signs each time, and says that none is stored."""
    edge = Edge(signer, None)
    for _ in range(2):
        receipt, stored = edge.issuer.measured(PAYLOAD, LATER)
        assert not stored
        assert_signed(receipt, signer)
    assert signer.signed == 2
    assert caplog.records == []


@pytest.mark.parametrize(
    "error",
    [StoreDown("the receipts' table refused: X"), StoreAlarm("the store holds other content")],
    ids=repr,
)
@pytest.mark.parametrize("reads", [True, False], ids=["put", "get and put"])
def test_store_that_fails(
    signer: Signer, store: Store, caplog: pytest.LogCaptureFixture, error: Exception, reads: bool
) -> None:
    """With the store down or damaged the run is answered, signed, and not called stored; the log says why."""
    store.on_put = error
    store.on_get = None if reads else error
    receipt, stored = Edge(signer, store).issuer.measured(PAYLOAD, LATER)
    assert not stored
    assert_signed(receipt, signer)
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("edge.issuer", "ERROR", f"receipt not stored: {error}")
    ]


def test_a_store_that_cannot_be_read_is_not_written(
    signer: Signer, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is down is asked once, not twice, as each try may last; the answer is given, not stored."""
    store.on_get = store.on_put = StoreDown("the receipts' table refused: X")
    receipt, stored = Edge(signer, store).issuer.measured(PAYLOAD, LATER)
    assert not stored
    assert_signed(receipt, signer)
    assert caplog.messages == ["receipt not stored: the receipts' table refused: X"]


def test_damaged_receipt_is_not_given(
    signer: Signer, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where what is stored was tampered with, a fresh receipt is given, and the store's alarm is in the log."""
    edge = Edge(signer, store)
    digest = edge.issuer.measured(PAYLOAD, LATER)[0]["payload_sha3_256"]
    file = place(tmp_path, ".receipt.json", digest)
    file.write_text(json.dumps({**json.loads(file.read_text()), "payload": {"accepted_rate": 1.0}}))
    receipt, stored = edge.issuer.measured(PAYLOAD, LATER)
    assert not stored
    assert_signed(receipt, signer)
    alarm = f"ALARM receipt store: other content under {digest}"
    assert caplog.messages == [
        alarm,
        alarm,
        "receipt not stored: the store holds other content under this digest",
    ]


def test_interim(signer: Signer, store: Store) -> None:
    """An answer that another one follows is neither signed nor stored, and says so."""
    payload = roadmap_payload(generated_at=NOW)
    receipt = Edge(signer, store).issuer.interim(payload)
    assert receipt["signature"] == unsigned(
        "this answer is not final, so it is not signed; the receipt that follows it is"
    )
    assert receipt["generated_at"] == NOW
    assert verify_receipt(receipt).ok
    assert (signer.asked, store.puts) == (0, [])
    assert store.get(receipt["payload_sha3_256"]) is None


def test_a_retired_key_signs_no_more(signer: Signer, store: Store) -> None:
    """Once the time that its list gives its key is over, an edge that still runs no longer signs, and says why."""
    ring = Keyring(settings(keys=json.dumps({"keys": [{"pem": signer.public_pem(), "valid_to": NEXT_HOUR}]})))
    ring.signer = signer
    now = T0
    issuer = Issuer(ring, store, clock=lambda: now)
    assert issuer.measured(PAYLOAD, LATER)[0]["signature"]["signed"]
    now = T0 + CURVE_PERIOD_S
    late, _ = issuer.measured({**PAYLOAD, "nonce": "0" * 64}, LATER)
    assert late["signature"] == unsigned(
        "not signed: the key that is to sign is listed as valid at another time"
    )


# Answers without a measurement


def test_roadmaps_are_signed_and_not_stored(signer: Signer, store: Store) -> None:
    """An answer without a measurement is signed, so many times an hour, and never stored."""
    edge = Edge(signer, store)
    payloads = [roadmap_payload(generated_at=NOW, run_id=str(n)) for n in range(ROADMAPS_SIGNED + 2)]
    receipts = [edge.issuer.roadmap(payload, LATER) for payload in payloads]
    for receipt in receipts[:ROADMAPS_SIGNED]:
        assert receipt["signature"]["signed"]
    assert_signed(receipts[0], signer)
    for receipt in receipts[ROADMAPS_SIGNED:]:
        assert receipt["signature"] == unsigned(
            "this edge has signed enough answers without a measurement for this hour"
        )
        assert verify_receipt(receipt).ok
    assert (signer.asked, store.puts) == (ROADMAPS_SIGNED, [])
    edge.now += CURVE_PERIOD_S
    assert edge.issuer.roadmap(payloads[-1], LATER)["signature"]["signed"]


# Time


@pytest.mark.parametrize(
    ("left", "signed", "stored"), [(20.0, True, True), (7.0, True, False), (3.0, False, False)]
)
def test_what_may_take_too_long_is_left_out(
    signer: Signer, store: Store, left: float, signed: bool, stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With little time left a receipt is not stored, with less not signed either; it is always answered."""
    signer.worst_s = store.worst_s = 4.0
    edge = Edge(signer, store)
    assert edge.issuer.worst_s == 8.0
    receipt, kept = edge.issuer.measured(PAYLOAD, Deadline.after(left))
    assert (receipt["signature"]["signed"], kept, len(store.puts)) == (signed, stored, stored)
    assert caplog.messages == [] if stored else ["receipt not stored: no time was left"]
    if not signed:
        assert receipt["signature"] == unsigned(
            "not signed: no time was left to sign in; ask for the run again"
        )
    # Asked again with time enough, it is signed and stored.
    receipt, kept = edge.issuer.measured(PAYLOAD, LATER)
    assert kept and receipt["signature"]["signed"]


QUICK_S = 0.02
CONDITION = "attribute_not_exists(digest)"


class Aws:
    """A key service and a table, in one; each call takes the next of these times, and fails where that is negative."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *took_s: float) -> None:
        """Begin at 0 on the clock of all deadlines; calls beyond those given are quick."""
        self.now = 0.0
        self.took_s = iter(took_s)
        self.asked: list[str] = []
        self.items: dict[str, dict[str, Any]] = {}
        self.key = SigningKey(ec.generate_private_key(ec.SECP256R1()))
        monkeypatch.setattr("edge.deadline.time.monotonic", lambda: self.now)

    def issuer(self, *, key_known: bool) -> Issuer:
        """An edge's issuer that uses both."""
        keyring = Keyring(settings())
        pem = self.key.pem if key_known else None
        keyring.signer = KmsSigner("arn", pem, client=lambda: self, clock=lambda: self.now)
        store = DynamoStore("table", lambda: self, lambda: self.now)
        return Issuer(keyring, store, clock=lambda: T0)

    def get_public_key(self, **_: Any) -> dict[str, Any]:
        """Give the key in DER."""
        self._take("key")
        key = load_pem_public_key(self.key.pem.encode())
        return {"PublicKey": key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)}

    def sign(self, **asked: Any) -> dict[str, Any]:
        """Sign."""
        self._take("sign")
        return {"Signature": self.key.sign(asked["Message"])}

    def get_item(self, **asked: Any) -> dict[str, Any]:
        """Find."""
        self._take("get")
        item = self.items.get(asked["Key"]["digest"]["S"])
        return {} if item is None else {"Item": item}

    def put_item(self, **asked: Any) -> dict[str, Any]:
        """Put, if nothing is there or something unsigned may be replaced."""
        self._take("put")
        item = asked["Item"]
        there = self.items.get(item["digest"]["S"])
        if there is not None and (asked["ConditionExpression"] == CONDITION or there["signed"]["BOOL"]):
            error = {"Error": {"Code": "ConditionalCheckFailedException"}, "Item": there}
            raise ClientError(error, "PutItem")  # type: ignore[arg-type]
        self.items[item["digest"]["S"]] = item
        return {}

    def _take(self, what: str) -> None:
        self.asked.append(what)
        took_s = next(self.took_s, QUICK_S)
        self.now += abs(took_s)
        if took_s < 0:
            raise ReadTimeoutError(endpoint_url="nowhere")


@pytest.mark.parametrize("key_known", [True, False])
@pytest.mark.parametrize("there", [True, False], ids=["unsigned one there", "nothing there"])
@pytest.mark.parametrize("what", ["measured", "roadmap", "curve"])
def test_no_sequence_of_slow_calls_outlasts_the_answer(
    monkeypatch: pytest.MonkeyPatch, what: str, there: bool, key_known: bool
) -> None:
    """However slow each call is, all are over when the answer must be there; what is called stored is in the table."""
    query = CurveQuery(k=4)
    payload = curve_payload(query, HOUR) if what == "curve" else PAYLOAD
    before = Aws(monkeypatch)
    DynamoStore("table", lambda: before).put(before.issuer(key_known=True).interim(payload))
    unsigned_items = before.items
    ends: set[tuple[bool, bool]] = set()
    for left_s in (0.0, *(CALL_S * calls + 0.05 for calls in range(1, 6))):
        for took_s in itertools.product((QUICK_S, CALL_S, -CALL_S), repeat=5):
            aws = Aws(monkeypatch, *took_s)
            issuer = aws.issuer(key_known=key_known)
            if there:
                aws.items.update(unsigned_items)
            by = Deadline(left_s)
            stored = False
            if what == "measured":
                receipt, stored = issuer.measured(payload, by)
            elif what == "curve":
                receipt, stored = issuer.curve(query, by, store=True)
            else:
                receipt = issuer.roadmap(payload, by)
            assert aws.now <= left_s, (left_s, took_s, aws.asked)
            if stored:
                assert receipt["payload_sha3_256"] in aws.items
            ends.add((receipt["signature"]["signed"], stored))
    assert (True, what != "roadmap") in ends and (False, False) in ends


@pytest.mark.parametrize(("key_known", "reserve_s"), [(True, 2 * CALL_S), (False, 3 * CALL_S)])
def test_what_the_wait_for_the_tower_leaves(
    monkeypatch: pytest.MonkeyPatch, key_known: bool, reserve_s: float
) -> None:
    """Of 28 s at least 15 are left to wait; what usual calls take is enough to read, sign and store in the rest."""
    aws = Aws(monkeypatch)
    issuer = aws.issuer(key_known=key_known)
    assert issuer.worst_s == reserve_s
    assert 28.0 - reserve_s > 15.0
    receipt, stored = issuer.measured(PAYLOAD, Deadline(reserve_s))
    assert (receipt["signature"]["signed"], stored) == (True, True)
    assert aws.asked == ["get", *([] if key_known else ["key"]), "sign", "put"]
    # From then on the key is known.
    assert issuer.worst_s == 2 * CALL_S


def test_an_upgrade_that_there_is_no_time_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where an unsigned receipt is stored and the table is slow, the signed one is answered and not called stored."""
    aws = Aws(monkeypatch)
    issuer = aws.issuer(key_known=True)
    DynamoStore("table", lambda: aws).put(issuer.interim(PAYLOAD))
    aws.now, aws.took_s = 0.0, iter((0.1, 0.1, 4.1))
    aws.asked.clear()
    caplog.clear()
    receipt, stored = issuer.measured(PAYLOAD, Deadline(2 * CALL_S))
    assert (receipt["signature"]["signed"], stored) == (True, False)
    assert aws.asked == ["get", "sign", "put"]
    assert caplog.messages == ["receipt not stored: no time was left to ask the receipts' table"]
    # Nobody is at fault, so the table is not left alone.
    assert issuer.measured(PAYLOAD, Deadline(100.0))[1]


# Curves


def test_curve_is_the_same_for_an_hour(signer: Signer, store: Store) -> None:
    """Within an hour a question has one answer, dated to the hour's beginning and signed once; then a new one."""
    edge = Edge(signer, store, T0 + 1)
    first, stored = edge.curve()
    assert not stored
    assert first["payload"] == curve_payload(CurveQuery(), HOUR)
    assert first["generated_at"] == "2026-11-30T12:00:01Z"
    assert_signed(first, signer)
    for edge.now in (T0 + 1.5, T0 + 1800, T0 + CURVE_PERIOD_S - 0.001):
        assert exact(edge.curve()[0]) == exact(first)
    assert signer.asked == 1
    edge.now = T0 + CURVE_PERIOD_S
    second, _ = edge.curve()
    assert second["payload"] == curve_payload(CurveQuery(), NEXT_HOUR)
    assert_signed(second, signer)
    assert exact(edge.curve()[0]) == exact(second)
    assert signer.asked == 2
    assert store.puts == []


def test_other_questions_have_other_curves(signer: Signer) -> None:
    """Each different question is signed once; questions that mean the same are the same."""
    edge = Edge(signer, None)
    asked: list[dict[str, Any]] = [{}, {"k": 5}, {"cost_ratio": 0.3}, {"alpha": [0.5]}, {"verify_cost": 2.0}]
    first = [edge.curve(**query)[0] for query in asked]
    assert [exact(edge.curve(**query)[0]) for query in asked] == [exact(receipt) for receipt in first]
    assert exact(edge.curve(k=4, cost_ratio=0.2)[0]) == exact(first[0])
    assert len({receipt["payload_sha3_256"] for receipt in first}) == signer.asked == len(asked)


def test_instances_agree_on_the_payload(signer: Signer) -> None:
    """Two instances give the same payload within an hour, so the same digest, each with its own signature."""
    one, two = Edge(signer, None, T0 + 5).curve()[0], Edge(Signer(), None, T0 + 3000).curve()[0]
    assert one["payload_sha3_256"] == two["payload_sha3_256"]
    assert one["signature"]["keyid"] != two["signature"]["keyid"]


def test_curves_without_a_signer() -> None:
    """Without a signer equal questions have equal receipts on all instances, however many there are."""
    edge = Edge(None, None, T0 + 7)
    for k in range(CURVES_SIGNED // 60 + 1):
        for number in range(60):
            receipt, _ = edge.curve(k, cost_ratio=number / 10)
            assert receipt["signature"] == unsigned(NO_SIGNER)
            assert receipt["generated_at"] == HOUR
    assert exact(receipt) == exact(Edge(None, None, T0 + 3000).curve(k, cost_ratio=number / 10)[0])


def some(number: int) -> dict[str, Any]:
    """One of many different questions."""
    return {"k": 1, "cost_ratio": number / 1000}


def test_signatures_have_a_limit(signer: Signer) -> None:
    """After CURVES_SIGNED new curves in an hour others are unsigned and the same anywhere, until the next hour."""
    edge = Edge(signer, None, T0 + 7)
    signed = [edge.curve(**some(number))[0] for number in range(CURVES_SIGNED)]
    assert all(receipt["signature"]["signed"] for receipt in signed)
    extra = [edge.curve(**some(CURVES_SIGNED + number))[0] for number in range(3)]
    for receipt in extra:
        assert receipt["signature"] == unsigned(
            "this edge has signed enough different curves for this hour; ask again in the next"
        )
        assert receipt["generated_at"] == receipt["payload"]["generated_at"] == HOUR
        assert verify_receipt(receipt).ok
    edge.now += 60
    assert [exact(edge.curve(**some(CURVES_SIGNED + number))[0]) for number in range(3)] == list(
        map(exact, extra)
    )
    assert [exact(edge.curve(**some(number))[0]) for number in range(CURVES_SIGNED)] == list(
        map(exact, signed)
    )
    assert signer.asked == CURVES_SIGNED == 120
    edge.now = T0 + CURVE_PERIOD_S
    assert edge.curve(**some(CURVES_SIGNED))[0]["signature"]["signed"]
    assert signer.asked == CURVES_SIGNED + 1


def test_a_flood_leaves_the_usual_curve_signed(signer: Signer) -> None:
    """However many other questions were asked, the one without parameters is signed, once."""
    edge = Edge(signer, None)
    for number in range(CURVES_SIGNED + 500):
        edge.curve(**some(number))
    first, _ = edge.curve(usual=True)
    assert_signed(first, signer)
    for number in range(700):
        edge.curve(**some(number))
    assert exact(edge.curve(usual=True)[0]) == exact(first)
    assert signer.asked == CURVES_SIGNED + 1


def test_signer_that_fails_for_a_curve(signer: Signer, store: Store) -> None:
    """A curve that could not be signed says why, is answered, and is signed as soon as that can be done."""
    edge = Edge(signer, store, T0 + 7)
    signer.fails = True
    for _ in range(CURVES_SIGNED + 1):
        first, _ = edge.curve()
    assert first["signature"] == unsigned(f"not signed: {BUSY}")
    signer.fails = False
    edge.now += 60
    second, _ = edge.curve()
    assert_signed(second, signer)
    assert second["payload_sha3_256"] == first["payload_sha3_256"]


def test_curve_is_stored_on_demand(signer: Signer, store: Store) -> None:
    """A curve that is to be stored is stored once, as it was answered, and then is found under its digest."""
    edge = Edge(signer, store)
    first, stored = edge.curve()
    assert (stored, store.puts) == (False, [])
    for _ in range(CURVES_STORED + 5):
        kept, stored = edge.curve(store=True)
        assert stored and exact(kept) == exact(first)
    assert (len(store.puts), signer.asked) == (1, 1)
    assert exact(edge.issuer.stored(first["payload_sha3_256"])) == exact(first)
    assert exact(edge.curve()[0]) == exact(first)


def test_curve_that_another_instance_stored(signer: Signer, store: Store) -> None:
    """Where another instance has stored a curve before, that one is given from then on, stored or not."""
    first, _ = Edge(Signer(), store).curve(store=True)
    edge = Edge(signer, store, T0 + 60)
    assert exact(edge.curve()[0]) != exact(first)
    kept, stored = edge.curve(store=True)
    assert stored and exact(kept) == exact(first)
    assert exact(edge.curve()[0]) == exact(first)


@pytest.mark.parametrize(
    ("seconds", "retry_after"), [(0, "3600"), (0.6, "3600"), (1800, "1800"), (3598.7, "2"), (3599.9, "1")]
)
def test_storing_has_a_limit(signer: Signer, store: Store, seconds: float, retry_after: str) -> None:
    """After CURVES_STORED curves in an hour no further one is stored until the next; what is stored stays at hand."""
    edge = Edge(signer, store, T0 + seconds)
    for number in range(CURVES_STORED):
        assert edge.curve(**some(number), store=True)[1]
    more = some(CURVES_STORED)
    assert problem(lambda: edge.curve(**more, store=True)) == (
        429,
        "This edge has stored enough curves for this hour; ask without store.",
        {"Retry-After": retry_after},
    )
    assert len(store.puts) == CURVES_STORED == 20
    assert edge.curve(**some(0), store=True)[1]
    receipt, stored = edge.curve(**more)
    assert not stored and receipt["signature"]["signed"]
    edge.now += int(retry_after)
    assert edge.curve(**more, store=True)[1]
    assert len(store.puts) == CURVES_STORED + 1


def test_storing_curves_while_the_store_is_down(
    signer: Signer, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A curve that could not be stored is answered all the same; asked for again it is tried again."""
    edge = Edge(signer, store)
    store.on_put = StoreDown("the receipts' table refused: X")
    first, stored = edge.curve(store=True)
    assert not stored
    assert_signed(first, signer)
    assert caplog.messages == ["receipt not stored: the receipts' table refused: X"]
    store.on_put = None
    assert edge.curve(store=True) == (first, True)
    store.on_put = StoreDown("the receipts' table refused: X")
    for _ in range(CURVES_STORED + 2):
        assert edge.curve(5, store=True)[1] is False
    store.on_put = None
    assert edge.curve(5, store=True)[1] is True


def test_storing_curves_without_a_store(signer: Signer) -> None:
    """An edge that keeps no receipts refuses to store, and only that."""
    edge = Edge(signer, None)
    assert problem(lambda: edge.curve(store=True)) == (
        422,
        "This edge keeps no receipts; ask without store.",
        {},
    )
    assert edge.curve()[0]["signature"]["signed"]


# What is stored


def test_stored_without_a_store() -> None:
    """An edge that keeps no receipts has none to give."""
    refusal = problem(lambda: Edge(None, None).issuer.stored("0" * 64))
    assert refusal == (503, "This edge keeps no receipts.", {})


def test_nothing_is_stored_there(store: Store) -> None:
    """A digest under which nothing is stored is not found."""
    refusal = problem(lambda: Edge(None, store).issuer.stored("0" * 64))
    assert refusal == (404, "No receipt with this payload digest is stored here.", {})


@pytest.mark.parametrize(
    ("error", "detail", "headers"),
    [
        (StoreDown("secret"), "The receipts cannot be read now.", {"Retry-After": "5"}),
        (StoreAlarm("secret"), "What is stored under this digest is damaged; it is not given out.", {}),
    ],
    ids=["down", "alarm"],
)
def test_stored_receipts_that_cannot_be_given(
    store: Store, error: Exception, detail: str, headers: dict[str, str]
) -> None:
    """A store that is down may be asked again soon; one that is damaged gives nothing out."""
    store.on_get = error
    refusal = problem(lambda: Edge(None, store).issuer.stored("0" * 64))
    assert refusal == (503, detail, headers)


def test_store_of_the_settings(tmp_path: Path) -> None:
    """The settings name a directory, a table or none."""
    assert open_store(settings()) is None
    directory = open_store(settings(receipts_dir=str(tmp_path / "receipts")))
    assert isinstance(directory, DirectoryStore)
    receipt, stored = Issuer(Keyring(settings()), directory).measured(PAYLOAD, LATER)
    assert stored and (tmp_path / "receipts" / receipt["payload_sha3_256"][:2]).is_dir()
    assert isinstance(open_store(settings(receipts_table="receipts")), DynamoStore)
