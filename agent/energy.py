"""Energy per emitted token, with and without the draft, from the GPU's own meter.

Blocks of decoding are repeated to fill windows of time long enough for the meter, in the order A B B A A B ..., one
right after the other so that the GPU never rests; blocks before the first and after the last window keep it busy while
the meter's readings around those two edges are taken. A window's joules are the difference of the meter's at its ends
(`agent.meters` says how well those are known), and joules per token are all joules of a way of decoding by all its
tokens.

What is reported is the energy of the GPU's board: not the machine's, and nothing is subtracted. What the GPU takes
while idle stands beside it.

A number is MEASURED only if all of this holds; else energy is UNAVAILABLE, with a code and a sentence, and the run goes
on without it:

* the same GPU (UUID) and driver before and after, and no part of it partitioned off;
* a counter that changed, never went back, and gave every window a positive energy;
* windows of at least `WINDOW_S` and 20 refresh periods, their two ends known to within `WORST` of their energy;
* no window's mean power above the limit in force by more than a tenth: the board holds the limit on average over a
  fraction of a second, and its sensors are good to some 5 %, so a window above that is no reading but a fault;
* a list of computing processes that holds our own, on this GPU alone, and never another's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from agent.gpu import Gpu, GpuWatch, find_gpu, list_gpus
from agent.meters import COUNTER, SAMPLED, CounterMeter, Meter, meter_of
from agent.nvml import NvmlError, reading
from shared import labels
from shared.checks_energy import MIN_WINDOW_PAIRS, OVER_LIMIT, POWER_WINDOW_S, REFRESHES, WINDOW_S
from shared.estimators import median_interval

PAIRS = 6
"""Pairs of windows, if there is time: so many give the ratio an interval."""

LONGEST_S = 60.0
"""No further pair is begun after this, once there are `MIN_WINDOW_PAIRS`."""

LONGER, DOUBTLESS = 1.1, 1.5
"""Windows are planned longer by this than refresh period and `WORST` demand: both are known better in the end."""

WORST = 0.02
"""A window whose energy may be wrong by more than this share, for its ends' sake, does not count."""

WATCH_S = 0.5
"""Seconds between two looks at who else computes on the GPU."""

SPECULATIVE: Final = "speculative"
TARGET_ONLY: Final = "target_only"

PER_RUN: Final = "PER_RUN"
"""Code of an energy that is not known because no run has measured it yet."""


class OutOfTime(Exception):  # noqa: N818 - no error: what was metered before counts
    """There is no time to go on; a block may raise it, too."""


@dataclass(frozen=True)
class Window:
    """Whole blocks of one way of decoding, and the energy they took.

    Attributes:
        mode: "speculative" or "target_only".
        began: Clock at its first block's start, seconds.
        ended: The same at its last block's end.
        tokens: Tokens emitted.
        joules: Energy; None until it is known, or if the meter does not tell it.
        doubt: What that may be wrong by, joules; None where no bound is known.
    """

    mode: str
    began: float
    ended: float
    tokens: int
    joules: float | None = None
    doubt: float | None = None

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.ended - self.began

    @property
    def joules_per_token(self) -> float:
        """Energy per emitted token, joules."""
        return (self.joules or 0.0) / self.tokens


def unavailable(code: str, reason: str) -> dict[str, Any]:
    """Returns the energy of a run that has none, as `shared.schemas.EnergyUnavailable`."""
    return {"label": labels.UNAVAILABLE, "code": code, "reason": reason}


