"""Limits, whatever they are counted in: exact runs, exact milliseconds; then what only a SQLite database can do."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from edge.deadline import Deadline
from edge.limits import DAY_S, Allowance, Limits, LimitsDown, LocalLimits, Reservation, subscriber
from tests.edge.limits_bench import Bench, Clock, bench, charged_in_file
from tests.edge.limits_crowd import ALLOWED, FAR, NOON, SHARED_RUNS, TODAY
from tests.edge.support import SCALE

KINDS = ("memory", "file", "table")
BUDGET = Allowance(gpu_seconds_per_day=1000)
TO_MIDNIGHT = DAY_S / 2
GRANTED = Reservation(new=True)
KNOWN = Reservation()


@pytest.fixture(params=KINDS)
def it(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench of each kind."""
    with bench(request.param, tmp_path, monkeypatch) as made:
        yield made


def spent(*open_runs: str, wait_s: float = TO_MIDNIGHT) -> Reservation:
    """What a run is told for which there is not enough, while these are open."""
    return Reservation(wait_s=wait_s, open=frozenset(open_runs))


def admitted(limits: Limits, client: str = "a", ask: int = 50) -> int:
    """Ask until the first refusal; return how many were admitted."""
    for number in range(ask):
        if limits.admit(client, FAR):
            return number
    return ask


# A caller's bucket


def test_bucket(it: Bench) -> None:
    """A full bucket holds three runs and gains one in ten seconds, to the millisecond; it never holds more."""
    limits = it.make(Allowance(runs_per_minute=6, burst=3))
    assert [limits.admit("a", FAR) for _ in range(5)] == [0, 0, 0, 10, 10]
    it.clock.now = NOON + 9.999
    assert limits.admit("a", FAR) == 0.001
    it.clock.now = NOON + 10
    assert [limits.admit("a", FAR) for _ in range(2)] == [0, 10]
    it.clock.now = NOON + 25
    assert [limits.admit("a", FAR) for _ in range(2)] == [0, 5]
    it.clock.now = NOON + 45
    assert [limits.admit("a", FAR) for _ in range(3)] == [0, 0, 5]
    it.clock.now = NOON + 10_000
    assert [limits.admit("a", FAR) for _ in range(4)] == [0, 0, 0, 10]


@pytest.mark.parametrize("rate", [0.001, 0.7, 7, 11, 70, 1001.7, 6000])
@pytest.mark.parametrize("burst", [1, 2, 10])
def test_no_rounding_takes_a_run(it: Bench, rate: float, burst: int) -> None:
    """Whatever the rate, a full bucket holds exactly its runs, and after the time that it names exactly one more."""
    limits = it.make(Allowance(runs_per_minute=rate, burst=burst))
    assert admitted(limits) == burst
    wait = limits.admit("a", FAR)
    assert wait == pytest.approx(60 / rate, abs=0.0005)
    it.clock.now += wait
    assert admitted(limits) == 1


def test_callers_have_a_bucket_each(it: Bench) -> None:
    """Nobody waits for what another has started."""
    limits = it.make(Allowance(runs_per_minute=1, burst=2))
    assert [admitted(limits, client) for client in "abcab"] == [2, 2, 2, 0, 0]


def test_clock_that_goes_back(it: Bench) -> None:
    """A clock set back a little makes a caller wait as much longer."""
    limits = it.make(Allowance(runs_per_minute=6, burst=1))
    limits.admit("a", FAR)
    it.clock.now -= 5
    assert limits.admit("a", FAR) == 15


def test_clock_that_was_wrong(it: Bench) -> None:
    """Whoever was counted at a time that is far ahead has a full bucket once the clock is right, not a year's wait."""
    limits = it.make(Allowance(runs_per_minute=6, burst=2))
    it.clock.now += 365 * DAY_S
    assert admitted(limits) == 2
    it.clock.now -= 365 * DAY_S
    assert admitted(limits) == 2


