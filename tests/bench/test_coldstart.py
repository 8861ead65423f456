"""Tests of `bench.coldstart`: what is started, and the arithmetic and wording of its table; no timing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import coldstart
from bench.coldstart import WAYS, cold_summary, event, hello_event, markdown, refusing, targets
from shared.errors import SpecdecError


def started(seconds: float, peak_mib: float = 32.0, **more: float) -> dict[str, Any]:
    """Returns what a process says that took so long, a tenth of it for its first answer."""
    times = {"import_s": 0.9 * seconds, "answer_s": 0.1 * seconds}
    return {**times, "peak_kib": [1024 * peak_mib], "modules": 400, **more}


def result(cold: float = 1.2, warm: float = 3.0, size: int | str = 30_000_000) -> dict[str, Any]:
    """Returns what `measure` might, with these ratios and this size."""
    ratios = {
        way: {"median": value, "low": 1.0, "high": 2.0} for way, value in (("cold", cold), ("warm", warm))
    }
    instance = {
        "import_ms": 90.0,
        "answer_ms": 10.0,
        "total_ms": 100.0,
        "modules": 400,
        "peak_mib": [32.0, 33.5],
    }
    calls = {"calls": 3000, "curve_us": 300.0, "hello_us": 100.0, "over_hello": ratios["warm"]}
    return {
        "cold": {"edge": {**instance, "over_reference": ratios["cold"]}},
        "warm": {
            "signed": calls,
            "unsigned": {**calls, "over_hello": {"median": 1.0, "low": 1.0, "high": 1.0}},
        },
        "artifact": {"arm64": size, "x86_64": size},
    }


def test_cold_ratios_are_taken_within_rounds() -> None:
    """A slow round slows both sides: the ratio of medians would be another number."""
    runs = {"reference": [started(1.0), started(3.0), started(1.0)]}
    runs["edge"] = [started(1.1), started(3.6), started(1.3, curve_s=0.02)]
    summary = cold_summary(runs)
    assert summary["edge"]["over_reference"]["median"] == pytest.approx(1.2)
    assert summary["edge"]["total_ms"] == pytest.approx(1300)
    assert summary["edge"]["answer_ms"] == pytest.approx(130)
    assert summary["edge"]["peak_mib"] == [32.0]
    assert summary["reference"]["over_reference"]["median"] == 1.0


def test_table_says_what_was_promised_and_whether_it_holds() -> None:
    """Each target has a word; the worse of the two warm ratios counts, and the larger artifact."""
    page = markdown(result())
    assert "| edge | 90 | 10.0 | 100 | 1.20 (1.00 to 2.00) | 400 | 32.0, then 33.5 |" in page
    assert "| signed | 300 | 100 | 3.00 (1.00 to 2.00) | 3000 |" in page
    assert "| arm64 | 30.0 |" in page
    assert page.endswith("at most 1.3 met; curve / hello at most 4 met; artifact at most 35 MB met")
    assert [met for _, met in targets(result(1.31, 4.1, 35_000_001))] == [False, False, False]
    assert "curve / hello at most 4 MISSED" in markdown(result(warm=4.1))


def test_an_artifact_that_was_not_built_has_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without wheels the table says why, and nothing is said of the target."""

    def fail(arch: str) -> None:
        raise SpecdecError("FAILED", "pip could not install the locked packages")

    monkeypatch.setattr(coldstart, "assemble", fail)
    sizes = coldstart.sizes()
    assert sizes.keys() == {"arm64", "x86_64"}
    page = markdown({**result(), "artifact": sizes})
    assert "| arm64 | not built: pip could not install the locked packages |" in page
    assert "35 MB" not in page


def test_processes_answer_what_is_compared(tmp_path: Path) -> None:
    """Each way starts; the edge's answer is health's of a tower that refuses, the last one also makes a curve."""
    with refusing() as tower_url:
        machine = coldstart._Machine(tmp_path, tower_url)
        said = {way: machine.cold(way) for way in WAYS}
        taken = machine.warm("signed", 1)
    assert said["reference"]["body"] == {"message": "hello world", "times": 4}
    for way in WAYS[1:]:
        assert said[way]["body"]["same_family_pair"] == {"found": False, "reason": "tower unreachable"}
        assert said[way]["body"]["measured_run_possible"] is False
    assert [len(one["peak_kib"]) for one in said.values()] == [1, 1, 1, 2]
    assert all(
        one["import_s"] > 0 < one["answer_s"] and min(one["peak_kib"]) > 10_000 for one in said.values()
    )
    assert {way: len(seconds) for way, seconds in taken.items()} == {"curve": 1, "hello": 1}
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    # What production does is done: each curve has its log line.
    assert [line["route"] for line in log] == ["/curve"] * 2 * coldstart.BATCH


def test_a_process_that_fails_is_an_error(tmp_path: Path) -> None:
    """No time is given for an answer that was none."""
    with refusing() as tower_url:
        machine = coldstart._Machine(tmp_path, tower_url)
        machine._settings["edge"] = {"SPECDEC_K": "none"}
        with pytest.raises(RuntimeError, match="SPECDEC_K must be an integer"):
            machine.cold("edge")


def test_events_are_those_of_the_tests() -> None:
    """Both sides answer one and the same kind of event; only the reference's path is another."""
    health, hello = event("health"), hello_event()
    assert health["rawPath"].endswith("/health") and hello["rawPath"] == "/hello"
    assert health.keys() == hello.keys() and health["headers"] == hello["headers"]
