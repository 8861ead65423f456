"""How much one caller, and all of them together, may ask of the tower.

A caller's runs pass a token bucket, kept as one number: the theoretical arrival time of the generic cell rate algorithm
(ITU-T I.371, annex A, virtual scheduling). All runs of a day (UTC) share a budget of GPU seconds: a run reserves its
whole deadline before the tower gets it, and what it did not use is given back with its result. Runs whose end is not
known here yet are open; when the budget is spent, the tower can be asked for theirs (`edge.reclaim`). Times are kept as
whole milliseconds, so that sums are exact.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from edge.deadline import Deadline

if TYPE_CHECKING:
    import sqlite3

DAY_S: Final = 86_400
LOCK_S: Final = 1.0
"""How long to wait for another process that holds the database."""

CLOCKS_DIFFER_MS: Final = 3_600_000
"""An arrival time that is later than a bucket allows by more than this is from a clock that was wrong."""

OPEN_MOST: Final = 2000
"""So many open runs of a day are remembered: an item of a DynamoDB table holds 400 KB."""


@dataclass(frozen=True)
class Allowance:
    """What is allowed; 0 stands for no limit.

    Attributes:
        runs_per_minute: What a caller's bucket gains.
        burst: Runs that a full bucket holds.
        gpu_seconds_per_day: GPU time of all callers; not less than what one run reserves.
    """

    runs_per_minute: float = 0.0
    burst: int = 10
    gpu_seconds_per_day: float = 0.0

    @property
    def interval_ms(self) -> int:
        """Time in which the bucket gains one run."""
        return round(60_000 / self.runs_per_minute)

    @property
    def tolerance_ms(self) -> int:
        """How far ahead of the clock the theoretical arrival time of a run that is admitted may be."""
        # Of whole intervals: were it rounded by itself, a full bucket might hold one run less.
        return (self.burst - 1) * self.interval_ms

    @property
    def farthest_ms(self) -> int:
        """How far ahead of the clock an arrival time may be at all."""
        return self.tolerance_ms + self.interval_ms + CLOCKS_DIFFER_MS


class LimitsDown(Exception):
    """Nothing can be counted now; the message says why, for the operator."""


class NoTime(LimitsDown):
    """Nothing is wrong: the caller has no time left to wait for a count."""


class Reservation(NamedTuple):
    """What became of a run's wish for GPU time.

    Attributes:
        wait_s: 0 if the run has it, else the seconds until there is a new budget.
        new: Whether it has it only from now on.
        open: Of a run that must wait, those that have of the budget and have not been settled.
    """

    wait_s: float = 0.0
    new: bool = False
    open: frozenset[str] = frozenset()


class Limits(Protocol):
    """Counts runs and GPU seconds, by the given moment or not at all: each method may raise `LimitsDown`."""

    def admit(self, client: str, by: Deadline) -> float:
        """Counts a caller's run.

        Args:
            client: Who asks, as a name that tells nobody who it is.
            by: When the answer must be there.

        Returns:
            0 if it is admitted, else the seconds until the next one will be.
        """
        ...

    def reserve(self, run: str, seconds: float, by: Deadline) -> Reservation:
        """Takes GPU time from the day's budget, once for a run however often it is asked.

        Args:
            run: The run.
            seconds: What it may use at most.
            by: When the answer must be there.
        """
        ...

    def settle(self, run: str, seconds: float, by: Deadline) -> bool:
        """Gives back, once, what a run has reserved and not used.

        Args:
            run: The run.
            seconds: What it has used.
            by: When this must be done.

        Returns:
            Whether it was this call that did so.
        """
        ...

    def release(self, run: str, by: Deadline) -> bool:
        """Gives back all that a run has reserved, as the tower did not take it; it may reserve again."""
        ...

    def close(self, runs: Collection[str], by: Deadline) -> None:
        """Counts runs as open no more, of whose end nothing can be learnt; they stay charged until they are settled."""
        ...


def subscriber(address: str) -> str:
    """Returns what stands for one caller: an IPv4 address, or the network of 64 bits that one IPv6 subscriber has."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def milliseconds(seconds: float) -> int:
    """Returns a time as it is counted."""
    return round(1000 * seconds)


