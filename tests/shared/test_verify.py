"""Offline verification: whole receipts pass, every altered one fails, and nothing raises."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import labels
from shared.canonical import sha3_256_hex
from shared.curve import accounting_modeled
from shared.dsse import PAYLOAD_TYPE, pae, signature_block, statement, statement_bytes
from shared.keys import key_id
from shared.report import Report
from shared.verify import verify_receipt
from tests.shared.build import (
    NOW,
    example_energy,
    golden,
    gpu_measurement,
    measured_payload,
    metered_payload,
    receipt,
    roadmap_payload,
)
from tests.shared.test_dsse import ED25519, P256, pem, signed

CURVE = {
    "schema": labels.PAYLOAD_SCHEMA,
    "label": labels.CURVE_LABEL,
    "measured": labels.UNAVAILABLE,
    "accounting_modeled": accounting_modeled(8, 0.05, 1.48, (0.0, 0.33, 1.0)),
}
UNSIGNED = "the receipt is not signed"


def failed(report: Report) -> dict[str, str]:
    """Name and detail of each failed check."""
    return {check.name: check.detail for check in report.checks if check.status == "failed"}


def statuses(report: Report) -> dict[str, str]:
    """Status by name."""
    return {check.name: check.status for check in report.checks}


def test_measured_receipt() -> None:
    """A measured receipt that neither edge nor tower has signed passes every check but those two, which warn."""
    report = verify_receipt(receipt(measured_payload()))
    assert report.ok
    assert statuses(report) == {
        "receipt": "ok",
        "digest": "ok",
        "exact_bytes": "ok",
        "label": "ok",
        "modeled": "ok",
        "measurement": "ok",
        "verdict": "ok",
        "summary": "ok",
        "binding": "ok",
        "time": "ok",
        "attestation": "warning",
        "signature": "warning",
    }


def test_metered_receipt() -> None:
    """Energy that was measured is recomputed; where its windows are not given, that is a warning."""
    report = verify_receipt(receipt(metered_payload()))
    assert report.ok and statuses(report)["energy"] == "ok"
    shortest = {"label": "MEASURED", "joules_per_token": example_energy()["joules_per_token"]}
    report = verify_receipt(receipt({**metered_payload(), "energy": shortest}))
    assert report.ok and statuses(report)["energy"] == "warning"
    assert "energy" not in statuses(verify_receipt(receipt(measured_payload())))


@pytest.mark.parametrize("part", ["joules", "seconds", "tokens"])
def test_forged_energy(part: str) -> None:
    """A window that was altered, though digest and summary fit, fails the energy."""
    energy = example_energy()
    energy["windows"][3][part] *= 2 if part != "seconds" else 0.1
    report = verify_receipt(receipt(metered_payload(windows=energy["windows"])))
    assert failed(report).keys() == {"energy"}


def test_forged_joules_per_token() -> None:
    """So does an altered result; a wrong cost ratio beside it hides nothing and raises nothing."""
    forged = metered_payload(joules_per_token={"speculative": 0.5, "target_only": 1.75})
    assert failed(verify_receipt(receipt(forged))) == {
        "energy": "energy.joules_per_token is not what windows give"
    }
    accounting = {**forged["accounting_modeled"], "cost_ratio": "0.2"}
    found = failed(
        verify_receipt(receipt({**forged, "accounting_modeled": accounting, "energy": {"label": 5}}))
    )
    assert found.keys() == {"modeled", "summary"}


def test_a_valid_verdict_on_a_throttled_gpu() -> None:
    """A run on a GPU that was throttled or shared cannot call itself valid."""
    payload = measured_payload(gpu_measurement(events=["hw_thermal"], foreign_processes=1))
    assert failed(verify_receipt(receipt(payload))) == {
        "measurement": "measurement.verdict.valid cannot be true when the GPU was throttled; "
        "measurement.verdict.valid cannot be true when another program computed on the GPU"
    }


@pytest.mark.parametrize("payload", [roadmap_payload(), CURVE], ids=["roadmap", "curve"])
def test_modeled_receipts(payload: dict[str, Any]) -> None:
    """A roadmap and a curve have no measurement to check, and pass."""
    report = verify_receipt(receipt(payload))
    assert report.ok
    assert statuses(report) == {
        "receipt": "ok",
        "digest": "ok",
        "exact_bytes": "ok",
        "label": "ok",
        "modeled": "ok",
        "binding": "skipped",
        "time": "skipped",
        "signature": "warning",
    }


def test_golden_example() -> None:
    """The golden example payload in a receipt passes."""
    report = verify_receipt(receipt(golden("measured")["example_payload"]))
    assert failed(report) == {}


def test_the_published_shape() -> None:
    """A receipt of the published minimal shape passes; what it lacks to be checked is a warning."""
    case = golden("receipts")["cases"][0]
    minimal = {
        "schema": "szl.a11oy.specdec.receipt.v1",
        "payload": case["payload"],
        "payload_sha3_256": case["sha3_256"],
        "signature": {"signed": False, "status": "DSSE_PLACEHOLDER"},
    }
    report = verify_receipt(minimal)
    assert report.ok
    assert [c.name for c in report.checks if c.status == "warning"] == ["exact_bytes", "modeled", "signature"]


def test_report_as_json() -> None:
    """The report is JSON, with every check's name, status and detail."""
    data = verify_receipt(receipt(CURVE)).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["ok"] is True
    assert data["checks"][-1] == {"name": "signature", "status": "warning", "detail": UNSIGNED}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in a JSON value that are no containers."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, item in pairs for leaf in leaves(item, (*path, key))]
    return [path]


