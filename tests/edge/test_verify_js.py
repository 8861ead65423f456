"""The verifier in JavaScript says what the one in Python says, and Node's own crypto agrees with both.

Node runs `tests/js/driver.mjs`, which answers one JSON request per line. `@sigstore/core` gives it a second opinion on
what a DSSE signature is over.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from moto import mock_aws

from agent.attest import Attester
from edge.signing import FileSigner, KmsSigner, Signer, signature
from shared.canonical import CanonicalError, canonical_bytes, sha3_256_hex, strict_loads
from shared.dsse import PAYLOAD_TYPE, DsseError, pae, signature_block, statement, strict_base64
from shared.keyfile import SigningKey
from shared.keys import key_id
from shared.verify import verify_receipt
from tests.edge.test_signing import Kms, aws_environment
from tests.shared.build import NOW, golden, measured_payload, receipt, roadmap_payload
from tests.shared.test_dsse import ED25519, P256, pem, signed
from tests.shared.test_verify_signature import (
    AT,
    TOWER,
    answer,
    attested_payload,
    changed,
    dated,
    places,
)

ROOT = Path(__file__).parents[2]
JS = ROOT / "tests" / "js"
CLI = ROOT / "edge" / "web" / "verify-cli.mjs"
PLAIN = {"schema": "szl.a11oy.specdec.v1", "label": "SPEC-DECODE MODELED", "measured": "UNAVAILABLE"}
CHECKS = ("receipt", "digest", "exact_bytes", "label", "time", "attestation", "signature")
MALFORMED_KEYS = [
    '{"keys": 5}',
    '{"keys": [5]}',
    '{"keys": [{}]}',
    '{"keys": [{"pem": 5}]}',
    '{"keys": [{"pem": "x", "kind": "y"}]}',
    '{"keys": [{"pem": "x"}]}',
    '{"keys": [{"pem": "x", "valid_from": "2026-02-30T00:00:00Z"}]}',
    '{"keys": [{"pem": "x", "valid_to": 5}]}',
    '{"keys": [{"pem": "x", "kind": "tower"}]}',
    '{"keys": []}',
    '{"a": 1, "a": 2}',
    "{}",
    "{",
    "",
    "no key",
    "-----BEGIN PUBLIC KEY-----zz-----END PUBLIC KEY-----",
    pem(ED25519).decode()[:60] + "\n-----END PUBLIC KEY-----",
    pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)).decode(),
    pem(ec.generate_private_key(ec.SECP384R1())).decode(),
]

Ask = Callable[[list[dict[str, Any]]], list[Any]]


@pytest.fixture(scope="module")
def ask() -> Ask:
    """Asks one Node process a list of questions."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.fail("these tests need Node 20 or later with npm, and there is none on the PATH")
    if not (JS / "node_modules" / "@sigstore" / "core").is_dir():
        command = [npm, "ci", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=JS, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.fail(f"npm ci in tests/js failed: {done.stderr.strip()}")

    def questions(requests: list[dict[str, Any]]) -> list[Any]:
        lines = "".join(json.dumps(request, allow_nan=False) + "\n" for request in requests)
        done = subprocess.run(
            [node, JS / "driver.mjs"], input=lines, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(answers) == len(requests)
        return answers

    return questions


def request(text: Any, **pins: Any) -> dict[str, Any]:
    """A question about a receipt, or its text."""
    return {"ask": "verify", "receipt": text, "now": round(AT.timestamp() * 1000), **pins}


@dataclass(frozen=True)
class Case:
    """A receipt and what is pinned and asked."""

    receipt: Any
    keys: str | None = None
    tower: str | None = None
    require: bool = False

    @property
    def text(self) -> str:
        """The receipt's text."""
        return self.receipt if isinstance(self.receipt, str) else json.dumps(self.receipt)

    def question(self) -> dict[str, Any]:
        """For JavaScript."""
        pins = {"keys": self.keys, "towerKeys": self.tower, "requireSignature": self.require}
        return request(self.text, **pins)

    def in_python(self) -> list[dict[str, Any]]:
        """What Python says, as far as JavaScript makes the same checks."""
        try:
            value = strict_loads(self.text)
        except CanonicalError as error:  # JavaScript's own parser does not say which word is no JSON
            cause = "the text is not JSON" if "NaN" in error.cause else error.cause
            return [{"name": "receipt", "status": "failed", "detail": cause}]
        keys, tower = (None if pinned is None else pinned.encode() for pinned in (self.keys, self.tower))
        report = verify_receipt(value, key_pem=keys, tower_pem=tower, require_signature=self.require, now=AT)
        return [one for one in report.to_dict()["checks"] if one["name"] in CHECKS]


def compare(ask: Ask, cases: list[Case]) -> list[Any]:
    """Asks both about receipts, asserts that they say the same, and returns JavaScript's reports."""
    reports = ask([case.question() for case in cases])
    for case, report in zip(cases, reports, strict=True):
        assert report["checks"] == case.in_python(), case
        assert report["ok"] == all(one["status"] != "failed" for one in report["checks"])
    return reports


def status(report: Any, name: str) -> tuple[str, str]:
    """Status and sentence of one check."""
    return next((one["status"], one["detail"]) for one in report["checks"] if one["name"] == name)


# --- the parts ------------------------------------------------------------------------------------------------------


def test_sha3_256(ask: Ask) -> None:
    """The published vectors hold, and any length gives what Node and hashlib give."""
    vectors = {
        b"": "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a",
        b"abc": "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532",
        b"\xa3" * 200: "79f38adec5c20307a98ef76e8324afbfd46cfd81b22e3973c65fa1bd9de31787",
    }
    rng = random.Random(1)
    inputs = [*vectors, *(rng.randbytes(length) for length in range(280)), rng.randbytes(20_000)]
    answers = ask([{"ask": "sha3", "base64": base64.b64encode(data).decode()} for data in inputs])
    for data, (ours, node) in zip(inputs, answers, strict=True):
        assert ours == node == hashlib.sha3_256(data).hexdigest() == vectors.get(data, ours)


def test_pae(ask: Ask) -> None:
    """The published DSSE vector holds, lengths count bytes, and @sigstore/core encodes alike."""
    vector = golden("receipts")["dsse_pae"]
    cases = [
        (vector["payloadType"], vector["payload"], vector["pae"]),
        ("é", "ü", "DSSEv1 2 é 2 ü"),
        ("", "", None),
    ]
    answers = ask([{"ask": "pae", "type": kind, "body": body} for kind, body, _ in cases])
    for (_, _, expected), (ours, theirs) in zip(cases, answers, strict=True):
        assert ours == theirs == (expected or "DSSEv1 0  0 ")


def test_strict_base64(ask: Ask) -> None:
    """Only padded base64 without white space or stray bits is taken, the URL-safe alphabet where it is allowed."""
    texts = [
        "",
        "YQ==",
        "YWI=",
        "YWJj",
        "YQ",
        "YQ=",
        "YQ==\n",
        " YQ==",
        "YR==",
        "Y Q==",
        "YQ==YQ==",
        "=",
        "é===",
        "+/==",
    ]
    texts += ["-_8=", "+/8=", "-/8=", "____", "YWJ", "YWI", "YWJjZ"]
    values: list[Any] = [*texts, 5, None, True, [], {}]
    answers = ask([{"ask": "base64", "text": value, "urlSafe": True} for value in values])
    for value, found in zip(values, answers, strict=True):
        try:
            expected = strict_base64(value).hex()
        except DsseError as error:
            expected = error.cause
        assert found == expected, value
    answers = ask([{"ask": "base64", "text": text, "urlSafe": False} for text in ("+/8=", "-_8=", "-/8=")])
    assert answers == ["fbff", "the base64 is not strict", "the base64 is not strict"]


# --- digest and exact bytes -----------------------------------------------------------------------------------------

MAX_FLOAT = sys.float_info.max
FLOATS = [
    1e-07,
    -0.0,
    0.0,
    5e-324,
    1e16,
    1e21,
    0.1 + 0.2,
    1.0,
    100.0,
    1e-05,
    0.0001,
    1e22,
    123456789012345680.0,
]
FLOATS += [2.2250738585072014e-308, MAX_FLOAT, -1e-10, 9999999999999998.0, 4.35, -2.5e-7, 1e100]
LEAVES: list[Any] = [*FLOATS, 2**53 - 1, 1 - 2**53, 0, -1, 10**15, True, False, None]
LEAVES += ["", "é", "😀", "\ufb33", "\u2028\u2029", "\x00\x1f\x7f", '"\\/', "\b\f\n\r\t", "1.0"]
KEYS = [
    "a",
    "B",
    "é",
    "z",
    "😀",
    "\ufb33",
    "\u2028",
    "\U0010ffff",
    "",
    "10",
    "9",
    "__proto__",
    "constructor",
    '"',
    "a\\",
]


def anything(rng: random.Random, depth: int) -> Any:
    """A JSON value of hard parts."""
    kind = rng.random()
    if depth and kind < 0.15:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
    if depth and kind < 0.35:
        return {key: anything(rng, depth - 1) for key in rng.sample(KEYS, rng.randrange(5))}
    if kind < 0.6:
        return rng.choice([rng.random(), rng.uniform(-1e6, 1e6), rng.random() * 10 ** rng.randint(-320, 300)])
    return rng.choice(LEAVES)


def altered(whole: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The receipt, changed in one place."""
    payload, data = whole["payload"], canonical_bytes(whole["payload"])
    kind = rng.choice(["value", "key", "digest", "base64", "alg", "bytes"])
    if kind == "value":
        *path, last = rng.choice(list(places(payload)))
        place = payload
        for key in path:
            place = place[key]
        place[last] = changed(place[last], rng)
    elif kind == "key":
        name = rng.choice([*payload])
        value = payload.pop(name)
        payload.update(rng.choice([{}, {name + "A": value}]))
    elif kind == "digest":
        whole["payload_sha3_256"] = changed(whole["payload_sha3_256"], rng)
    elif kind == "base64":
        text = whole["payload_canonical_base64"]
        at = rng.randrange(len(text))
        other = rng.choice([c for c in "AaZ+/=\n" if c != text[at]])
        whole["payload_canonical_base64"] = text[:at] + other + text[at + 1 :]
    elif kind == "alg":
        name = rng.choice(
            ["digest_alg", "digest_canonicalization", "payload_canonical_base64", "payload_sha3_256"]
        )
        whole.pop(name) if rng.random() < 0.5 else whole.update({name: rng.choice([None, 5, "sha256"])})
    else:  # other bytes that say the same: never canonical, even if the digest is theirs
        data = json.dumps(payload, indent=rng.choice([None, 1])).encode() + rng.choice([b"", b"\n", b"\xff"])
        whole["payload_canonical_base64"] = base64.b64encode(data).decode()
        whole["payload_sha3_256"] = rng.choice([whole["payload_sha3_256"], sha3_256_hex(data)])
    return whole


def test_golden_receipts(ask: Ask) -> None:
    """The golden payloads, hard floats, emoji and all, pass as text and as parsed JSON."""
    texts = [json.dumps(receipt(case["payload"])) for case in golden("receipts")["cases"]]
    texts.append(json.dumps(receipt(golden("measured")["example_payload"])))
    for report in compare(ask, [*map(Case, texts)]) + ask([request(json.loads(text)) for text in texts]):
        assert {status(report, name)[0] for name in ("digest", "exact_bytes")} == {"ok"}


def test_ten_thousand_payloads(ask: Ask) -> None:
    """Of 10,000 receipts of random payloads, half of them changed in one place, both say exactly the same."""
    rng = random.Random(2)
    cases, sound = [], []
    for number in range(10_000):
        payload = {key: anything(rng, 3) for key in rng.sample(KEYS, rng.randint(1, 3))}
        whole = receipt({**PLAIN, **payload})
        whole = altered(whole, rng) if number % 2 else whole
        cases.append(Case(json.dumps(whole, ensure_ascii=rng.random() < 0.5)))
        sound.append(number % 2 == 0)
    reports = compare(ask, cases)
    assert [report["ok"] for report, good in zip(reports, sound, strict=True) if good] == [True] * 5000
    refused = [not report["ok"] for report, good in zip(reports, sound, strict=True) if not good]
    assert sum(refused) > 4000  # a receipt may lack what some changes drop


def test_parsed_receipts(ask: Ask) -> None:
    """A parsed receipt passes by its exact bytes though JavaScript respells its floats, and any other value fails."""
    rng = random.Random(3)
    good = [receipt({**PLAIN, "a": anything(rng, 3), "b": FLOATS}) for _ in range(200)]
    bad = copy.deepcopy(good)
    for whole in bad:
        place = whole["payload"]
        *path, last = rng.choice([path for path in places(place) if path[-1] != FLOATS.index(MAX_FLOAT)])
        for key in path:
            place = place[key]
        place[last] = changed(place[last], rng)
    reports = ask([request(whole) for whole in good + bad])
    assert [report["ok"] for report in reports] == [True] * 200 + [False] * 200


def test_bytes_that_are_not_canonical(ask: Ask) -> None:
    """Bytes that say the same in another spelling fail, even under their own digest, as text and as parsed JSON."""
    wholes = []
    for payload in ({"b": 1, "a": 0.5}, {"a": "é"}, {"a": [1, 2]}):
        data = json.dumps(payload).encode()
        carried = {"payload_canonical_base64": base64.b64encode(data).decode()}
        wholes.append({**receipt(payload), **carried, "payload_sha3_256": sha3_256_hex(data)})
    for report in compare(ask, [*map(Case, wholes)]) + ask([*map(request, wholes)]):
        assert {status(report, name)[0] for name in ("digest", "exact_bytes")} == {"failed"}


def test_respelled_numbers(ask: Ask) -> None:
    """Numbers are compared as JavaScript reads them: a payload that was respelled on its way still passes."""
    text = json.dumps(receipt({**PLAIN, "one": 1.0, "zero": -0.0, "tiny": 1e-07}))
    (report,) = ask(
        [request(text.replace("1.0", "1", 1).replace("-0.0", "0", 1).replace("1e-07", "1E-7", 1))]
    )
    assert report["ok"] and status(report, "digest")[0] == status(report, "exact_bytes")[0] == "ok"


MALFORMED = [
    "",
    "{",
    "[]",
    "null",
    "5",
    '"x"',
    "{}",
    '{"payload": []}',
    '{"payload": {"a": 1, "a": 1}}',
    '{"payload": {"a": 1, "\\u0061": 1}}',
    '{"payload": {"a": NaN}}',
    '{"payload": {"a": 1e999}}',
    '{"payload": {"a": 9007199254740992}}',
    '{"payload": {"a": "\\ud800"}}',
    '{"payload": {"\\udfff": 1}}',
    '{"payload": {"a": ' + "[" * 40 + "]" * 40 + "}}",
    '{"payload": {}} x',
    "\ufeff{}",
    '{"payload": {"a": 01}}',
    "{'payload': {}}",
]


def test_malformed_text(ask: Ask) -> None:
    """Text that is no JSON, or JSON with two meanings, fails the one check that can be made, in Python's words."""
    for report in compare(ask, [*map(Case, MALFORMED)]):
        assert [one["status"] for one in report["checks"]] == ["failed"]


# --- signatures -----------------------------------------------------------------------------------------------------


def whole_receipts() -> list[dict[str, Any]]:
    """Receipts signed by the edge with either algorithm or by nobody, and attested by the tower or not."""
    found = []
    for payload in (attested_payload(), attested_payload("UNPINNED"), measured_payload(), roadmap_payload()):
        found += [
            receipt(payload),
            *(receipt(payload, signed(payload, alg)) for alg in ("ED25519", "ECDSA_SHA_256")),
        ]
    return found


EDGE, BOTH, TOWERS = pem(ED25519).decode(), (pem(ED25519) + pem(P256)).decode(), pem(TOWER).decode()
ANSWER = answer().decode()


def test_signed_receipts(ask: Ask) -> None:
    """Whatever is signed by either algorithm, whatever is pinned and asked, both say the same."""
    cases = [
        Case(whole, edge, tower, require)
        for edge, require in (
            (None, False),
            (None, True),
            (EDGE, True),
            (BOTH, False),
            (ANSWER, True),
            (TOWERS, False),
        )
        for tower in (None, TOWERS, EDGE, ANSWER)
        for whole in whole_receipts()
    ]
    reports = compare(ask, cases)
    for case, report in zip(cases, reports, strict=True):
        if (case.keys, case.tower) == (BOTH, TOWERS) and case.receipt["payload"].get("tower"):
            assert report["ok"] == (case.receipt["signature"]["signed"] or not case.require)
            assert status(report, "attestation")[0] == "ok"


VALIDITY: list[dict[str, str | None]] = [
    {"valid_from": NOW},
    {"valid_from": "2026-11-30T00:05:00Z"},
    {"valid_from": "2026-11-30T00:05:01Z"},
    {"valid_to": NOW},
    {"valid_to": "2026-11-29T23:55:00Z"},
    {"valid_to": "2026-11-29T23:54:59Z"},
    {"valid_from": None, "valid_to": None},
]


def test_validity(ask: Ask) -> None:
    """A receipt dated outside the time in which its key signed fails, give or take five minutes."""
    whole = receipt(roadmap_payload(), signed(roadmap_payload()))
    wholes = [whole, {**whole, "generated_at": None}, receipt(roadmap_payload())]
    cases = [Case(one, answer(**valid).decode()) for valid in VALIDITY for one in wholes]
    found = {status(report, "signature")[1].partition(" ")[0] for report in compare(ask, cases)}
    assert found == {"signed", "the"}


def test_malformed_keys(ask: Ask) -> None:
    """Keys that cannot be used fail what they are for, in Python's words."""
    wholes = [whole_receipts()[index] for index in (0, 1, 10)]
    cases = [Case(whole, keys) for keys in MALFORMED_KEYS for whole in wholes]
    cases += [Case(wholes[1], EDGE, keys) for keys in MALFORMED_KEYS]
    compare(ask, cases)


def test_dates(ask: Ask) -> None:
    """A payload is no newer than its receipt, and a receipt from the future is doubtful."""
    soon = [AT + timedelta(seconds=s) for s in (-1, 0, 299, 300, 301, 86_399, 86_400, 200_000, 10**8)]
    dates: list[Any] = [time.strftime("%Y-%m-%dT%H:%M:%SZ") for time in soon]
    dates += [
        None,
        5,
        "",
        "Z",
        "yesterday",
        "2026-13-30T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-11-30T24:00:00Z",
    ]
    dates += [
        "2026-11-30T00:00:00",
        "0000-11-30T00:00:00Z",
        "2026-11-30T00:00:60Z",
        "2026-11-30T00:00:00.25Z",
    ]
    compare(ask, [Case(dated(payload_at, receipt_at)) for payload_at in dates for receipt_at in dates])


def test_what_a_receipt_says_of_its_tower(ask: Ask) -> None:
    """A receipt that says more of its tower than it shows fails, and in the same words."""
    said: list[Any] = [
        "gpu",
        None,
        {},
        *({"attested": word} for word in ("FAILED", "VERIFIED", "UNPINNED", None)),
    ]
    changes: list[dict[str, Any]] = [{"keyid": "0"}, {"attestation": {}}, {"attestation": None}, {"keyid": 5}]
    said += [{**attested_payload()["tower"], **change} for change in changes]
    payloads = [{**measured_payload(), "tower": tower} for tower in said]
    names = ("run_id", "nonce", "request", "measurement", "energy", "output_sha3_256", "generated_at")
    payloads += [{**attested_payload(), name: {"another": 1.0}} for name in names]
    cases = [Case(receipt(payload), None, tower) for payload in payloads for tower in (None, TOWERS)]
    compare(ask, cases)


def random_changes(
    whole: dict[str, Any], count: int, change: Callable[[Any, random.Random], Any]
) -> list[Any]:
    """Paths and copies of a receipt, each changed in one place; `_` is left out, a letter of one base64 only."""
    rng = random.Random(6)
    everywhere = list(places(whole))
    found: list[Any] = []
    while len(found) < count:
        path = rng.choice(everywhere)
        copied = copy.deepcopy(whole)
        place: Any = copied
        for key in path[:-1]:
            place = place[key]
        before, place[path[-1]] = json.dumps(place[path[-1]]), change(place[path[-1]], rng)
        after = json.dumps(place[path[-1]])
        if after != before and after.count("_") <= before.count("_"):
            found.append((path, copied))
    return found


@pytest.mark.parametrize("alg", ["ED25519", "ECDSA_SHA_256"])
def test_changes_are_refused(ask: Ask, alg: str) -> None:
    """On a receipt signed by edge and tower, 250 single changes of any value fail in both, by the same checks."""
    payload = attested_payload()
    changes = random_changes(receipt(payload, signed(payload, alg)), 250, changed)
    cases = [Case(whole, BOTH, TOWERS) for _, whole in changes]
    for case, (path, _), report in zip(cases, changes, ask([case.question() for case in cases]), strict=True):
        python = case.in_python()
        assert not report["ok"] and any(one["status"] == "failed" for one in python), path
        if path[-1] != "generated_at":  # Python reads more ways of writing a date
            assert report["checks"] == python, path


def test_junk_anywhere(ask: Ask) -> None:
    """Values of another kind anywhere in a signed receipt make failed checks in the same words, never an error."""

    def junk(_: Any, rng: random.Random) -> Any:
        return rng.choice([None, True, 5, "", "x", [], {}, [[]], {"a": None}, "A" * 8000])

    payload = attested_payload()
    whole = receipt(payload, signed(payload))
    wholes = [changed_one for _, changed_one in random_changes(whole, 120, junk)]
    for name in ("signature", "payload", "payload_canonical_base64", "schema"):
        wholes += [{**whole, name: junk(None, random.Random(seed))} for seed in range(12)]
    for name, inside in (
        ("payloadType", 5),
        ("signatures", None),
        ("signatures", [{}, {}]),
        ("payload", "YQ=="),
    ):
        envelope = {**whole["signature"]["envelope"], name: inside}
        wholes.append({**whole, "signature": {**whole["signature"], "envelope": envelope}})
    compare(ask, [Case(junk_inside, EDGE, TOWERS) for junk_inside in wholes])
    parsed = ask([request(junk_inside, keys=EDGE, towerKeys=TOWERS) for junk_inside in wholes])
    assert not any(report["ok"] for report in parsed)


def test_der_is_strict(ask: Ask) -> None:
    """An ECDSA signature in any encoding but the one that DER allows is refused, as OpenSSL does."""
    payload = roadmap_payload()
    whole = receipt(payload, signed(payload, "ECDSA_SHA_256"))
    place = whole["signature"]["envelope"]["signatures"][0]
    der = base64.b64decode(place["sig"])
    cut = 4 + der[3]
    r, s = der[4:cut], der[cut + 2 :]

    def number(body: bytes) -> bytes:
        return bytes([2, len(body)]) + body

    def sequence(body: bytes) -> bytes:
        return bytes([0x30, len(body)]) + body

    others = [
        der + b"\0",
        der[:-1],
        b"",
        b"\x30",
        b"\x30\0",
        r[-32:].rjust(32, b"\0") + s[-32:].rjust(32, b"\0"),
        sequence(number(b"\0" + r) + number(s)),
        sequence(number(r) + number(b"\0" + s)),
        sequence(number(r.rjust(40, b"\0")) + number(s)),
        sequence(number(b"\0") + number(s)),
        sequence(number(r) + number(b"")),
        bytes([0x30, 0x81, len(der) - 2]) + der[2:],
        sequence(number(s) + number(r)),
    ]
    texts = [whole]
    for other in others:
        bad = copy.deepcopy(whole)
        bad["signature"]["envelope"]["signatures"][0]["sig"] = base64.b64encode(other).decode()
        texts.append(bad)
    reports = compare(ask, [Case(text, BOTH) for text in texts])
    assert [report["ok"] for report in reports] == [True] + [False] * len(others)


def test_odd_statements(ask: Ask) -> None:
    """A statement that is truly signed and still not ours, or too large, is judged in the same words."""
    payload = roadmap_payload()
    good = statement(payload, NOW)
    (subject,) = good["subject"]
    changes: list[dict[str, Any]] = [
        {},
        {"more": 1},
        {"more": "x" * 4096},
        {"_type": "x"},
        {"predicateType": None},
        {"subject": []},
        {"subject": None},
        {"subject": subject},
        {"subject": [subject, subject]},
        {"subject": ["x", subject]},
        {"subject": [{"name": "payload"}]},
        {"subject": [{**subject, "digest": {"sha3_256": subject["digest"]["sha3_256"]}}]},
        {"subject": [{**subject, "digest": {**subject["digest"], "sha256": "0" * 64}}]},
        {"subject": [{**subject, "digest": {**subject["digest"], "sha3_256": "0" * 64}}]},
        {"predicate": None},
        {"predicate": {**good["predicate"], "label": "x"}},
        {"predicate": {**good["predicate"], "run_id": 5}},
        {"predicate": {**good["predicate"], "generated_at": None}},
        {"predicate": {**good["predicate"], "more": 1}},
    ]
    cases = []
    for change in changes:
        body = canonical_bytes({**good, **change})
        block = signature_block(
            body, ED25519.sign(pae(PAYLOAD_TYPE, body)), keyid=key_id(pem(ED25519)), alg="ED25519"
        )
        cases.append(Case(receipt(payload, block), EDGE))
    reports = compare(ask, cases)
    assert [report["ok"] for report in reports].count(True) == 3


def test_what_is_called_measured(ask: Ask) -> None:
    """Nothing passes for a measurement, or hides one from the tower's check, by other words: both say why."""
    whole = attested_payload()
    del whole["tower"]
    changes: list[dict[str, Any]] = [
        {"measured": "YES"},
        {"measured": "UNAVAILABLE"},
        {"label": "SPEC-DECODE ROADMAP"},
        {"label": "SPEC-DECODE ROADMAP", "measured": "UNAVAILABLE"},
        {"measurement": None},
        {"label": None},
    ]
    cases = [Case(receipt({**whole, **change}, signed({**whole, **change})), BOTH) for change in changes]
    cases += [Case(receipt(roadmap_payload(energy={"label": "MEASURED"})), BOTH)]
    for report in compare(ask, cases):
        assert status(report, "label")[0] == "failed"


def test_another_towers_key_id(ask: Ask) -> None:
    """An attestation that names another key than the one that signed fails once that one is pinned."""
    payload = attested_payload()
    for place in (payload["tower"], payload["tower"]["attestation"]["signatures"][0]):
        place["keyid"] = "0" * 64
    reports = compare(ask, [Case(receipt(payload), None, TOWERS), Case(receipt(payload))])
    assert [status(report, "attestation")[0] for report in reports] == ["failed", "warning"]


def test_url_safe_envelope(ask: Ask) -> None:
    """An envelope in the URL-safe alphabet verifies; the payload's own bytes must be in the standard one."""
    whole = receipt({**roadmap_payload(), "run_id": "ÿ?>~" * 9}, None)
    whole["signature"] = signed(whole["payload"])
    envelope = whole["signature"]["envelope"]
    for place, name in ((envelope, "payload"), (envelope["signatures"][0], "sig")):
        place[name] = place[name].replace("+", "-").replace("/", "_")
    assert "_" in envelope["payload"] or "-" in envelope["payload"]
    (report,) = compare(ask, [Case(whole, EDGE)])
    assert status(report, "signature")[0] == "ok"
    text = whole["payload_canonical_base64"].replace("+", "-").replace("/", "_")
    assert text != whole["payload_canonical_base64"]
    (report,) = ask([request({**whole, "payload_canonical_base64": text})])
    assert status(report, "exact_bytes") == (
        "failed",
        "payload_canonical_base64 cannot be read: the base64 is not strict",
    )


def test_a_browser_without_ed25519(ask: Ask) -> None:
    """Where Ed25519 is missing, its signatures are never called good, and whatever else is wrong is still found."""
    blind = "this browser cannot check Ed25519 signatures, so not checked"
    by_ed25519, by_p256 = whole_receipts()[1:3]
    pins = {"browser": "no Ed25519", "keys": BOTH, "towerKeys": TOWERS}
    first, required, second = ask(
        [
            request(by_ed25519, **pins),
            request(by_ed25519, **pins, requireSignature=True),
            request(by_p256, **pins),
        ]
    )
    assert status(first, "signature") == status(first, "attestation") == ("warning", blind) and first["ok"]
    assert status(required, "signature") == ("failed", blind)
    assert status(second, "signature")[0] == "ok" and status(second, "attestation") == ("warning", blind)
    moved = {**receipt(roadmap_payload(run_id="other")), "signature": by_ed25519["signature"]}
    (report,) = ask([request(moved, **pins)])
    assert status(report, "signature") == ("failed", "the signed statement is about another payload")
    (report,) = ask([request(by_p256, browser="no WebCrypto", keys=BOTH)])
    assert status(report, "signature") == ("failed", "it could not be checked (WebCrypto needs https)")
    assert status(report, "digest")[0] == status(report, "exact_bytes")[0] == "ok"


def test_node_and_sigstore_accept_our_envelopes(ask: Ask) -> None:
    """Node's crypto, over what @sigstore/core says was signed, accepts the edge's envelopes and the tower's, alone."""
    payload = attested_payload()
    tower = payload["tower"]["attestation"]
    edges = {
        key: signed(payload, alg)["envelope"] for key, alg in ((P256, "ECDSA_SHA_256"), (ED25519, "ED25519"))
    }
    pairs = [(tower, TOWER), *((envelope, key) for key, envelope in edges.items())]
    asked = [{"ask": "accepts", "envelope": envelope, "pem": pem(key).decode()} for envelope, key in pairs]
    other = [{**question, "envelope": {**question["envelope"], "payload": "e30="}} for question in asked]
    assert ask(asked + other) == [True] * 3 + [False] * 3


def test_node_accepts_what_the_real_signers_make(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Envelopes of the edge's KMS and file signers and of the tower's attester pass in Node, altered ones do not."""
    aws_environment(monkeypatch)
    pairs = []
    with mock_aws():
        kms = Kms()
        signers: list[Signer] = [KmsSigner(kms.create(), client=kms)]
        signers += [FileSigner(SigningKey(P256)), FileSigner(SigningKey(ED25519))]
        for signer in signers:
            block = signature(signer, roadmap_payload(), NOW)
            pairs.append((block["envelope"], signer.public_pem()))
        assert kms.asked()[-1] == "Sign"
    tower = Attester(SigningKey(TOWER))
    names = ("run_id", "nonce", "measurement", "energy", "output_sha3_256", "ended_at")
    pairs.append((tower.envelope({**dict.fromkeys(names, "x"), "request": {}}), tower.key.pem))
    asked = [{"ask": "accepts", "envelope": envelope, "pem": public} for envelope, public in pairs]
    other = [{**question, "envelope": {**question["envelope"], "payload": "e30="}} for question in asked]
    assert ask(asked + other) == [True] * 4 + [False] * 4


# --- the command ----------------------------------------------------------------------------------------------------


def test_command(ask: Ask, tmp_path: Path) -> None:
    """The command prints a line per check and exits with 0, 1 or 2: nothing failed, something did, bad input."""
    payload = attested_payload()
    good, bad, junk = (tmp_path / name for name in ("good.json", "bad.json", "junk.json"))
    whole = receipt(payload, signed(payload))
    good.write_text(json.dumps(whole), "utf-8")
    bad.write_text(json.dumps({**whole, "payload_sha3_256": "0" * 64}), "utf-8")
    junk.write_bytes(b"\xff")
    keys, tower = tmp_path / "keys.json", tmp_path / "tower.pem"
    keys.write_bytes(answer())
    tower.write_bytes(pem(TOWER))

    def run(*arguments: str | Path) -> tuple[int, list[str], str]:
        done = subprocess.run(
            ["node", CLI, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    code, lines, _ = run(good, "--key", keys, "--require-signature")
    assert code == 0 and [line.split()[:2] for line in lines[:-1]] == [["ok", name] for name in CHECKS]
    assert lines[-1] == "OK"
    assert run(good, "--key", keys, "--tower-key", tower)[0] == 0
    assert run(good)[1][-1] == "OK, with 2 warning(s)"
    assert run(good, "--require-signature")[0] == 1
    code, lines, _ = run(bad)
    assert (code, lines[-1]) == (1, "FAILED") and lines[1].startswith("failed   digest")
    for arguments in (
        (junk,),
        (tmp_path / "none",),
        (good, "--key", junk),
        (good, "--key", tower, "--x"),
        (),
    ):
        code, lines, errors = run(*arguments)
        assert (code, lines) == (2, []) and errors.startswith("error: "), arguments
