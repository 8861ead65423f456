"""What the parts of a step cost on this machine, with this pair, at this context length.

Costs are timed in the order in which a step spends them, since order changes them: a draft's pass is slower right
after the target has filled the processor's caches, and a pass of another shape than the last has its graph built anew.
For each m draft passes are timed, the first over one token or two, after a draft pass over one or two, and then a
target pass over m tokens with everything that follows it in a step. Rounds go through all m up and down in turn, with
plain passes before and after; each round's times are divided by its own plain passes, and the median round counts. So a
machine that slows down for a while, or is disturbed once, changes none of the ratios.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.decode import CausalModel
from agent.sampling import Rule
from shared.canonical import canonical_bytes, sha3_256_hex
from shared.curve import StepCosts

WIDEST = 17
"""Tokens of the widest pass that is timed: the longest draft, and the pending token."""

NEAR, FAR_EVERY = 9, 3
"""Passes over more than `NEAR` tokens are rarely made: the first round and then every third one times them."""

SECONDS, LONGEST_S = 4.0, 32.0
ROUNDS, FEWEST_ROUNDS, MOST_ROUNDS = 10, 4, 48
"""Rounds go on to `ROUNDS` and `SECONDS`, but after `LONGEST_S` only to `FEWEST_ROUNDS`.

Even numbers, so that a drift of the machine meets the rounds up and down alike.
"""

DRAFT_PASSES = 8
"""Draft passes of a step that are timed one by one; later ones cost what the last of these does."""

READS = (1, 2, 2)
"""Tokens that the first draft pass of a step reads, step by step; the last pass of the step before reads `LEAVES`."""

LEAVES = (1, 2, 1)
"""Tokens that the last draft pass of a step reads, so that first passes are 1 after 1, 2 after 1, and 2 after 2."""

PLAIN_PASSES = 6
"""Plain passes timed before and after each round."""

STALE_S = 24 * 3600.0
"""A calibration is measured again after this."""

STALE_RATIO = 1.15
"""... or once a run's steps took so much longer or shorter than it predicts."""

QUIET_SHARE = 0.9
"""Costs are remembered only if the threads had the processors for this share of the time."""

CONTEXT_STEP = 128
"""Contexts within so many tokens of each other share a calibration."""


@dataclass(frozen=True)
class Calibration:
    """Measured costs.

    Attributes:
        costs: The parts of a step, in target passes over one token.
        target_s: Seconds of such a pass.
        context: Tokens in the caches while measuring.
        rounds: Rounds that were timed.
        quiet: Whether nothing else had the processors meanwhile.
        measured_at: UTC time.
        measured_unix: The same, in seconds since 1970.
    """

    costs: StepCosts
    target_s: float
    context: int
    rounds: int
    quiet: bool
    measured_at: str
    measured_unix: float


def calibrate(
    draft: CausalModel,
    target: CausalModel,
    filler: Sequence[int],
    context: int,
    rule: Rule,
    *,
    threads: int,
    between: Callable[[], None] = lambda: None,
) -> Calibration | None:
    """Measures the costs; both caches end as long as they were.

    Args:
        draft: The draft, its cache as long as the target's.
        target: The target.
        filler: Tokens to read, at least one; repeated as needed.
        context: Tokens the caches are to hold while timing; bounded by what fits.
        rule: How tokens are proposed and judged.
        threads: Threads of the target, to tell whether they had the processors.
        between: Called after each cycle; may raise to stop.

    Returns:
        The calibration; None if the context has no room for that.
    """
    start = target.length
    capacity = min(draft.capacity, target.capacity)
    base = max(start, min(context, capacity - WIDEST - 1))
    widest = min(WIDEST, capacity - base - 1)
    if widest < DRAFT_PASSES + 2:
        return None
    tokens = [filler[i % len(filler)] for i in range(max(base - start, WIDEST + 1))]
    try:
        if base > start:
            draft.forward(tokens[: base - start], 1)
            target.forward(tokens[: base - start], 1)
        return _rounds(draft, target, tokens, base, widest, rule, threads, between)
    finally:
        draft.truncate(start)
        target.truncate(start)


def _rounds(
    draft: CausalModel,
    target: CausalModel,
    tokens: Sequence[int],
    base: int,
    widest: int,
    rule: Rule,
    threads: int,
    between: Callable[[], None],
) -> Calibration:
    first: dict[tuple[int, int], list[float]] = {pair: [] for pair in itertools.product((0, 1, 2), (1, 2))}
    later: list[list[float]] = [[] for _ in range(DRAFT_PASSES - 1)]
    verify: list[list[float]] = [[] for _ in range(widest - 1)]
    anew: list[float] = []
    plain: list[float] = []
    left = 0  # tokens of the draft pass before; nought where that was no step's
    gc.disable()
    began, processor, done = time.perf_counter(), time.process_time(), 0
    try:
        while done % 2 or not _enough(done, time.perf_counter() - began):
            widths = [w for w in range(2, widest + 1) if not done or w <= NEAR or (w + done) % FAR_EVERY == 0]
            widths = widths if done % 2 == 0 else widths[::-1]
            units, times = _plain(target, tokens, base, rule), []
            for place, width in enumerate(widths):
                turn = (place + done) % len(READS)
                # Only steps whose first pass reads one token go through all draft passes: after two, the second
                # pass has its graph built anew.
                reading, passes = READS[turn], DRAFT_PASSES if READS[turn] == 1 else 1
                timed = _step(draft, target, tokens, base, width, reading, passes, LEAVES[turn], rule)
                times.append((width, (left, reading), *timed))
                left = LEAVES[turn]
                between()
            units += _plain(target, tokens, base, rule)
            unit = statistics.median(units)
            plain.append(unit)
            for width, reads, drafted, changed, verified in times:
                first[reads].append(drafted[0] / unit)
                for seconds, lasted in zip(later, drafted[1:], strict=False):
                    seconds.append(lasted / unit)
                verify[width - 2].append(verified / unit)
                anew.append((changed - verified) / unit)
            done += 1
        share = (time.process_time() - processor) / threads / (time.perf_counter() - began)
    finally:
        gc.enable()
    now = datetime.now(UTC)
    one_token, catching_up, again = (statistics.median(first[reads]) for reads in ((1, 1), (1, 2), (2, 2)))
    settling = [round(statistics.median(ratios), 4) for ratios in later]
    return Calibration(
        costs=StepCosts(
            first=round(one_token, 4),
            following=settling[-1],
            catch_up=round(max(0.0, catching_up - one_token), 4),
            warming=tuple(settling[:-1]),
            verify=(1.0, *(round(statistics.median(ratios), 4) for ratios in verify)),
            width_change=round(max(0.0, statistics.median(anew)), 4),
            draft_width_change=round(max(0.0, catching_up - max(again, one_token)), 4),
        ),
        target_s=statistics.median(plain),
        context=base,
        rounds=done,
        quiet=share >= QUIET_SHARE,
        measured_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        measured_unix=now.timestamp(),
    )


