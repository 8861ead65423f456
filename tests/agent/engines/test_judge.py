"""Tests of `agent.engines.judge`: what pairs of completions allow to say, over made-up ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import measure
from agent.engines.engine import Completion
from agent.engines.judge import (
    CONTRADICTED,
    DECODE,
    EXCLUDED,
    MIN_PAIRS,
    UNVERIFIABLE,
    WALL,
    Comparison,
    Pair,
    judge,
)
from shared import labels
from shared.estimators import median_interval

SPECULATIVE = Completion(
    "text",
    tokens=11,
    wall_s=3.0,
    decode_s=1.0,
    drafted=12,
    accepted=6,
    drafts=4,
    accepted_per_position=(3, 2, 1),
)
PLAIN = Completion("text", tokens=11, wall_s=4.0, decode_s=2.0, drafted=0, accepted=0)


def pair(
    prompt: int = 0, speculative: dict[str, Any] | None = None, plain: dict[str, Any] | None = None
) -> Pair:
    """Return a pair, changed as told."""
    return Pair(prompt, replace(SPECULATIVE, **(speculative or {})), replace(PLAIN, **(plain or {})))


def judged(*pairs: Pair) -> Comparison:
    """Judge pairs, the first of which is the warm-up as well."""
    return judge(pairs[0], pairs, counts={"pairs": len(pairs)}, engines={})


def figures(report: Comparison) -> list[Any]:
    """Return everything that may be a figure."""
    return [report.label, report.speedup, report.draft_acceptance, report.tokens_per_second]


def test_six_good_pairs() -> None:
    """Six equal pairs give every figure, exactly."""
    report = judged(*[pair() for _ in range(6)])
    speedup = {"label": labels.MEASURED, "median": 2.0, "ci95": [2.0, 2.0], "pairs": 6, "basis": DECODE}
    assert report.speedup == speedup
    assert report.draft_acceptance == {
        "label": labels.MEASURED,
        "rate": 0.5,
        "drafted": 72,
        "accepted": 36,
        "drafts": 24,
        "mean_accepted_len": 2.5,
        "accepted_per_position": [18, 12, 6],
    }
    # Ten tokens follow the first.
    assert report.tokens_per_second == {
        "label": labels.MEASURED,
        "basis": DECODE,
        "speculative": 10,
        "plain": 5,
    }
    assert report.quality == {"label": labels.LOSSLESS, "identical_rate": 1, "compared": 6}
    assert report.synthetic_acceptance["status"] == EXCLUDED
    assert (report.label, report.reasons) == (labels.MEASURED, [])


def test_five_pairs_are_too_few() -> None:
    """Five pairs give acceptance and rates but no speed-up; six is the number our own measurement asks for."""
    report = judged(*[pair() for _ in range(5)])
    assert (report.label, report.speedup) == (labels.UNAVAILABLE, labels.UNAVAILABLE)
    assert report.reasons == ["fewer than 6 timed pairs"]
    assert isinstance(report.draft_acceptance, dict) and isinstance(report.tokens_per_second, dict)
    assert MIN_PAIRS == measure.MIN_PAIRS
    assert median_interval([1.0] * MIN_PAIRS) and not median_interval([1.0] * (MIN_PAIRS - 1))


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=6, max_size=12))
def test_the_speedup_is_the_median_of_the_pairs_ratios(times: list[tuple[float, float]]) -> None:
    """Each pair counts by its own ratio, whatever the others took."""
    report = judged(*[pair(0, {"decode_s": ours}, {"decode_s": alone}) for ours, alone in times])
    expected = median_interval([alone / ours for ours, alone in times])
    assert expected is not None and isinstance(report.speedup, dict)
    assert (report.speedup["median"], *report.speedup["ci95"]) == expected
    wide = expected[2] - expected[1] > expected[0] / 2
    assert wide == ("the interval of the speed-up is wider than half its median" in report.reasons)


@pytest.mark.parametrize("missing", [{"speculative": {"decode_s": None}}, {"plain": {"decode_s": None}}])
def test_wall_clock_where_one_server_tells_no_decode_time(missing: dict[str, Any]) -> None:
    """One completion without a decode time puts all pairs on wall clock: nothing is mixed."""
    report = judged(*[pair() for _ in range(5)], pair(**missing))
    assert isinstance(report.speedup, dict) and isinstance(report.tokens_per_second, dict)
    assert (report.speedup["basis"], report.speedup["median"]) == (WALL, pytest.approx(4 / 3))
    assert report.tokens_per_second["plain"] == pytest.approx(11 / 4)


def test_pairs_that_differ_are_left_out() -> None:
    """Times and counts are of pairs with equal texts; the others are counted as differing, and it is said why."""
    odd = pair(1, {"text": "another", "decode_s": 100.0, "drafted": 1000, "accepted": 0})
    report = judged(*[pair() for _ in range(6)], odd, odd)
    assert isinstance(report.speedup, dict) and (report.speedup["median"], report.speedup["pairs"]) == (2, 6)
    assert isinstance(report.draft_acceptance, dict) and report.draft_acceptance["drafted"] == 72
    assert report.quality == {"label": labels.MEASURED, "identical_rate": 0.75, "compared": 8}
    assert report.synthetic_acceptance["status"] == UNVERIFIABLE
    assert report.reasons == [labels.OUTPUT_DIFFERS]


def test_too_many_that_differ() -> None:
    """With fewer than half of the texts equal there are no figures at all."""
    odd = pair(1, {"text": "another"})
    report = judged(*[pair() for _ in range(6)], *[odd] * 7)
    assert figures(report) == [labels.UNAVAILABLE] * 4
    assert any("only 6 of 13" in reason for reason in report.reasons)


@pytest.mark.parametrize(
    "change", [{"text": "other"}, {"tokens": 10}, {"accepted": 5}, {"drafted": 13}], ids=str
)
def test_greedy_repeats_that_differ(change: dict[str, Any]) -> None:
    """A greedy server that gives another text or other counts for the same prompt is not relied on."""
    report = judged(
        *[pair(number % 3) for number in range(6)], pair(2, change, change if "text" in change else {})
    )
    assert report.synthetic_acceptance["status"] == CONTRADICTED
    assert figures(report) == [labels.UNAVAILABLE] * 4
    assert any("synthetic" in reason for reason in report.reasons)


def test_the_warm_up_counts_as_a_repeat_only() -> None:
    """The warm-up's counts and times are in no figure, but it must agree with the first pair."""
    slow = pair(0, {"decode_s": 50.0}, {"decode_s": 1.0})
    agreeing = judge(slow, [pair() for _ in range(6)], counts={}, engines={})
    assert isinstance(agreeing.speedup, dict) and agreeing.speedup["ci95"] == [2, 2]
    contradicting = judge(pair(0, {"accepted": 7}), [pair() for _ in range(6)], counts={}, engines={})
    assert contradicting.synthetic_acceptance["status"] == CONTRADICTED


