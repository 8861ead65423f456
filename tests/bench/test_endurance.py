"""Tests of `bench.endurance`: failures and faults are shown, and what there was too little of is not made up."""

from __future__ import annotations

import pytest

from bench import endurance
from tools.fuzz import Tally

STORMED = {
    "clients": 200,
    "seconds": 64.4,
    "answers": 3642,
    "by_kind": {"health": {"statuses": {"200": 532, "503": 1}, "median_s": 2.31, "longest_s": 24.4}},
    "receipts_stored": 57,
    "agent_down_s": [4.0, 3.5],
    "workers_killed": 1,
    "memory_growth": {"edge": 1.0, "agent": 1.01},
    "faults": [],
}


def test_fuzzing_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both edges are fuzzed, the one without a tower first; each has its figures and its failures counted."""
    asked = []

    def fuzz(*, cases: int, seed: int, agent: bool) -> Tally:
        asked.append((cases, agent))
        tally = Tally(failures=["one"] if agent else [], excused=int(agent))
        tally.answered["GET /keys"] = cases
        tally.statuses["GET /keys", 200] = cases - 1
        tally.statuses["GET /keys", 500] = 1
        tally.checks["not_a_server_error"] = cases
        return tally

    monkeypatch.setattr(endurance, "fuzz_local", fuzz)
    result = endurance.fuzzed(20, 3)
    assert asked == [(20, False), (3, True)]
    assert [result[name]["answers_with_5xx"] for name in ("down", "up")] == [1, 1]
    told = endurance.fuzzed_markdown(result).splitlines()
    assert "| down | 20 | 20 | 1 | 0 | 1 | 0 | 0 |" in told
    assert "| up | 3 | 3 | 1 | 1 | 1 | 1 | 0 |" in told
    assert "| GET /keys | 20 | 200: 19, 500: 1 |" in told


def test_a_storm() -> None:
    """The table tells who asked, the growth of memory, and every fault."""
    told = endurance.stormed_markdown(STORMED)
    assert "3642 answers, 0 faults" in told and "edge 1.0, agent 1.01." in told
    assert "| health | 200: 532, 503: 1 | 2.31 | 24.4 |" in told.splitlines()
    faulty = endurance.stormed_markdown({**STORMED, "memory_growth": {}, "faults": ["a receipt was lost"]})
    assert "too short to tell" in faulty and faulty.splitlines()[-1] == "FAULT a receipt was lost"


def test_a_soak() -> None:
    """The table tells how runs ended, what grew, and every fault."""
    soaked = {
        "runs": 1000,
        "ended": {"OK": 794, "CANCELLED": 103},
        "done": {"stay": 450},
        "resident_growth": 1.0105,
        "worker_growth": 1.0052,
        "descriptor_growth": 0.9167,
        "faults": ["run 7 is stuck (stay)"],
    }
    told = endurance.soaked_markdown(soaked).splitlines()
    assert "| 1000 | OK: 794, CANCELLED: 103 | stay: 450 | 1.0105 | 1.0052 | 0.9167 | 1 |" in told
    assert told[-1] == "FAULT run 7 is stuck (stay)"
