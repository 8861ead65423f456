"""Tests of `bench.hop`: a real agent and a real echo, and the arithmetic and wording of its table; no timing."""

from __future__ import annotations

import pytest

from bench import hop


def test_both_ways_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent tells of its pair, the echo gives back a frame as long; rounds after the first count."""
    monkeypatch.setattr(hop, "BATCH", 2)
    result = hop.measure(2)
    assert {name: len(ms) for name, ms in result["ms"].items()} == {"edge": 2, "bare": 2}
    assert min(result["ms"]["edge"] + result["ms"]["bare"]) > 0
    assert result["frame_bytes"] > 300
    assert hop.summary(result)["connections"] == 4


def test_ratio_is_taken_within_rounds() -> None:
    """A slow round slows both ways: the ratio of medians would be another number."""
    result = {"frame_bytes": 700, "ms": {"edge": [2.8, 9.0, 3.2], "bare": [2.0, 6.0, 2.0]}}
    assert hop.summary(result)["edge_over_bare"]["median"] == pytest.approx(1.5)
    page = hop.markdown(result)
    assert "| frames of 700 bytes | 3.20 | 2.00 | 1.50 (1.40 to 1.60) | 60 |" in page
    assert page.endswith("edge / bare at most 1.5 met")
    result["ms"] = {"edge": [3.1], "bare": [2.0]}
    assert hop.markdown(result).endswith("edge / bare at most 1.5 MISSED")
