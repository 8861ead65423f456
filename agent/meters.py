"""Two ways to meter a GPU's energy while it works: by its total-energy counter, or by sampling its power.

A meter reads in a thread of its own and answers afterwards: how much energy had been used at a given moment. The
difference between two such answers is the energy of a window of time.

**The counter** counts millijoules, but is refreshed only every 10 to 100 ms. It is read about once a millisecond, so
the moment of each refresh (a *tick*) is known to within that, and the energy at any moment is interpolated between the
ticks around it. Between two ticks R seconds apart the energy is off the straight line by at most d*R/4, where the power
there varies within d watts; a tick's moment is off by at most half the time between the two readings around it. With d
of half the mean power, a window of 20 R whose two ends are both that unlucky is wrong by no more than 1.25 %, and by
what readings a millisecond apart add: 0.1 % of a second. `Edge.doubt` is this bound for the ticks that there were.

What no reader can know is by how much the counter runs behind: by L seconds, say. A window after one of another power
is then wrong by L times the difference of the two; windows in the order A B B A have such a neighbour on one side only.

**Sampled power** is the fallback, and less is known about its error: what the driver calls power is refreshed rarely,
on some GPUs says nothing of most of the time, and on Ampere and newer (GA100 excepted) is the mean of the last second.
Such a mean is taken for the power half a second ago; it still smears what happens at a window's ends over a second.
"""

from __future__ import annotations

import itertools
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from agent.nvml import NvmlDevice, NvmlError
from agent.threads import Repeated

COUNTER: Final = "total_energy_counter"
SAMPLED: Final = "sampled_power"
Method = Literal["total_energy_counter", "sampled_power"]

COUNTER_POLL_S = 0.001
POWER_POLL_S = 0.02
"""Seconds from one reading to the next."""

AVERAGED_S = 1.0
"""What the driver averages power over, where it does."""

STUCK_S = 3.0
"""A meter that has been read for so long without a change is stuck: the slowest known refreshes every 0.1 s."""

FEWEST_TICKS = 8
"""Ticks from which the refresh period is told."""

NEAR = 3
"""So many ticks on either side of a moment are looked at."""

_LATEST_TICKS = 500

_NOT_AVERAGING = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing")
"""Architectures whose power reading is no mean. GA100 is another, but NVML calls it Ampere: it is taken to average."""


@dataclass(frozen=True)
class Edge:
    """The energy used up to a moment, and what is known of that figure.

    Attributes:
        joules: Energy since some fixed moment.
        until: The latest moment that the readings behind it tell of.
        doubt: What it may be wrong by, joules, as the module explains; None where no bound is known.
    """

    joules: float
    until: float
    doubt: float | None


