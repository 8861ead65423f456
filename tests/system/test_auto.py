"""Automatic and fixed draft lengths against a whole system: the embedded pair, over HTTP and a websocket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.client import Specdec
from shared.verify import verify_receipt
from tools.stack import PATIENCE_S, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def receipts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Receipts of one prompt at an automatic k and at k = 4."""
    state = tmp_path_factory.mktemp("state")
    prompt, ks = "And it came to pass", ("auto", 4)
    with (
        running(Path(state), environ={"SPECDEC_THREADS": "1"}) as stack,
        Specdec(stack.edge_url, 2 * PATIENCE_S) as client,
    ):
        return {str(k): client.run(prompt, k=k, n=12, temperature=0.0, ignore_eos=True) for k in ks}


@pytest.mark.parametrize("k", ["auto", "4"])
def test_receipts_verify(receipts: dict[str, dict[str, Any]], k: str) -> None:
    """Both are MEASURED, of the steps asked for, lossless, and verify offline; signatures need keys, not given here."""
    receipt, payload = receipts[k], receipts[k]["payload"]
    assert payload["label"] == "SPEC-DECODE MEASURED", payload.get("roadmap")
    assert (payload["n"], payload["quality_delta"]["identical_rate"]) == (12, 1.0)
    report = verify_receipt(receipt)
    assert report.ok
    statuses = {check.name: check.status for check in report.checks}
    assert {name for name, status in statuses.items() if status != "ok"} <= {
        "salt",
        "attestation",
        "signature",
        "verdict",
    }
    assert {"measurement", "summary", "binding", "digest"} <= statuses.keys()


def test_automatic_k(receipts: dict[str, dict[str, Any]]) -> None:
    """The tower chooses each draft's length, tells each step and alpha of its own, and claims no rate of one k."""
    payload = receipts["auto"]["payload"]
    measured = payload["measurement"]
    assert payload["request"]["k"] == measured["k_requested"] == "auto"
    assert measured["mode"] == "adaptive"
    nothing = (payload["accepted_rate"], payload["speedup_modeled"], measured["accepted_rate"])
    assert nothing == (None, None, None)
    assert len(measured["per_step"]["drafted"]) == len(measured["per_step"]["accepted"]) == 12
    assert max(measured["per_step"]["drafted"]) <= measured["k"] == payload["k"]
    assert measured["alpha"]["k"] == 4 and 0 < measured["alpha"]["value"] <= 1
    assert measured["calibration"]["draft"]["k"] == 4
    curve = measured["predicted_curve"]["speedup"]
    assert measured["recommended_k"] == curve.index(max(curve))


def test_fixed_k_is_predicted(receipts: dict[str, dict[str, Any]]) -> None:
    """A run of fixed length carries measured costs, and what they predict beside what was measured."""
    payload = receipts["4"]["payload"]
    measured = payload["measurement"]
    assert (measured["mode"], measured["k"], payload["k"]) == ("linear", 4, 4)
    calibration = measured["calibration"]
    assert calibration["cost_ratio"] > 0 and calibration["verify_cost"][0] == pytest.approx(1.0)
    assert len(calibration["verify_cost"]) == len(measured["predicted_curve"]["speedup"]) == 17
    assert measured["speedup_predicted"]["label"] == "MODELED" and measured["speedup_predicted"]["value"] > 0
    assert measured["residuals"]["cost"]["measured"] > 0
    assert measured["residuals"]["tokens"]["seen"] == measured["emitted"] / 12
    assert measured["iid"]["conclusion"] in ("not rejected", "rejected", "too few steps")