def changed(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    return value + "x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("path", leaves(measured_payload()), ids=lambda path: ".".join(map(str, path)))
def test_every_altered_value(path: tuple[Any, ...]) -> None:
    """A payload with any one value altered fails the digest and the exact bytes."""
    altered = receipt(measured_payload())
    place = altered["payload"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = changed(place[path[-1]])
    assert {"digest", "exact_bytes"} <= failed(verify_receipt(altered)).keys()


def test_numbers_printed_otherwise() -> None:
    """A payload whose floats became integers has other bytes, so another digest, as the one-liner says too."""
    altered = receipt(measured_payload())
    altered["payload"]["quality_delta"]["identical_rate"] = 1
    assert failed(verify_receipt(altered)).keys() == {"digest", "exact_bytes"}


# Payloads that were altered before the receipt was made, so that only their meaning is wrong.
FORGED: list[tuple[str, dict[str, Any], str]] = [
    ("schema", {"schema": "szl.a11oy.specdec.v2"}, "receipt"),
    ("label alone", {"label": labels.RUN_ROADMAP}, "label"),
    ("unknown label", {"label": "SPEC-DECODE PROVEN"}, "label"),
    ("measured alone", {"measured": "UNAVAILABLE"}, "label"),
    ("no measurement", {"measurement": None}, "label"),
    ("rate", {"accepted_rate": 0.7240}, "summary"),
    ("rate null", {"accepted_rate": None}, "summary"),
    ("length", {"mean_accepted_len": 2.95}, "summary"),
    ("modeled speedup", {"speedup_modeled": 1.6122}, "summary"),
    ("modeled speedup null", {"speedup_modeled": None}, "summary"),
    ("measured speedup", {"speedup_measured": "UNAVAILABLE"}, "summary"),
    ("n", {"n": 51}, "summary"),
    ("n as boolean", {"n": True}, "summary"),
    ("k", {"k": 5}, "summary"),
    ("draft", {"draft_model": "other"}, "summary"),
    ("target", {"target_model": None}, "summary"),
    ("quality", {"quality_delta": {"identical_rate": 1.0, "label": "MEASURED (diverged: tie)"}}, "summary"),
    ("quality true", {"quality_delta": {"identical_rate": True, "label": "MEASURED (lossless)"}}, "summary"),
    ("energy zero", {"energy": {"label": "MEASURED", "joules_per_token": {"speculative": 0}}}, "summary"),
    ("energy missing", {"energy": None}, "summary"),
    ("cost ratio", {"accounting_modeled": accounting_modeled(4, 0.1)}, "summary"),
    ("accounting", {"accounting_modeled": None}, "modeled"),
    ("run id", {"run_id": golden("wire")["run_id"]["run_id"]}, "binding"),
    ("run id malformed", {"run_id": "x"}, "binding"),
    ("request", {"request": {"k": 4}}, "binding"),
    ("request no object", {"request": [1]}, "binding"),
    ("commitment", {"prompt_commitment": "0" * 64}, "binding"),
]


@pytest.mark.parametrize(
    ("change", "name"), [entry[1:] for entry in FORGED], ids=[entry[0] for entry in FORGED]
)
def test_forged_measured_payloads(change: dict[str, Any], name: str) -> None:
    """A payload that contradicts its own measurement fails by name although its digest is right."""
    report = verify_receipt(receipt({**measured_payload(), **change}))
    assert name in failed(report)
    assert "digest" not in failed(report)


def test_forged_counts() -> None:
    """Counts that contradict each other fail, and the detail names the field."""
    payload = measured_payload()
    payload["measurement"]["rejections"] = 36
    assert failed(verify_receipt(receipt(payload)))["measurement"] == (
        "measurement.drafted, rejections, emitted and stopped fit no last step; "
        "measurement.accepted_rate is not accepted / (accepted + rejections); "
        "measurement.accepted_rate_ci95 is not the Wilson interval of accepted and rejections"
    )


def test_measurement_of_another_request() -> None:
    """A measurement of another n than the bound request's fails the binding."""
    payload = measured_payload()
    payload["measurement"].update(n_requested=60, stopped="deadline")
    assert failed(verify_receipt(receipt(payload))) == {
        "binding": "measurement is not of the requested k and n"
    }


@pytest.mark.parametrize(
    "change",
    [
        {"measured": "MEASURED"},
        {"measurement": {}},
        {"accepted_rate": 0.73},
        {"mean_accepted_len": 3.1},
        {"speedup_modeled": 1.63},
        {"speedup_measured": {"label": "MEASURED", "median": 1.5}},
        {"quality_delta": {"identical_rate": 1.0, "label": "MEASURED (lossless)"}},
        {"output_sha3_256": "0" * 64},
        {"energy": {"label": "MEASURED", "joules_per_token": {"speculative": 1.0}}},
        {"energy": {"label": None}},
    ],
    ids=str,
)
def test_unmeasured_payloads_claim_nothing(change: dict[str, Any]) -> None:
    """Under ROADMAP or MODELED no measured number may stand, with or without that word beside it."""
    for payload in (roadmap_payload(), CURVE):
        assert "label" in failed(verify_receipt(receipt({**payload, **change})))


@pytest.mark.parametrize(
    "change",
    [
        {"label": "MEASURED"},
        {"k": 5},
        {"k": 65},
        {"k": True},
        {"k": 4.0},
        {"cost_ratio": 0.1},
        {"cost_ratio": -1.0},
        {"cost_ratio": "0.2"},
        {"verify_cost": 1.5},
        {"verify_cost": 0.0},
        {"expected_speedup_at_alpha": {"0.5": 1.0764, "0.7": 1.5406, "0.9": 2.2752}},
        {"expected_speedup_at_alpha": {"0.5": 1.0764}},
        {"expected_speedup_at_alpha": {"0.50": 1.0764, "0.7": 1.5406, "0.9": 2.2751}},
        {"expected_speedup_at_alpha": {"x": 1.0}},
        {"expected_speedup_at_alpha": {"1.5": 1.0}},
        {"expected_speedup_at_alpha": {"nan": 1.0}},
        {"expected_speedup_at_alpha": None},
        {"expected_tokens_per_step_at_alpha": {"0.5": 1.9375, "0.7": 2.7731, "0.9": 4.0952}},
        {"expected_tokens_per_step_at_alpha": {}},
    ],
    ids=str,
)
def test_modeled_numbers_are_recomputed(change: dict[str, Any]) -> None:
    """Any modeled number or parameter that the formula does not give fails."""
    block = {**accounting_modeled(4, 0.2), **change}
    assert failed(verify_receipt(receipt(roadmap_payload(accounting_modeled=block)))).keys() == {"modeled"}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"schema": "other"}, "receipt"),
        ({"schema": None}, "receipt"),
        ({"payload": []}, "receipt"),
        ({"payload_sha3_256": "0" * 64}, "digest"),
        ({"payload_sha3_256": None}, "digest"),
        ({"digest_alg": "sha256"}, "digest"),
        ({"digest_alg": None}, "digest"),
        ({"payload_canonical_base64": "e30="}, "exact_bytes"),
        ({"payload_canonical_base64": None}, "exact_bytes"),
        ({"payload_canonical_base64": 5}, "exact_bytes"),
        ({"payload_canonical_base64": "not base64"}, "exact_bytes"),
        ({"signature": None}, "signature"),
        ({"signature": {}}, "signature"),
        ({"signature": {"signed": 1, "status": "DSSE"}}, "signature"),
        ({"signature": {"signed": False, "status": "DSSE"}}, "signature"),
        ({"signature": {"signed": False, "status": "DSSE_PLACEHOLDER", "envelope": {}}}, "signature"),
        ({"signature": {"signed": True, "status": "DSSE"}}, "signature"),
        ({"signature": {"signed": True, "status": "DSSE_PLACEHOLDER", "envelope": {}}}, "signature"),
    ],
    ids=str,
)
def test_altered_envelopes(change: dict[str, Any], name: str) -> None:
    """A receipt whose own fields were altered fails by name."""
    assert failed(verify_receipt({**receipt(CURVE), **change})).keys() == {name}


