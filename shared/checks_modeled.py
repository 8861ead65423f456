"""Whether what a measurement derives from its steps and costs is what they give: step lists, tests, predictions."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from typing import Any

from shared.closeness import close, close_or_rounded
from shared.curve import StepCosts, best_k, expected_tokens, predicted_curve, predicted_speedup
from shared.errors import SpecdecError
from shared.estimators import (
    Step,
    accepted_rate,
    accepted_rate_ci95,
    after_full_acceptance,
    summarise,
    unconditional_acceptance,
)
from shared.iid import iid_test
from shared.schemas import Calibration, DraftCosts, Measurement


def steps_of(m: Measurement) -> list[Step] | None:
    """Returns the steps that `per_step` and the sums tell of, None if there is no list or no such steps."""
    if m.per_step is None or len(m.per_step.drafted) != m.n or len(m.per_step.accepted) != m.n:
        return None
    pairs = list(zip(m.per_step.drafted, m.per_step.accepted, strict=True))
    # Only an accepted end of text, which ends the last step, is followed by no token of the target's own.
    ended = m.accepted + m.n - m.emitted == 1
    return [
        Step(drafted, accepted, False, accepted)
        if ended and i == m.n - 1
        else Step(drafted, accepted, accepted < drafted, accepted + 1)
        for i, (drafted, accepted) in enumerate(pairs)
    ]


def check_steps(m: Measurement) -> list[str]:
    """Compares sums, histogram and rates with the list of steps; an adaptive run must have one."""
    if m.per_step is None:
        return (
            ["per_step is missing, and an adaptive run cannot be checked without"]
            if m.k_requested == "auto"
            else []
        )
    steps = steps_of(m)
    if steps is None:
        return ["per_step must have one entry per step"]
    try:
        counts = summarise(steps, m.k)
    except SpecdecError:
        return ["per_step has a step that cannot be"]
    findings = []
    whole = [step.drafted == m.k for step in steps]
    if m.mode == "linear" and not (all(whole[:-1]) and (whole[-1:] != [False] or m.stopped is not None)):
        findings.append("per_step.drafted is not k in every step but a last one that was cut short")
    for name in ("drafted", "accepted", "rejections", "emitted"):
        if getattr(m, name) != getattr(counts, name):
            findings.append(f"{name} is not what per_step gives")
    if m.accepted + m.n - m.emitted == 1 and m.stopped != "end_of_text":
        findings.append("emitted is one short of what per_step gives, and stopped is not end_of_text")
    if tuple(m.acceptance_histogram) != counts.acceptance_histogram:
        findings.append("acceptance_histogram is not what per_step gives")
    if not _close_lists(m.conditional_acceptance, counts.conditional):
        findings.append("conditional_acceptance is not what per_step gives")
    if (
        m.iid is not None
        and m.mode == "linear"
        and not _same_facts(m.iid.model_dump(), asdict(iid_test(steps)))
    ):
        findings.append("iid is not the test of per_step")
    return findings


def check_derived(m: Measurement) -> list[str]:
    """Recomputes the other rates, alpha, costs, predictions and residuals."""
    findings = []
    if m.unconditional_acceptance is not None and not _close_lists(
        m.unconditional_acceptance, unconditional_acceptance(m.acceptance_histogram)
    ):
        findings.append("unconditional_acceptance is not what acceptance_histogram gives")
    if m.k_requested == "auto":
        if m.accepted_rate is not None or m.accepted_rate_ci95 is not None:
            findings.append("accepted_rate must be null when drafts were stopped by confidence")
        if m.iid is not None or m.speedup_predicted is not None or m.residuals is not None:
            findings.append("iid, speedup_predicted and residuals must be null when the draft length varied")
    if m.iid is not None and m.per_step is None:
        findings.append("iid has no per_step behind it")
    if m.sum_min is not None and m.sum_min.examined != m.accepted + m.rejections:
        findings.append("sum_min.examined is not accepted + rejections")
    alpha = m.alpha
    if alpha is not None:
        wilson = accepted_rate_ci95(alpha.accepted, alpha.rejections)
        if not close(alpha.value, accepted_rate(alpha.accepted, alpha.rejections)):
            findings.append("alpha.value is not accepted / (accepted + rejections) of its own steps")
        if (wilson is None) != (alpha.ci95 is None) or not _close_lists(alpha.ci95 or [], wilson or []):
            findings.append("alpha.ci95 is not the Wilson interval of its own counts")
    if m.k_requested == "auto":
        return findings + _predictions(m, None if alpha is None else alpha.value)
    return findings + _predictions(m, m.accepted_rate)


def _predictions(m: Measurement, alpha: float | None) -> list[str]:
    calibration, findings = m.calibration, []
    length = len(calibration.verify_cost) if calibration else 0
    if m.recommended_k is not None and m.recommended_k >= length:
        findings.append("recommended_k has no calibration behind it")
    if m.speedup_predicted is not None:
        if calibration is None or m.accepted_rate is None or length <= m.k:
            findings.append("speedup_predicted has no calibration behind it")
        elif not close_or_rounded(
            m.speedup_predicted.value,
            predicted_speedup(m.accepted_rate, m.k, calibration.cost_ratio, calibration.verify_cost),
        ):
            findings.append("speedup_predicted is not what calibration and accepted_rate give")
    costs = _costs(calibration)
    if costs is None or calibration is None or calibration.draft is None:
        if m.predicted_curve is not None or m.residuals is not None:
            findings.append("predicted_curve and residuals need calibration.draft")
        return findings
    parts = calibration.draft
    if (parts.width_change or 0.0) > parts.catch_up:
        return [*findings, "calibration.draft.width_change is more than the catch_up it is part of"]
    if not close(calibration.cost_ratio, costs.cost_ratio(parts.k, parts.after_full_acceptance)):
        findings.append("calibration.cost_ratio is not what calibration.draft gives")
    findings += _draft_pattern(m, parts, alpha)
    if not math.isclose(calibration.verify_cost[0], 1.0):
        findings.append("calibration.verify_cost must begin with 1")
    if m.predicted_curve is not None:
        expected = None if alpha is None else predicted_curve(alpha, costs)
        if expected is None or not _close_lists(m.predicted_curve.speedup, expected):
            findings.append("predicted_curve is not what calibration and alpha give")
        elif m.recommended_k != best_k(expected):
            findings.append("recommended_k is not the best k of predicted_curve")
    return findings + _residuals(m, costs)


def _draft_pattern(m: Measurement, parts: DraftCosts, alpha: float | None) -> list[str]:
    """Compares k and the share of fully accepted steps, which c is for, with the run's own, or the model's."""
    findings = []
    if m.mode == "adaptive":
        share: float | None = (alpha or 0.0) ** parts.k
    else:
        steps = steps_of(m)
        share = None if steps is None else after_full_acceptance(steps)
        if parts.k != m.k:
            findings.append("calibration.draft.k is not k")
    if share is not None and not close(parts.after_full_acceptance, share):
        findings.append("calibration.draft.after_full_acceptance is not what per_step or alpha gives")
    return findings


def _costs(calibration: Calibration | None) -> StepCosts | None:
    if calibration is None or calibration.draft is None:
        return None
    parts = calibration.draft
    return StepCosts(
        first=parts.first,
        following=parts.following,
        catch_up=parts.catch_up,
        verify=tuple(calibration.verify_cost),
        warming=tuple(parts.warming),
        draft_width_change=parts.width_change or 0.0,
    )


def _residuals(m: Measurement, costs: StepCosts) -> list[str]:
    if m.residuals is None:
        return []
    steps, cost, tokens = steps_of(m), m.residuals.cost, m.residuals.tokens
    if m.accepted_rate is None or steps is None or m.k > costs.max_k or not m.emitted:
        return ["residuals have no alpha, steps or costs behind them"]
    findings = []
    if not close(cost.predicted, costs.step(m.k, after_full_acceptance(steps))):
        findings.append("residuals.cost.predicted is not what calibration and per_step give")
    if cost.measured is not None:
        if m.timing is None or not m.timing.speculative_s or not m.timing.target_only_s:
            findings.append("residuals.cost.measured has no timing behind it")
        else:
            unit = statistics.median(m.timing.target_only_s) / m.emitted
            step = statistics.median(m.timing.speculative_s) / m.n
            if not unit or not close(cost.measured, step / unit):  # a unit may be too small for a float
                findings.append("residuals.cost.measured is not what timing gives")
    ratio = None if cost.measured is None else cost.predicted / cost.measured
    if not close(cost.ratio, ratio):
        findings.append("residuals.cost.ratio is not predicted / measured")
    expected, seen = expected_tokens(m.accepted_rate, m.k), m.emitted / m.n
    if not all(map(close, (tokens.expected, tokens.seen, tokens.ratio), (expected, seen, expected / seen))):
        findings.append("residuals.tokens is not what accepted_rate and the counts give")
    return findings


def _same_facts(given: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(
        given[name] == value if isinstance(value, str) else close(given[name], value)
        for name, value in expected.items()
    )


def _close_lists(given: Any, expected: Any) -> bool:
    return len(given) == len(expected) and all(map(close, given, expected))
