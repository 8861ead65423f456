"""What the run routes do with the limits: who is refused, what a run is charged."""

from __future__ import annotations

import math
from typing import Final

from edge import observe
from edge.limits import Limits, subscriber
from edge.problems import Problem
from shared.runid import RunKeys
from shared.wire import ErrorCode, FailedFrame, ResultFrame

NOT_TAKEN: Final = frozenset(
    {
        *(
            ErrorCode.BUSY,
            ErrorCode.NO_PAIR,
            ErrorCode.GPU_BUSY,
            ErrorCode.BAD_MESSAGE,
            ErrorCode.BAD_REQUEST,
        ),
        *(ErrorCode.CONFLICT, ErrorCode.EXPIRED, ErrorCode.NOT_FOUND),
    }
)
"""After these the tower has done nothing for the run."""

SPENT: Final = "this edge has spent its GPU time for today; there is more after midnight UTC"


class Quota:
    """Counts callers' runs and the day's GPU time, where limits are set."""

    def __init__(self, limits: Limits | None, deadline_s: float) -> None:
        """Takes the limits.

        Args:
            limits: Count; None for no limits.
            deadline_s: What a run may take of the GPU at most.
        """
        self._limits = limits
        self._deadline_s = deadline_s

    def admit(self, client: str, keys: RunKeys) -> None:
        """Counts a caller's run.

        Raises:
            Problem: 429, if it has started enough.
        """
        if self._limits is None:
            return
        with observe.phase("Limit"):
            # A name that tells nobody the caller's address.
            wait = self._limits.admit(keys.caller(subscriber(client)))
        if wait:
            detail = "You have started enough runs for now; wait as long as Retry-After says."
            raise Problem(429, detail, {"Retry-After": str(math.ceil(wait))})

    def reserve(self, run_id: str) -> float:
        """Takes a run's deadline from the day's budget; returns 0, or the seconds until there is a new one."""
        if self._limits is None:
            return 0.0
        with observe.phase("Limit"):
            return self._limits.reserve(run_id, self._deadline_s)

    def release(self, run_id: str) -> None:
        """Gives back what a run has reserved that the tower did not take."""
        if self._limits is not None:
            self._limits.release(run_id)

    def ended(self, run_id: str, outcome: ResultFrame | FailedFrame) -> None:
        """Gives back what a run did not use, as far as the tower tells."""
        if self._limits is None:
            return
        if isinstance(outcome, FailedFrame):
            if outcome.code in NOT_TAKEN:
                self._limits.release(run_id)
        elif outcome.busy_s is not None:
            self._limits.settle(run_id, outcome.busy_s)
