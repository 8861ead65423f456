"""Runs whose draft length is left to the tower."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.sync.server import ServerConnection

from shared.estimators import Step, accepted_rate, accepted_rate_ci95, summarise, unconditional_acceptance
from shared.verify import verify_receipt
from tests.edge.fake_tower import FakeTower, Script, accepted, failed, progress, result, say
from tests.edge.support import PROMPT, Reply, assert_problem, assert_roadmap, client

DRAFTED = [8, 8, 7, 8, 5, 4, 6, 7, 8, 3, 0, 8]
ACCEPTED = [8, 2, 7, 0, 5, 1, 6, 7, 3, 3, 0, 8]


def adaptive() -> dict[str, Any]:
    """What a tower says of an adaptive run of twelve steps, beside what it says of any run."""
    steps = [Step(g, a, a < g, a + 1) for g, a in zip(DRAFTED, ACCEPTED, strict=True)]
    counts = summarise(steps, 8)
    interval = accepted_rate_ci95(40, 12)
    assert interval is not None
    return {
        "mode": "adaptive",
        "k_requested": "auto",
        "n_requested": 12,
        "k": 8,
        "n": 12,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "rejections": counts.rejections,
        "emitted": counts.emitted,
        "acceptance_histogram": list(counts.acceptance_histogram),
        "accepted_rate": None,
        "accepted_rate_ci95": None,
        "draft_acceptance_rate": counts.accepted / counts.drafted,
        "mean_accepted_len": counts.emitted / counts.n,
        "conditional_acceptance": list(counts.conditional),
        "unconditional_acceptance": unconditional_acceptance(counts.acceptance_histogram),
        "per_step": {"drafted": DRAFTED, "accepted": ACCEPTED},
        "alpha": {
            "label": "MEASURED",
            "value": accepted_rate(40, 12),
            "ci95": list(interval),
            "source": "24 steps of 4 draft tokens each, beside the measured ones",
            "k": 4,
            "accepted": 40,
            "rejections": 12,
        },
        "quality": {
            "identical_rate": 1.0,
            "label": "MEASURED (lossless)",
            "compared_tokens": counts.emitted,
        },
    }


def answering(measured: dict[str, Any]) -> Script:
    """A tower that answers any run with this measurement."""

    def script(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        say(connection, accepted(frame), progress(frame), result(frame, **measured))

    return script


def run_auto(**changes: Any) -> tuple[Reply, dict[str, Any]]:
    """Asks for an automatic k; the tower answers with an adaptive run, changed so. Returns also what it was sent."""
    with FakeTower(answering({**adaptive(), **changes})) as tower:
        reply = client(tower.url).run(k="auto", n=12)
    (frame,) = tower.frames
    return reply, frame


def test_auto_is_passed_on_and_bound() -> None:
    """The tower is asked for "auto", and the receipt's request, which the run id names, says so."""
    reply, frame = run_auto()
    assert frame["request"]["k"] == "auto"
    assert reply.payload["request"]["k"] == "auto"
    assert reply.payload["run_id"] == frame["run_id"]
    checks = {check.name: check.status for check in verify_receipt(reply.json).checks}
    assert checks["binding"] == "ok"


def test_adaptive_receipt() -> None:
    """Its receipt is MEASURED, with the longest draft as k, and claims no rate and no modeled speed-up."""
    reply, _ = run_auto()
    payload = reply.payload
    assert (reply.status, payload["label"]) == (200, "SPEC-DECODE MEASURED"), payload.get("roadmap")
    assert (payload["k"], payload["n"], payload["mean_accepted_len"]) == (8, 12, round(62 / 12, 4))
    assert (payload["accepted_rate"], payload["speedup_modeled"]) == (None, None)
    assert payload["speedup_measured"]["label"] == "MEASURED"
    assert payload["accounting_modeled"]["k"] == 8
    measured = payload["measurement"]
    assert (measured["mode"], measured["k_requested"]) == ("adaptive", "auto")
    assert (measured["accepted_rate"], measured["accepted_rate_ci95"]) == (None, None)
    assert measured["per_step"] == {"drafted": DRAFTED, "accepted": ACCEPTED}
    assert measured["alpha"]["value"] == 40 / 52


def test_adaptive_receipt_verifies_offline() -> None:
    """Every check of the receipt is ok, but for attestation, signature and salt: nobody signs here."""
    reply, _ = run_auto()
    report = verify_receipt(reply.json)
    assert report.ok
    assert {check.name: check.status for check in report.checks if check.status != "ok"} == {
        "salt": "warning",
        "attestation": "warning",
        "signature": "warning",
    }
    altered = reply.json
    altered["payload"]["measurement"]["per_step"]["drafted"][1] = 7
    failures = [check for check in verify_receipt(altered).checks if check.status == "failed"]
    assert any("measurement.drafted is not what per_step gives" in check.detail for check in failures)


def test_an_adaptive_run_that_drafted_nothing() -> None:
    """A tower may find that no draft pays: k is 0 and nothing was drafted."""
    nothing = {
        "k": 0,
        "drafted": 0,
        "accepted": 0,
        "rejections": 0,
        "emitted": 12,
        "acceptance_histogram": [12],
        "conditional_acceptance": [],
        "unconditional_acceptance": [],
        "draft_acceptance_rate": None,
        "mean_accepted_len": 1.0,
        "per_step": {"drafted": [0] * 12, "accepted": [0] * 12},
        "quality": {"identical_rate": 1.0, "label": "MEASURED (lossless)", "compared_tokens": 12},
    }
    reply, _ = run_auto(**nothing)
    payload = reply.payload
    assert payload["measured"] == "MEASURED", payload.get("roadmap")
    assert (payload["k"], payload["accounting_modeled"]["k"]) == (0, 0)
    assert set(payload["accounting_modeled"]["expected_speedup_at_alpha"].values()) == {1.0}
    assert verify_receipt(reply.json).ok


