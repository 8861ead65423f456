"""What every answer in a storm must be: documented, well-formed, its own, honest, and in time."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from edge.answers import SAFE_HEADERS
from edge.issuer import ENOUGH, ENOUGH_ROADMAPS, INTERIM
from shared import labels
from shared.canonical import CanonicalError, strict_loads
from shared.curve import accounting_modeled
from shared.runid import digest_text, prompt_commitment, split
from shared.verify import verify_receipt
from tools.storm_clients import MARK, SCALE, Seen

RUN_S: Final = 29 * SCALE
"""By then a run's answer is there, waiting for a free worker included; the storm's own delay comes on top."""

QUICK_S: Final = 2 * SCALE
"""So long `/health` and what is as quick take, beside waiting for a free worker."""

STATUSES: Final[Mapping[str, frozenset[int]]] = {
    "health": frozenset({200}),
    "curve": frozenset({200}),
    "run": frozenset({200, 202, 422}),
    "poll": frozenset({200, 202, 410, 503}),
    "cancel": frozenset({200, 202, 410, 503}),
    "receipt": frozenset({200}),
    "payload": frozenset({200}),
    "keys": frozenset({200}),
    "openapi": frozenset({200}),
    "page": frozenset({200}),
}
"""What is documented for a good question; of a bad one the status that is due."""

RUN_KINDS: Final = frozenset({"run", "poll", "cancel"})

AT_ANY_TIME: Final = frozenset({"RUNNING", "BUSY", "TOWER_BUSY"})
"""Codes of answers without a measurement that need no explanation where so many ask."""

WHILE_DOWN: Final = frozenset({"TOWER_UNREACHABLE", "TOWER_CLOSED", "TOWER_SILENT"})
"""Codes that only an agent explains that was down, or just coming up."""

AFTER_START: Final = frozenset({"NO_PAIR"})


@dataclass
class Storm:
    """What was done to the service, by which answers are judged.

    Attributes:
        keys: The edge's `/keys` answer, from before the storm.
        down: When the agent was down, from the kill until it listened again.
        workers_killed: When a worker of the edge was being killed, from the choice of it until it was dead.
        losses: How many answers a killed worker took along.
        silences: How many answers found an agent that was up too slow to answer; that is only told.
        lag: How late the storm itself was at most to notice an answer, in seconds.
    """

    keys: bytes
    down: list[tuple[float, float]] = field(default_factory=list)
    workers_killed: list[tuple[float, float]] = field(default_factory=list)
    losses: int = 0
    silences: int = 0
    lag: float = 0.0

    def was_down(self, began: float, ended: float) -> bool:
        """Whether the agent was down at some time in between."""
        return overlaps(self.down, began, ended)


def overlaps(spans: Sequence[tuple[float, float]], began: float, ended: float) -> bool:
    """Whether any of the spans of time has an instant in common with the one that began and ended then."""
    return any(began <= until and since <= ended for since, until in spans)


def judge(storm: Storm, answers: Sequence[Seen]) -> list[str]:
    """Returns what is wrong with the answers; one line for each kind of fault, with the number of answers."""
    faults: Counter[str] = Counter()
    owners: dict[str, int] = {}
    for one in answers:
        try:
            found = list(_faults(storm, one, owners))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = [f"{one.status} without what must be in it ({type(error).__name__})"]
        faults.update(f"{one.kind}: {fault}" for fault in found)
    # A worker holds one question, so it takes one answer along when it is killed.
    if storm.losses > len(storm.workers_killed):
        faults[f"{storm.losses} answers were lost, and {len(storm.workers_killed)} workers were killed"] += 1
    return [f"{fault} ({number} times)" for fault, number in sorted(faults.items())]


def _faults(storm: Storm, one: Seen, owners: dict[str, int]) -> Iterator[str]:
    if one.status == 0:
        yield f"no answer: {one.body.decode()}"
        return
    if MARK.encode() in one.body:
        yield "the answer holds the prompt"
    if one.status == 502 and overlaps(storm.workers_killed, one.began, one.ended):
        storm.losses += 1
        return
    took = one.ended - one.began
    if one.kind in RUN_KINDS and took > RUN_S + storm.lag:
        yield f"{one.status} after more than {RUN_S:.0f} s"
    if one.status == 429:  # no worker was free: the gateway's own, as no limits are set here
        if "retry-after" not in one.headers:
            yield "429 without Retry-After"
        return
    allowed = STATUSES.get(one.kind) or {one.asked["status"]}
    if one.status not in allowed:
        yield f"{one.status} is not documented: {one.body[:100].decode(errors='replace')}"
        return
    missing = [name for name in SAFE_HEADERS if name.lower() not in one.headers]
    if missing:
        yield f"{one.status} without {missing[0]}"
    if one.kind == "page":
        return
    try:
        value = strict_loads(one.body)
    except CanonicalError as error:
        yield f"{one.status} with a body that is not JSON: {error.cause}"
        return
    if one.status >= 400:
        yield from _problem(storm, one, value)
    elif one.kind == "health":
        yield from _health(storm, one, value)
    elif one.kind == "payload":
        if hashlib.sha3_256(one.body).hexdigest() != one.asked["digest"]:
            yield "the payload's bytes are not those that the digest names"
    elif one.kind in RUN_KINDS or one.kind in ("curve", "receipt"):
        yield from _receipt(storm, one, value, owners)
    elif one.kind == "keys" and one.body != storm.keys:
        yield "other keys than before"


def _problem(storm: Storm, one: Seen, value: Any) -> Iterator[str]:
    if one.headers.get("content-type") != "application/problem+json" or value.get("status") != one.status:
        yield f"{one.status} is no problem document"
    elif set(value) != {"type", "title", "status", "detail"}:
        yield f"{one.status} has other fields than a problem document"
    if one.status == 503 and "retry-after" not in one.headers:
        yield "503 without Retry-After"
    # A run is lost only with the agent that had it and was not done with it.
    if one.status == 410 and not storm.was_down(one.asked["since"], one.ended):
        yield "a run was lost, though the agent lived"


def _health(storm: Storm, one: Seen, value: Any) -> Iterator[str]:
    found = value["same_family_pair"]["found"]
    if value["label"] != (labels.HEALTH_MEASURED if found else labels.HEALTH_ROADMAP):
        yield "the label is not what the pair makes it"
    if found and not value["tower_reachable"]:
        yield "a pair on a tower that cannot be reached"
    # An answer of the tower is used for five seconds. A tower that is up is silent where others hold the processors.
    if not value["tower_reachable"] and not storm.was_down(one.began - 5 - QUICK_S, one.ended):
        storm.silences += 1


def _receipt(storm: Storm, one: Seen, value: Any, owners: dict[str, int]) -> Iterator[str]:
    payload = value["payload"]
    measured = payload["label"] == labels.RUN_MEASURED
    report = verify_receipt(value, key_pem=storm.keys, require_signature=measured)
    yield from (f"{check.name}: {check.detail}" for check in report.checks if check.status == "failed")
    signature = value["signature"]
    why_not = {202: {INTERIM}, 200: {ENOUGH, ENOUGH_ROADMAPS}}[one.status]
    if not signature["signed"] and signature["note"] not in why_not:
        yield f"unsigned: {signature['note']}"
    if measured and payload.get("tower", {}).get("attested") != labels.VERIFIED:
        yield "a measurement that the tower is not known to have signed"
    if one.kind == "curve":
        yield from _curve(one, payload)
    elif one.kind == "receipt":
        if value["payload_sha3_256"] != one.asked["digest"]:
            yield "another receipt than the one that was asked for"
    else:
        yield from _run(one, value, owners)
        yield from _reason(storm, one, payload)
    if measured and "link" not in one.headers:
        yield "a measurement that is not stored"


def _curve(one: Seen, payload: Mapping[str, Any]) -> Iterator[str]:
    expected = accounting_modeled(one.asked["k"], one.asked["cost_ratio"], 1.0, one.asked["alphas"])
    if payload["accounting_modeled"] != expected:
        yield "another curve than the one that was asked for"
    if one.asked["store"] != ("link" in one.headers):
        yield "Link is not where it belongs"


def _run(one: Seen, value: Mapping[str, Any], owners: dict[str, int]) -> Iterator[str]:
    """Whether it is about this client's run: id, request, commitment and salt."""
    payload = value["payload"]
    run_id = payload.get("run_id")
    if run_id is None or ("run_id" in one.asked and run_id != one.asked["run_id"]):
        yield "another run than the one that was asked for"
        return
    if owners.setdefault(run_id, one.asked["seed"]) != one.asked["seed"]:
        yield "two clients have one run"
    request = payload.get("request")
    if one.kind == "run" or payload["label"] == labels.RUN_MEASURED:
        wanted = {name: one.asked[name] for name in ("k", "n", "seed", "temperature")}
        if request is None or any(request[name] != given for name, given in wanted.items()):
            yield "another request than the one that was made"
        elif digest_text(request) != split(run_id)[1]:
            yield "the run id was made for another request"
    if one.kind == "run":
        salt = bytes.fromhex(value["prompt_salt"])
        if prompt_commitment(salt, one.asked["prompt"]) != payload["prompt_commitment"]:
            yield "the salt does not open the commitment to the prompt"
    elif "prompt_salt" in value:
        yield "the salt goes to somebody who has not sent the prompt"


