"""What the tower is asked about open runs, and what is given back; whole requests: `test_run_limits`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from edge.deadline import Deadline
from edge.faults import FaultKind, TowerFault
from edge.limits import Allowance, LocalLimits
from edge.quota import Quota
from edge.reclaim import OVER_S, RUNS, reclaim
from edge.session import TowerSession
from shared.wire import (
    AcceptedFrame,
    AgentFrame,
    CapabilityFrame,
    ErrorCode,
    FailedFrame,
    ProgressFrame,
    ResultFrame,
    StatusFrame,
)
from tests.edge.limits_bench import Clock, charged_in
from tests.edge.limits_crowd import FAR, TODAY
from tests.edge.test_conversation import CLOSED, GARBLED, KEYS, SILENT, golden
from tests.edge.test_quota import Recorder

IDS = [KEYS.run_id(KEYS.new_id(), {"prompt": str(number)}) for number in range(20)]
A, B, C = IDS[:3]
RUN_S = 100.0


class Session:
    """A tower that is asked after runs and says these, one after the other."""

    def __init__(self, *said: AgentFrame | TowerFault) -> None:
        """Say what it says."""
        self.said = list(said)
        self.asked: list[str] = []
        self.waits: set[Deadline] = set()

    def send(self, frame: StatusFrame) -> None:
        """Be asked."""
        self.asked.append(frame.run_id)

    def receive(self, deadline: Deadline) -> AgentFrame:
        """Give the next."""
        self.waits.add(deadline)
        said = self.said.pop(0)
        if isinstance(said, TowerFault):
            raise said
        return said


class Books:
    """A budget of ten runs of which some are open."""

    def __init__(self, *open_runs: str) -> None:
        """Let these reserve."""
        self.limits = LocalLimits(Allowance(gpu_seconds_per_day=10 * RUN_S), clock=Clock())
        self.clock = Clock()
        allowance = Allowance(gpu_seconds_per_day=10 * RUN_S)
        self.quota = Quota(allowance, RUN_S, self.limits, clock=self.clock)
        for run in open_runs:
            self.quota.reserve(run, FAR)

    @property
    def charged(self) -> int:
        """What today is charged, in milliseconds."""
        assert self.limits._base is not None
        return charged_in(self.limits._base, TODAY)

    @property
    def open(self) -> set[str]:
        """The runs that are still open."""
        return set(self.limits.reserve("more", 11 * RUN_S, FAR).open)


def result(run: str, busy_s: float | None = None) -> ResultFrame:
    """A run's result."""
    frame = golden(ResultFrame).model_copy(update={"run_id": run, "busy_s": busy_s})
    assert isinstance(frame, ResultFrame)
    return frame


def failed(run: str | None, code: str, busy_s: float | None = None) -> FailedFrame:
    """A run's failure."""
    return FailedFrame(run_id=run, code=ErrorCode(code), detail="", busy_s=busy_s)


def reclaimed(session: Session, books: Books, runs: Iterable[str], by: Deadline = FAR) -> bool:
    """Reclaim from these."""
    return reclaim(cast(TowerSession, session), books.quota, runs, by)


def test_ended_runs_are_settled_by_what_they_used() -> None:
    """Each that has ended is charged what it was busy, whatever the order of the answers; those under way stay."""
    books = Books(A, B, C, IDS[3])
    session = Session(
        failed(C, "CANCELLED", 0.0),
        ProgressFrame(run_id=IDS[3], phase="measuring", done=1, total=50),
        failed(B, "EXPIRED", 4.5),
        result(A, 12.3456),
    )
    assert reclaimed(session, books, [A, B, C, IDS[3]])
    assert sorted(session.asked) == sorted([A, B, C, IDS[3]])
    assert books.charged == 12_346 + 4_500 + 0 + 100_000
    assert books.open == {IDS[3]}


def test_nothing_has_ended() -> None:
    """While all are under way there is nothing to try again for."""
    books = Books(A, B)
    waits = AcceptedFrame(run_id=B, position=1)
    runs = ProgressFrame(run_id=A, phase="measuring", done=1, total=50)
    assert not reclaimed(Session(waits, runs), books, [A, B])
    assert (books.charged, books.open) == (200_000, {A, B})


@pytest.mark.parametrize(
    ("end", "is_open"),
    [
        (result(A), False),
        (failed(A, "EXPIRED"), False),
        (failed(A, "CONFLICT"), False),
        (failed(A, "WORKER_DIED"), False),
        # The tower cannot read its memory now.
        (failed(A, "INTERNAL"), True),
    ],
)
def test_end_that_tells_no_time(end: AgentFrame, is_open: bool) -> None:
    """A run of which nothing more can be learnt stays charged in full, and nobody asks after it again."""
    books = Books(A, B)
    assert not reclaimed(Session(end, AcceptedFrame(run_id=B, position=0)), books, [A, B])
    assert books.charged == 200_000
    assert books.open == ({A, B} if is_open else {B})


def test_run_that_the_tower_never_took() -> None:
    """What it reserved is given back whole, once, and is there for another run."""
    books = Books(A, B)
    said = (failed(A, "NOT_FOUND"), AcceptedFrame(run_id=B, position=0))
    assert not reclaimed(Session(*said), books, [A, B])
    books.clock.now += OVER_S
    assert reclaimed(Session(*said), books, [A, B])
    assert (books.charged, books.open) == (100_000, {B})
    assert not reclaimed(Session(failed(A, "NOT_FOUND")), books, [A])
    assert books.charged == 100_000