def test_base64_with_a_newline() -> None:
    """Exact bytes in loose base64 fail: two encodings of one receipt would be two files."""
    loose = receipt(CURVE)
    loose["payload_canonical_base64"] += "\n"
    assert failed(verify_receipt(loose)).keys() == {"exact_bytes"}


def test_signature_required() -> None:
    """Where a signature is required, an unsigned receipt fails."""
    report = verify_receipt(receipt(CURVE), require_signature=True)
    assert failed(report) == {"signature": UNSIGNED}


@pytest.mark.parametrize("alg", ["ED25519", "ECDSA_SHA_256"])
def test_signed_receipts(alg: str) -> None:
    """A signed receipt passes with its key pinned, warns without, and fails under another key."""
    good = receipt(measured_payload(), signed(measured_payload(), alg))
    mine, other = (pem(ED25519), pem(P256)) if alg == "ED25519" else (pem(P256), pem(ED25519))
    report = verify_receipt(good, key_pem=mine, require_signature=True)
    assert report.ok and statuses(report)["signature"] == "ok"
    assert statuses(verify_receipt(good))["signature"] == "warning"
    detail = "the signature cannot be checked without a pinned key"
    assert failed(verify_receipt(good, require_signature=True)) == {"signature": detail}
    assert failed(verify_receipt(good, key_pem=other)) == {"signature": "no trusted key made this signature"}
    assert failed(verify_receipt(good, key_pem=b"no key")) == {
        "signature": "the key file holds no public key for this"
    }


