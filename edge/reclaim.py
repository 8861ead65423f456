"""GPU time of runs that have ended and that nobody has asked after.

A run has its whole deadline reserved until its end is known here, so runs that are left alone would drain the day's
budget in minutes. When the budget refuses a run, the tower is asked, on the connection that is open already, how some
of those that are open have ended, and what they did not use is given back: all of it where the tower never took the
run, which is known only once whoever reserved it can no longer send it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from secrets import SystemRandom
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from edge import observe
from edge.deadline import Deadline
from edge.faults import FaultKind, TowerFault
from edge.quota import Quota
from shared.wire import AcceptedFrame, ErrorCode, FailedFrame, ProgressFrame, ResultFrame, StatusFrame

if TYPE_CHECKING:
    from edge.session import TowerSession

logger = logging.getLogger(__name__)

RUNS: Final = 8
"""After so many runs the tower is asked at a time."""

TOWER_S: Final = 1.0
"""How long the tower has for all its answers."""

OVER_S: Final = 30.0
"""After so long no invocation is left that could still send the run that it has reserved."""

ALL_S: Final = 2.0
"""When nothing more is begun; a count that is under way then may still last two calls of `edge.aws`."""


def reclaim(session: TowerSession, quota: Quota, open_runs: Iterable[str], by: Deadline) -> bool:
    """Asks after open runs, and gives back what those that have ended did not use.

    Args:
        session: The connection; no answer may be under way on it.
        quota: What holds the reservations.
        open_runs: The runs; which ones are asked after is left to chance, so that none stands before the others.
        by: When this must be done.

    Returns:
        Whether there is more GPU time than before, and the connection can be used for something else.
    """
    finish_by = by.sooner(ALL_S)
    names = sorted(open_runs)
    asked: dict[str, StatusFrame] = {}
    closed: list[str] = []
    for run_id in SystemRandom().sample(names, min(RUNS, len(names))):
        try:
            asked[run_id] = StatusFrame(run_id=run_id)
        except ValidationError:  # somebody else has written it
            closed.append(run_id)
    ends, usable = _ask(session, asked, by.sooner(TOWER_S))
    gained = False
    for end in ends:
        if not finish_by.remaining():
            return False
        assert end.run_id is not None  # noqa: S101 - for the type checker: it is one that was asked for
        never_taken = isinstance(end, FailedFrame) and end.code is ErrorCode.NOT_FOUND
        if never_taken and quota.missing_s(end.run_id) < OVER_S:
            continue
        if never_taken or end.busy_s is not None:
            # A tower remembers for longer than the day that a run is open for: one that it does not know it never took.
            given_back = (
                quota.release(end.run_id, by)
                if end.busy_s is None
                else quota.settle(end.run_id, end.busy_s, by)
            )
            gained |= given_back is True
            if given_back is False:  # by an instance that did not live to close it
                closed.append(end.run_id)
        # That may be trouble with the tower's memory, which passes; all other ends are for good.
        elif not (isinstance(end, FailedFrame) and end.code is ErrorCode.INTERNAL):
            closed.append(end.run_id)
    if closed and finish_by.remaining():
        quota.close(closed, by)
    return gained and usable


def _ask(
    session: TowerSession, asked: dict[str, StatusFrame], by: Deadline
) -> tuple[list[ResultFrame | FailedFrame], bool]:
    """Returns the runs' ends as far as they came, and whether the connection can be used further."""
    ends: list[ResultFrame | FailedFrame] = []
    waiting = set(asked)
    try:
        with observe.phase("Limit"):
            for frame in asked.values():
                session.send(frame)
            while waiting:
                told = session.receive(by)
                if not isinstance(told, AcceptedFrame | ProgressFrame | ResultFrame | FailedFrame):
                    raise TowerFault(FaultKind.GARBLED, "the tower answered another question")
                if told.run_id not in waiting:
                    raise TowerFault(FaultKind.GARBLED, "the tower answered for another run")
                waiting.remove(told.run_id)
                if isinstance(told, ResultFrame | FailedFrame):
                    ends.append(told)
    except TowerFault as fault:
        logger.warning("tower fault: %s", fault.kind)
        # A tower that breaks the protocol is not believed; one that says no more has said so much.
        return ([] if fault.kind is FaultKind.GARBLED else ends), False
    return ends, True