def test_run_that_may_still_be_sent() -> None:
    """Whoever has reserved may be about to send: until that must be over, the run keeps what it has and stays open."""
    books = Books(A)
    for _ in range(3):
        assert not reclaimed(Session(failed(A, "NOT_FOUND")), books, [A])
        books.clock.now += OVER_S / 3.001
    assert (books.charged, books.open) == (100_000, {A})


def test_run_that_another_instance_has_settled() -> None:
    """It is not settled twice, and closed, as that instance may not have lived to do so."""
    limits = Recorder(does=False)
    quota = Quota(Allowance(gpu_seconds_per_day=900), 300, limits)
    assert not reclaim(cast(TowerSession, Session(result(A, 5.0))), quota, [A], FAR)
    assert limits.calls == [("settle", A, 5.0), ("close", A)]


def test_limits_that_are_down() -> None:
    """What could not be settled is left open for another time."""
    limits = Recorder(down="the table is on fire")
    quota = Quota(Allowance(gpu_seconds_per_day=900), 300, limits)
    assert not reclaim(cast(TowerSession, Session(result(A, 5.0))), quota, [A], FAR)
    assert limits.calls == [("settle", A, 5.0)]


def test_as_many_as_is_bearable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many runs eight are asked after, by chance, each once."""
    chosen: list[int] = []

    def sample(_: object, names: list[str], count: int) -> list[str]:
        chosen.append(len(names))
        return names[-count:]

    monkeypatch.setattr("secrets.SystemRandom.sample", sample)
    session = Session(SILENT)
    assert not reclaimed(session, Books(), IDS)
    assert chosen == [20]
    assert session.asked == sorted(IDS)[-RUNS:]


@pytest.mark.parametrize("fault", [SILENT, CLOSED])
def test_tower_that_says_no_more(fault: TowerFault) -> None:
    """What it has said counts; the connection is not used further, as its answers may still come."""
    books = Books(A, B)
    assert not reclaimed(Session(result(A, 5.0), fault), books, [A, B])
    assert (books.charged, books.open) == (105_000, {B})


@pytest.mark.parametrize(
    "broken",
    [
        GARBLED,
        golden(CapabilityFrame),
        result(C, 0.0),
        failed(C, "CANCELLED", 0.0),
        failed(None, "BAD_MESSAGE"),
        failed(None, "BAD_MESSAGE", 0.0),
        result(A, 0.0),  # for the second time
    ],
)
def test_tower_that_breaks_the_protocol(broken: AgentFrame | TowerFault) -> None:
    """It is not believed in anything, and nothing comes of it but that nothing is given back."""
    books = Books(A, B, C)
    assert not reclaimed(Session(result(A, 5.0), broken), books, [A, B])
    assert (books.charged, books.open) == (300_000, {A, B, C})


@pytest.mark.parametrize("kind", [FaultKind.CLOSED, FaultKind.GARBLED])
def test_connection_that_is_lost_while_asking(kind: FaultKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that cannot be sent ends it."""

    def send(*_: object) -> None:
        raise TowerFault(kind, "gone")

    monkeypatch.setattr(Session, "send", send)
    books = Books(A)
    assert not reclaimed(Session(), books, [A])
    assert (books.charged, books.open) == (100_000, {A})


def test_names_that_are_no_run_ids() -> None:
    """What somebody else has put among the open runs is not asked after, and taken out."""
    books = Books("nonsense", A)
    session = Session(result(A, 5.0))
    assert reclaimed(session, books, ["nonsense", A])
    assert session.asked == [A]
    assert (books.charged, books.open) == (105_000, set())


def test_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tower has a second for all answers, and never more than the caller; after two nothing is settled any more."""
    now = 1000.0
    monkeypatch.setattr("edge.deadline.time.monotonic", lambda: now)
    books = Books(A, B, C)

    def session(ends_at: float) -> Session:
        made = Session(result(A, 5.0))
        receive = made.receive

        def slow(deadline: Deadline) -> AgentFrame:
            nonlocal now
            now = ends_at
            return receive(deadline)

        made.receive = slow  # type: ignore[method-assign]
        return made

    late = session(1002.0)
    assert not reclaimed(late, books, [A], Deadline(1060.0))
    assert late.waits == {Deadline(1001.0)}
    assert (books.charged, books.open) == (300_000, {A, B, C})
    late = session(1002.4)
    assert not reclaimed(late, books, [A], Deadline(1002.4))
    assert late.waits == {Deadline(1002.4)}
    assert books.charged == 300_000
    in_time = session(1004.3)
    assert reclaimed(in_time, books, [A], Deadline(1060.0))
    assert books.charged == 205_000


def test_a_clean_end_leaves_no_answer_behind() -> None:
    """As many answers are read as questions were asked, so that the next frame belongs to the next question."""
    said: list[Any] = [
        result(A, 5.0),
        AcceptedFrame(run_id=B, position=0),
        AcceptedFrame(run_id=C, position=0),
    ]
    session = Session(*said)
    assert reclaimed(session, Books(A, B), [A, B])
    assert session.said == said[2:]
