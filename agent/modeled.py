"""What a measurement says beside its counts and timings: calibration, prediction, residuals, tests of the model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agent.calibration import Calibration
from agent.timing import Timed
from shared import labels
from shared.curve import best_k, expected_tokens, predicted_curve, predicted_speedup
from shared.estimators import Counts, Step, accepted_rate, accepted_rate_ci95, after_full_acceptance
from shared.iid import iid_test
from shared.intervals import martingale_z, sum_min_ci95


def calibration_block(calibration: Calibration, k: int, all_accepted: float) -> dict[str, Any]:
    """Returns the costs as the receipt states them; c is the draft's cost per token at this k."""
    costs = calibration.costs
    return {
        "cost_ratio": costs.cost_ratio(k, all_accepted),
        "verify_cost": list(costs.verify),
        "measured_at": calibration.measured_at,
        "draft": {
            "first": costs.first,
            "warming": list(costs.warming),
            "following": costs.following,
            "catch_up": costs.catch_up,
            "width_change": costs.draft_width_change,
            "k": k,
            "after_full_acceptance": all_accepted,
        },
        "width_change": costs.width_change,
        "target_pass_s": calibration.target_s,
        "context": calibration.context,
        "rounds": calibration.rounds,
        "undisturbed": calibration.quiet,
    }


def prediction(
    calibration: Calibration | None,
    counts: Counts,
    steps: Sequence[Step],
    timed: Timed,
    alpha: float | None,
    *,
    adaptive: bool,
) -> dict[str, Any]:
    """Returns calibration, `speedup_predicted`, `predicted_curve`, `recommended_k` and `residuals`, or nulls.

    Args:
        calibration: Measured costs, if there are any.
        counts: The run's counts.
        steps: Its steps.
        timed: Its timings.
        alpha: The acceptance rate that predictions rest on.
        adaptive: Whether the draft length varied, so that no single k is predicted.
    """
    empty = dict.fromkeys(
        ("calibration", "speedup_predicted", "predicted_curve", "recommended_k", "residuals")
    )
    if calibration is None:
        return empty
    k = labels.DEFAULT_K if adaptive else counts.k
    if k > calibration.costs.max_k:
        return empty
    all_accepted = (alpha or 0.0) ** k if adaptive else after_full_acceptance(steps)
    block = calibration_block(calibration, k, all_accepted)
    if alpha is None:
        return {**empty, "calibration": block}
    curve = predicted_curve(alpha, calibration.costs)
    result = {
        **empty,
        "calibration": block,
        "predicted_curve": {"label": labels.MODELED, "speedup": curve},
        "recommended_k": best_k(curve),
    }
    if not adaptive:
        value = predicted_speedup(alpha, k, block["cost_ratio"], block["verify_cost"])
        result["speedup_predicted"] = {"label": labels.MODELED, "value": value}
        result["residuals"] = _residuals(calibration, counts, timed, alpha, all_accepted)
    return result


def _residuals(
    calibration: Calibration, counts: Counts, timed: Timed, alpha: float, all_accepted: float
) -> dict[str, Any]:
    predicted = calibration.costs.step(counts.k, all_accepted)
    measured = ratio = None
    if timed.speculative_s and timed.repeatable:
        step = statistics.median(timed.speculative_s) / counts.n
        unit = statistics.median(timed.target_only_s) / counts.emitted
        measured, ratio = step / unit, predicted * unit / step
    expected, seen = expected_tokens(alpha, counts.k), counts.emitted / counts.n
    return {
        "cost": {"predicted": predicted, "measured": measured, "ratio": ratio},
        "tokens": {"expected": expected, "seen": seen, "ratio": expected / seen},
    }


def iid_block(steps: Sequence[Step]) -> dict[str, Any]:
    """Returns the test of the i.i.d. assumption behind every modeled number."""
    return asdict(iid_test(steps))


def sum_min_block(betas: Sequence[Sequence[float]], accepted: int) -> dict[str, Any] | None:
    """Returns the low-variance estimate of alpha from the distributions themselves, None if nothing was examined."""
    flat = [beta for step in betas for beta in step]
    if not flat:
        return None
    estimate = sum_min_ci95([(sum(step), len(step)) for step in betas])
    return {
        "label": labels.MEASURED,
        "value": sum(flat) / len(flat),
        "ci95": None if estimate is None else list(estimate[1:]),
        "examined": len(flat),
        "z": martingale_z(accepted, flat),
    }


def alpha_block(counts: Counts) -> dict[str, Any]:
    """Returns the alpha of fixed-length steps made beside an adaptive run, whose own counts cannot estimate it."""
    interval = accepted_rate_ci95(counts.accepted, counts.rejections)
    return {
        "label": labels.MEASURED,
        "value": accepted_rate(counts.accepted, counts.rejections),
        "ci95": None if interval is None else list(interval),
        "source": f"{counts.n} steps of {counts.k} draft tokens each, beside the measured ones",
        "k": counts.k,
        "accepted": counts.accepted,
        "rejections": counts.rejections,
    }