def test_signature_of_another_payload() -> None:
    """A true signature moved from another receipt fails, with and without the key."""
    moved = receipt(measured_payload(), signed({**measured_payload(), "n": 49}))
    for key in (pem(ED25519), None):
        detail = "the signed statement is about another payload"
        assert failed(verify_receipt(moved, key_pem=key)) == {"signature": detail}


def with_statement(**change: Any) -> dict[str, Any]:
    """A receipt whose truly signed statement differs from what it should be."""
    body = statement_bytes({**statement(CURVE, NOW), **change})
    block = signature_block(
        body, ED25519.sign(pae(PAYLOAD_TYPE, body)), keyid=key_id(pem(ED25519)), alg="ED25519"
    )
    return receipt(CURVE, block)


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicateType": "https://slsa.dev/provenance/v1"},
        {"subject": []},
        {"subject": None},
        {"subject": statement(CURVE, NOW)["subject"] * 2},
        {"subject": [{"name": "payload", "digest": {"sha256": "0" * 64}}]},
        {"predicate": None},
        {"predicate": {}},
        {"predicate": {**statement(CURVE, NOW)["predicate"], "label": labels.RUN_MEASURED}},
        {"predicate": {**statement(CURVE, NOW)["predicate"], "run_id": "x"}},
        {"predicate": {**statement(CURVE, NOW)["predicate"], "generated_at": "2026-11-30T00:00:01Z"}},
    ],
    ids=lambda change: str(change)[:60],
)
def test_signed_statements_are_read(change: dict[str, Any]) -> None:
    """A true signature over a statement of another type, subject or predicate fails."""
    assert verify_receipt(with_statement(), key_pem=pem(ED25519)).ok
    assert failed(verify_receipt(with_statement(**change), key_pem=pem(ED25519))).keys() == {"signature"}


