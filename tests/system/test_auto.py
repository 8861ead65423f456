"""A run whose draft length is chosen step by step, through the whole system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.cli import main
from shared.client import Specdec
from shared.verify import verify_receipt
from tools.stack import PATIENCE_S, running


@pytest.fixture(scope="module")
def receipt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The receipt of an automatic run of twelve steps, asked for over HTTP."""
    state = tmp_path_factory.mktemp("state")
    with (
        running(state, environ={"SPECDEC_THREADS": "1"}) as stack,
        Specdec(stack.edge_url, PATIENCE_S) as client,
    ):
        return client.run("And it came to pass", k="auto", n=12)


def test_automatic_run_is_measured(receipt: dict[str, Any]) -> None:
    """An automatic k gives a MEASURED receipt that claims neither an acceptance rate nor a modeled speed-up."""
    payload = receipt["payload"]
    measurement = payload["measurement"]
    assert payload["label"] == "SPEC-DECODE MEASURED"
    assert (payload["request"]["k"], measurement["k_requested"], measurement["mode"]) == (
        "auto",
        "auto",
        "adaptive",
    )
    assert payload["n"] == measurement["n"] == len(measurement["per_step"]["drafted"]) == 12
    assert payload["k"] == measurement["k"] and max(measurement["per_step"]["drafted"]) <= payload["k"]
    assert payload["accepted_rate"] is None and payload["speedup_modeled"] is None
    assert payload["quality_delta"] == {"identical_rate": 1.0, "label": "MEASURED (lossless)"}
    assert payload["speedup_measured"]["pairs"] >= 6
    assert measurement["alpha"]["k"] == 4
    assert measurement["calibration"]["rounds"] >= 3
    assert len(measurement["predicted_curve"]["speedup"]) == 17


def test_automatic_run_verifies_offline(
    receipt: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The receipt verifies, by the function and by the command, until one of its steps is changed."""
    assert verify_receipt(receipt).ok
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps({name: value for name, value in receipt.items() if name != "prompt_salt"}))
    assert main(["verify", str(file)]) == 0
    capsys.readouterr()
    steps = receipt["payload"]["measurement"]["per_step"]["drafted"]
    steps[0] += 1
    try:
        file.write_text(json.dumps(receipt))
        assert main(["verify", str(file)]) == 1
        assert "per_step" in capsys.readouterr().out
    finally:
        steps[0] -= 1
