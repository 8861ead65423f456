"""What is said on one connection to the tower about one run, from the first frame to an end or to the wait's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edge import observe
from edge.deadline import Deadline
from edge.faults import FaultKind, TowerFault
from shared.wire import (
    AcceptedFrame,
    CancelFrame,
    FailedFrame,
    ProgressFrame,
    ResultFrame,
    RunFrame,
    StatusFrame,
)

if TYPE_CHECKING:
    from edge.session import TowerSession


REPEAT_S: Final = 2.0
"""How long the end of a run is waited for that was submitted before: each wait holds an invocation, and one caller that
repeats itself could hold them all."""


@dataclass(frozen=True)
class Running:
    """The tower has the run and is not done with it."""

    progress: dict[str, Any]
    k: int | None


def converse(
    session: TowerSession,
    asked: RunFrame | StatusFrame | CancelFrame,
    accept_by: Deadline,
    finish_by: Deadline,
    *,
    repeated: bool = False,
) -> ResultFrame | FailedFrame | Running:
    """Read frames until the run is over or the wait is.

    Args:
        session: The connection, on which `asked` was sent.
        asked: What was sent.
        accept_by: When the tower's first word must be there.
        finish_by: When the wait for the end is over.
        repeated: Whether the run was submitted before, so that its end may be waited for elsewhere; a tower whose first
            word about a submitted run is how far it is says the same.

    Raises:
        TowerFault: If the tower never took the run, or broke the protocol. Once it has taken the run, silence
            or a closed connection mean only that the run is still going on there.
    """
    running: Running | None = None
    if repeated:
        finish_by = finish_by.sooner(REPEAT_S)
    while True:
        try:
            with observe.phase("TowerWait" if running else "TowerRoundTrip"):
                frame = session.receive(finish_by if running else accept_by)
        except TowerFault as fault:
            if running and fault.kind in (FaultKind.SILENT, FaultKind.CLOSED):
                return running
            raise
        if isinstance(frame, FailedFrame) and frame.run_id in (asked.run_id, None):
            return frame
        if not isinstance(frame, AcceptedFrame | ProgressFrame | ResultFrame) or frame.run_id != asked.run_id:
            raise TowerFault(FaultKind.GARBLED, "the tower answered for another run")
        if isinstance(frame, ResultFrame):
            return frame
        if isinstance(frame, AcceptedFrame):
            running = Running({"phase": "queued", "position": frame.position}, frame.k)
            # Nobody waits for others' runs; a run that is cancelled in the queue ends at once.
            if frame.position > 0 and not isinstance(asked, CancelFrame):
                return running
        else:
            if running is None and isinstance(asked, RunFrame):
                finish_by = finish_by.sooner(REPEAT_S)
            progress = {"phase": frame.phase, "done": frame.done, "total": frame.total}
            running = Running(progress, frame.k)