def test_altered_time_of_a_signed_receipt() -> None:
    """The receipt's own time stands outside the digest; the signature covers it."""
    altered = {**receipt(CURVE, signed(CURVE)), "generated_at": "2027-01-01T00:00:00Z"}
    assert failed(verify_receipt(altered)).keys() == {"signature"}


def test_key_inside_the_receipt() -> None:
    """A key that comes with the receipt is no trust root."""
    good = receipt(CURVE, signed(CURVE))
    good["signature"]["key"] = pem(ED25519).decode()
    assert statuses(verify_receipt(good))["signature"] == "warning"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("MEASURED"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_value_gives_a_report(value: Any) -> None:
    """Whatever is called a receipt gives a failed report, never an exception."""
    assert not verify_receipt(value).ok


WHOLE = receipt(measured_payload(), signed(measured_payload()))


@given(st.sampled_from([*leaves(WHOLE), *((name,) for name in WHOLE)]), JSON, st.booleans())
def test_any_altered_receipt_gives_a_report(path: tuple[Any, ...], value: Any, again: bool) -> None:
    """With any part replaced by anything, digest made anew or not, there is a report, never an exception."""
    altered = copy.deepcopy(WHOLE)
    place: Any = altered
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    if again:
        try:
            altered = receipt(altered["payload"], altered["signature"])
        except Exception:  # no canonical form: nothing to make anew
            return
    for key_pem in (None, pem(ED25519)):
        report = verify_receipt(altered, key_pem=key_pem)
        assert json.dumps(report.to_dict())


def test_output_beside_the_receipt() -> None:
    """A text beside the receipt must be the one that its digest names; one that lost bytes cannot be checked."""
    payload = {**measured_payload(), "output_sha3_256": sha3_256_hex("né".encode())}
    for output, status in [
        ("né", "ok"),
        ("ne", "failed"),
        (5, "failed"),
        ("\ud800", "failed"),
        ("\ufffd", "skipped"),
    ]:
        assert statuses(verify_receipt({**receipt(payload), "output": output}))["output"] == status


def test_depth_bomb() -> None:
    """A payload nested beyond any recursion limit is a failed check."""
    bomb: Any = 0
    for _ in range(100_000):
        bomb = [bomb]
    altered = {**receipt(CURVE), "payload": {**CURVE, "bomb": bomb}}
    assert "no canonical form" in failed(verify_receipt(altered))["receipt"]
    while isinstance(bomb, list):  # taken apart by hand: freeing it would recurse
        bomb = bomb.pop()


def test_exact_bytes_alone_are_not_enough() -> None:
    """Exact bytes of another payload, with their own right digest, fail against the payload shown."""
    shown, hidden = receipt(measured_payload()), receipt({**measured_payload(), "accepted_rate": 0.9})
    for name in ("payload_sha3_256", "payload_canonical_base64"):
        shown[name] = hidden[name]
    assert base64.b64decode(shown["payload_canonical_base64"])
    assert failed(verify_receipt(shown)).keys() == {"digest", "exact_bytes"}


def test_doubtful_measurement_warns() -> None:
    """A receipt whose run says that it is not to be relied on verifies, with a warning that says why."""
    payload = measured_payload()
    payload["measurement"]["verdict"] = {"valid": False, "reasons": ["other work slowed the machine"]}
    report = verify_receipt(receipt(payload))
    assert report.ok
    assert statuses(report)["verdict"] == "warning"
    assert next(c.detail for c in report.checks if c.name == "verdict").endswith(
        "other work slowed the machine"
    )


def test_salt_in_the_file_warns() -> None:
    """An answer saved whole holds the salt, which is not to be handed on."""
    report = verify_receipt({**receipt(measured_payload()), "prompt_salt": "00" * 32})
    assert report.ok
    assert statuses(report)["salt"] == "warning"
