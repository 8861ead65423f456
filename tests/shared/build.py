"""Builds consistent measurements, payloads and receipts for the tests."""

from __future__ import annotations

import copy
import json
import statistics
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from shared import labels
from shared.curve import accounting_modeled, expected_speedup, predicted_speedup
from shared.estimators import (
    Step,
    accepted_rate,
    accepted_rate_ci95,
    draft_acceptance_rate,
    mean_accepted_len,
    median_interval,
    summarise,
)
from shared.receipts import build_receipt, unsigned_signature
from shared.runid import RunKeys, bound_request, prompt_commitment
from shared.schemas import RunRequest

GOLDEN = Path(__file__).parents[1] / "golden"
KEYS = RunKeys(b"a secret of the tests")
PROMPT = "And it came to pass"
NOW = "2026-11-30T00:00:00Z"


def golden(name: str) -> Any:
    """The exact vectors in tests/golden/<name>.json."""
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


def golden_steps(case: dict[str, Any]) -> list[Step]:
    """The steps of one case of golden/measured.json."""
    return [Step(step["g"], step["a"], bool(step["rej"]), step["emitted"]) for step in case["steps"]]


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, int, str | None, list[Step]]:
    """A possible run: k, n_requested, why it stopped and its steps, odd last steps included."""
    k = draw(st.integers(1, 6))
    accepted = draw(st.lists(st.integers(0, k), min_size=1, max_size=12))
    steps = [Step(k, a, a < k, a + 1) for a in accepted]
    stopped = draw(st.sampled_from([None, "deadline", "context", "end_of_text"]))
    if stopped == "context" and draw(st.booleans()):
        short = draw(st.integers(0, k - 1))
        a = draw(st.integers(0, short))
        steps[-1] = Step(short, a, a < short, a + 1)
    if stopped == "end_of_text" and draw(st.booleans()):
        a = draw(st.integers(1, k))
        steps[-1] = Step(k, a, False, a)
    more = 0 if stopped is None else draw(st.integers(0, 5))
    return k, len(steps) + more, stopped, steps


def measurement(
    k: int, n_requested: int, stopped: str | None, steps: list[Step], ratios: list[float] | None = None
) -> dict[str, Any]:
    """A whole measurement, as an agent would send it, that follows from the steps."""
    counts = summarise(steps, k)
    ratios = [1.4, 1.5, 1.6, 1.45, 1.55, 1.52, 1.48, 1.5] if ratios is None else ratios
    alone = [2.0 + i / 10 for i in range(len(ratios))]
    speculative = [seconds / ratio for seconds, ratio in zip(alone, ratios, strict=True)]
    interval = median_interval([a / s for a, s in zip(alone, speculative, strict=True)])
    alpha = accepted_rate(counts.accepted, counts.rejections)
    costs = [1.0 + 0.11 * m for m in range(k + 1)]
    ci95 = accepted_rate_ci95(counts.accepted, counts.rejections)
    speedup: Any = labels.UNAVAILABLE
    reasons = ["fewer than 10 steps"] if counts.n < 10 else []
    if not interval:
        reasons.append("fewer than 6 timed pairs")
    else:
        median, low, high = interval
        if high - low > 0.5 * median:
            reasons.append("the interval of the speed-up is wider than half its median")
        speedup = {"label": "MEASURED", "median": median, "ci95": [low, high], "pairs": len(ratios)}
    return {
        "label": "MEASURED",
        "mode": "linear",
        "k_requested": k,
        "n_requested": n_requested,
        "k": k,
        "stopped": stopped,
        "n": counts.n,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "rejections": counts.rejections,
        "emitted": counts.emitted,
        "acceptance_histogram": list(counts.acceptance_histogram),
        "accepted_rate": alpha,
        "draft_acceptance_rate": draft_acceptance_rate(counts.accepted, counts.drafted),
        "mean_accepted_len": mean_accepted_len(counts.emitted, counts.n),
        "conditional_acceptance": list(counts.conditional),
        "accepted_rate_ci95": None if ci95 is None else list(ci95),
        "tokens_per_second": {
            "speculative": counts.emitted / statistics.median(speculative) if ratios else None,
            "target_only": counts.emitted / statistics.median(alone) if ratios else None,
        },
        "speedup": speedup,
        "calibration": {"cost_ratio": 0.16, "verify_cost": costs, "measured_at": NOW},
        "speedup_predicted": None
        if alpha is None
        else {"label": "MODELED", "value": predicted_speedup(alpha, k, 0.16, costs)},
        "recommended_k": 1,
        "verdict": {"valid": not reasons, "reasons": reasons},
        "engine": {"name": "llama.cpp", "library": "l", "system": "CPU", "threads": 2, "gpu_layers": 0},
        "draft": {"name": "small", "sha256": "0" * 64},
        "target": {"name": "large", "sha256": None},
        "quality": {
            "identical_rate": 1.0,
            "label": labels.LOSSLESS,
            "compared_tokens": counts.emitted,
        },
        "prompt_tokens": 6,
        "context": 512,
        "blocks": 2 * len(ratios),
        "timing": {"speculative_s": speculative, "target_only_s": alone},
    }


