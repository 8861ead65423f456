"""The three payloads that go into receipts: the modeled curve, a roadmap, a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edge.build_info import build_identity
from shared import labels
from shared.curve import accounting_modeled, expected_speedup

if TYPE_CHECKING:
    from shared.schemas import CurveQuery
    from shared.wire import ResultFrame


def now() -> str:
    """Return the current time as RFC 3339 in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def curve_payload(query: CurveQuery, generated_at: str | None = None) -> dict[str, Any]:
    """Return the payload of ``/curve``, of this time or of now."""
    accounting = accounting_modeled(query.k, query.cost_ratio, query.verify_cost, query.alpha)
    return _payload(labels.CURVE_LABEL, labels.UNAVAILABLE, accounting, {}, generated_at)


def roadmap_payload(
    *,
    code: str,
    reason: str,
    runbook: list[str],
    k: int,
    cost_ratio: float,
    run: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the payload of a run that holds no measurement, and says why.

    Args:
        code: Machine-readable reason.
        reason: The same for people.
        runbook: What to do next, one step a line.
        k: Draft length of the modeled curve.
        cost_ratio: Cost ratio of the modeled curve.
        run: What is known of the run, such as its id and progress.
    """
    body = {
        **(run or {}),
        "quality_delta": labels.UNAVAILABLE,
        "energy": {"label": labels.UNAVAILABLE, "code": code, "reason": "nothing was measured"},
        "roadmap": {"reason": reason, "code": code, "runbook": runbook},
    }
    return _payload(labels.RUN_ROADMAP, labels.UNAVAILABLE, accounting_modeled(k, cost_ratio), body)


def measured_payload(result: ResultFrame, *, cost_ratio: float, tower: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of a run whose result has passed every check; ``tower`` says who measured.

    Top-level rates repeat the seed's fields, rounded to four digits; ``measurement`` keeps full precision.
    The payload's time is that of the run's end, so that whoever asks later gets the same receipt.
    """
    frame = result.model_dump(mode="json")
    measurement = frame["measurement"]
    quality = measurement["quality"]
    alpha, k = measurement["accepted_rate"], measurement["k"]
    body = {
        "run_id": frame["run_id"],
        "nonce": frame["nonce"],
        "request": frame["request"],
        "n": measurement["n"],
        "k": k,
        "accepted_rate": _rounded(alpha),
        "mean_accepted_len": _rounded(measurement["mean_accepted_len"]),
        # Null for 0/0: without one examined draft token there is no acceptance rate to model from.
        "speedup_modeled": None if alpha is None else round(expected_speedup(alpha, k, cost_ratio), 4),
        "speedup_measured": measurement["speedup"],
        "draft_model": measurement["draft"]["name"],
        "target_model": measurement["target"]["name"],
        "quality_delta": {"identical_rate": quality["identical_rate"], "label": quality["label"]},
        "energy": frame["energy"],
        "prompt_commitment": frame["request"]["prompt_commitment"],
        "output_sha3_256": frame["output_sha3_256"],
        "measurement": measurement,
        "tower": tower,
    }
    accounting = accounting_modeled(k, cost_ratio)
    return _payload(labels.RUN_MEASURED, labels.MEASURED, accounting, body, result.ended_at)


def _payload(
    label: str,
    measured: str,
    accounting: dict[str, Any],
    body: dict[str, Any],
    generated_at: str | None = None,
) -> dict[str, Any]:
    """Put around the body what every payload carries; hashing sorts, so this order is for readers."""
    return {
        "schema": labels.PAYLOAD_SCHEMA,
        "label": label,
        "measured": measured,
        "accounting_modeled": accounting,
        **body,
        "generated_at": generated_at or now(),
        "edge": {"build": build_identity()},
        "doctrine": labels.DOCTRINE,
        "citations": labels.CITATIONS,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
