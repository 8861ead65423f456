"""`specdec sweep` against a whole system: the embedded pair, over HTTP and a websocket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared import prompts
from shared.cli import main
from tools.stack import PATIENCE_S, running


@pytest.mark.slow
def test_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row of a sweep is MEASURED, and every receipt that it saves verifies."""
    file, out = tmp_path / "prompts.json", tmp_path / "saved"
    two = prompts.own()[:2]
    file.write_text(json.dumps([{"domain": prompt.domain, "prompt": prompt.text} for prompt in two]))
    argv = ["--prompts", str(file), "--k", "1,4", "--n", "12", "--out", str(out), "--json"]
    with running(tmp_path, environ={"SPECDEC_THREADS": "1"}) as stack:
        argv += ["--url", stack.edge_url, "--timeout", str(PATIENCE_S)]
        assert main(["sweep", *argv]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["domain"], row["k"], row["label"], row["runs"]) for row in told["rows"]] == [
        (domain, k, "MEASURED", runs)
        for domain, runs in (("prose", 1), ("code", 1), ("all", 2))
        for k in (1, 4)
    ]
    for row in told["rows"]:
        assert row["lossless"] == row["compared"] == row["runs"]
        assert 1 <= row["tokens_per_step"] <= row["k"] + 1
        assert 0 < row["accepted_rate"] <= 1 and row["speedup_modeled"] > 0
    assert (told["not_measured"], told["notes"]) == ([], [])
    files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in out.iterdir()}
    assert sorted(files) == ["k1-code-1.json", "k1-prose-1.json", "k4-code-1.json", "k4-prose-1.json"]
    assert {receipt["payload_sha3_256"] for receipt in files.values()} == {
        receipt["payload_sha3_256"] for receipt in told["receipts"]
    }
    for name in files:
        assert main(["verify", str(out / name)]) == 0
