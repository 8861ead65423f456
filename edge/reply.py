"""Whether a tower's result is the answer to what was asked, could have happened, and is signed by whom it should be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from edge.reasons import repeats_prompt
from shared import labels
from shared.attestation import attested, check_attestation
from shared.checks import check_result
from shared.errors import SpecdecError
from shared.keys import TrustedKey
from shared.runid import digest_text, split
from shared.wire import ResultFrame

# How far the tower's clock may be ahead of this one.
MAX_CLOCK_LEAD = timedelta(minutes=5)
# A tower keeps a run for a day at most; an older result was kept elsewhere, by whoever had a use for it.
MAX_AGE = timedelta(hours=25)


def contradictions(result: ResultFrame, run_id: str, nonce: str, prompt: str | None) -> list[str]:
    """Return which checks a result fails; none if it may be believed.

    Args:
        result: What the tower sent.
        run_id: The run that was asked about.
        nonce: What the tower must echo.
        prompt: The request's, where this invocation knows it: no part of the measurement may repeat it.
    """
    bound = result.model_dump(mode="json", include={"request"})["request"]
    # The DIGEST in the run id names the request, so no instance has to remember it.
    if digest_text(bound) != split(run_id)[1]:
        reasons = ["request: not the one that this run id was made for"]
    else:
        reasons = check_result(result, run_id=run_id, nonce=nonce, bound_request=bound)
    if result.ended_at is not None:
        age = datetime.now(UTC) - datetime.fromisoformat(result.ended_at)
        if age < -MAX_CLOCK_LEAD:
            reasons.append("ended_at: in the future")
        elif age > MAX_AGE:
            reasons.append("ended_at: longer ago than a tower keeps a run")
    if prompt is not None and repeats_prompt(result, prompt):
        reasons.append("measurement: repeats a piece of the prompt")
    return reasons


def attestation(result: ResultFrame, tower_keys: Sequence[TrustedKey] | None) -> tuple[str, str]:
    """Check who signed a result.

    Args:
        result: What the tower sent.
        tower_keys: The tower's pinned keys; None when none is pinned.

    Returns:
        VERIFIED, UNPINNED or FAILED, and why it failed.
    """
    if tower_keys is None and result.attestation is None:
        return labels.UNPINNED, ""
    if result.attestation is None:
        return labels.FAILED, "the tower has not signed its result, and its key is pinned on this edge"
    if result.ended_at is None:
        return labels.FAILED, "the tower has signed a result without a time"
    try:
        frame = result.model_dump(mode="json")
        key = check_attestation(frame["attestation"], attested(frame), tower_keys)
    except SpecdecError as error:
        return labels.FAILED, f"the tower's signature over its result does not hold: {error.cause}"
    if key is not None and not key.is_valid(datetime.now(UTC)):
        return labels.FAILED, "the tower's key that signed its result is pinned for another time than now"
    return (labels.UNPINNED if tower_keys is None else labels.VERIFIED), ""