@pytest.mark.parametrize("it", ["file", "table"], indirect=True)
def test_limit_that_was_changed(it: Bench) -> None:
    """A new limit holds for what an old one has counted."""
    assert admitted(it.make(Allowance(runs_per_minute=6, burst=10))) == 10
    it.clock.now += 60
    assert admitted(it.make(Allowance(runs_per_minute=6, burst=10))) == 6
    it.clock.now += 60
    assert it.make(Allowance(runs_per_minute=6, burst=2)).admit("a", FAR) == 30


# The day's budget


def test_budget_is_spent_to_the_millisecond(it: Bench) -> None:
    """Runs reserve until the next would be more than there is; then there is more at midnight."""
    limits = it.make(BUDGET)
    assert limits.reserve("1", 400, FAR) == GRANTED
    assert limits.reserve("2", 400.001, FAR) == GRANTED
    assert limits.reserve("3", 200, FAR) == spent("1", "2")
    it.clock.now += 0.25
    assert limits.reserve("3", 200, FAR) == spent("1", "2", wait_s=TO_MIDNIGHT - 0.25)
    assert limits.reserve("3", 199.999, FAR) == GRANTED
    assert it.charged(TODAY) == 1_000_000


def test_a_run_reserves_once(it: Bench) -> None:
    """A run that is asked for again costs nothing more, be the budget spent or not."""
    limits = it.make(BUDGET)
    assert [limits.reserve("1", 400, FAR) for _ in range(3)] == [GRANTED, KNOWN, KNOWN]
    assert it.charged(TODAY) == 400_000
    limits.reserve("2", 600, FAR)
    assert limits.reserve("3", 1, FAR) == spent("1", "2")
    assert limits.reserve("1", 400, FAR) == KNOWN
    assert it.charged(TODAY) == 1_000_000


@pytest.mark.parametrize(
    ("used", "left"), [(0.0, 0), (12.3456, 12_346), (300.0, 300_000), (999_999.0, 300_000)]
)
def test_settling(it: Bench, used: float, left: int) -> None:
    """What a run has not used is given back, once; one that used more than it had is charged what it had."""
    limits = it.make(BUDGET)
    limits.reserve("1", 300, FAR)
    limits.reserve("2", 300, FAR)
    for first in (True, False, False):
        assert limits.settle("1", used, FAR) is first
        assert it.charged(TODAY) == 300_000 + left
    assert not limits.settle("1", 0, FAR)
    assert not limits.release("1", FAR)
    assert it.charged(TODAY) == 300_000 + left
    assert limits.reserve("1", 300, FAR) == KNOWN
    assert it.charged(TODAY) == 300_000 + left


def test_releasing(it: Bench) -> None:
    """What the tower did not take is given back in full, once, and may be reserved again."""
    limits = it.make(BUDGET)
    limits.reserve("1", 600, FAR)
    limits.reserve("2", 300, FAR)
    for first in (True, False, False):
        assert limits.release("1", FAR) is first
        assert it.charged(TODAY) == 300_000
    limits.settle("1", 0, FAR)
    assert it.charged(TODAY) == 300_000
    assert limits.reserve("1", 600, FAR) == GRANTED
    assert it.charged(TODAY) == 900_000
    limits.settle("1", 10, FAR)
    assert it.charged(TODAY) == 310_000


def test_runs_that_have_reserved_nothing(it: Bench) -> None:
    """Nothing is given back for them."""
    limits = it.make(BUDGET)
    limits.reserve("1", 300, FAR)
    limits.settle("2", 0, FAR)
    limits.release("3", FAR)
    assert it.charged(TODAY) == 300_000


def test_midnight(it: Bench) -> None:
    """A new day has a new budget; what is left of yesterday's runs is given back to yesterday."""
    limits = it.make(BUDGET)
    it.clock.now = (TODAY + 1) * DAY_S - 0.001
    limits.reserve("1", 700, FAR)
    limits.reserve("2", 300, FAR)
    assert limits.reserve("3", 300, FAR).wait_s == pytest.approx(0.001, abs=1e-6)
    it.clock.now = (TODAY + 1) * DAY_S
    assert limits.reserve("3", 300, FAR) == GRANTED
    limits.settle("1", 100, FAR)
    limits.release("2", FAR)
    assert limits.reserve("1", 700, FAR) == KNOWN
    assert (it.charged(TODAY), it.charged(TODAY + 1)) == (100_000, 300_000)


