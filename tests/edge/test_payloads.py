"""Payloads apart from any tower."""

from __future__ import annotations

import re

from edge.payloads import now, roadmap_payload


def test_time_is_rfc_3339_in_utc() -> None:
    """Receipts state whole seconds with a Z."""
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", now())


def test_roadmap_fabricates_nothing() -> None:
    """What was not measured is UNAVAILABLE with a reason, never 0 and never missing."""
    payload = roadmap_payload(
        code="X", reason="why", runbook=["step"], k=4, cost_ratio=0.2, run={"run_id": "r"}
    )
    assert payload["label"] == "SPEC-DECODE ROADMAP"
    assert payload["measured"] == payload["quality_delta"] == "UNAVAILABLE"
    assert payload["energy"] == {"label": "UNAVAILABLE", "code": "X", "reason": "nothing was measured"}
    assert payload["roadmap"] == {"reason": "why", "code": "X", "runbook": ["step"]}
    assert payload["run_id"] == "r"
