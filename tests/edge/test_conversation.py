"""What is said on one connection about one run; the connection is a stand-in, so that every order of frames is told."""

from __future__ import annotations

from typing import Any, cast

import pytest

from edge.conversation import REPEAT_S, Running, converse
from edge.deadline import Deadline
from edge.faults import FaultKind, TowerFault
from edge.session import TowerSession
from shared.runid import RunKeys
from shared.wire import (
    AcceptedFrame,
    AgentFrame,
    CancelFrame,
    CapabilityFrame,
    FailedFrame,
    ProgressFrame,
    ResultFrame,
    RunFrame,
    StatusFrame,
    parse_agent_frame,
)
from tests.agent.support import GOLDEN

KEYS = RunKeys(b"a-run-secret-for-tests")
RUN_ID, OTHER_ID = (KEYS.run_id(KEYS.new_id(), {"prompt": "p"}) for _ in range(2))
STATUS, CANCEL = StatusFrame(run_id=RUN_ID), CancelFrame(run_id=RUN_ID)
FIRST_WORD, END = Deadline.after(10), Deadline.after(20)

QUEUED = AcceptedFrame(run_id=RUN_ID, position=2, k=3)
TAKEN = AcceptedFrame(run_id=RUN_ID, position=0)
MEASURING = ProgressFrame(run_id=RUN_ID, phase="measuring", done=1, total=50, k=3)
BUSY = FailedFrame(run_id=RUN_ID, code=cast(Any, "BUSY"), detail="")
SILENT = TowerFault(FaultKind.SILENT, "silent")
CLOSED = TowerFault(FaultKind.CLOSED, "closed")
GARBLED = TowerFault(FaultKind.GARBLED, "garbled")


def golden(kind: type[AgentFrame]) -> AgentFrame:
    """The example of a frame."""
    import json

    return next(
        frame for one in GOLDEN["agent"] if isinstance(frame := parse_agent_frame(json.dumps(one)), kind)
    )


RESULT = golden(ResultFrame).model_copy(update={"run_id": RUN_ID})


class Session:
    """A connection on which these come, one after the other."""

    def __init__(self, *said: AgentFrame | TowerFault) -> None:
        """Say what comes."""
        self.said = list(said)
        self.waits: list[Deadline] = []

    def receive(self, deadline: Deadline) -> AgentFrame:
        """Give the next."""
        self.waits.append(deadline)
        said = self.said.pop(0)
        if isinstance(said, TowerFault):
            raise said
        return said


def told(session: Session, asked: StatusFrame | CancelFrame = STATUS) -> object:
    """What a conversation comes to."""
    return converse(cast(TowerSession, session), asked, FIRST_WORD, END)


def running(frame: ProgressFrame) -> Running:
    """What is known of a run from its progress."""
    return Running({"phase": frame.phase, "done": frame.done, "total": frame.total}, frame.k)


@pytest.mark.parametrize(
    "last", [RESULT, BUSY, FailedFrame(run_id=None, code=cast(Any, "BAD_MESSAGE"), detail="")]
)
def test_end(last: AgentFrame) -> None:
    """A result or a failure ends it, at once or after others; the first word has its own deadline."""
    assert told(Session(last)) is last
    session = Session(TAKEN, MEASURING, last)
    assert told(session) is last
    assert session.waits == [FIRST_WORD, END, END]


@pytest.mark.parametrize("fault", [SILENT, CLOSED])
def test_taken_and_then_nothing(fault: TowerFault) -> None:
    """Once the tower has the run, silence or a closed connection mean that it is still at it."""
    assert told(Session(TAKEN, fault)) == Running({"phase": "queued", "position": 0}, None)
    assert told(Session(TAKEN, MEASURING, fault)) == running(MEASURING)
    assert told(Session(MEASURING, fault)) == running(MEASURING)


@pytest.mark.parametrize("fault", [SILENT, CLOSED, GARBLED])
def test_never_taken(fault: TowerFault) -> None:
    """A fault before the tower's first word is the answer."""
    with pytest.raises(TowerFault) as caught:
        told(Session(fault))
    assert caught.value is fault


def test_broken_though_taken() -> None:
    """A tower that breaks the protocol is not believed, though it has the run."""
    with pytest.raises(TowerFault) as caught:
        told(Session(TAKEN, GARBLED))
    assert caught.value is GARBLED


def test_queue() -> None:
    """Nobody waits for others' runs; one that is cancelled while it waits ends at once, so that is waited for."""
    assert told(Session(QUEUED)) == Running({"phase": "queued", "position": 2}, 3)
    assert told(Session(QUEUED, BUSY), CANCEL) is BUSY


@pytest.mark.parametrize(
    "frame",
    [
        golden(CapabilityFrame),
        *(frame.model_copy(update={"run_id": OTHER_ID}) for frame in (TAKEN, MEASURING, RESULT, BUSY)),
    ],
)
def test_about_something_else(frame: AgentFrame) -> None:
    """A frame about another run, or about none, breaks the protocol."""
    for before in ((), (TAKEN,)):
        with pytest.raises(TowerFault, match="answered for another run") as caught:
            told(Session(*before, frame))
        assert caught.value.kind is FaultKind.GARBLED


@pytest.mark.parametrize(
    ("said", "repeated"), [((TAKEN, SILENT), True), ((MEASURING, MEASURING, SILENT), False)]
)
def test_repeat_is_not_waited_for(said: tuple[Any, ...], repeated: bool) -> None:
    """The end of a run that was there before is waited for two seconds: its first POST may still hold an invocation."""
    frame = cast(Any, RunFrame).model_construct(run_id=RUN_ID)
    session = Session(*said)
    end = converse(cast(TowerSession, session), frame, FIRST_WORD, Deadline.after(1000), repeated=repeated)
    assert isinstance(end, Running)
    assert all(wait.remaining() <= REPEAT_S for wait in session.waits[1:])
    fresh = Session(TAKEN, MEASURING, SILENT)
    converse(cast(TowerSession, fresh), frame, FIRST_WORD, END)
    assert fresh.waits == [FIRST_WORD, END, END]
