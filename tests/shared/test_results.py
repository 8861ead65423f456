"""What the client returns: typed parts of a receipt, None where there is nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared import labels
from shared.results import Health, Progress, Receipt
from shared.schemas import Measurement
from shared.verify import verify_receipt
from tests.shared.build import measured_payload, metered_payload, receipt, roadmap_payload

FIGURES = (
    "measurement",
    "accepted_rate",
    "speedup_measured",
    "speedup_modeled",
    "energy",
    "verdict",
    "output",
    "prompt_salt",
    "progress",
)


def test_a_measured_run() -> None:
    """Each figure of a measured run is the payload's, with its interval and its count."""
    payload = measured_payload()
    sent = {**receipt(payload), "prompt_salt": "00", "output": "text"}
    got = Receipt(sent)
    assert (got.label, got.measured, got.signed) == ("SPEC-DECODE MEASURED", True, False)
    assert (got.run_id, got.digest) == (payload["run_id"], sent["payload_sha3_256"])
    assert got.payload == payload
    assert isinstance(got.measurement, Measurement) and got.measurement.n == 50
    assert got.accepted_rate == payload["measurement"]["accepted_rate"]
    assert got.speedup_modeled == payload["speedup_modeled"]
    assert got.speedup_measured is not None
    assert got.speedup_measured.model_dump() == payload["speedup_measured"]
    assert got.verdict is not None and got.verdict.valid
    assert (got.energy, got.energy_reason) == (None, "no NVML library")
    assert (got.prompt_salt, got.output) == ("00", "text")
    assert (got.roadmap_reason, got.roadmap_code, got.runbook, got.progress) == (None, None, [], None)


def test_metered_energy() -> None:
    """Energy that was measured comes with what it was computed from."""
    got = Receipt(receipt(metered_payload())).energy
    assert got is not None and got.windows is not None and len(got.windows) == 12
    assert got.joules_per_token.speculative == pytest.approx(0.835, abs=1e-3)


def test_nothing_measured() -> None:
    """Without a measurement each figure is None, and the reason and what to do are there."""
    got = Receipt(
        receipt(roadmap_payload(roadmap={"reason": "no pair", "code": "NO_PAIR", "runbook": ["pull one"]}))
    )
    assert {name: getattr(got, name) for name in FIGURES} == dict.fromkeys(FIGURES)
    assert (got.measured, got.label, got.run_id) == (False, "SPEC-DECODE ROADMAP", None)
    assert (got.roadmap_reason, got.roadmap_code, got.runbook) == ("no pair", "NO_PAIR", ["pull one"])


def test_a_measured_run_without_a_speedup() -> None:
    """A speed-up that is UNAVAILABLE beside other figures is None, not 0 and not a word."""
    payload = measured_payload()
    payload["speedup_measured"] = payload["measurement"]["speedup"] = labels.UNAVAILABLE
    got = Receipt(receipt(payload))
    assert got.measured and got.speedup_measured is None and got.accepted_rate is not None


def test_still_a_dict() -> None:
    """A receipt can be saved, read and verified again as the dict that it is."""
    sent = receipt(measured_payload())
    got = Receipt(sent)
    assert got == sent and json.loads(json.dumps(got)) == sent
    assert verify_receipt(got).ok


@pytest.mark.parametrize("odd", [None, 5, [], "text"], ids=str)
def test_odd_parts(odd: Any) -> None:
    """Parts that no verification looks at may have any type; they are then taken as absent."""
    payload = roadmap_payload(roadmap=odd, progress=odd, energy=odd, run_id=5)
    got = Receipt({**receipt(payload), "signature": odd, "prompt_salt": 5, "output": 5})
    assert {name: getattr(got, name) for name in FIGURES} == dict.fromkeys(FIGURES)
    assert (got.signed, got.run_id, got.roadmap_reason, got.runbook, got.energy_reason) == (
        False,
        None,
        None,
        [],
        None,
    )


def test_progress() -> None:
    """Progress is what the service said, counts that are none left out."""
    payload = roadmap_payload(
        run_id="mine", progress={"phase": "timing", "done": 3, "total": True, "position": "1"}
    )
    assert Receipt(receipt(payload)).progress == Progress("mine", "timing", done=3)


def test_health() -> None:
    """Health's parts are false where nothing is said of them."""
    able = Health(label="L", same_family_pair={"found": True}, measured_run_possible=True)
    assert (able.label, able.pair_found, able.measured_run_possible) == ("L", True, True)
    odd = Health(label=5, same_family_pair=[], measured_run_possible="yes")
    assert (odd.label, odd.pair_found, odd.measured_run_possible) == (None, False, False)
