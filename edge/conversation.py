"""What is said on one connection to the tower about one run, from the first frame to an end or to the wait's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
) -> ResultFrame | FailedFrame | Running:
    """Read frames until the run is over or the wait is.

    Raises:
        TowerFault: If the tower never took the run, or broke the protocol. Once it has taken the run, silence
            or a closed connection mean only that the run is still going on there.
    """
    running: Running | None = None
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
            progress = {"phase": frame.phase, "done": frame.done, "total": frame.total}
            running = Running(progress, frame.k)
