"""What is done with limits: whom they name, what runs are charged, and what happens when nothing can be counted."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import pytest

from edge import observe
from edge.deadline import Deadline
from edge.limits import Allowance, Limits, LimitsDown, NoTime, Reservation
from edge.problems import Problem
from edge.quota import Quota
from shared.runid import RunKeys
from shared.wire import ErrorCode, FailedFrame, ResultFrame
from tests.edge.limits_crowd import FAR

KEYS = RunKeys(b"a-run-secret-for-tests")
RUN_ID = KEYS.run_id(KEYS.new_id(), {"prompt": "p"})
EVERYTHING = Allowance(runs_per_minute=6, burst=2, gpu_seconds_per_day=1000)
NEW, KNOWN, ASKED_AFTER = Reservation(new=True), Reservation(), None

Calls = list[tuple[Any, ...]]


class Recorder(Limits):
    """Limits that note what they are asked, and answer as they are told."""

    def __init__(self, wait_s: float = 0.0, down: str = "", *, does: bool = True) -> None:
        """Say what to answer: `down` is why nothing can be counted, `does` whether something is given back."""
        self.wait_s = wait_s
        self.down = down
        self.does = does
        self.calls: Calls = []

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if self.down:
            raise LimitsDown(self.down)

    def admit(self, client: str, by: Deadline) -> float:
        """Note."""
        self._note("admit", client)
        return self.wait_s

    def reserve(self, run: str, seconds: float, by: Deadline) -> Reservation:
        """Note."""
        self._note("reserve", run, seconds)
        return Reservation(self.wait_s, not self.wait_s)

    def settle(self, run: str, seconds: float, by: Deadline) -> bool:
        """Note."""
        self._note("settle", run, seconds)
        return self.does

    def release(self, run: str, by: Deadline) -> bool:
        """Note."""
        self._note("release", run)
        return self.does

    def close(self, runs: Collection[str], by: Deadline) -> None:
        """Note."""
        self._note("close", *runs)


def failed(code: ErrorCode, busy_s: float | None = None) -> FailedFrame:
    """A failed frame of an agent that tells, or does not tell, how long it was at it."""
    more: dict[str, Any] = {} if busy_s is None else {"busy_s": busy_s}
    return FailedFrame(run_id=RUN_ID, code=code, detail="", **more)


def refused(quota: Quota, client: str = "192.0.2.1") -> int | None:
    """Ask for a run; return Retry-After, None if it is admitted."""
    try:
        quota.admit(client, KEYS, FAR)
    except Problem as problem:
        assert problem.status == 429
        return int(problem.headers["Retry-After"])
    return None


# Callers


def test_caller_is_named_without_its_address() -> None:
    """What is stored names a caller by 32 hex digits that only the run secret can make of its network."""
    limits = Recorder()
    quota = Quota(EVERYTHING, 300, limits)
    for client in ("2001:db8::1", "2001:db8::2", "192.0.2.1", "::ffff:192.0.2.1"):
        quota.admit(client, KEYS, FAR)
    names = [name for _, name in limits.calls]
    assert names == [KEYS.caller("2001:db8::/64")] * 2 + [KEYS.caller("192.0.2.1")] * 2
    assert all(len(name) == 32 and int(name, 16) for name in names)
    assert RunKeys(b"another-run-secret").caller("192.0.2.1") != names[2]


@pytest.mark.parametrize(("wait_s", "header"), [(0.001, 1), (1.0, 1), (1.001, 2), (59.5, 60)])
def test_refusal(wait_s: float, header: int) -> None:
    """Who has started enough is told for how many whole seconds to wait, never too few and never none."""
    assert refused(Quota(EVERYTHING, 300, Recorder(wait_s))) == header


# Runs


@pytest.mark.parametrize(
    ("outcome", "reserved", "asked"),
    [
        (failed(ErrorCode.BUSY), NEW, ("release",)),
        (failed(ErrorCode.BUSY), KNOWN, ("release",)),
        (failed(ErrorCode.NO_PAIR), NEW, ("release",)),
        (failed(ErrorCode.GPU_BUSY), NEW, ("release",)),
        (failed(ErrorCode.BAD_MESSAGE), NEW, ("release",)),
        (failed(ErrorCode.BAD_REQUEST), NEW, ("release",)),
        (failed(ErrorCode.CONFLICT), NEW, ("release",)),
        # It was decoded before, on what was reserved then; or it is remembered by the tower alone.
        (failed(ErrorCode.EXPIRED), KNOWN, None),
        (failed(ErrorCode.EXPIRED, 5.5), KNOWN, ("settle", 5.5)),
        (failed(ErrorCode.EXPIRED, 5.5), ASKED_AFTER, ("settle", 5.5)),
        (failed(ErrorCode.EXPIRED), NEW, ("release",)),
        (failed(ErrorCode.EXPIRED, 5.5), NEW, ("release",)),
        # An agent that does not tell how long it was at it.
        (failed(ErrorCode.CANCELLED), NEW, None),
        (failed(ErrorCode.DEADLINE), NEW, None),
        (failed(ErrorCode.WORKER_DIED), NEW, None),
        (failed(ErrorCode.INTERNAL), NEW, None),
        # One that does.
        (failed(ErrorCode.CANCELLED, 0.0), NEW, ("settle", 0.0)),
        (failed(ErrorCode.CANCELLED, 1.5), ASKED_AFTER, ("settle", 1.5)),
        (failed(ErrorCode.GPU_BUSY, 2.5), NEW, ("settle", 2.5)),
        (failed(ErrorCode.WORKER_DIED, 9.0), ASKED_AFTER, ("settle", 9.0)),
        # Whoever only asks after a run knows nothing of what is on its way to the tower.
        (failed(ErrorCode.NOT_FOUND), ASKED_AFTER, None),
        (failed(ErrorCode.BUSY), ASKED_AFTER, None),
        (failed(ErrorCode.EXPIRED), ASKED_AFTER, None),
    ],
)
def test_what_an_end_gives_back(
    outcome: FailedFrame | ResultFrame, reserved: Reservation | None, asked: tuple[Any, ...] | None
) -> None:
    """The rest if the tower tells what it used, all if it has not taken the run, else nothing."""
    limits = Recorder()
    Quota(EVERYTHING, 300, limits).ended(RUN_ID, outcome, reserved, FAR)
    assert limits.calls == ([] if asked is None else [(asked[0], RUN_ID, *asked[1:])])


def test_a_run_reserves_its_deadline() -> None:
    """What a run may take at most is what it reserves."""
    limits = Recorder()
    assert Quota(EVERYTHING, 123, limits).reserve(RUN_ID, FAR) == NEW
    assert limits.calls == [("reserve", RUN_ID, 123)]


def test_what_is_not_limited_is_not_counted() -> None:
    """Without a limit nobody is asked: no call is made, no database opened."""
    limits = Recorder(wait_s=9.0)
    quota = Quota(Allowance(), 300, limits)
    assert refused(quota) is None
    assert quota.reserve(RUN_ID, FAR) == Reservation()
    quota.release(RUN_ID, FAR)
    quota.ended(RUN_ID, failed(ErrorCode.CANCELLED, 1.0), NEW, FAR)
    assert limits.calls == []
    assert refused(Quota(Allowance(runs_per_minute=6), 300, limits)) == 9
    assert Quota(Allowance(gpu_seconds_per_day=900), 300, limits).reserve(RUN_ID, FAR).wait_s == 9


@pytest.mark.parametrize(
    ("shared", "told"),
    [(Recorder(), True), (Recorder(does=False), False), (Recorder(down="the table is on fire"), None)],
)
def test_settling_tells_what_it_did(shared: Recorder, told: bool | None) -> None:
    """Something was given back, or there was nothing left to give, or nobody knows."""
    quota = Quota(EVERYTHING, 300, shared)
    assert quota.settle(RUN_ID, 1.5, FAR) is told
    assert shared.calls == [("settle", RUN_ID, 1.5)]


def test_run_of_this_instance_alone_is_settled() -> None:
    """It counts that something was given back by either."""
    shared = Recorder(down="the table is on fire")
    quota = Quota(EVERYTHING, 300, shared)
    quota.reserve(RUN_ID, FAR)
    assert [quota.settle(RUN_ID, 1.5, FAR) for _ in range(2)] == [True, None]
    shared.down, shared.does = "", False
    assert quota.settle(RUN_ID, 1.5, FAR) is False


def test_both_are_told_what_to_close() -> None:
    """Runs are closed wherever they are open."""
    shared = Recorder(down="the table is on fire")
    quota = Quota(EVERYTHING, 500, shared)
    for run in ("1", "2"):
        quota.reserve(run, FAR)
    assert quota.reserve("3", FAR).open == {"1", "2"}
    quota.close(["1"], FAR)
    assert shared.calls[-1] == ("close", "1")
    assert quota.reserve("3", FAR).open == {"2"}


# Nothing can be counted


def test_each_counts_by_itself(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """While what is shared is down, this instance alone allows exactly what is allowed; the log says why."""
    limits = Recorder(down="the table is on fire")
    quota = Quota(EVERYTHING, 300, limits)
    monkeypatch.setattr(observe, "_seen", observe.Seen())
    assert [refused(quota) is None for _ in range(4)] == [True, True, False, False]
    runs = [quota.reserve(f"run-{number}", FAR) for number in range(4)]
    assert runs[:3] == [NEW] * 3 and 0 < runs[3].wait_s <= 86_400
    quota.ended("run-0", failed(ErrorCode.CANCELLED, 100.0), NEW, FAR)
    assert quota.reserve("run-4", FAR) == NEW
    quota.release("run-1", FAR)
    assert quota.reserve("run-5", FAR) == NEW
    assert observe._seen.uncounted
    assert {(record.levelno, record.getMessage()) for record in caplog.records} == {
        (logging.ERROR, "limits counted by this instance alone: the table is on fire"),
        (logging.ERROR, "a run stays charged in full: the table is on fire"),
    }


def test_no_time_is_no_alarm(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller without time for the table leaves its run charged, or counted here: nothing to call anybody for."""

    class Late(Recorder):
        def settle(self, run: str, seconds: float, by: Deadline) -> bool:
            raise NoTime("no time was left to ask the table of limits")

        def reserve(self, run: str, seconds: float, by: Deadline) -> Reservation:
            raise NoTime("no time was left to ask the table of limits")

    monkeypatch.setattr(observe, "_seen", observe.Seen())
    assert Quota(EVERYTHING, 300, Late()).settle(RUN_ID, 1.0, FAR) is None
    assert Quota(EVERYTHING, 300, Late()).reserve(RUN_ID, FAR) == NEW
    assert not observe._seen.uncounted
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_run_that_was_reserved_while_all_was_down() -> None:
    """It is settled where it was reserved, though what is shared has come back."""
    limits = Recorder(down="down")
    quota = Quota(Allowance(gpu_seconds_per_day=300), 300, limits)
    assert quota.reserve("run-0", FAR) == NEW
    limits.down = ""
    quota.ended("run-0", failed(ErrorCode.CANCELLED, 0.0), NEW, FAR)
    limits.down = "down again"
    assert quota.reserve("run-1", FAR) == NEW