def test_open_runs(it: Bench) -> None:
    """Whoever is refused learns which runs have of today's budget and are neither settled, released nor closed."""
    limits = it.make(BUDGET)
    it.clock.now -= DAY_S
    limits.reserve("yesterday", 100, FAR)
    it.clock.now += DAY_S
    for run in ("settled", "released", "closed", "open", "waiting"):
        limits.reserve(run, 100, FAR)
    limits.settle("settled", 100, FAR)
    limits.release("released", FAR)
    limits.close(["closed", "never heard of"], FAR)
    assert limits.reserve("more", 900, FAR) == spent("open", "waiting")
    for run in ("yesterday", "settled", "closed", "open"):
        assert limits.reserve(run, 100, FAR) == KNOWN
    assert limits.reserve("more", 900, FAR).open - {"closed"} == {"open", "waiting"}
    limits.close(["open", "waiting", "closed"], FAR)
    assert limits.reserve("more", 900, FAR) == spent()
    assert limits.reserve("released", 100, FAR) == GRANTED
    assert limits.reserve("more", 900, FAR) == spent("released")
    assert it.charged(TODAY) == 500_000


def test_closed_run_may_still_be_settled(it: Bench) -> None:
    """That nobody asks after it again takes nothing from who learns of its end all the same; that counts once."""
    limits = it.make(BUDGET)
    limits.reserve("1", 600, FAR)
    limits.close(["1"], FAR)
    assert it.charged(TODAY) == 600_000
    assert [limits.settle("1", 7, FAR) for _ in range(2)] == [True, False]
    assert it.charged(TODAY) == 7_000


def test_nothing_to_close(it: Bench) -> None:
    """On a day of which nothing is known there is nothing to close, and no budget is made of it."""
    limits = it.make(BUDGET)
    limits.close(["1"], FAR)
    assert it.charged(TODAY) == 0
    assert limits.reserve("1", 1000, FAR) == GRANTED


# Who a caller is


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_subscriber(address: str, whose: str) -> None:
    """An IPv6 subscriber cannot have a bucket for each of its addresses."""
    assert subscriber(address) == whose


# A database that others share, or that cannot be used


def test_crowd_of_processes(tmp_path: Path) -> None:
    """Of four processes that ask at once together exactly what is allowed is admitted and reserved."""
    file = tmp_path / "limits.sqlite"
    crowd = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.edge.limits_crowd", str(file), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    try:
        for process in crowd:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        told = [process.communicate("go\n", timeout=120 * SCALE)[0].split() for process in crowd]
    finally:
        for process in crowd:
            process.kill()
            process.communicate()
    admitted, everybody, own = (sum(map(int, column)) for column in zip(*told, strict=True))
    assert (admitted, everybody, own) == (ALLOWED.burst, SHARED_RUNS, 13 - SHARED_RUNS)
    assert charged_in_file(file, TODAY) == 130_000


def test_lock_held_by_another(tmp_path: Path) -> None:
    """While another process holds the database nothing is counted; afterwards all is as it was."""
    file, now = tmp_path / "limits.sqlite", Deadline.after(0)
    limits = LocalLimits(Allowance(6, 2, 1000), file, clock=Clock())
    assert limits.admit("a", now) == 0
    assert limits.reserve("1", 300, now) == GRANTED
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for call in (
            lambda: limits.admit("a", now),
            lambda: limits.reserve("2", 300, now),
            lambda: limits.settle("1", 0, now),
            lambda: limits.release("1", now),
            lambda: limits.close(["1"], now),
        ):
            with pytest.raises(LimitsDown, match="^the limits' database: database is locked$"):
                call()
    assert [limits.admit("a", now) for _ in range(2)] == [0, 10]
    assert charged_in_file(file, TODAY) == 300_000


