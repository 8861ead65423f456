"""Tests of `make demo`."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.verify import verify_receipt
from tools.demo import failures
from tools.stack import PATIENCE_S


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What the demo prints, and the receipt that it keeps."""
    receipt = tmp_path_factory.mktemp("demo") / "receipt.json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--receipt", str(receipt)],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE_S,
        env={**os.environ, "SPECDEC_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(Path(receipt).read_text(encoding="utf-8"))


def test_demo_measures(demo: tuple[str, dict[str, Any]]) -> None:
    """The demo's receipt is MEASURED, lossless, more than half accepted, with a measured speed-up, and verifies."""
    payload = demo[1]["payload"]
    assert payload["label"] == "SPEC-DECODE MEASURED"
    assert payload["accepted_rate"] > 0.5
    assert payload["quality_delta"] == {"identical_rate": 1.0, "label": "MEASURED (lossless)"}
    assert payload["speedup_measured"]["pairs"] >= 6
    low, high = payload["speedup_measured"]["ci95"]
    assert 0 < low <= payload["speedup_measured"]["median"] <= high
    assert (payload["n"], payload["k"]) == (50, 4)
    assert verify_receipt(demo[1], key_pem=None, require_signature=False).ok


def test_demo_prints_what_it_found(demo: tuple[str, dict[str, Any]]) -> None:
    """The demo prints the label, the rate with its interval, both speed-ups with their labels, and the checks."""
    printed, payload = demo[0], demo[1]["payload"]
    lines = {line.split("  ")[0]: line for line in printed.splitlines() if "  " in line}
    low, high = payload["measurement"]["accepted_rate_ci95"]
    assert lines["label"].endswith("SPEC-DECODE MEASURED")
    assert (
        f"{payload['accepted_rate']} (MEASURED, 95 % interval {low:.4f} to {high:.4f})"
        in lines["accepted rate"]
    )
    assert f"{payload['speedup_modeled']} (MODELED)" in lines["speedup, modeled"]
    assert f"{payload['speedup_measured']['median']:.4f} (MEASURED" in lines["speedup, measured"]
    checks = [line.split(maxsplit=2) for line in printed.splitlines() if line.startswith(("ok ", "warning "))]
    said = {name: (status, detail) for status, name, detail in checks}
    keyid = payload["tower"]["keyid"][:16]
    assert said["attestation"] == ("ok", f"the measurement is signed by the pinned tower key {keyid}")
    assert said["signature"][0] == "ok" and payload["tower"]["attested"] == "VERIFIED"
    assert {name for name, (status, _) in said.items() if status != "ok"} <= {"verdict"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accepted_rate", 0.4),
        ("accepted_rate", None),
        ("speedup_measured", "UNAVAILABLE"),
        ("quality_delta", {"identical_rate": 0.9, "label": "MEASURED (diverged: tie)"}),
    ],
)
def test_demo_fails_on_less(demo: tuple[str, dict[str, Any]], field: str, value: Any) -> None:
    """A run that shows less than the demo promises makes it fail."""
    payload = copy.deepcopy(demo[1]["payload"])
    assert failures(payload) == []
    payload[field] = value
    assert len(failures(payload)) == 1