def _enough(rounds: int, seconds: float) -> bool:
    """Whether so many rounds in so much time will do."""
    if seconds > LONGEST_S:
        return rounds >= FEWEST_ROUNDS
    return rounds >= MOST_ROUNDS or (rounds >= ROUNDS and seconds >= SECONDS)


def _plain(target: CausalModel, tokens: Sequence[int], base: int, rule: Rule) -> list[float]:
    """Times some plain passes in a row; the first of them, in which the graph is built anew, is left out."""
    seconds = []
    for _ in range(min(PLAIN_PASSES + 1, target.capacity - base)):
        start = time.perf_counter()
        rule.alone(target.forward(tokens[:1], 1)[0])
        seconds.append(time.perf_counter() - start)
    target.truncate(base)
    return seconds[1:] or seconds


def _step(
    draft: CausalModel,
    target: CausalModel,
    tokens: Sequence[int],
    base: int,
    width: int,
    reading: int,
    passes: int,
    leaving: int,
    rule: Rule,
) -> tuple[list[float], float, float]:
    """Times each of some draft passes, and a verifying pass over `width` tokens with what follows it in a step.

    That pass is made twice. The first follows one of another width, so that its graph is built anew, the second one of
    the same width, as at a fixed draft length; before each of them the draft has made a pass, over `leaving` tokens.
    """
    clock = time.perf_counter
    drafted: list[float] = []
    at, count = 0, reading
    for _ in range(passes):
        start = clock()
        proposal = rule.propose(draft.forward(tokens[at : at + count], 1)[0])
        drafted.append(clock() - start)
        at, count = at + count, 1
    proposals = [proposal._replace(token=token) for token in tokens[1:width]]
    verified = []
    for _ in range(2):
        rule.propose(draft.forward(tokens[:leaving], 1)[0])
        start = clock()
        rule.judge(proposals, target.forward(tokens[:width], width))
        target.truncate(base)
        draft.truncate(base)
        verified.append(clock() - start)
    return drafted, verified[0], verified[1]


class CalibrationStore:
    """Remembers calibrations by everything they depend on, in memory and, if given, in a file."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Opens the store; a file that cannot be read is begun anew."""
        self._path, self._clock = path, clock
        self._known: dict[str, Calibration] = {}
        if path is not None:
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                self._known = {key: _from_json(value) for key, value in stored.items()}
            except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self._known = {}

    @staticmethod
    def key(identity: dict[str, Any], context: int, rule: dict[str, Any]) -> str:
        """Returns the key: a digest of pair and machine, of the context's length, and of the decoding rule."""
        return sha3_256_hex(canonical_bytes([identity, context // CONTEXT_STEP, rule]))

    def get(self, key: str) -> Calibration | None:
        """Returns a calibration that is not stale."""
        found = self._known.get(key)
        return found if found and self._is_fresh(found) else None

    def put(self, key: str, calibration: Calibration) -> None:
        """Remembers a calibration, unless other work disturbed it; drops those that are stale."""
        if calibration.quiet:
            self._known = {name: one for name, one in self._known.items() if self._is_fresh(one)}
            self._known[key] = calibration
            self._save()

    def forget(self, key: str) -> None:
        """Has a calibration measured anew next time."""
        if self._known.pop(key, None) is not None:
            self._save()

    def _is_fresh(self, calibration: Calibration) -> bool:
        return 0 <= self._clock() - calibration.measured_unix < STALE_S

    def _save(self) -> None:
        if self._path is None:
            return
        text = json.dumps({key: asdict(value) for key, value in self._known.items()})
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, self._path)
        except OSError:
            self._path = None  # a full or read-only disk costs the memory across restarts, nothing else


def _from_json(value: dict[str, Any]) -> Calibration:
    """Returns what was stored.

    Raises:
        TypeError: If a part has another type, or there is another part.
        ValueError: If a cost is no number, or v was not measured.
        KeyError: If a part is missing.
    """
    costs = value["costs"]
    names = ("first", "following", "catch_up", "width_change", "draft_width_change")
    numbers = {name: _number(costs[name]) for name in names}
    verify, warming = (tuple(map(_number, costs[name])) for name in ("verify", "warming"))
    if not verify:
        raise ValueError("v was not measured")
    timed = {name: _number(value[name]) for name in ("target_s", "measured_unix")}
    return Calibration(**{**value, **timed, "costs": StepCosts(**numbers, verify=verify, warming=warming)})


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number
