"""How much one caller, and all of them together, may ask of the tower.

A caller's runs pass a token bucket, kept as one number: the theoretical arrival time of the generic cell rate algorithm
(ITU-T I.371, annex A, virtual scheduling). All runs of a day (UTC) share a budget of GPU seconds: a run reserves its
whole deadline before the tower gets it, and what it did not use is given back with its result. A run that nobody asks
after stays charged in full.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import sqlite3

DAY_S: Final = 86_400


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
    def interval_s(self) -> float:
        """Seconds in which the bucket gains one run."""
        return 60.0 / self.runs_per_minute

    @property
    def tolerance_s(self) -> float:
        """How far ahead of the clock the theoretical arrival time of a run that is admitted may be."""
        return (self.burst - 1) * self.interval_s


class Limits(Protocol):
    """Counts runs and GPU seconds.

    Attributes:
        worst_s: How long one call may take at worst, in seconds.
    """

    worst_s: float

    def admit(self, client: str) -> float:
        """Counts a caller's run.

        Args:
            client: Who asks, as a name that tells nobody who it is.

        Returns:
            0 if it is admitted, else the seconds until the next one will be.
        """
        ...

    def reserve(self, run: str, seconds: float) -> float:
        """Takes GPU time from the day's budget, once for a run however often it is asked.

        Args:
            run: The run.
            seconds: What it may use at most.

        Returns:
            0 if the budget had it, else the seconds until there is a new budget.
        """
        ...

    def settle(self, run: str, seconds: float) -> None:
        """Gives back, once, what a run has reserved and not used.

        Args:
            run: The run.
            seconds: What it has used.
        """
        ...

    def release(self, run: str) -> None:
        """Gives back all that a run has reserved, as the tower did not take it; it may reserve again."""
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


class LocalLimits:
    """Counts in a SQLite database: in this process's memory, or in a file that several processes share."""

    worst_s = 1.0

    def __init__(
        self, allowance: Allowance, file: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Opens the database.

        Args:
            allowance: What is allowed.
            file: The database; None keeps it in memory.
            clock: Unix time.
        """
        import sqlite3

        self._allowance = allowance
        self._clock = clock
        self._base = sqlite3.connect(file or ":memory:", timeout=self.worst_s, isolation_level=None)
        self._base.execute("PRAGMA synchronous=OFF")  # counts may be lost with the machine
        with self._alone():
            self._base.execute("CREATE TABLE IF NOT EXISTS callers (name TEXT PRIMARY KEY, arrival REAL)")
            self._base.execute("CREATE TABLE IF NOT EXISTS days (day INTEGER PRIMARY KEY, used REAL)")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, day INTEGER, reserved REAL, settled INTEGER)"
            )

    def admit(self, client: str) -> float:
        """Counts a caller's run; see `Limits`."""
        allowance = self._allowance
        if not allowance.runs_per_minute:
            return 0.0
        with self._alone() as base:
            now = self._clock()
            base.execute("DELETE FROM callers WHERE arrival <= ?", (now,))  # their buckets are full again
            row = base.execute("SELECT arrival FROM callers WHERE name = ?", (client,)).fetchone()
            arrival: float = row[0] if row else now
            if arrival - now > allowance.tolerance_s:
                return arrival - now - allowance.tolerance_s
            base.execute("REPLACE INTO callers VALUES (?, ?)", (client, arrival + allowance.interval_s))
        return 0.0

    def reserve(self, run: str, seconds: float) -> float:
        """Takes GPU time from the day's budget; see `Limits`."""
        if not self._allowance.gpu_seconds_per_day:
            return 0.0
        with self._alone() as base:
            now = self._clock()
            day = int(now // DAY_S)
            base.execute("DELETE FROM runs WHERE day < ?", (day - 1,))
            base.execute("DELETE FROM days WHERE day < ?", (day - 1,))
            if base.execute("SELECT 1 FROM runs WHERE name = ?", (run,)).fetchone():
                return 0.0
            row = base.execute("SELECT used FROM days WHERE day = ?", (day,)).fetchone()
            used: float = row[0] if row else 0.0
            if used + seconds > self._allowance.gpu_seconds_per_day:
                return DAY_S - now % DAY_S
            base.execute("REPLACE INTO days VALUES (?, ?)", (day, used + seconds))
            base.execute("INSERT INTO runs VALUES (?, ?, ?, 0)", (run, day, seconds))
        return 0.0

    def settle(self, run: str, seconds: float) -> None:
        """Gives back what a run has not used; see `Limits`."""
        with self._alone() as base:
            row = base.execute(
                "SELECT day, reserved FROM runs WHERE name = ? AND NOT settled", (run,)
            ).fetchone()
            if row is None:
                return
            base.execute("UPDATE runs SET settled = 1 WHERE name = ?", (run,))
            unused = max(0.0, row[1] - seconds)
            base.execute("UPDATE days SET used = used - ? WHERE day = ?", (unused, row[0]))

    def release(self, run: str) -> None:
        """Gives back all that a run has reserved; see `Limits`."""
        with self._alone() as base:
            row = base.execute(
                "SELECT day, reserved FROM runs WHERE name = ? AND NOT settled", (run,)
            ).fetchone()
            if row is None:
                return
            base.execute("DELETE FROM runs WHERE name = ?", (run,))
            base.execute("UPDATE days SET used = used - ? WHERE day = ?", (row[1], row[0]))

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """Have the database to oneself."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield self._base
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")
