"""Checks a receipt with nothing but this file and Python 3.9 or later: `python3 verify_standalone.py RECEIPT.json`.

It recomputes the digest, the modeled curve (Leviathan et al. 2023, arXiv:2211.17192) and what follows from the counts
and timings of a measured run. It does NOT check signatures, so not who made the receipt: `specdec verify` does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import statistics
import sys
from typing import Any

_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_UNSIGNED = "not checked here: use `specdec verify RECEIPT.json --key KEYS`, or openssl on what DSSE signs"


def _number(value: Any, high: float = 1e9, kind: Any = (int, float)) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value <= high:
        raise ValueError("no number in range")
    return value


def _close(given: Any, full: float | None) -> bool:
    """Whether a number is the expected one, or that at four digits; null only if null is expected."""
    if given is None or full is None:
        return given is full
    return _number(given) == round(full, 4) or math.isclose(given, full, rel_tol=1e-9)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("an object names a key twice")
    return dict(pairs)


def _tokens(alpha: float, k: int) -> float:
    return math.fsum(_number(alpha, 1) ** j for j in range(_number(k, 64, int) + 1))  # Eq. 1


# Each check yields whether something fits (None: nothing tells) and what is to be said if it does not.
def _digest(receipt: Any) -> Any:
    text = receipt["payload_canonical_base64"]
    data = base64.b64decode(text, validate=True)
    yield base64.b64encode(data).decode("ascii") == text, "payload_canonical_base64 is not strict base64"
    yield receipt.get("digest_alg", "sha3_256") == "sha3_256", "digest_alg is not sha3_256"
    yield hashlib.sha3_256(data).hexdigest() == receipt["payload_sha3_256"], "payload_sha3_256 is another"


def _payload(receipt: Any) -> Any:
    text = base64.b64decode(receipt["payload_canonical_base64"], validate=True).decode("utf-8")
    yield _dumps(receipt["payload"]) == text == _dumps(json.loads(text)), "the bytes are not the payload's"
    payload = receipt["payload"]
    said = {payload.get("label") == "SPEC-DECODE MEASURED", payload.get("measured") == "MEASURED"}
    fits = "schema" not in payload or len(said | {"measurement" in payload}) == 1
    yield fits, "MEASURED is said without a measurement, or a measurement is not said to be one"


def _modeled(receipt: Any) -> Any:
    block = receipt["payload"]["accounting_modeled"]
    if block.get("cost_ratio") is None:
        yield None, "accounting_modeled states no cost_ratio to recompute from"
        return
    step = block["k"] * _number(block["cost_ratio"]) + _number(block.get("verify_cost", 1.0))
    for name, cost in (("expected_speedup_at_alpha", step), ("expected_tokens_per_step_at_alpha", 1.0)):
        for alpha, given in block[name].items():
            full = _tokens(float(alpha), block["k"]) / cost
            yield _number(given) == round(full, 4), f"{name} is not what the formula gives"


def _counts(receipt: Any) -> Any:
    m = receipt["payload"]["measurement"]
    n, k, accepted, emitted = (_number(m[name], 1e9, int) for name in ("n", "k", "accepted", "emitted"))
    histogram = [_number(steps, 1e9, int) for steps in m["acceptance_histogram"]]
    yield (len(histogram), sum(histogram)) == (k + 1, n), "acceptance_histogram does not sum to n"
    yield sum(a * h for a, h in enumerate(histogram)) == accepted, "accepted is not the histogram's sum"
    yield 0 <= accepted + n - emitted <= (m["stopped"] == "end_of_text"), "emitted is not accepted plus n"


def _rates(receipt: Any) -> Any:
    payload, m = receipt["payload"], receipt["payload"]["measurement"]
    names = ("n", "k", "accepted", "rejections", "drafted", "emitted")
    n, k, accepted, rejections, drafted, emitted = (_number(m[name], 1e9, int) for name in names)
    examined = 0 if m["k_requested"] == "auto" else accepted + rejections  # a draft cut short gives no alpha
    rate = accepted / examined if examined else None
    share = accepted / drafted if drafted else None
    cost = k * _number(payload["accounting_modeled"]["cost_ratio"]) + 1
    modeled = None if rate is None else _tokens(rate, k) / cost
    yield _close(m["draft_acceptance_rate"], share), "draft_acceptance_rate is not accepted / drafted"
    for place in (m, payload):
        yield _close(place["accepted_rate"], rate), "accepted_rate is not accepted / (accepted + rejections)"
        yield _close(place["mean_accepted_len"], emitted / n), "mean_accepted_len is not emitted / n"
    yield (payload["n"], payload["k"]) == (n, k), "n or k is not the measurement's"
    yield _close(payload["speedup_modeled"], modeled), "speedup_modeled is not what accepted_rate gives"


def _timing(receipt: Any) -> Any:
    m, speedup = receipt["payload"]["measurement"], receipt["payload"]["speedup_measured"]
    yield _dumps(m["speedup"]) == _dumps(speedup), "speedup_measured is not the measurement's"
    if speedup == "UNAVAILABLE" or m.get("timing") is None:
        yield None, "no speed-up was measured, or its timings are not given"
        return
    alone = m["timing"]["target_only_s"]
    ratios = [_number(alone[i]) / _number(s) for i, s in enumerate(m["timing"]["speculative_s"])]
    yield len(alone) == len(ratios) == speedup["pairs"], "timing must have one entry per pair on both sides"
    yield _close(speedup["median"], statistics.median(ratios)), "the median is another"


_CHECKS = (
    ("digest", _digest, "the base64 is strict, and payload_sha3_256 is the SHA3-256 of its bytes"),
    ("payload", _payload, "the bytes are the payload's canonical ones"),
    ("modeled", _modeled, "the modeled curve is what the formula gives"),
    ("counts", _counts, "the counts are those of the histogram of accepted tokens"),
    ("rates", _rates, "rates and modeled speed-up follow from the counts"),
    ("timing", _timing, "the measured speed-up is the median of the timing ratios"),
)


def verify(receipt: Any) -> list[tuple[str, bool | None, str]]:
    """Make every check: its name, its outcome (None: nothing tells) and one clause on why. Nothing raises."""
    results: list[tuple[str, bool | None, str]] = []
    payload = receipt.get("payload") if isinstance(receipt, dict) else None
    modeled = not isinstance(payload, dict) or payload.get("measured") == "UNAVAILABLE"
    for name, check, good in _CHECKS[:3] if modeled else _CHECKS:
        try:
            wrong = [finding for finding in check(receipt) if not finding[0]]
        except Exception:
            wrong = [(False, "what this check needs is missing or malformed")]
        results.append((name, *(wrong or [(True, good)])[0]))
    return results


def main(arguments: list[str]) -> int:
    """Print one line per check; 0 if none failed, 1 if one did, 2 if there is nothing to check."""
    try:
        with open(arguments[0], encoding="utf-8") as file:
            receipt = json.load(file, object_pairs_hook=_object, parse_constant=int)  # int refuses NaN
    except (IndexError, OSError, RecursionError, ValueError) as error:
        print(f"usage: verify_standalone.py RECEIPT.json ({type(error).__name__})", file=sys.stderr)
        return 2
    for name, ok, detail in (results := [*verify(receipt), ("signature", None, _UNSIGNED)]):
        print(f"{'skipped' if ok is None else 'ok' if ok else 'failed':8} {name:10} {detail}")
    return 1 if any(ok is False for _, ok, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