def _damage(file: Path) -> None:
    file.write_bytes(b"this is no database, whatever its name may say" * 100)


def _write_protect(file: Path) -> None:
    # SQLite section 1.3.3 of its file format: what is written in a later version may only be read.
    with file.open("r+b") as stream:
        stream.seek(18)
        stream.write(b"\x03")


def _replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _of_another_program(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as base:
        for table in ("callers", "days", "runs"):
            base.execute(f"CREATE TABLE {table} (id)")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_damage, "file is not a database"),
        (_write_protect, "attempt to write a readonly database"),
        (_replace_by_folder, "unable to open database file"),
        (_of_another_program, "no such column: arrival"),
    ],
)
def test_database_that_cannot_be_used(tmp_path: Path, spoil: object, says: str) -> None:
    """It is told in one sentence, by each call; once the file is gone a new one is made."""
    assert callable(spoil)
    file = tmp_path / "limits.sqlite"
    LocalLimits(Allowance(6, 2, 1000), file).admit("a", FAR)
    spoil(file)
    limits = LocalLimits(Allowance(6, 2, 1000), file, clock=Clock())
    for _ in range(2):
        with pytest.raises(LimitsDown, match=f"^the limits' database: {says}$"):
            limits.admit("a", FAR)
    file.rmdir() if file.is_dir() else file.unlink()
    assert [limits.admit("a", FAR) for _ in range(3)] == [0, 0, 10]


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    """A missing folder is no reason not to make the limits, which only then are found to be down."""
    limits = LocalLimits(BUDGET, tmp_path / "missing" / "limits.sqlite", clock=Clock())
    with pytest.raises(LimitsDown, match="unable to open database file"):
        limits.reserve("1", 300, FAR)
    (tmp_path / "missing").mkdir()
    assert limits.reserve("1", 300, FAR) == GRANTED


def test_file_that_is_deleted_while_in_use(tmp_path: Path) -> None:
    """A database that was deleted is found to be, and made anew."""
    file = tmp_path / "limits.sqlite"
    limits = LocalLimits(BUDGET, file, clock=Clock())
    limits.reserve("1", 300, FAR)
    file.unlink()
    with pytest.raises(LimitsDown):
        limits.reserve("2", 300, FAR)
    assert limits.reserve("2", 300, FAR) == GRANTED
    assert charged_in_file(file, TODAY) == 300_000


@contextmanager
def _full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk(tmp_path: Path) -> None:
    """What does not fit on the disk is not counted, and what was counted before stays."""
    file = tmp_path / "limits.sqlite"
    limits = LocalLimits(BUDGET, file, clock=Clock())
    limits.reserve("1", 300, FAR)
    with _full_disk(0):
        with pytest.raises(LimitsDown):
            limits.reserve("2", 300, FAR)
    assert charged_in_file(file, TODAY) == 300_000
    assert limits.reserve("2", 300, FAR) == GRANTED


def test_old_days_are_forgotten(tmp_path: Path) -> None:
    """A database does not grow for ever: today and yesterday are kept, and callers whose bucket is not full."""
    file, clock = tmp_path / "limits.sqlite", Clock()
    limits = LocalLimits(Allowance(6, 2, 1000), file, clock=clock)
    for day in range(4):
        clock.now = NOON + day * DAY_S
        limits.reserve(f"run-{day}", 300, FAR)
        limits.admit(f"caller-{day}", FAR)
    with closing(sqlite3.connect(file)) as base:
        assert base.execute("SELECT day FROM days ORDER BY day").fetchall() == [(TODAY + 2,), (TODAY + 3,)]
        for table in ("runs", "open"):
            found = base.execute(f"SELECT name FROM {table} ORDER BY name").fetchall()  # noqa: S608 - two names
            assert found == [("run-2",), ("run-3",)]
        assert base.execute("SELECT name FROM callers").fetchall() == [("caller-3",)]