class LocalLimits:
    """Counts in a SQLite database: in this process's memory, or in a file that several processes share."""

    def __init__(
        self, allowance: Allowance, file: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Takes the database's name; it is opened when it is needed.

        Args:
            allowance: What is allowed.
            file: The database; None keeps it in memory.
            clock: Unix time.
        """
        self._allowance = allowance
        self._file = file
        self._clock = clock
        self._base: sqlite3.Connection | None = None

    def admit(self, client: str, by: Deadline) -> float:
        """Counts a caller's run; see `Limits`."""
        allowance = self._allowance
        with self._database(by) as base:
            now = milliseconds(self._clock())
            # Buckets that are full again, and what no bucket can be.
            base.execute(
                "DELETE FROM callers WHERE arrival <= ? OR arrival > ?", (now, now + allowance.farthest_ms)
            )
            row = base.execute("SELECT arrival FROM callers WHERE name = ?", (client,)).fetchone()
            arrival: int = row[0] if row else now
            wait = arrival - now - allowance.tolerance_ms
            if wait > 0:
                return wait / 1000
            base.execute("REPLACE INTO callers VALUES (?, ?)", (client, arrival + allowance.interval_ms))
        return 0.0

    def reserve(self, run: str, seconds: float, by: Deadline) -> Reservation:
        """Takes GPU time from the day's budget; see `Limits`."""
        with self._database(by) as base:
            now, wanted = self._clock(), milliseconds(seconds)
            day = int(now // DAY_S)
            base.execute("DELETE FROM runs WHERE day < ?", (day - 1,))
            base.execute("DELETE FROM days WHERE day < ?", (day - 1,))
            base.execute("DELETE FROM open WHERE day < ?", (day - 1,))
            if base.execute("SELECT 1 FROM runs WHERE name = ?", (run,)).fetchone():
                return Reservation()
            row = base.execute("SELECT used FROM days WHERE day = ?", (day,)).fetchone()
            used: int = row[0] if row else 0
            if used + wanted > milliseconds(self._allowance.gpu_seconds_per_day):
                rows = base.execute("SELECT name FROM open WHERE day = ? LIMIT ?", (day, OPEN_MOST))
                return Reservation(wait_s=DAY_S - now % DAY_S, open=frozenset(name for (name,) in rows))
            base.execute("REPLACE INTO days VALUES (?, ?)", (day, used + wanted))
            base.execute("INSERT INTO runs VALUES (?, ?, ?, 0)", (run, day, wanted))
            base.execute("REPLACE INTO open VALUES (?, ?)", (run, day))
        return Reservation(new=True)

    def settle(self, run: str, seconds: float, by: Deadline) -> bool:
        """Gives back what a run has not used; see `Limits`."""
        return self._end(run, "UPDATE runs SET settled = 1 WHERE name = ?", milliseconds(seconds), by)

    def release(self, run: str, by: Deadline) -> bool:
        """Gives back all that a run has reserved; see `Limits`."""
        return self._end(run, "DELETE FROM runs WHERE name = ?", 0, by)

    def close(self, runs: Collection[str], by: Deadline) -> None:
        """Counts runs as open no more; see `Limits`."""
        with self._database(by) as base:
            base.executemany("DELETE FROM open WHERE name = ?", [(run,) for run in runs])

    def _end(self, run: str, change: str, used: int, by: Deadline) -> bool:
        with self._database(by) as base:
            row = base.execute(
                "SELECT day, reserved FROM runs WHERE name = ? AND NOT settled", (run,)
            ).fetchone()
            if row is None:
                return False
            base.execute(change, (run,))
            base.execute("DELETE FROM open WHERE name = ?", (run,))
            unused = max(0, row[1] - used)
            base.execute("UPDATE days SET used = used - ? WHERE day = ?", (unused, row[0]))
        return True

    @contextmanager
    def _database(self, by: Deadline) -> Iterator[sqlite3.Connection]:
        """Have the database to oneself.

        Raises:
            LimitsDown: If it is held by another, read-only, damaged, on a full disk, or not there.
        """
        import sqlite3

        try:
            if self._base is None:
                self._base = sqlite3.connect(
                    self._file or ":memory:", timeout=0, isolation_level=None, check_same_thread=False
                )
            lock_ms = milliseconds(min(LOCK_S, by.remaining()))
            self._base.execute(f"PRAGMA busy_timeout = {lock_ms}")
            self._base.execute("PRAGMA synchronous = OFF")  # counts may be lost with the machine
            self._base.execute("BEGIN IMMEDIATE")
            try:
                for table in _TABLES:
                    self._base.execute(f"CREATE TABLE IF NOT EXISTS {table}")
                yield self._base
            except BaseException:
                self._base.execute("ROLLBACK")
                raise
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            # Opened anew by the next call: the file may have been replaced.
            if self._base is not None:
                self._base.close()
                self._base = None
            raise LimitsDown(f"the limits' database: {error}") from None


_TABLES: Final = (
    "callers (name TEXT PRIMARY KEY, arrival INTEGER NOT NULL)",
    "days (day INTEGER PRIMARY KEY, used INTEGER NOT NULL)",
    "runs (name TEXT PRIMARY KEY, day INTEGER NOT NULL, reserved INTEGER NOT NULL, settled INTEGER NOT NULL)",
    "open (name TEXT PRIMARY KEY, day INTEGER NOT NULL)",
)
