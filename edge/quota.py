"""What the run routes do with the limits: who is refused, what a run is charged.

Nothing that counts can fail a run: while what all instances share cannot be used, each counts by itself.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from edge import observe
from edge.deadline import Deadline
from edge.limits import OPEN_MOST, Allowance, Limits, LimitsDown, LocalLimits, NoTime, Reservation, subscriber
from edge.problems import Problem
from shared.runid import RunKeys
from shared.wire import ErrorCode, FailedFrame, ResultFrame

logger = logging.getLogger(__name__)

NOT_TAKEN: Final = frozenset(
    {
        ErrorCode.BUSY,
        ErrorCode.NO_PAIR,
        ErrorCode.GPU_BUSY,
        ErrorCode.BAD_MESSAGE,
        ErrorCode.BAD_REQUEST,
        ErrorCode.CONFLICT,
    }
)
"""After these the tower has done nothing for the run, if it does not say how long it was at it."""

SPENT: Final = (
    "the GPU time that this edge has for today is spent, or set aside for runs under way; "
    "there is more after midnight UTC"
)

T = TypeVar("T")


class Quota:
    """Counts callers' runs and the day's GPU time, where limits are set."""

    def __init__(
        self,
        allowance: Allowance,
        deadline_s: float,
        shared: Limits | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Takes the limits.

        Args:
            allowance: What is allowed.
            deadline_s: What a run may take of the GPU at most.
            shared: Counts for all instances; None lets this one count by itself.
            clock: Unix time.
        """
        self._clock = clock
        self._missing: dict[str, float] = {}
        self._allowance = allowance
        self._deadline_s = deadline_s
        self._alone: Limits = LocalLimits(allowance)
        self._shared = shared or self._alone

    def admit(self, client: str, keys: RunKeys, by: Deadline) -> None:
        """Counts what a caller asks for; a run that it asks for again counts again.

        Args:
            client: Its address.
            keys: Make a name of it that tells nobody the address.
            by: When the answer must be there.

        Raises:
            Problem: 429, if it has asked for enough.
        """
        if not self._allowance.runs_per_minute:
            return
        name = keys.caller(subscriber(client))
        wait_s = self._ask(lambda limits: limits.admit(name, by))
        if wait_s:
            detail = "You have started enough runs for now; wait as long as Retry-After says."
            raise Problem(429, detail, {"Retry-After": str(math.ceil(wait_s))})

    def reserve(self, run_id: str, by: Deadline) -> Reservation:
        """Takes a run's deadline from the day's budget."""
        if not self.counts_time:
            return Reservation()
        return self._ask(lambda limits: limits.reserve(run_id, self._deadline_s, by))

    @property
    def counts_time(self) -> bool:
        """Whether runs reserve GPU time, so that a reservation tells whether a run is new."""
        return bool(self._allowance.gpu_seconds_per_day)

    def release(self, run_id: str, by: Deadline) -> bool | None:
        """Gives back what a run has reserved that the tower did not take.

        Returns:
            Whether something was given back for it only now; None if that is not known.
        """
        return self._given_back(lambda limits: limits.release(run_id, by)) if self.counts_time else False

    def ended(
        self, run_id: str, outcome: ResultFrame | FailedFrame, reserved: Reservation | None, by: Deadline
    ) -> None:
        """Gives back what a run did not use, as far as the tower tells.

        Args:
            run_id: The run.
            outcome: How it ended, or why it did not begin.
            reserved: What the invocation that submitted it had reserved; None if this one has only asked after it.
            by: When this must be done.
        """
        if not self.counts_time:
            return
        code = outcome.code if isinstance(outcome, FailedFrame) else None
        if code is ErrorCode.EXPIRED and reserved is not None and reserved.new:
            # If it was ever decoded, then on what was reserved before.
            self.release(run_id, by)
        elif outcome.busy_s is not None:
            self.settle(run_id, outcome.busy_s, by)
        elif code in NOT_TAKEN and reserved is not None:
            self.release(run_id, by)

    def settle(self, run_id: str, busy_s: float, by: Deadline) -> bool | None:
        """Gives back what a run did not use.

        Returns:
            Whether something was given back for it only now; None if that is not known.
        """
        return self._given_back(lambda limits: limits.settle(run_id, busy_s, by))

    def missing_s(self, run_id: str) -> float:
        """Returns for how many seconds it has been known here that the tower does not know a run."""
        if len(self._missing) >= OPEN_MOST:
            self._missing.clear()
        return self._clock() - self._missing.setdefault(run_id, self._clock())

    def close(self, run_ids: Collection[str], by: Deadline) -> None:
        """Lets nobody ask again after runs of whose end nothing can be learnt."""
        self._tell(lambda limits: limits.close(run_ids, by))

    def _given_back(self, news: Callable[[Limits], bool]) -> bool | None:
        told = self._tell(news)
        return True if True in told else None if None in told else False

    def _ask(self, question: Callable[[Limits], T]) -> T:
        with observe.phase("Limit"):
            try:
                return question(self._shared)
            except NoTime as late:
                # No alarm, as in `_tell`.
                logger.info("limits counted by this instance alone: %s", late)
                return question(self._alone)
            except LimitsDown as down:
                observe.uncounted()
                logger.error("limits counted by this instance alone: %s", down)
                return question(self._alone)

    def _tell(self, news: Callable[[Limits], T]) -> list[T | None]:
        """Tells both, as either may hold what the run has reserved; returns their answers, None of one that is down."""
        told: list[T | None] = []
        with observe.phase("Limit"):
            for limits in (self._shared, self._alone):
                try:
                    told.append(news(limits))
                except NoTime as late:
                    # No alarm: the table is well. When the budget is spent, the tower is asked after the run.
                    told.append(None)
                    logger.info("a run stays charged for now: %s", late)
                except LimitsDown as down:
                    told.append(None)
                    observe.uncounted()
                    logger.error("a run stays charged in full: %s", down)
        return told
