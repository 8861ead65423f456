"""What a run says apart from its timings does not depend on how busy the machine is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.beside_a_hog import COUNTED, REQUESTS, STEPS

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240 * float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 60)
@pytest.mark.parametrize("threads", [1, 2])
def test_load_changes_no_count(threads: int) -> None:
    """Tokens, counts, histogram and steps are equal on an idle machine, beside other work, and while that changes."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.beside_a_hog", str(threads)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        # As in the agent's worker: threads that spin for long come to a stand beside other work.
        env={**os.environ, "GOMP_SPINCOUNT": "3000"},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    runs = json.loads(done.stdout)
    assert len(runs["idle"]) == len(REQUESTS)
    for idle, busy, changing in zip(runs["idle"], runs["busy"], runs["changing"], strict=True):
        assert idle == busy == changing
    for run, fields in zip(runs["idle"], REQUESTS, strict=True):
        assert set(COUNTED) < set(run)
        assert (run["n"], len(run["per_step"]["drafted"]), len(run["per_step"]["accepted"])) == (STEPS,) * 3
        assert run["text"] and run["drafted"] == sum(run["per_step"]["drafted"]) > 0
        assert (run["alpha"] is not None) == (fields["k"] == "auto")
        assert (run["sum_min"] is not None) == ("temperature" in fields)
    # Requests that differ are told apart, so that equal answers mean something.
    assert len({json.dumps(run) for run in runs["idle"]}) == len(REQUESTS)
