"""Tests of `agent.modeled`: what follows from known costs, steps, timings and betas, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agent.calibration import Calibration
from agent.modeled import alpha_block, calibration_block, iid_block, prediction, sum_min_block
from agent.timing import Timed
from shared import labels
from shared.curve import StepCosts
from shared.estimators import Step, summarise

COSTS = StepCosts(
    first=0.5,
    following=0.125,
    catch_up=0.125,
    verify=(1.0, 1.125, 1.25, 1.5, 2.0),
    width_change=0.0625,
    draft_width_change=0.125,
)
KNOWN = Calibration(COSTS, 0.01, 128, 5, True, "2026-01-01T00:00:00Z", 0.0)
STEPS = [Step(2, 2, False, 3), Step(2, 1, True, 2), Step(2, 2, False, 3), Step(2, 0, True, 1)]
COUNTS = summarise(STEPS, 2)
NAMES = {"calibration", "speedup_predicted", "predicted_curve", "recommended_k", "residuals"}


def timed(speculative: list[float], alone: list[float], *, repeatable: bool = True) -> Timed:
    """Timings as if measured."""
    times = Timed(forced=False)
    times.speculative_s, times.target_only_s, times.repeatable = speculative, alone, repeatable
    return times


def predict(alpha: float | None = 5 / 7, times: Timed | None = None, **changes: Any) -> dict[str, Any]:
    """The prediction for the steps above."""
    arguments = {"calibration": KNOWN, "counts": COUNTS, "steps": STEPS, "adaptive": False, **changes}
    return prediction(timed=times or timed([], []), alpha=alpha, **arguments)


def test_without_calibration_nothing_is_predicted() -> None:
    """Without costs each field is null."""
    for adaptive in (False, True):
        assert predict(calibration=None, adaptive=adaptive) == dict.fromkeys(NAMES)


def test_fixed_length_by_hand() -> None:
    """The cost ratio is the draft's cost per token at this run's share of full acceptances; the rest follows."""
    told = predict(0.5)
    drafting = 0.5 + 0.5 * (0.125 + 0.125) + 0.125  # two of four steps follow a fully accepted one
    assert told.keys() == NAMES
    assert told["calibration"] == {
        "cost_ratio": drafting / 2,
        "verify_cost": [1.0, 1.125, 1.25, 1.5, 2.0],
        "measured_at": "2026-01-01T00:00:00Z",
        "draft": {
            "first": 0.5,
            "warming": [],
            "following": 0.125,
            "catch_up": 0.125,
            "width_change": 0.125,
            "k": 2,
            "after_full_acceptance": 0.5,
        },
        "width_change": 0.0625,
        "target_pass_s": 0.01,
        "context": 128,
        "rounds": 5,
        "undisturbed": True,
    }
    assert told["speedup_predicted"] == {"label": labels.MODELED, "value": 1.75 / (drafting + 1.25)}
    assert told["predicted_curve"] == {
        "label": labels.MODELED,
        "speedup": [
            1.0,
            1.5 / (0.5 + 0.0625 + 1.125),
            1.75 / (0.625 + 0.0625 + 1.25),
            1.875 / (0.75 + 0.03125 + 1.5),
            1.9375 / (0.875 + 0.015625 + 2.0),
        ],
    }
    assert told["recommended_k"] == 0


def test_an_alpha_that_pays_is_recommended_its_k() -> None:
    """With everything accepted the longest draft that pays is recommended."""
    curve = predict(1.0)["predicted_curve"]["speedup"]
    assert curve == [1.0, 2 / 1.625, 3 / 2.125, 4 / 2.5, 5 / 3.125]
    assert predict(1.0)["recommended_k"] == 3  # 1.6 on a tie with k = 4, the smaller


def test_residuals_by_hand() -> None:
    """A step's measured cost is its time over the target's time per token, medians both."""
    residuals = predict(0.5, timed([4.0, 8.0, 8.0], [9.0, 9.0, 18.0]))["residuals"]
    # 8 s / 4 steps = 2 s a step; 9 s / 9 tokens = 1 s a token
    assert residuals == {
        "cost": {"predicted": 2.0, "measured": 2.0, "ratio": 1.0},
        "tokens": {"expected": 1.75, "seen": 9 / 4, "ratio": 1.75 / (9 / 4)},
    }
    slower = predict(0.5, timed([16.0], [9.0]))["residuals"]["cost"]
    assert slower == {"predicted": 2.0, "measured": 4.0, "ratio": 0.5}


@pytest.mark.parametrize("times", [timed([], []), timed([4.0], [9.0], repeatable=False)])
def test_residuals_without_timing(times: Timed) -> None:
    """Where nothing was timed, or repeats differed, a step's cost is predicted and not compared."""
    residuals = predict(0.5, times)["residuals"]
    assert residuals["cost"] == {"predicted": 2.0, "measured": None, "ratio": None}
    assert residuals["tokens"]["expected"] == 1.75