def result(measured: dict[str, Any], **request: Any) -> dict[str, Any]:
    """A result frame around a measurement, for a request of that k and n."""
    asked = {"prompt": PROMPT, "k": measured["k_requested"], "n": measured["n_requested"], **request}
    whole = RunRequest.model_validate(asked).model_dump()
    id_bytes = bytes(range(16))
    run_id = KEYS.run_id(id_bytes, whole)
    return {
        "type": "result",
        "run_id": run_id,
        "nonce": KEYS.nonce(run_id),
        "measurement": measured,
        "energy": {"label": "UNAVAILABLE", "code": "NO_NVML", "reason": "no NVML library"},
        "output_sha3_256": "ab" * 32,
        "attestation": None,
        "output": None,
        "request": bound_request(whole, prompt_commitment(KEYS.salt(id_bytes), PROMPT)),
    }


def example_measurement() -> dict[str, Any]:
    """A measurement of the first golden case."""
    return measurement(4, 50, None, golden_steps(golden("measured")["cases"][0]))


def example_energy() -> dict[str, Any]:
    """An energy that a tower's counter has measured, in six pairs of windows."""
    order = "stts" * 3
    windows: list[dict[str, Any]] = [
        {
            "mode": {"s": "speculative", "t": "target_only"}[way],
            "seconds": 2.0 + i / 100,
            "joules": {"s": 240.0, "t": 250.0}[way] + i,
            "tokens": {"s": 294, "t": 147}[way],
        }
        for i, way in enumerate(order)
    ]
    of = {mode: [w for w in windows if w["mode"] == mode] for mode in ("speculative", "target_only")}
    costs = {mode: [w["joules"] / w["tokens"] for w in of[mode]] for mode in of}
    ratios = [b / a for a, b in zip(costs["speculative"], costs["target_only"], strict=True)]
    interval = median_interval(ratios)
    assert interval is not None
    return {
        "label": "MEASURED",
        "method": "total_energy_counter",
        "joules_per_token": {
            mode: sum(w["joules"] for w in part) / sum(w["tokens"] for w in part) for mode, part in of.items()
        },
        "ratio": {"median": interval[0], "ci95": list(interval[1:]), "pairs": 6},
        "windows": windows,
        "refresh_s": 0.1,
        "edge_error": 0.0125,
        "averaged": None,
        "power_limit_watts": 165.0,
        "idle_watts": 11.5,
        "idle_seconds": 30.0,
        "gpu": {"uuid": "GPU-1", "name": "NVIDIA GeForce RTX 4060 Ti", "driver": "550.54.14"},
        "scope": labels.ENERGY_SCOPE,
    }


def gpu_measurement(**gpu: Any) -> dict[str, Any]:
    """The same measurement, of a pair that was decoded on a GPU which was watched; `gpu` is what the watch saw."""
    measured = example_measurement()
    measured["engine"]["gpu_layers"] = 33
    return {**measured, "gpu": {"uuid": "GPU-1", "name": "NVIDIA GeForce RTX 4060 Ti", **gpu}}


def metered_payload(**energy: Any) -> dict[str, Any]:
    """A whole MEASURED payload whose energy was measured, too; `energy` replaces parts of that."""
    return {**measured_payload(gpu_measurement()), "energy": {**example_energy(), **energy}}


def measured_payload(measured: dict[str, Any] | None = None) -> dict[str, Any]:
    """A whole MEASURED payload."""
    frame = result(measured or example_measurement())
    measured = frame["measurement"]
    return {
        "schema": labels.PAYLOAD_SCHEMA,
        "label": labels.RUN_MEASURED,
        "measured": labels.MEASURED,
        "run_id": frame["run_id"],
        "nonce": frame["nonce"],
        "request": frame["request"],
        "n": measured["n"],
        "k": measured["k"],
        "accepted_rate": round(measured["accepted_rate"], 4),
        "mean_accepted_len": measured["mean_accepted_len"],
        "speedup_modeled": round(expected_speedup(measured["accepted_rate"], 4, 0.2), 4),
        "speedup_measured": measured["speedup"],
        "draft_model": "small",
        "target_model": "large",
        "quality_delta": {"identical_rate": 1.0, "label": labels.LOSSLESS},
        "energy": frame["energy"],
        "prompt_commitment": frame["request"]["prompt_commitment"],
        "output_sha3_256": frame["output_sha3_256"],
        "generated_at": NOW,
        "accounting_modeled": accounting_modeled(4, 0.2),
        "measurement": measured,
        "doctrine": labels.DOCTRINE,
        "citations": labels.CITATIONS,
    }


def roadmap_payload(**more: Any) -> dict[str, Any]:
    """A ROADMAP payload."""
    return {
        "schema": labels.PAYLOAD_SCHEMA,
        "label": labels.RUN_ROADMAP,
        "measured": labels.UNAVAILABLE,
        "quality_delta": labels.UNAVAILABLE,
        "roadmap": {"reason": "tower unreachable", "runbook": ["start the tower"]},
        "accounting_modeled": accounting_modeled(4, 0.2),
        **more,
    }


def receipt(payload: dict[str, Any], signature: dict[str, Any] | None = None) -> dict[str, Any]:
    """A receipt of a copy of the payload."""
    return build_receipt(copy.deepcopy(payload), signature or unsigned_signature("no signer"), NOW)