def _reason(storm: Storm, one: Seen, payload: Mapping[str, Any]) -> Iterator[str]:
    """Whether a run without a measurement says a reason that there was."""
    if payload["label"] == labels.RUN_MEASURED:
        if one.status != 200:
            yield "a measurement that is not final"
        return
    code = payload["roadmap"]["code"]
    if code == "TOWER_SILENT" and not storm.was_down(one.began, one.ended):
        storm.silences += 1
        return
    if (code == "RUNNING") != (one.status == 202):
        yield f"{one.status} with {code}"
    explained = (
        code in AT_ANY_TIME
        or (code in WHILE_DOWN and storm.was_down(one.began, one.ended))
        or (code in AFTER_START and storm.was_down(one.began - 10 * SCALE, one.ended))
        # A key gives one run id for ever, and a run that was lost with the agent is not made again.
        or (code == "EXPIRED" and one.asked.get("key") and storm.was_down(0.0, one.ended))
        or (code == "CANCELLED" and (one.kind == "cancel" or one.asked.get("cancelled")))
    )
    if not explained:
        yield f"nothing explains {code}: {payload['roadmap']['reason']}"


def payload_of(receipt: Mapping[str, Any]) -> bytes:
    """Returns the exact bytes that a receipt carries."""
    return base64.b64decode(receipt["payload_canonical_base64"], validate=True)