def test_a_plain_server_that_does_not_repeat_itself() -> None:
    """A baseline that says something else each time cannot tell what is right."""
    report = judged(*[pair() for _ in range(6)], pair(0, {}, {"text": "x"}))
    assert "the plain server does not repeat itself, although greedy" in report.reasons
    assert report.speedup == labels.UNAVAILABLE


@pytest.mark.parametrize("side", ["speculative", "plain"])
def test_a_disturbed_completion(side: str) -> None:
    """Other traffic during one completion leaves no figure, and is the one reason told."""
    lost = {"disturbed": "other traffic on the server", "no_counts": "x", "drafted": None, "accepted": None}
    odd = pair(0, speculative=lost) if side == "speculative" else pair(0, plain=lost)
    report = judged(*[pair() for _ in range(8)], odd)
    assert figures(report) == [labels.UNAVAILABLE] * 4
    assert report.reasons == ["other traffic on the server"]


def test_no_counts() -> None:
    """A server without counts gives a speed-up and no acceptance, with the reason."""
    lost = {"no_counts": "why", "drafted": None, "accepted": None, "drafts": None}
    report = judged(*[pair(0, lost) for _ in range(6)])
    assert isinstance(report.speedup, dict)
    assert (report.draft_acceptance, report.reasons) == (labels.UNAVAILABLE, ["why"])
    assert report.synthetic_acceptance["status"] == EXCLUDED


def test_counts_without_drafts() -> None:
    """Where drafts or positions are not known, what follows from them is None."""
    report = judged(*[pair(0, {"drafts": None, "accepted_per_position": None}) for _ in range(6)])
    assert isinstance(report.draft_acceptance, dict) and report.draft_acceptance["rate"] == 0.5
    for name in ("drafts", "mean_accepted_len", "accepted_per_position"):
        assert report.draft_acceptance[name] is None


def test_a_draft_that_is_never_accepted() -> None:
    """Never accepting anything looks like acceptance that is switched off: no figures."""
    report = judged(*[pair(0, {"accepted": 0}) for _ in range(6)])
    assert report.synthetic_acceptance["status"] == UNVERIFIABLE
    assert figures(report) == [labels.UNAVAILABLE] * 4


def test_a_server_that_drafts_nothing() -> None:
    """Without drafts there is no acceptance, and the reason says so."""
    report = judged(*[pair(0, {"drafted": 0, "accepted": 0}) for _ in range(6)])
    assert report.draft_acceptance == labels.UNAVAILABLE
    assert report.reasons == ["the speculative server drafted nothing"]


def test_ids_decide_where_both_tell_them() -> None:
    """Token ids are compared rather than text where both servers tell them."""
    assert pair(0, {"token_ids": (1, 2), "text": "a"}, {"token_ids": (1, 2), "text": "b"}).identical
    assert not pair(0, {"token_ids": (1, 2)}, {"token_ids": (1, 3)}).identical
    assert pair(0, {"token_ids": (1, 2)}).identical


def test_completions_of_one_token_are_not_timed() -> None:
    """A single token comes from the prefill: there is nothing to time."""
    report = judged(*[pair(0, {"tokens": 1}, {"tokens": 1}) for _ in range(6)])
    assert (report.speedup, report.tokens_per_second) == (labels.UNAVAILABLE, labels.UNAVAILABLE)