class Meter(Repeated):
    """Reads in a thread from `__enter__` to `__exit__`.

    Attributes:
        method: What is read.
        averaged: Whether a reading is the mean of a second; None for the counter.
        failure: Why it stopped reading, if it did.
    """

    method: Method
    averaged: bool | None = None

    def __init__(self, poll_s: float, clock: Callable[[], float]) -> None:
        """Reads every `poll_s` seconds; `clock` is the one that edges are told in."""
        super().__init__(poll_s, "energy-meter")
        self._clock = clock
        self.failure: NvmlError | None = None

    def step(self) -> bool:
        """Makes one reading; returns whether it was one."""
        try:
            self.poll()
        except NvmlError as failure:
            self.failure = failure
        return self.failure is None

    def end(self) -> None:
        """Makes one more reading."""
        if self.failure is None:
            self.step()

    def stuck(self) -> None:
        """Takes a driver that does not answer for a failure."""
        self.failure = NvmlError("NVML_ERROR", "the driver does not answer")

    def poll(self) -> None:
        """Makes one reading.

        Raises:
            NvmlError: If it fails or cannot be true.
        """
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether a window may begin."""
        raise NotImplementedError

    @property
    def refresh_s(self) -> float | None:
        """Seconds between two readings that tell something new; None while that is not known."""
        raise NotImplementedError

    @property
    def doubt_s(self) -> float:
        """What an edge is usually wrong by at most, in seconds of mean power; 0 where no bound is known."""
        return 0.0

    def edge(self, at: float) -> Edge | None:
        """Returns the energy used up to a moment; None if no reading before or after it tells."""
        raise NotImplementedError

    def check(self) -> None:
        """Sees whether it still reads.

        Raises:
            NvmlError: If it failed, or what it reads no longer changes.
        """
        if self.failure is not None:
            raise self.failure


@dataclass(frozen=True)
class _Tick:
    """A refresh of the counter: within what bounds of time, and what it showed from then on."""

    earliest: float
    latest: float
    joules: float

    @property
    def at(self) -> float:
        """When it is taken to have been."""
        return (self.earliest + self.latest) / 2

    @property
    def misplaced(self) -> float:
        """By how much that may be wrong, seconds."""
        return (self.latest - self.earliest) / 2


class CounterMeter(Meter):
    """Meters by the total-energy counter."""

    method = COUNTER

    def __init__(
        self,
        read: Callable[[], int],
        *,
        poll_s: float = COUNTER_POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Meters by `read`, which returns millijoules."""
        super().__init__(poll_s, clock)
        self._read = read
        self._ticks: list[_Tick] = []
        self._last: tuple[float, int] | None = None  # when the last reading began, and what it gave
        self._changed_at = 0.0

    def poll(self) -> None:
        """Reads the counter.

        Raises:
            NvmlError: If it cannot be read or has gone back.
        """
        began = self._clock()
        count = self._read()
        ended = self._clock()
        if self._last is None:
            self._changed_at = ended
        else:
            earliest, before = self._last
            if count < before:
                raise NvmlError("COUNTER_WENT_BACK", "the energy counter went back")
            if count > before:
                self._ticks.append(_Tick(earliest, ended, count / 1000))
                self._changed_at = ended
        self._last = began, count

    @property
    def ready(self) -> bool:
        """Whether the refresh period is known."""
        return len(self._ticks) >= FEWEST_TICKS

    @property
    def refresh_s(self) -> float | None:
        """The median time between two ticks, seconds."""
        gaps = self._gaps()
        return statistics.median(after.at - before.at for before, after in gaps) if gaps else None

    @property
    def doubt_s(self) -> float:
        """The median of what an edge between two ticks may be wrong by, in seconds of mean power."""
        return statistics.median([_doubt_s(before, after) for before, after in self._gaps()] or [0.0])

    def _gaps(self) -> list[tuple[_Tick, _Tick]]:
        """Returns the latest ticks, each with the next one; nothing until there are enough."""
        ticks = self._ticks[-_LATEST_TICKS:]
        return list(zip(ticks, ticks[1:], strict=False)) if self.ready else []

    def edge(self, at: float) -> Edge | None:
        """Returns the energy used up to a moment, interpolated between two ticks around it.

        These are the next ones, unless one of them came while the reader was held up, and others leave less doubt.
        """
        ticks = self._ticks
        place = bisect_right(ticks, at, key=lambda tick: tick.at)
        around = itertools.product(ticks[max(0, place - NEAR) : place], ticks[place : place + NEAR])
        before, after = min(around, key=lambda pair: _doubt_s(*pair), default=(None, None))
        if before is None or after is None:
            return None
        apart = after.at - before.at
        power = (after.joules - before.joules) / apart
        return Edge(
            joules=before.joules + power * (at - before.at),
            until=after.latest,
            doubt=power * _doubt_s(before, after),
        )

    def check(self) -> None:
        """Sees whether the counter is still read and still changes.

        Raises:
            NvmlError: If not.
        """
        super().check()
        if self._last is not None and self._last[0] - self._changed_at > STUCK_S:
            raise NvmlError("COUNTER_STUCK", "the energy counter does not change")


