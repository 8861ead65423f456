"""Checks a receipt with nothing but this file and Python 3.9 or later: `python3 verify_standalone.py RECEIPT.json`.

It recomputes the digest, the modeled curve (Leviathan et al. 2023, arXiv:2211.17192) and what follows from the counts,
timings and energy windows of a measured run. Signatures, so who made the receipt, it does NOT check: `specdec verify`.
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


def _close(got: Any, full: Any) -> bool:
    """Whether a number is the expected one, or that at four digits; null only if null is expected."""
    return got is full if None in (got, full) else _number(got) == round(full, 4) or math.isclose(got, full)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _number(len(dict(pairs)) - len(pairs))  # refuses an object that names a key twice
    return dict(pairs)


def _tokens(alpha: float, k: int) -> float:
    return math.fsum(_number(alpha, 1) ** j for j in range(_number(k, 64, int) + 1))  # Eq. 1


# Each check yields whether something fits (None: nothing tells) and what is to be said if it does not.
def _digest(receipt: Any) -> Any:
    """The base64 is strict, and payload_sha3_256 is the SHA3-256 of its bytes."""
    text = receipt["payload_canonical_base64"]
    data = base64.b64decode(text, validate=True)
    yield base64.b64encode(data).decode("ascii") == text, "payload_canonical_base64 is not strict base64"
    yield receipt.get("digest_alg", "sha3_256") == "sha3_256", "digest_alg is not sha3_256"
    yield hashlib.sha3_256(data).hexdigest() == receipt["payload_sha3_256"], "payload_sha3_256 is another"


def _payload(receipt: Any) -> Any:
    """The bytes are the payload's canonical ones."""
    text = base64.b64decode(receipt["payload_canonical_base64"], validate=True).decode("utf-8")
    yield _dumps(receipt["payload"]) == text == _dumps(json.loads(text)), "the bytes are not the payload's"
    p = receipt["payload"]
    said = {p.get("label") == "SPEC-DECODE MEASURED", p.get("measured") == "MEASURED", "measurement" in p}
    yield "schema" not in p or len(said) == 1, "MEASURED is said without a measurement, or not said of one"


def _modeled(receipt: Any) -> Any:
    """The modeled curve is what the formula gives."""
    block = receipt["payload"]["accounting_modeled"]
    if block.get("cost_ratio") is None:
        return
    step = block["k"] * _number(block["cost_ratio"]) + _number(block.get("verify_cost", 1.0))
    for name, cost in (("expected_speedup_at_alpha", step), ("expected_tokens_per_step_at_alpha", 1.0)):
        for alpha, given in block[name].items():
            yield _number(given) == round(_tokens(float(alpha), block["k"]) / cost, 4), f"{name} is another"


def _counts(receipt: Any) -> Any:
    """The counts are those of the histogram of accepted tokens."""
    m = receipt["payload"]["measurement"]
    n, k, accepted, emitted = (_number(m[name], 1e9, int) for name in ("n", "k", "accepted", "emitted"))
    histogram = [_number(steps, 1e9, int) for steps in m["acceptance_histogram"]]
    yield (len(histogram), sum(histogram)) == (k + 1, n), "acceptance_histogram does not sum to n"
    yield sum(a * h for a, h in enumerate(histogram)) == accepted, "accepted is not the histogram's sum"
    yield 0 <= accepted + n - emitted <= (m["stopped"] == "end_of_text"), "emitted is not accepted plus n"


def _rates(receipt: Any) -> Any:
    """Rates and modeled speed-up follow from the counts; drafts of an adaptive length give no alpha."""
    payload, m = receipt["payload"], receipt["payload"]["measurement"]
    names = ("n", "k", "accepted", "rejections", "drafted", "emitted")
    n, k, accepted, refused, drafted, emitted = (_number(m[name], 1e9, int) for name in names)
    rate = accepted / (accepted + refused) if accepted + refused and m["k_requested"] != "auto" else None
    cost = k * _number(payload["accounting_modeled"]["cost_ratio"]) + 1
    modeled = None if rate is None else _tokens(rate, k) / cost
    yield _close(m["draft_acceptance_rate"], accepted / drafted if drafted else None), "a rate is another"
    for place in (m, payload):
        yield _close(place["accepted_rate"], rate), "accepted_rate is not accepted / (accepted + rejections)"
        yield _close(place["mean_accepted_len"], emitted / n), "mean_accepted_len is not emitted / n"
    yield (payload["n"], payload["k"]) == (n, k), "n or k is not the measurement's"
    yield _close(payload["speedup_modeled"], modeled), "speedup_modeled is not what accepted_rate gives"


def _timing(receipt: Any) -> Any:
    """The measured speed-up is the median of the timing ratios."""
    m, speedup = receipt["payload"]["measurement"], receipt["payload"]["speedup_measured"]
    yield _dumps(m["speedup"]) == _dumps(speedup), "speedup_measured is not the measurement's"
    if speedup == "UNAVAILABLE" or m.get("timing") is None:
        yield None, "no speed-up was measured, or its timings are not given"
        return
    alone = m["timing"]["target_only_s"]
    ratios = [_number(alone[i]) / _number(s) for i, s in enumerate(m["timing"]["speculative_s"])]
    yield len(alone) == len(ratios) == speedup["pairs"], "timing must have one entry per pair on both sides"
    yield _close(speedup["median"], statistics.median(ratios)), "the median is another"


def _energy(receipt: Any) -> Any:
    """Joules per token follow from the windows that were metered."""
    energy = receipt["payload"]["energy"]
    for mode, given in energy["joules_per_token"].items() if energy.get("windows") else ():
        own = [(_number(w["joules"]), _number(w["tokens"])) for w in energy["windows"] if w["mode"] == mode]
        full = sum(joules for joules, _ in own) / sum(tokens for _, tokens in own)
        yield _close(given, full), "joules_per_token is not the joules / tokens of its windows"


_CHECKS = (_digest, _payload, _modeled, _counts, _rates, _timing, _energy)


def verify(receipt: Any) -> list[tuple[str, bool | None, str]]:
    """Make every check: its name, its outcome (None: nothing tells) and one clause on why. Nothing raises."""
    results: list[tuple[str, bool | None, str]] = []
    payload = receipt.get("payload") if isinstance(receipt, dict) else None
    modeled = not isinstance(payload, dict) or payload.get("measured") == "UNAVAILABLE"
    for check in _CHECKS[:3] if modeled else _CHECKS:
        try:
            said = list(check(receipt)) or [(None, "the receipt does not give what this follows from")]
        except Exception:
            said = [(False, "what this check needs is missing or malformed")]
        results.append((check.__name__[1:], *next((s for s in said if not s[0]), (True, str(check.__doc__)))))
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
