"""Offline verification of a receipt: what it says against its bytes, its formulas and a pinned key.

Nothing is fetched and no input raises: whatever is wrong becomes a failed check, whatever cannot be checked
a warning that says so. The trust root is the key the caller pins, never one inside the receipt.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from shared import labels
from shared.canonical import CanonicalError, canonical_bytes, sha3_256_hex
from shared.checks import check_measurement
from shared.checks_energy import check_energy
from shared.closeness import same_json
from shared.curve import CurveError, accounting_modeled, expected_speedup
from shared.dsse import DsseError, strict_base64
from shared.models import Trimmed, explain
from shared.receipts import DIGEST_ALG, DIGEST_CANONICALIZATION
from shared.report import Check, Report
from shared.runid import RunIdError, digest_text, split
from shared.schemas import Energy, EnergyMeasured, Measurement
from shared.verify_signature import Pins, check_origin

_ENERGY: Final[TypeAdapter[Any]] = TypeAdapter(Energy, config=ConfigDict(defer_build=True))
# What only a measurement can give; without one each is absent, null or UNAVAILABLE.
_MEASURED_ONLY: Final = (
    "measurement",
    "accepted_rate",
    "mean_accepted_len",
    "speedup_modeled",
    "speedup_measured",
    "quality_delta",
    "output_sha3_256",
)


class _Accounting(Trimmed):
    """The part of `accounting_modeled` from which the rest follows."""

    label: Literal["MODELED (acceptance-rejection accounting curve, not a measurement)"]
    k: Annotated[int, Field(ge=0, le=64)]
    cost_ratio: float | None = None
    verify_cost: float = 1.0
    expected_tokens_per_step_at_alpha: dict[str, float] | None = None
    expected_speedup_at_alpha: dict[str, float]


def verify_receipt(
    receipt: Any,
    *,
    key_pem: bytes | None = None,
    tower_pem: bytes | None = None,
    require_signature: bool = False,
    now: datetime | None = None,
) -> Report:
    """Make every check on a receipt that can be made offline.

    Args:
        receipt: The parsed receipt, whatever it is.
        key_pem: The edge's pinned public keys (see `keys.load_keys`), or None.
        tower_pem: The tower's, or None; a saved `GET /keys` answer in `key_pem` may hold them too.
        require_signature: Fail a receipt whose signature is missing or cannot be checked.
        now: The time to compare dates with; by default this machine's.

    Returns:
        The report; malformed receipts give failed checks, never an exception.
    """
    pins = Pins(key_pem, tower_pem, require_signature, now or datetime.now(UTC))
    return Report(list(_checks(receipt, pins)))


def _checks(receipt: Any, pins: Pins) -> Iterator[Check]:
    if not isinstance(receipt, dict) or not isinstance(receipt.get("payload"), dict):
        yield Check("receipt", "failed", "it is not a JSON object with a payload")
        return
    payload = receipt["payload"]
    try:
        data = canonical_bytes(payload)
    except CanonicalError as error:
        yield Check("receipt", "failed", f"the payload has no canonical form: {error.cause}")
        return
    yield _receipt(receipt)
    yield _digest(receipt, data)
    yield _exact_bytes(receipt, data)
    yield _label(payload)
    yield _modeled(payload)
    if "measurement" in payload:
        yield from _measured(payload)
    yield _binding(payload)
    if "output" in receipt:
        yield _output(receipt["output"], payload)
    if "prompt_salt" in receipt:
        yield Check(
            "salt", "warning", "prompt_salt is in this file: whoever has it can test guesses of the prompt"
        )
    yield from check_origin(receipt, pins)


def _receipt(receipt: dict[str, Any]) -> Check:
    if receipt.get("schema") != labels.RECEIPT_SCHEMA:
        return Check("receipt", "failed", f"its schema is not {labels.RECEIPT_SCHEMA}")
    if receipt["payload"].get("schema") != labels.PAYLOAD_SCHEMA:
        return Check("receipt", "failed", f"its payload's schema is not {labels.PAYLOAD_SCHEMA}")
    return Check("receipt", "ok", "both schemas are known")


def _digest(receipt: dict[str, Any], data: bytes) -> Check:
    if receipt.get("digest_alg", DIGEST_ALG) != DIGEST_ALG:
        return Check("digest", "failed", f"digest_alg is not {DIGEST_ALG}")
    if receipt.get("digest_canonicalization", DIGEST_CANONICALIZATION) != DIGEST_CANONICALIZATION:
        return Check("digest", "failed", "digest_canonicalization is not the one known here")
    if receipt.get("payload_sha3_256") != sha3_256_hex(data):
        return Check("digest", "failed", "payload_sha3_256 is not the SHA3-256 of the payload")
    return Check("digest", "ok", "the payload's SHA3-256 matches")


def _exact_bytes(receipt: dict[str, Any], data: bytes) -> Check:
    if "payload_canonical_base64" not in receipt:
        return Check("exact_bytes", "warning", "the receipt carries no payload_canonical_base64")
    try:
        text = receipt["payload_canonical_base64"]
        carried = strict_base64(None if isinstance(text, str) and ("-" in text or "_" in text) else text)
    except DsseError as error:
        return Check("exact_bytes", "failed", f"payload_canonical_base64 cannot be read: {error.cause}")
    if carried != data:
        return Check("exact_bytes", "failed", "payload_canonical_base64 is not the payload's canonical bytes")
    return Check("exact_bytes", "ok", "the carried bytes are the payload's")


def _label(payload: dict[str, Any]) -> Check:
    label, measured = payload.get("label"), payload.get("measured")
    if label == labels.RUN_MEASURED:
        if measured != labels.MEASURED or not isinstance(payload.get("measurement"), dict):
            return Check("label", "failed", "the label says MEASURED, the payload holds no measurement")
        return Check("label", "ok", "MEASURED, with a measurement")
    if label not in (labels.RUN_ROADMAP, labels.CURVE_LABEL):
        return Check("label", "failed", "the label is not one of ours")
    if measured != labels.UNAVAILABLE:
        return Check("label", "failed", "without a measurement `measured` must be UNAVAILABLE")
    for name in _MEASURED_ONLY:
        if payload.get(name) not in (None, labels.UNAVAILABLE):
            return Check("label", "failed", f"{name} is given without a measurement")
    energy = payload.get("energy")
    if isinstance(energy, dict) and energy.get("label") != labels.UNAVAILABLE:
        return Check("label", "failed", "energy is given without a measurement")
    return Check("label", "ok", "nothing is called MEASURED")


def _modeled(payload: dict[str, Any]) -> Check:
    try:
        block = _Accounting.model_validate(payload.get("accounting_modeled"))
    except ValidationError as error:
        return Check("modeled", "failed", f"accounting_modeled: {explain(error)}")
    if block.cost_ratio is None:
        return Check("modeled", "warning", "accounting_modeled states no cost_ratio to recompute from")
    given = block.expected_speedup_at_alpha
    try:
        alphas = [float(key) for key in given]
        expected = accounting_modeled(block.k, block.cost_ratio, block.verify_cost, alphas)
    except (ValueError, CurveError):
        return Check("modeled", "failed", "accounting_modeled holds a parameter out of range")
    if given != expected["expected_speedup_at_alpha"]:
        return Check("modeled", "failed", "expected_speedup_at_alpha is not what the formula gives")
    if block.expected_tokens_per_step_at_alpha not in (None, expected["expected_tokens_per_step_at_alpha"]):
        return Check("modeled", "failed", "expected_tokens_per_step_at_alpha is not what the formula gives")
    return Check("modeled", "ok", "the modeled curve was recomputed")


def _measured(payload: dict[str, Any]) -> Iterator[Check]:
    try:
        measurement = Measurement.model_validate(payload.get("measurement"))
    except ValidationError as error:
        yield Check("measurement", "failed", f"measurement: {explain(error)}")
        return
    findings = check_measurement(measurement)
    if findings:
        yield Check("measurement", "failed", "measurement." + "; measurement.".join(findings))
    else:
        yield Check("measurement", "ok", "counts, rates and intervals agree with each other")
        verdict = measurement.verdict
        if verdict.valid:
            yield Check("verdict", "ok", "the run itself found its measurement good enough to rely on")
        else:
            yield Check("verdict", "warning", f"not to be relied on: {', '.join(verdict.reasons)}")
    wrong = _summary(payload, measurement)
    if wrong:
        yield Check("summary", "failed", f"{', '.join(wrong)}: not what the measurement says")
    else:
        yield Check("summary", "ok", "the top-level numbers are the measurement's")
    yield from _energy(payload, measurement)


def _energy(payload: dict[str, Any], measurement: Measurement) -> Iterator[Check]:
    """Check an energy that is said to be measured; about any other there is nothing to check."""
    try:
        energy = _ENERGY.validate_python(payload.get("energy"))
    except ValidationError:
        return  # the summary has said so
    findings = check_energy(energy, measurement)
    if findings:
        yield Check("energy", "failed", "energy." + "; energy.".join(findings))
    elif isinstance(energy, EnergyMeasured) and energy.windows is None:
        yield Check("energy", "warning", "no windows are given from which its joules could be recomputed")
    elif isinstance(energy, EnergyMeasured):
        yield Check("energy", "ok", "joules per token follow from the windows that were metered")


def _summary(payload: dict[str, Any], measurement: Measurement) -> list[str]:
    """Names of top-level fields that do not repeat the measurement, at full precision or at 4 digits."""
    dumped = measurement.model_dump(mode="json")
    accounting = payload.get("accounting_modeled")
    cost_ratio = accounting.get("cost_ratio") if isinstance(accounting, dict) else None
    if isinstance(cost_ratio, bool) or not isinstance(cost_ratio, int | float):
        return ["cost_ratio"]
    speedup: float | None = None
    if measurement.accepted_rate is not None:
        try:
            speedup = expected_speedup(measurement.accepted_rate, measurement.k, cost_ratio)
        except CurveError:
            return ["cost_ratio"]
    repeats = {
        "n": measurement.n,
        "k": measurement.k,
        "draft_model": measurement.draft.name,
        "target_model": measurement.target.name,
        "speedup_measured": dumped["speedup"],
        "quality_delta": {name: dumped["quality"][name] for name in ("identical_rate", "label")},
    }
    rounded = {
        "accepted_rate": measurement.accepted_rate,
        "mean_accepted_len": measurement.mean_accepted_len,
        "speedup_modeled": speedup,
    }
    wrong = [name for name, value in repeats.items() if not same_json(payload.get(name), value)]
    for name, full in rounded.items():
        given = payload.get(name)
        if not (same_json(given, full) or full is not None and same_json(given, round(full, 4))):
            wrong.append(name)
    try:
        _ENERGY.validate_python(payload.get("energy"))
    except ValidationError:
        wrong.append("energy")
    return wrong


def _output(output: Any, payload: dict[str, Any]) -> Check:
    """Compare the text beside the receipt with its digest; bytes that are no UTF-8 are not in the text."""
    if isinstance(output, str) and "\ufffd" in output:
        return Check("output", "skipped", "the text does not hold all of its bytes")
    try:
        fits = isinstance(output, str) and sha3_256_hex(output.encode("utf-8")) == payload.get(
            "output_sha3_256"
        )
    except UnicodeEncodeError:
        fits = False
    if not fits:
        return Check("output", "failed", "output is not the text that output_sha3_256 names")
    return Check("output", "ok", "output_sha3_256 names this text")


def _binding(payload: dict[str, Any]) -> Check:
    request = payload.get("request")
    if request is None:
        return Check("binding", "skipped", "the payload repeats no request")
    try:
        fits = digest_text(request) == split(str(payload.get("run_id")))[1]
    except (RunIdError, CanonicalError):
        return Check("binding", "failed", "run_id or request is malformed")
    if not fits:
        return Check("binding", "failed", "run_id does not name this request")
    if not isinstance(request, dict) or request.get("prompt_commitment") != payload.get("prompt_commitment"):
        return Check("binding", "failed", "prompt_commitment is not the request's")
    measurement = payload.get("measurement")
    if isinstance(measurement, dict):
        asked = (measurement.get("k_requested"), measurement.get("n_requested"))
        if asked != (request.get("k"), request.get("n")):
            return Check("binding", "failed", "measurement is not of the requested k and n")
    return Check("binding", "ok", "run_id names the request")
