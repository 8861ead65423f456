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
