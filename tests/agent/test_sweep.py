"""Tests of `agent.sweep`: the command, on the embedded pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent import calibration, measure, sweep


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times as little as possible."""
    monkeypatch.setattr(measure, "TIMING_S", 0.0)
    for name in ("SECONDS", "ROUNDS", "FEWEST_ROUNDS"):
        monkeypatch.setattr(calibration, name, 1 if "ROUNDS" in name else 0.0)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two prompts of two domains."""
    path = tmp_path / "prompts.json"
    both = [{"domain": "prose", "prompt": "And he said"}, {"domain": "code", "prompt": "def f(x):"}]
    path.write_text(json.dumps(both))
    return path


def test_rows_for_each_domain_and_length(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every domain gets a measured row per length, and all of them together too."""
    fast = ["--threads", "1", "--n", "3", "--k", "2,auto", "--prompts", str(prompts), "--json"]
    assert sweep.main(["--embedded", *fast]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [(r["domain"], r["k"]) for r in rows] == [
        (domain, k) for domain in ("prose", "code", "all") for k in (2, "auto")
    ]
    assert all(row["label"] == "MEASURED" for row in rows)
    assert err.count("measured") == 4 and "And he said" not in out + err


def test_what_cannot_be_used(tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad prompts end with 2 and one sentence, no pair with 1; a prompt that is refused leaves the others."""
    assert sweep.main(["--embedded", "--prompts", str(tmp_path / "none.json")]) == 2
    assert sweep.main(["--ollama-models", str(tmp_path), "--prompts", str(prompts)]) == 1
    assert capsys.readouterr().err.count("agent.sweep:") == 2
    tight = ["--threads", "1", "--n", "2", "--k", "4", "--context", "5", "--prompts", str(prompts)]
    assert sweep.main(["--embedded", *tight]) == 1
    assert "too many for a context" in capsys.readouterr().err