def probe(gpu: Gpu | None) -> dict[str, Any]:
    """Returns what is known of energy before any run: that it is UNAVAILABLE yet, or why it will stay so.

    Args:
        gpu: The GPU; None where there is none, for the reason.
    """
    if gpu is None:
        found = find_gpu()
        if found.gpu is None:
            return unavailable(found.code, found.reason)
        return unavailable("NO_GPU", "the GPU that decodes is not among those that NVML knows")
    try:
        _whole(gpu)
        gpu.device.compute_pids()
        meter = meter_of(gpu.device)
    except NvmlError as failure:
        return unavailable(failure.energy_code, failure.cause)
    what = (
        "total-energy counter" if meter.method == COUNTER else "power readings, for want of an energy counter"
    )
    return {
        **unavailable(PER_RUN, f"each run measures it, by the {what} of the GPU"),
        "method": meter.method,
        "gpu": gpu.name,
    }


def refresh_period(gpu: Gpu, patience_s: float = 3.0) -> float | None:
    """Returns the seconds between two refreshes of the energy counter; None without one, or if it takes too long."""
    with CounterMeter(gpu.device.energy) as meter:
        until = time.monotonic() + patience_s
        while not meter.ready and meter.failure is None and time.monotonic() < until:
            time.sleep(0.01)
    return meter.refresh_s


def measure_energy(
    gpu: Gpu | None,
    speculative: Callable[[], int],
    target_only: Callable[[], int],
    *,
    own_pids: Collection[int],
    out_of_time: Callable[[], bool] = lambda: False,
    idle: tuple[float, float] | None = None,
    pairs: int = PAIRS,
    window_s: float | None = None,
) -> dict[str, Any]:
    """Measures both ways of decoding.

    Args:
        gpu: The GPU that decodes; None gives the reason why there is none to meter.
        speculative: Decodes a whole block with the draft, waits for the GPU, and returns the tokens emitted. May raise
            `OutOfTime`; whatever else it raises ends the measurement and is passed on.
        target_only: The same by the target alone.
        own_pids: Processes that are ours.
        out_of_time: Asked before each block.
        idle: Watts of the GPU while idle, and the seconds they were metered for (`agent.idle`), if that was done.
        pairs: Pairs of windows to make.
        window_s: Least seconds of a window, for tests; `WINDOW_S` or `POWER_WINDOW_S` as the meter needs.

    Returns:
        The energy, MEASURED or UNAVAILABLE (`shared.schemas.Energy` as JSON).
    """
    if gpu is None:
        return probe(None)
    try:
        return measured(
            Recording(
                gpu,
                speculative,
                target_only,
                own_pids,
                out_of_time=out_of_time,
                pairs=pairs,
                window_s=window_s,
            ).record(),
            idle,
        )
    except NvmlError as failure:
        return unavailable(failure.energy_code, failure.cause)


@dataclass(frozen=True)
class Recorded:
    """Windows that satisfy every rule, in the order in which they were made: a pair after the other."""

    windows: list[Window]
    method: str
    averaged: bool | None
    refresh_s: float
    power_limit_watts: float | None
    gpu: dict[str, Any]


def measured(recorded: Recorded, idle: tuple[float, float] | None = None) -> dict[str, Any]:
    """Returns what windows say, as `shared.schemas.EnergyMeasured`."""
    of = {
        mode: [window for window in recorded.windows if window.mode == mode]
        for mode in (SPECULATIVE, TARGET_ONLY)
    }
    ratios = [
        alone.joules_per_token / ours.joules_per_token
        for ours, alone in zip(of[SPECULATIVE], of[TARGET_ONLY], strict=True)
    ]
    interval = median_interval(ratios)
    doubts = [window.doubt / window.joules for window in recorded.windows if window.doubt and window.joules]
    return {
        "label": labels.MEASURED,
        "method": recorded.method,
        "joules_per_token": {
            mode: sum(window.joules or 0.0 for window in windows) / sum(window.tokens for window in windows)
            for mode, windows in of.items()
        },
        "ratio": {
            "median": statistics.median(ratios),
            "ci95": None if interval is None else list(interval[1:]),
            "pairs": len(ratios),
        },
        "windows": [
            {"mode": window.mode, "seconds": window.seconds, "joules": window.joules, "tokens": window.tokens}
            for window in recorded.windows
        ],
        "refresh_s": recorded.refresh_s,
        "edge_error": max(doubts) if doubts else None,
        "averaged": recorded.averaged,
        "power_limit_watts": recorded.power_limit_watts,
        "idle_watts": None if idle is None else idle[0],
        "idle_seconds": None if idle is None else idle[1],
        "gpu": recorded.gpu,
        "scope": labels.ENERGY_SCOPE,
    }


