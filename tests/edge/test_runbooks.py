"""What to do, by code."""

from __future__ import annotations

import pytest

from edge.faults import FaultKind
from edge.runbooks import ACTIVATION_RUNBOOK, runbook
from shared.wire import ErrorCode

CODES = [str(code) for kind in (FaultKind, ErrorCode) for code in kind]


def test_activation_is_step_four_of_the_walkthrough() -> None:
    """It pulls both models and confirms them."""
    text = "\n".join(ACTIVATION_RUNBOOK)
    for step in ("ollama pull llama3.2:1b", "ollama pull llama3.1:8b", "https://gpu.a-11-oy.com/api/tags"):
        assert step in text


@pytest.mark.parametrize("code", [*CODES, "NOT_CONFIGURED", "BUDGET_SPENT"])
def test_every_code_says_what_to_do(code: str) -> None:
    """The last step is to run again; models are pulled only where they may be missing."""
    steps = runbook(code)
    assert "POST /api/a11oy/v1/specdec/run" in steps[-1]
    assert any("ollama pull" in step for step in steps) is (code in ("NO_PAIR", "TOWER_UNREACHABLE"))


def test_refused_by_the_tower_or_a_gate() -> None:
    """Whoever is refused is told of both settings that may be wrong."""
    text = "\n".join(runbook(FaultKind.REFUSED))
    assert "SPECDEC_TOWER_TOKEN" in text and "SPECDEC_TOWER_HEADERS" in text


def test_budget_that_is_spent() -> None:
    """A caller is told to wait, the operator of the setting."""
    text = "\n".join(runbook("BUDGET_SPENT"))
    assert "Retry-After" in text and "SPECDEC_GPU_SECONDS_PER_DAY" in text