@pytest.mark.parametrize(("configured", "k"), [({}, 4), ({"k": "6"}, 6)])
def test_without_a_measurement_the_configured_k_is_modeled(configured: dict[str, str], k: int) -> None:
    """A refused or unreachable "auto" run is modeled at the edge's own k, since nobody chose another."""
    with FakeTower(lambda _, ws, frame: say(ws, failed(frame, "NO_PAIR"))) as tower:
        refused = client(tower.url, **configured).run(k="auto")
        edge = client(tower.url, **configured)
        tower.script = lambda _, ws, frame: say(ws, {**accepted(frame, position=1)})
        queued = edge.run({"prefer": "wait=0"}, k="auto")
        tower.script = lambda _, ws, frame: say(ws, {**accepted(frame, position=1), "k": 9})
        told = edge.run({"prefer": "wait=0"}, k="auto")
    unreachable = client(**configured).run(k="auto")
    for reply, code in ((refused, "NO_PAIR"), (unreachable, "TOWER_UNREACHABLE"), (queued, "RUNNING")):
        payload = assert_roadmap(reply, code)
        assert payload["accounting_modeled"]["k"] == k
        assert payload["request"]["k"] == "auto"
        assert verify_receipt(reply.json).ok
    assert told.payload["accounting_modeled"]["k"] == 9  # the tower says what it has chosen


def test_without_a_run_secret_the_configured_k_is_modeled() -> None:
    """So is one that this edge may not start."""
    reply = client(run_secret="", k="5").run(k="auto")
    assert assert_roadmap(reply, "NOT_CONFIGURED")["accounting_modeled"]["k"] == 5


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "measurement.k_requested is not the k that was asked for"),
        ({"mode": "adaptive"}, "measurement.k_requested is not the k that was asked for"),
        ({"k_requested": "auto"}, "measurement.mode must be adaptive exactly when k_requested is auto"),
        ({"k_requested": "auto", "mode": "adaptive"}, "measurement.per_step is missing"),
    ],
)
def test_a_fixed_measurement_for_auto_is_refused(changes: dict[str, Any], sentence: str) -> None:
    """A tower that answers "auto" with a run of fixed length is not believed, whatever it calls the run."""
    with FakeTower(answering(changes)) as tower:
        reply = client(tower.url).run(k="auto")
    assert sentence in assert_roadmap(reply, "REPLY_REFUSED")["roadmap"]["reason"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "measurement.k_requested is not the k that was asked for"),
        ({"k_requested": 8}, "measurement.mode must be adaptive exactly when k_requested is auto"),
        ({"k_requested": 8, "mode": "linear"}, "measurement.per_step.drafted is not k in every step"),
        ({"k_requested": 8, "mode": "linear"}, "measurement.accepted_rate is not"),
    ],
)
def test_an_adaptive_measurement_for_a_fixed_k_is_refused(changes: dict[str, Any], sentence: str) -> None:
    """Nor is one that answers a k that was named with an adaptive run."""
    with FakeTower(answering({**adaptive(), **changes})) as tower:
        reply = client(tower.url).run(k=8, n=12)
    assert sentence in assert_roadmap(reply, "REPLY_REFUSED")["roadmap"]["reason"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"accepted_rate": 0.7},
            "measurement.accepted_rate must be null when drafts were stopped by confidence",
        ),
        ({"per_step": None}, "measurement.per_step is missing"),
        ({"alpha": {**adaptive()["alpha"], "value": 0.9}}, "measurement.alpha.value is not"),
        (
            {"speedup_predicted": {"label": "MODELED", "value": 2.0}},
            "measurement.iid, speedup_predicted and residuals must be null",
        ),
    ],
    ids=lambda part: ",".join(part) if isinstance(part, dict) else "",
)
def test_adaptive_claims_are_checked(changes: dict[str, Any], sentence: str) -> None:
    """What an adaptive run cannot know, or what its own counts belie, is refused before any receipt says it."""
    reply, _ = run_auto(**changes)
    assert sentence in assert_roadmap(reply, "REPLY_REFUSED")["roadmap"]["reason"]


@pytest.mark.parametrize("more", [{}, {"emitted": 0}], ids=["timing", "emitted"])
def test_numbers_too_small_to_divide_by_are_refused(more: dict[str, Any]) -> None:
    """Timings and counts that nothing can be divided by are refused, and are no fault of this server."""
    extreme = {
        "calibration": {
            "cost_ratio": 0.0,
            "verify_cost": [1.0] * 17,
            "measured_at": "now",
            "draft": {"first": 0, "following": 0, "catch_up": 0, "k": 4, "after_full_acceptance": 0},
        },
        "residuals": {
            "cost": {"predicted": 1.0, "measured": 1.0, "ratio": 1.0},
            "tokens": {"expected": 1.0, "seen": 1.0, "ratio": 1.0},
        },
        "per_step": {"drafted": [4] * 50, "accepted": [0] * 50},
        "timing": {"speculative_s": [1.0] * 8, "target_only_s": [5e-324] * 8},
    }
    with FakeTower(answering({**extreme, **more})) as tower:
        reply = client(tower.url).run()
    assert_roadmap(reply, "REPLY_REFUSED")


@pytest.mark.parametrize("k", ["AUTO", "automatic", "", ["auto"], {"auto": 1}])
def test_only_auto_is_auto(k: Any) -> None:
    """Any other word is refused with what k may be."""
    detail = assert_problem(client().post({"prompt": PROMPT, "k": k}), 422)
    assert detail == 'k must be an integer from 1 to 16, or "auto".'
