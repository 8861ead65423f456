"""Whether a measurement agrees with itself and with what was asked.

A tower's numbers are redundant: rates follow from counts, counts from the histogram, the median from the
timings. Every redundancy is recomputed here, before anything is signed and again when a receipt is verified.
A finding names the field that does not fit and never holds a value.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Final

from shared import labels
from shared.canonical import CanonicalError, canonical_bytes, sha3_256_hex
from shared.checks_energy import check_energy, check_gpu
from shared.checks_modeled import check_derived, check_steps
from shared.closeness import close, close_or_rounded
from shared.estimators import (
    MIN_STEPS,
    WIDEST_INTERVAL,
    accepted_rate,
    accepted_rate_ci95,
    draft_acceptance_rate,
    mean_accepted_len,
    median_interval,
)
from shared.schemas import Measurement, SpeedupMeasured
from shared.wire import ResultFrame

_DIVERGED: Final = (labels.DIVERGED_TIE, labels.DIVERGED_FAULT)


def check_result(result: ResultFrame, *, run_id: str, nonce: str, bound_request: dict[str, Any]) -> list[str]:
    """Check a result frame against the request that was made.

    Args:
        result: The frame.
        run_id: The run id that was sent.
        nonce: The nonce that was sent.
        bound_request: The request with defaults filled in and its prompt replaced by the commitment.

    Returns:
        One sentence per contradiction; empty when everything fits.
    """
    findings = []
    if result.run_id != run_id:
        findings.append("run_id is not the one that was sent")
    if result.nonce != nonce:
        findings.append("nonce is not the one that was sent")
    if not _same_json(result.request, bound_request):
        findings.append("request is not the one that was sent")
    measurement = result.measurement
    if measurement.k_requested != bound_request.get("k"):
        findings.append("measurement.k_requested is not the k that was asked for")
    if measurement.n_requested != bound_request.get("n"):
        findings.append("measurement.n_requested is not the n that was asked for")
    sampled = bound_request.get("temperature") != 0.0
    if sampled != (measurement.quality.label == labels.SAMPLED):
        findings.append("measurement.quality.label does not fit the temperature that was asked for")
    if bound_request.get("ignore_eos") and measurement.stopped == "end_of_text":
        findings.append("measurement.stopped is end_of_text, which was to be ignored")
    if result.output is not None:
        if not bound_request.get("include_output"):
            findings.append("output was not asked for")
        if "\ufffd" not in result.output and not _names(result.output_sha3_256, result.output):
            findings.append("output is not the text that output_sha3_256 names")
    findings += [f"measurement.{finding}" for finding in check_measurement(measurement)]
    return findings + [f"energy.{finding}" for finding in check_energy(result.energy, measurement)]


def check_measurement(measurement: Measurement) -> list[str]:
    """Check a measurement against itself.

    Returns:
        One sentence per contradiction, each starting with the field's name; empty when everything fits.
    """
    findings = _counts(measurement)
    if not findings:  # rates of wrong counts would only repeat the finding
        findings = check_steps(measurement) or (_steps(measurement) if measurement.mode == "linear" else [])
        findings += _rates(measurement)
    for part in (_context, _speedup, _timing, check_derived, _quality, _verdict, check_gpu):
        findings += part(measurement)
    return findings


def _counts(m: Measurement) -> list[str]:
    findings = []
    if m.k != m.k_requested and m.k_requested != "auto":
        findings.append("k is not k_requested")
    if (m.k_requested == "auto") != (m.mode == "adaptive"):
        findings.append("mode must be adaptive exactly when k_requested is auto")
    if len(m.acceptance_histogram) != m.k + 1:
        findings.append("acceptance_histogram must have k + 1 entries")
    if len(m.conditional_acceptance) != m.k:
        findings.append("conditional_acceptance must have k entries")
    if sum(m.acceptance_histogram) != m.n:
        findings.append("acceptance_histogram does not sum to n")
    if sum(a * steps for a, steps in enumerate(m.acceptance_histogram)) != m.accepted:
        findings.append("accepted is not the sum that acceptance_histogram gives")
    if m.n > m.n_requested:
        findings.append("n exceeds n_requested")
    if m.stopped is None and m.n < m.n_requested:
        findings.append("stopped is null, yet n is below n_requested")
    return findings


def _steps(m: Measurement) -> list[str]:
    """Look for a last step that explains the sums: all steps before it drafted k and refused or took all."""
    last_drafted = m.drafted - m.k * (m.n - 1)
    # Only the context's end shortens a draft, and that last short step may also end the text.
    shortest = 0 if m.stopped in ("context", "end_of_text") else m.k
    if not shortest <= last_drafted <= m.k:
        return ["drafted is not k per step, or a last step is short without stopped saying why"]
    unpaid = m.accepted + m.n - m.emitted
    if unpaid not in ((0, 1) if m.stopped == "end_of_text" else (0,)):
        return ["emitted is not accepted plus one token per step"]
    lasts = [a for a in range(last_drafted + 1) if m.acceptance_histogram[a] and _is_last(a, m)]
    if not lasts:
        return ["drafted, rejections, emitted and stopped fit no last step"]
    unrefused = m.n - m.acceptance_histogram[m.k] - m.rejections  # 0, or 1 for the last step
    if not any(_conditional_fits(m, unrefused_at=a if unrefused else None) for a in lasts):
        return ["conditional_acceptance is not what acceptance_histogram gives"]
    return []


def _is_last(accepted: int, m: Measurement) -> bool:
    """Whether a last step with so many accepted drafts explains the sums."""
    drafted = m.drafted - m.k * (m.n - 1)
    unrefused = m.n - m.acceptance_histogram[m.k] - m.rejections  # steps short of k yet without a refusal
    if m.accepted + m.n - m.emitted:  # an accepted end-of-text token: no refusal, no bonus
        return accepted >= 1 and unrefused == (accepted < m.k)
    if accepted == drafted:  # everything drafted was accepted, then a bonus
        return unrefused == (accepted < m.k)
    return unrefused == 0  # a refusal, then a correction


def _conditional_fits(m: Measurement, unrefused_at: int | None) -> bool:
    histogram = m.acceptance_histogram
    for j, given in enumerate(m.conditional_acceptance, start=1):
        reached = sum(histogram[j:])
        refused = histogram[j - 1] - (unrefused_at == j - 1)
        if not close(given, accepted_rate(reached, refused)):
            return False
    return True


def _rates(m: Measurement) -> list[str]:
    findings = []
    fixed = m.k_requested != "auto"
    if fixed and not close(m.accepted_rate, accepted_rate(m.accepted, m.rejections)):
        findings.append("accepted_rate is not accepted / (accepted + rejections)")
    if not close(m.draft_acceptance_rate, draft_acceptance_rate(m.accepted, m.drafted)):
        findings.append("draft_acceptance_rate is not accepted / drafted")
    if not close(m.mean_accepted_len, mean_accepted_len(m.emitted, m.n)):
        findings.append("mean_accepted_len is not emitted / n")
    if (m.accepted_rate_ci95 is None) != (m.accepted_rate is None):
        findings.append("accepted_rate_ci95 must be null exactly when accepted_rate is")
    elif m.accepted_rate_ci95 is not None and m.accepted_rate is not None:
        low, high = m.accepted_rate_ci95
        wilson = accepted_rate_ci95(m.accepted, m.rejections)
        if not (0 <= low <= m.accepted_rate <= high <= 1 and low < high):
            findings.append("accepted_rate_ci95 must be a range in 0 to 1 that contains accepted_rate")
        elif m.timing is not None and not (wilson and close(low, wilson[0]) and close(high, wilson[1])):
            findings.append("accepted_rate_ci95 is not the Wilson interval of accepted and rejections")
    return findings


def _context(m: Measurement) -> list[str]:
    if m.context is None or m.prompt_tokens is None or m.prompt_tokens + m.emitted - 1 <= m.context:
        return []  # the last token emitted is never read, so it needs no room
    return ["prompt_tokens and emitted do not fit into context"]


def _speedup(m: Measurement) -> list[str]:
    if isinstance(m.speedup, SpeedupMeasured):
        low, high = m.speedup.ci95
        if not 0 < low <= m.speedup.median <= high:
            return ["speedup.ci95 must be ordered and contain speedup.median"]
    return []


def _timing(m: Measurement) -> list[str]:
    """Recompute what follows from the timings; who gives none at all, not even null, is believed."""
    timing, speedup, rates = m.timing, m.speedup, m.tokens_per_second
    findings = []
    if timing is None:
        if m.blocks is not None:
            findings.append("blocks has no timing behind it")
        if "timing" in m.model_fields_set and isinstance(speedup, SpeedupMeasured):
            findings.append("speedup has no timing behind it")
        if "timing" in m.model_fields_set and (rates.speculative or rates.target_only):
            findings.append("tokens_per_second has no timing behind it")
        return findings
    count = len(timing.speculative_s)
    if len(timing.target_only_s) != count:
        return ["timing must have one entry per pair on both sides"]
    if m.blocks is not None and m.blocks != 2 * count:
        findings.append("blocks is not two per pair in timing")
    # Where the two sides decoded different tokens there are timings, but nothing follows from them.
    excused = not {labels.REPEATS_DIFFER, labels.OUTPUT_DIFFERS}.isdisjoint(m.verdict.reasons)
    withheld = excused and rates.speculative is None and rates.target_only is None
    if not withheld and not (
        close(rates.speculative, _per_second(m.emitted, timing.speculative_s))
        and close(rates.target_only, _per_second(m.emitted, timing.target_only_s))
    ):
        findings.append("tokens_per_second is not emitted / the median of timing")
    pairs = zip(timing.target_only_s, timing.speculative_s, strict=True)
    ratios = [alone / speculative for alone, speculative in pairs]
    if not all(map(math.isfinite, ratios)):
        return [*findings, "timing has a pair whose ratio is not finite"]
    interval = median_interval(ratios)
    if not isinstance(speedup, SpeedupMeasured):
        if interval is not None and not excused:
            findings.append("speedup is UNAVAILABLE, yet timing has pairs enough")
    elif speedup.pairs != count:
        findings.append("speedup.pairs is not the number of pairs in timing")
    elif interval is None or not close_or_rounded(speedup.median, interval[0]):
        findings.append("speedup.median is not the median of timing")
    elif not all(map(close_or_rounded, speedup.ci95, interval[1:])):
        findings.append("speedup.ci95 is not the order-statistic interval of timing")
    return findings


def _per_second(tokens: int, seconds: list[float]) -> float | None:
    return tokens / statistics.median(seconds) if seconds else None


def _quality(m: Measurement) -> list[str]:
    findings = []
    quality = m.quality
    if quality.identical_rate is None:
        fits = quality.label in (labels.SAMPLED, labels.UNAVAILABLE)
    elif quality.identical_rate == 1.0:
        fits = quality.label == labels.LOSSLESS
    else:
        fits = quality.label in _DIVERGED
    if not fits:
        findings.append("quality.label does not fit quality.identical_rate")
    if quality.compared_tokens != (0 if quality.identical_rate is None else m.emitted):
        findings.append("quality.compared_tokens must be emitted, or 0 where quality.identical_rate is null")
    return findings


def _verdict(m: Measurement) -> list[str]:
    if m.verdict.valid == bool(m.verdict.reasons):
        return ["verdict.valid must be true exactly when verdict.reasons is empty"]
    if not m.verdict.valid:
        return []
    doubts = []
    if m.n < MIN_STEPS:
        doubts.append(f"n is below {MIN_STEPS}")
    if not isinstance(m.speedup, SpeedupMeasured):
        doubts.append("speedup is UNAVAILABLE")
    elif m.speedup.ci95[1] - m.speedup.ci95[0] > WIDEST_INTERVAL * m.speedup.median:
        doubts.append("speedup.ci95 is too wide")
    if m.quality.label in _DIVERGED:
        doubts.append("the output diverged")
    return [f"verdict.valid cannot be true when {doubt}" for doubt in doubts]


def _names(digest: str, text: str) -> bool:
    return sha3_256_hex(text.encode("utf-8", "surrogatepass")) == digest


def _same_json(left: Any, right: Any) -> bool:
    try:
        return canonical_bytes(left) == canonical_bytes(right)
    except CanonicalError:
        return False