def window_seconds(meter: Meter, least_s: float | None = None) -> float:
    """Returns how long a window must be, as far as is known by now; long where the driver is slow to answer.

    Args:
        meter: The meter.
        least_s: In place of `WINDOW_S` or `POWER_WINDOW_S`.
    """
    if least_s is None:
        least_s = POWER_WINDOW_S if meter.method == SAMPLED else WINDOW_S
    refreshes = REFRESHES * (meter.refresh_s or 0.0)
    return max(least_s, LONGER * refreshes, DOUBTLESS * 2 * meter.doubt_s / WORST)


class Recording:
    """The making of windows; `record` carries it out, once."""

    def __init__(
        self,
        gpu: Gpu,
        speculative: Callable[[], int],
        target_only: Callable[[], int],
        own_pids: Collection[int],
        *,
        out_of_time: Callable[[], bool] = lambda: False,
        pairs: int = PAIRS,
        window_s: float | None = None,
    ) -> None:
        """Takes what `measure_energy` does."""
        self._gpu, self._own, self._out_of_time = gpu, frozenset(own_pids), out_of_time
        self._decode = {SPECULATIVE: speculative, TARGET_ONLY: target_only}
        self._pairs, self._window_s = pairs, window_s
        self._busy_until = 0.0  # the end of the last whole block

    def record(self) -> Recorded:
        """Makes the windows.

        Raises:
            NvmlError: If what they say could not be called MEASURED.
        """
        before = self._identity()
        with (
            GpuWatch(self._gpu, self._own, every_s=WATCH_S) as self._watch,
            meter_of(self._gpu.device) as self._meter,
        ):
            made = self._make()
        self._meter.check()
        self._check_watch()
        after = self._identity()
        if after[:2] != before[:2]:
            raise NvmlError("GPU_CHANGED", "the GPU or its driver is not the one that it was before")
        self._check_processes()
        limit = max((watts for watts in (before[2], after[2]) if watts is not None), default=None)
        refresh_s = self._meter.refresh_s
        if refresh_s is None:
            raise NvmlError("TOO_SHORT", "there was no time to find the meter's refresh period")
        return Recorded(
            windows=self._judge(made, refresh_s, limit),
            method=self._meter.method,
            averaged=self._meter.averaged,
            refresh_s=refresh_s,
            power_limit_watts=limit,
            gpu={"uuid": after[0], "name": self._gpu.name, "driver": after[1]},
        )

    def _identity(self) -> tuple[str, str | None, float | None]:
        """Returns the GPU's UUID, driver and power limit as they are now."""
        _whole(self._gpu)
        return self._gpu.device.uuid(), self._gpu.device.nvml.driver_version(), self._gpu.power_limit_watts()

    def _make(self) -> list[Window]:
        """Makes windows while there is time; their energy is not looked at yet."""
        made: list[Window] = []
        started = self._busy_until = time.monotonic()
        try:
            self._block(SPECULATIVE)
            while not self._meter.ready:
                self._block(SPECULATIVE)
            for pair in range(self._pairs):
                if pair >= MIN_WINDOW_PAIRS and time.monotonic() - started > LONGEST_S:
                    break
                order = (SPECULATIVE, TARGET_ONLY) if pair % 2 == 0 else (TARGET_ONLY, SPECULATIVE)
                made += [self._window(mode) for mode in order]
            while not self._told(made[-1].ended):
                self._block(made[-1].mode)
        except OutOfTime:
            pass
        return made

    def _window(self, mode: str) -> Window:
        """Repeats blocks until the window is long enough; it begins where the last block ended."""
        began, tokens = self._busy_until, 0
        while self._busy_until - began < window_seconds(self._meter, self._window_s):
            tokens += self._block(mode)
        return Window(mode, began, self._busy_until, tokens)

    def _block(self, mode: str) -> int:
        if self._out_of_time():
            raise OutOfTime
        tokens = self._decode[mode]()
        self._busy_until = time.monotonic()
        self._meter.check()
        self._check_watch()
        return tokens

    def _check_watch(self) -> None:
        if self._watch.trouble is not None:
            raise self._watch.trouble
        if self._watch.foreign:
            raise NvmlError("FOREIGN_PROCESS", "another program computed on the GPU meanwhile")

    def _check_processes(self) -> None:
        """Sees to it that a foreign process would have been seen, and that ours is on this GPU alone."""
        if not self._watch.processes_told or not self._watch.own_seen:
            raise NvmlError(
                "NOT_SUPPORTED",
                "the list of processes on the GPU lacks the agent's own, as in a container, so it may lack others",
            )
        for other in list_gpus():
            if (
                other.uuid != self._gpu.uuid
                and (reading(other.device.compute_pids) or frozenset()) & self._own
            ):
                raise NvmlError(
                    "NOT_SUPPORTED", "the pair lies on several GPUs, and the meter is that of one"
                )

    def _told(self, at: float) -> bool:
        """Whether the meter tells the energy at a moment from readings of a GPU that was busy until then."""
        edge = self._meter.edge(at)
        return edge is not None and edge.until <= self._busy_until

    def _judge(self, made: list[Window], refresh_s: float, limit: float | None) -> list[Window]:
        """Returns the windows of the pairs in which both are good, with their energy.

        Raises:
            NvmlError: If a window's energy cannot be true, or too few pairs are left.
        """
        good: list[Window] = []
        pairs = zip(made[::2], made[1::2], strict=False)
        for pair in pairs:
            metered = [window for window in map(self._metered, pair) if window is not None]
            for window in metered:
                joules = window.joules or 0.0
                if joules <= 0:
                    raise NvmlError("COUNTER_STUCK", "the meter told of no energy for a whole window")
                if limit is not None and joules / window.seconds > OVER_LIMIT * limit:
                    raise NvmlError("OVER_POWER_LIMIT", "the meter told of more power than the GPU may take")
            if len(metered) == 2 and all(self._fine(window, refresh_s) for window in metered):
                good += metered
        if len(good) < 2 * MIN_WINDOW_PAIRS:
            raise NvmlError(
                "TOO_SHORT",
                f"there was time for {len(good) // 2} good pairs of windows, and {MIN_WINDOW_PAIRS} are needed",
            )
        return good

    def _metered(self, window: Window) -> Window | None:
        """Returns the window with its energy, None where the meter does not tell it."""
        if not (self._told(window.began) and self._told(window.ended)):
            return None
        first, last = self._meter.edge(window.began), self._meter.edge(window.ended)
        if first is None or last is None:
            return None
        doubt = None if first.doubt is None or last.doubt is None else first.doubt + last.doubt
        return Window(
            window.mode, window.began, window.ended, window.tokens, last.joules - first.joules, doubt
        )

    def _fine(self, window: Window, refresh_s: float) -> bool:
        doubtful = window.doubt is not None and window.joules and window.doubt / window.joules > WORST
        return window.tokens > 0 and window.seconds >= REFRESHES * refresh_s and not doubtful


def _whole(gpu: Gpu) -> None:
    """Sees to it that the meter is that of what we use.

    Raises:
        NvmlError: If the GPU is partitioned: the meter is the whole board's.
    """
    if gpu.device.mig():
        raise NvmlError(
            "NOT_SUPPORTED", "the GPU is partitioned (MIG), and its meter is that of the whole board"
        )
