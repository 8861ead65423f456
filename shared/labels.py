"""Every word by which a number says what it is, and the names that go out on the wire.

A number is MEASURED, MODELED or UNAVAILABLE. Nothing else in the project spells these words.
"""

from __future__ import annotations

from typing import Any, Final

PUBLIC_BASE: Final = "https://a-11-oy.com"
BASE_PATH: Final = "/api/a11oy/v1/specdec"

PAYLOAD_SCHEMA: Final = "szl.a11oy.specdec.v1"
RECEIPT_SCHEMA: Final = "szl.a11oy.specdec.receipt.v1"

MEASURED: Final = "MEASURED"
MODELED: Final = "MODELED"
UNAVAILABLE: Final = "UNAVAILABLE"

HEALTH_MEASURED: Final = "SPEC-DECODE MEASURED"
HEALTH_ROADMAP: Final = "SPEC-DECODE ROADMAP (no same-family pair)"
RUN_MEASURED: Final = "SPEC-DECODE MEASURED"
RUN_ROADMAP: Final = "SPEC-DECODE ROADMAP"
CURVE_LABEL: Final = "SPEC-DECODE MODELED"
ACCOUNTING_LABEL: Final = "MODELED (acceptance-rejection accounting curve, not a measurement)"

LOSSLESS: Final = "MEASURED (lossless)"
DIVERGED_TIE: Final = "MEASURED (diverged: tie)"
DIVERGED_FAULT: Final = "MEASURED (diverged: fault)"
SAMPLED: Final = "UNAVAILABLE (sampled; distribution-lossless by construction)"

# Reasons of a verdict after which the two sides were not timed over the same tokens.
REPEATS_DIFFER: Final = "repeats of the speculative decoding did not give the same tokens"
OUTPUT_DIFFERS: Final = "the output differs from the target's own"

# Reasons of a verdict on what happened to the GPU meanwhile.
GPU_THROTTLED: Final = "the GPU slowed itself down against heat or for want of power"
GPU_SHARED: Final = "another program computed on the GPU"
GPU_UNWATCHED: Final = "the GPU stopped answering while it was watched"

# What holds a GPU's clocks down. The power cap, which is in force on any GPU at full load, is no throttling.
POWER_CAP: Final = "power_cap"
THROTTLES: Final = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"})

ENERGY_SCOPE: Final = "the GPU's board only, not the whole machine"
ENERGY_METHODS: Final = ("total_energy_counter", "sampled_power")
# Why an energy is UNAVAILABLE.
ENERGY_CODES: Final = (
    "ON_CPU",
    "NO_LIBRARY",
    "NO_PERMISSION",
    "NOT_SUPPORTED",
    "NO_GPU",
    "GPU_LOST",
    "GPU_CHANGED",
    "COUNTER_STUCK",
    "COUNTER_WENT_BACK",
    "OVER_POWER_LIMIT",
    "FOREIGN_PROCESS",
    "TOO_SHORT",
    "NOT_REPEATABLE",
    "DECODE_FAILED",
    "NVML_ERROR",
    "PER_RUN",  # not before a run has been made
)

# Whether the tower's own signature over its result was checked; FAILED never stands beside a measurement.
UNPINNED: Final = "UNPINNED"
VERIFIED: Final = "VERIFIED"
FAILED: Final = "FAILED"

UNSIGNED_STATUS: Final = "DSSE_PLACEHOLDER"
SIGNED_STATUS: Final = "DSSE"

DEFAULT_K: Final = 4
DEFAULT_COST_RATIO: Final = 0.2
DEFAULT_ALPHAS: Final = (0.5, 0.7, 0.9)

# Stated by the operator, repeated in every payload, checked by nothing here: the label says so.
DOCTRINE: Final[dict[str, Any]] = {
    "label": "STATED (not checked here)",
    "version": "v11 LOCKED",
    "locked_proven": ["F1", "F4", "F7", "F11", "F12", "F18", "F19", "F22"],
    "lambda": "Conjecture 1 (advisory, <=0.99, NOT a theorem)",
    "slsa": "L1",
}

CITATIONS: Final[list[str]] = [
    "arXiv:2211.17192",  # Leviathan et al. 2023
    "arXiv:2302.01318",  # Chen et al. 2023
    "arXiv:2406.02532",  # SpecExec
    "arXiv:2402.12374",  # Sequoia
]