@pytest.mark.parametrize(("adaptive", "share"), [(False, 0.5), (True, 0.0)])
def test_without_alpha_there_are_costs_alone(adaptive: bool, share: float) -> None:
    """Without an acceptance rate the costs are told and nothing is predicted from them."""
    told = predict(None, adaptive=adaptive)
    assert {name for name in NAMES if told[name] is not None} == {"calibration"}
    draft = told["calibration"]["draft"]
    assert (draft["k"], draft["after_full_acceptance"]) == (4 if adaptive else 2, share)


def test_a_draft_longer_than_the_costs_reach() -> None:
    """A k whose verifying pass was not measured has no prediction, and its costs are not told."""
    steps = [Step(5, 3, True, 4)] * 3
    assert predict(counts=summarise(steps, 5), steps=steps) == dict.fromkeys(NAMES)
    short = Calibration(StepCosts(0.5, 0.1, 0.0, (1.0, 1.1)), 0.01, 128, 5, True, "now", 0.0)
    assert predict(calibration=short, adaptive=True) == dict.fromkeys(NAMES)
    steps = [Step(4, 3, True, 4)] * 3
    assert predict(counts=summarise(steps, 4), steps=steps)["speedup_predicted"] is not None


def test_adaptive_by_hand() -> None:
    """With a varying length no single k is predicted: c is for the default k, under the model at this alpha."""
    told = predict(0.5, timed([4.0], [9.0]), adaptive=True)
    assert (told["speedup_predicted"], told["residuals"]) == (None, None)
    draft = told["calibration"]["draft"]
    assert (draft["k"], draft["after_full_acceptance"]) == (labels.DEFAULT_K, 0.5**4)
    assert told["calibration"]["cost_ratio"] == (0.5 + 0.0625 * 0.25 + 3 * 0.125) / 4
    assert told["predicted_curve"] == predict(0.5)["predicted_curve"]
    assert told["recommended_k"] == predict(0.5)["recommended_k"]


def test_calibration_block_tells_warming_passes() -> None:
    """Warming passes are told, and are part of c."""
    warm = StepCosts(0.5, 0.125, 0.25, COSTS.verify, warming=(0.375,))
    block = calibration_block(Calibration(warm, 0.01, 128, 5, False, "now", 0.0), 3, 0.0)
    assert block["draft"]["warming"] == [0.375]
    assert block["cost_ratio"] == (0.5 + 0.375 + 0.125) / 3
    assert block["undisturbed"] is False


def test_sum_min_by_hand() -> None:
    """The value is the mean over all examined tokens; z sets the accepted against their expectation."""
    block = sum_min_block([[0.5, 0.75], [0.25], [], [0.5]], accepted=3)
    assert block is not None
    assert (block["label"], block["value"], block["examined"]) == (labels.MEASURED, 0.5, 4)
    assert block["ci95"] is None  # four steps are too few
    assert block["z"] == pytest.approx((3 - 2) / math.sqrt(0.25 + 0.1875 + 0.1875 + 0.25))


def test_sum_min_interval() -> None:
    """With steps enough and a spread between them there is an interval around the value."""
    block = sum_min_block([[0.5, 0.9], [0.8]] * 10, accepted=22)
    assert block is not None and block["ci95"] is not None
    low, high = block["ci95"]
    assert block["value"] == pytest.approx(22 / 30)
    assert 0 < low < block["value"] < high < 1
    certain = sum_min_block([[1.0, 1.0]] * 12, accepted=24)
    assert certain is not None
    assert (certain["value"], certain["ci95"], certain["z"]) == (1.0, None, None)


@pytest.mark.parametrize("betas", [[], [[], []]])
def test_sum_min_of_nothing(betas: list[list[float]]) -> None:
    """Where nothing was examined there is nothing to tell."""
    assert sum_min_block(betas, accepted=0) is None


def test_alpha_by_hand() -> None:
    """Alpha is accepted / examined of the fixed steps, with Wilson's interval and where it comes from."""
    block = alpha_block(COUNTS)
    low, high = block.pop("ci95")
    assert block == {
        "label": labels.MEASURED,
        "value": 5 / 7,
        "source": "4 steps of 2 draft tokens each, beside the measured ones",
        "k": 2,
        "accepted": 5,
        "rejections": 2,
    }
    z2 = 1.959963984540054**2
    for end in (low, high):  # the ends are where the score test is at its limit
        assert (5 / 7 - end) ** 2 == pytest.approx(z2 * end * (1 - end) / 7)
    assert low < 5 / 7 < high


def test_alpha_of_nothing_examined() -> None:
    """Steps that examined nothing have neither an alpha nor an interval."""
    block = alpha_block(summarise([Step(0, 0, False, 1)], 4))
    assert (block["value"], block["ci95"], block["accepted"], block["rejections"]) == (None, None, 0, 0)


def test_iid_block_is_json() -> None:
    """The test of the model is told field by field."""
    block = iid_block(STEPS)
    assert block["conclusion"] == "too few steps"
    assert set(block) == {
        "position_statistic",
        "position_df",
        "position_p",
        "serial_statistic",
        "serial_p",
        "p_value",
        "conclusion",
    }