def _doubt_s(before: _Tick, after: _Tick) -> float:
    """Returns what an edge between two ticks may be wrong by, in seconds of the mean power there."""
    return (after.at - before.at) / 8 + max(before.misplaced, after.misplaced)


class PowerMeter(Meter):
    """Meters by sampling power and adding it up by the trapezoid rule."""

    method = SAMPLED

    def __init__(
        self,
        read: Callable[[], int],
        *,
        averaged: bool,
        poll_s: float = POWER_POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Meters by `read`, which returns milliwatts, the mean of the last second if `averaged`."""
        super().__init__(poll_s, clock)
        self.averaged = averaged
        self._read = read
        self._span = AVERAGED_S if averaged else 0.0
        self._times: list[float] = []
        self._watts: list[float] = []
        self._joules: list[float] = []
        self._changes: list[float] = []  # when a reading first differed from the one before

    def poll(self) -> None:
        """Reads the power.

        Raises:
            NvmlError: If it cannot be read; a power of zero is no reading.
        """
        began = self._clock()
        milliwatts = self._read()
        at = (began + self._clock()) / 2 - self._span / 2
        if milliwatts <= 0:
            raise NvmlError("NOT_SUPPORTED", "the driver states no power")
        watts, joules = milliwatts / 1000, 0.0
        if self._times:
            joules = self._joules[-1] + (self._watts[-1] + watts) / 2 * (at - self._times[-1])
        if not self._times or watts != self._watts[-1]:
            self._changes.append(at)
        self._joules.append(joules)
        self._watts.append(watts)
        self._times.append(at)  # last: who sees it sees the other two

    @property
    def ready(self) -> bool:
        """Whether readings tell of the time since the meter began, and of nothing before."""
        times = self._times
        return len(self._changes) > FEWEST_TICKS and times[-1] - times[0] > self._span

    @property
    def refresh_s(self) -> float | None:
        """The median time between two readings that differ, seconds."""
        if len(self._changes) <= FEWEST_TICKS:
            return None
        changes = self._changes[-_LATEST_TICKS:]
        return statistics.median(after - before for before, after in itertools.pairwise(changes))

    def check(self) -> None:
        """Sees whether power is still read and still changes, as that of a GPU at work does.

        Raises:
            NvmlError: If not.
        """
        super().check()
        if self._times and self._times[-1] - self._changes[-1] > STUCK_S:
            raise NvmlError("COUNTER_STUCK", "the power reading does not change")

    def edge(self, at: float) -> Edge | None:
        """Returns the energy used up to a moment, the power taken to change evenly between samples."""
        times = self._times
        place = bisect_right(times, at)
        if not 0 < place < len(times):
            return None
        before, after = place - 1, place
        passed = at - times[before]
        slope = (self._watts[after] - self._watts[before]) / (times[after] - times[before])
        joules = self._joules[before] + (self._watts[before] + slope * passed / 2) * passed
        return Edge(joules, times[after] + self._span / 2, None)


def meter_of(device: NvmlDevice) -> Meter:
    """Returns the best meter that a GPU has: the counter, or power where it has none.

    Raises:
        NvmlError: If it has neither, or something else is wrong.
    """
    try:
        device.energy()
    except NvmlError as failure:
        if failure.energy_code != "NOT_SUPPORTED":
            raise
    else:
        return CounterMeter(device.energy)
    read, averaged = _power_of(device)
    return PowerMeter(read, averaged=averaged)


def _power_of(device: NvmlDevice) -> tuple[Callable[[], int], bool]:
    """Returns how to read power, and whether that is the mean of a second."""
    for read, averaged in (
        (device.instant_power, False),
        (device.power, device.architecture() not in _NOT_AVERAGING),
    ):
        try:
            if read() > 0:
                return read, averaged
        except NvmlError as failure:
            if failure.energy_code != "NOT_SUPPORTED":
                raise
    raise NvmlError("NOT_SUPPORTED", "this GPU has neither an energy counter nor a power reading")
