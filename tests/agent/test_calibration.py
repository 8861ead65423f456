"""Tests of `agent.calibration`: exact costs under a clock that only models advance, and the store."""

from __future__ import annotations

import bisect
import gc
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import calibration, loaded
from agent.calibration import (
    FEWEST_ROUNDS,
    MOST_ROUNDS,
    NEAR,
    ROUNDS,
    STALE_S,
    WIDEST,
    Calibration,
    CalibrationStore,
    calibrate,
)
from agent.device import Device
from agent.loaded import LoadedPair
from agent.pairs import ModelFile
from agent.sampling import Greedy, Logits, Rule, Sampled
from shared.curve import StepCosts
from tests.agent.tables import TableModel, random_table

UNIT = 2.0**-9
"""Seconds of a plain target pass; all times below are binary fractions of it, so sums of them are exact."""

FIRST, CATCH_UP, WARMING, SETTLED = 0.5, 0.125, (0.375, 0.3125, 0.25), 0.1875
REBUILD = 3.0
"""What a target pass costs more, in plain passes, when it is not of the shape of the one before."""

DRAFT_REBUILD = 0.0625
"""The same for a draft pass."""


def v(width: int) -> float:
    """Returns the cost of a target pass over so many tokens, in plain passes: a line with a jump at nine."""
    return 1 + 0.0625 * (width - 1) + (0.5 if width > 8 else 0.0)


class Clock:
    """What time it is, and how much of it the process had a processor.

    Attributes:
        now: Seconds.
        worked: Processor seconds.
        share: Share of the time that counts as work.
        slowness: Factor by which everything is slower, told the number of the pass.
        passes: Passes so far.
        drafted: Draft passes since the target's last.
    """

    def __init__(self) -> None:
        """Starts at nought."""
        self.now = self.worked = 0.0
        self.share = 1.0
        self.slowness: Callable[[int], float] = lambda number: 1.0
        self.passes = self.drafted = 0

    def advance(self, cost: float) -> None:
        """Lets a pass of this cost go by."""
        seconds = cost * UNIT * self.slowness(self.passes)
        self.passes += 1
        self.now += seconds
        self.worked += seconds * self.share


class TimedTarget(TableModel):
    """A target that takes v(m) for m tokens, and more when its graph is built anew."""

    def __init__(self, clock: Clock, capacity: int = 4096) -> None:
        """Starts with no graph."""
        super().__init__(random_table(6, 1), capacity)
        self.clock, self.width = clock, 0

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        """Takes its time."""
        self.clock.advance(v(len(tokens)) + (0.0 if len(tokens) == self.width else REBUILD))
        self.width, self.clock.drafted = len(tokens), 0
        return super().forward(tokens, rows)


class TimedDraft(TableModel):
    """A draft whose first passes after the target's are slower, and slower by `CATCH_UP` for a second token.

    A pass over another number of tokens than the one before takes `DRAFT_REBUILD` longer.
    """

    def __init__(self, clock: Clock, capacity: int = 4096) -> None:
        """Starts cold."""
        super().__init__(random_table(6, 2), capacity)
        self.clock, self.width = clock, 0

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        """Takes its time."""
        place = self.clock.drafted
        cost = [FIRST, *WARMING, SETTLED][min(place, len(WARMING) + 1)]
        rebuild = 0.0 if len(tokens) == self.width else DRAFT_REBUILD
        self.clock.advance(cost + CATCH_UP * (len(tokens) - 1) + rebuild)
        self.width = len(tokens)
        self.clock.drafted += 1
        return super().forward(tokens, rows)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that calibration looks at."""
    clock = Clock()
    seen = SimpleNamespace(perf_counter=lambda: clock.now, process_time=lambda: clock.worked)
    monkeypatch.setattr(calibration, "time", seen)
    return clock


@pytest.fixture
def rounds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the pass with which each round begins."""
    plain, begins, numbers = calibration._plain, list[int](), itertools.count()

    def noting(*arguments: Any) -> list[float]:
        if next(numbers) % 2 == 0:  # a round's plain passes come before and after
            begins.append(clock.passes)
        return plain(*arguments)

    monkeypatch.setattr(calibration, "_plain", noting)
    return begins


def measured(
    clock: Clock,
    *,
    start: int = 5,
    context: int = 30,
    capacity: int = 4096,
    rule: Rule | None = None,
    threads: int = 1,
    between: Callable[[], None] = lambda: None,
) -> Calibration | None:
    """Calibrates two timed models with `start` tokens in their caches, and checks that they end so."""
    draft, target = TimedDraft(clock, capacity), TimedTarget(clock, capacity)
    kept = [i % 6 for i in range(start)]
    for model in (draft, target):
        model.cache = list(kept)
    try:
        return calibrate(
            draft, target, [3, 1, 2], context, rule or Greedy(), threads=threads, between=between
        )
    finally:
        assert draft.cache == target.cache == kept
        assert gc.isenabled()


COSTS = StepCosts(
    first=FIRST,
    following=SETTLED,
    catch_up=CATCH_UP + DRAFT_REBUILD,
    verify=tuple(v(m) for m in range(1, WIDEST + 1)),
    warming=(*WARMING, SETTLED, SETTLED, SETTLED),
    width_change=REBUILD,
    draft_width_change=DRAFT_REBUILD,
)


# --- costs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Greedy(), Sampled(0.8, 0.9, 4, seed=1)], ids=["greedy", "sampled"])
def test_costs_are_recovered_exactly(clock: Clock, rule: Rule) -> None:
    """Each part of a step gets the very cost it has, a jump in v, cold first passes and rebuilt graphs notwithstanding.

    Costs are told to four digits, which these have.
    """
    found = measured(clock, rule=rule)
    assert found is not None
    assert found.costs == COSTS
    assert found.target_s == UNIT
    assert found.context == 30


def test_costs_are_rounded_to_four_digits(clock: Clock) -> None:
    """A cost of 1 + 1/16 + 2^-20 is told as 1.0625."""
    wide = TimedTarget.forward

    class Odd(TimedTarget):
        def forward(self, tokens: Sequence[int], rows: int) -> Logits:
            self.clock.now += 2.0**-20 * UNIT * (len(tokens) == 2)
            return wide(self, tokens, rows)

    found = calibrate(TimedDraft(clock), Odd(clock), [3], 30, Greedy(), threads=1)
    assert found is not None and found.costs.verify[1] == 1.0625


@pytest.mark.parametrize("slow_round", range(ROUNDS))
def test_a_slow_round_changes_nothing(clock: Clock, rounds: list[int], slow_round: int) -> None:
    """A machine that is six times slower for a whole round gives the same costs."""
    clock.slowness = lambda number: 4.0
    assert measured(clock) is not None
    starts = list(rounds)
    assert len(starts) == ROUNDS
    clock.passes = 0
    clock.slowness = lambda number: 24.0 if bisect.bisect(starts, number) == slow_round + 1 else 4.0
    found = measured(clock)
    assert found is not None and found.rounds == ROUNDS
    assert (found.costs, found.target_s) == (COSTS, 4 * UNIT)


@pytest.mark.parametrize("slow_pass", [0, 3, 20, 47, 160, 301])
def test_a_slow_pass_changes_nothing(clock: Clock, slow_pass: int) -> None:
    """One pass that takes a hundred times as long, whichever it is, gives the same costs."""
    clock.slowness = lambda number: 100.0 if number == slow_pass else 1.0
    found = measured(clock)
    assert found is not None and found.rounds >= ROUNDS
    assert (found.costs, found.target_s) == (COSTS, UNIT)


def test_a_machine_that_slows_down_for_good_changes_no_ratio(clock: Clock) -> None:
    """When the machine becomes twice as slow between two passes, only the round in which it does is off."""
    clock.slowness = lambda number: 1.0 if number < 400 else 2.0
    found = measured(clock)
    assert found is not None
    assert found.costs == COSTS


def test_a_machine_that_slows_down_evenly_changes_hardly_anything(clock: Clock) -> None:
    """Going through the widths up and down, between plain passes, cancels a drift: 35 % moves no cost by 0.3 %.

    Costs of wide passes, which few rounds time, move by up to 1.5 %.
    """
    clock.slowness = lambda number: 1 + 0.0005 * number
    found = measured(clock)
    assert found is not None and found.rounds % 2 == 0
    assert clock.slowness(clock.passes) > 1.35
    assert found.costs.verify[:NEAR] == pytest.approx(COSTS.verify[:NEAR], rel=0.003)
    assert found.costs.verify == pytest.approx(COSTS.verify, rel=0.015)
    assert found.costs.warming == pytest.approx(COSTS.warming, rel=0.003)
    parts = (found.costs.first, found.costs.following, found.costs.catch_up)
    assert parts == pytest.approx((FIRST, SETTLED, CATCH_UP + DRAFT_REBUILD), rel=0.003)


def test_disturbance_in_most_rounds_is_seen(clock: Clock) -> None:
    """The tests above can fail: passes that are always slower, without the plain ones, do change the costs."""
    clock.slowness = lambda number: 2.0 if number % 2 else 1.0
    found = measured(clock)
    assert found is not None and found.costs != COSTS


@pytest.mark.parametrize(
    ("speed", "count"),
    [
        (1e-6, MOST_ROUNDS),
        (0.5, 40),
        (2.0, ROUNDS),
        (8.0, ROUNDS),
        (16.0, ROUNDS),
        (32.0, 6),
        (64.0, FEWEST_ROUNDS),
        (1e3, FEWEST_ROUNDS),
    ],
)
def test_rounds_go_on_while_there_is_time(clock: Clock, speed: float, count: int) -> None:
    """Quick models get the most rounds, others enough, slow ones as many as fit into 32 seconds, at least four."""
    clock.slowness = lambda number: speed
    found = measured(clock)
    assert found is not None and found.rounds == count


def test_rounds_end_with_the_time(clock: Clock, rounds: list[int]) -> None:
    """Between these limits rounds go on in twos until the time has passed, and no longer."""
    clock.slowness = lambda number: 0.5
    found = measured(clock)
    assert found is not None and ROUNDS < found.rounds == len(rounds) < MOST_ROUNDS
    assert found.rounds % 2 == 0
    two = clock.now / found.rounds * 2
    assert calibration.SECONDS <= clock.now < calibration.SECONDS + 1.2 * two


@pytest.mark.parametrize(
    ("share", "threads", "quiet"), [(1.0, 1, True), (0.9, 1, True), (0.89, 1, False), (1.0, 2, False)]
)
def test_other_load_is_noticed(clock: Clock, share: float, threads: int, quiet: bool) -> None:
    """A calibration is quiet if each thread had a processor nine tenths of the time."""
    clock.share = share * (1 + 1e-9)
    found = measured(clock, threads=threads)
    assert found is not None and found.quiet == quiet


def test_caches_are_restored_when_the_run_is_stopped(clock: Clock) -> None:
    """Whenever `between` raises, the caches end as they began and nothing is returned."""
    for after in (1, 2, 17, 50):
        asked = iter(range(after))

        def stop(asked: Any = asked) -> None:
            next(asked)

        with pytest.raises(StopIteration):
            measured(clock, between=stop)


def test_cycle_collection_is_kept_out(clock: Clock) -> None:
    """Python's cycle collector does not run while passes are timed."""
    seen = set()
    measured(clock, between=lambda: seen.add(gc.isenabled()))
    assert seen == {False}


@pytest.mark.parametrize(
    ("start", "capacity", "context", "base", "widest"),
    [
        (5, 4096, 30, 30, 17),
        (5, 4096, 2, 5, 17),  # what is in the caches is not taken out
        (5, 64, 1000, 46, 17),  # the end of the context bounds where costs are measured
        (46, 64, 1000, 46, 17),
        (47, 64, 1000, 47, 16),
        (53, 64, 53, 53, 10),
        (0, 18, 0, 0, 17),
    ],
)
def test_room_in_the_context(
    clock: Clock, start: int, capacity: int, context: int, base: int, widest: int
) -> None:
    """Costs are measured at the context asked for where that fits, near its end over fewer tokens."""
    found = measured(clock, start=start, capacity=capacity, context=context)
    assert found is not None
    assert (found.context, len(found.costs.verify)) == (base, widest)
    assert found.costs == replace(COSTS, verify=COSTS.verify[:widest])


@pytest.mark.parametrize(("start", "capacity"), [(54, 64), (63, 64), (0, 10), (64, 64)])
def test_no_room_in_the_context(clock: Clock, start: int, capacity: int) -> None:
    """Where fewer than ten tokens fit, nothing is measured, and no pass is made."""
    assert measured(clock, start=start, capacity=capacity) is None
    assert clock.passes == 0


def test_the_smaller_context_counts(clock: Clock) -> None:
    """A draft with less room than the target bounds the widest pass."""
    draft, target = TimedDraft(clock, 14), TimedTarget(clock, 4096)
    found = calibrate(draft, target, [1], 0, Greedy(), threads=1)
    assert found is not None and len(found.costs.verify) == 13


# --- the store ------------------------------------------------------------------------------------------------------

NOW = 1_000_000.0
ONE = Calibration(COSTS, 0.25, 30, 5, True, "2026-11-30T00:00:00Z", NOW)
OTHER = replace(ONE, target_s=0.5)


def store(path: Path | None = None, now: float = NOW) -> CalibrationStore:
    """Returns a store whose clock stands still."""
    return CalibrationStore(path, lambda: now)


def test_store_remembers_and_forgets() -> None:
    """What is put under a key is found there and nowhere else, until it is replaced or forgotten."""
    one = store()
    assert one.get("a") is None
    one.put("a", ONE)
    assert (one.get("a"), one.get("b")) == (ONE, None)
    one.put("a", OTHER)
    one.put("b", ONE)
    assert (one.get("a"), one.get("b")) == (OTHER, ONE)
    one.forget("a")
    one.forget("a")
    assert (one.get("a"), one.get("b")) == (None, ONE)


@pytest.mark.parametrize(
    ("age", "found"), [(0.0, True), (STALE_S - 1, True), (STALE_S, False), (1e9, False), (-1.0, False)]
)
def test_old_calibrations_are_stale(age: float, found: bool) -> None:
    """After 24 hours a calibration no longer counts, nor does one from the future, as after a corrected clock."""
    one = store(now=NOW + age)
    one.put("a", ONE)
    assert STALE_S == 24 * 60 * 60
    assert (one.get("a") == ONE) == found


def test_disturbed_calibrations_are_not_kept(tmp_path: Path) -> None:
    """One that other work disturbed is not remembered, and does not replace one that is."""
    one = store(tmp_path / "c.json")
    one.put("a", replace(ONE, quiet=False))
    assert one.get("a") is None and not (tmp_path / "c.json").exists()
    one.put("a", ONE)
    one.put("a", replace(OTHER, quiet=False))
    assert one.get("a") == ONE


def test_store_survives_a_restart(tmp_path: Path) -> None:
    """A store finds in its file what an earlier one has put there, exactly, and not what that one has forgotten."""
    path = tmp_path / "c.json"
    before = store(path)
    before.put("a", ONE)
    before.put("b", OTHER)
    before.forget("b")
    after = store(path)
    assert (after.get("a"), after.get("b")) == (ONE, None)
    assert store(path, NOW + STALE_S).get("a") is None
    assert [file.name for file in tmp_path.iterdir()] == ["c.json"]


def whole() -> dict[str, Any]:
    """Returns what a store writes."""
    costs: dict[str, Any] = {
        "first": 0.5,
        "following": 0.2,
        "catch_up": 0.1,
        "verify": [1.0, 1.1],
        "warming": [],
        "width_change": 0.3,
        "draft_width_change": 0.05,
    }
    return {"costs": costs, **{name: value for name, value in vars(ONE).items() if name != "costs"}}


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    """What the test below damages is read when it is whole."""
    (tmp_path / "c.json").write_text(json.dumps({"a": whole()}))
    assert store(tmp_path / "c.json").get("a") == replace(
        ONE, costs=StepCosts(0.5, 0.2, 0.1, (1.0, 1.1), (), 0.3, 0.05)
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-9],
        lambda text: text[: len(text) // 2],
        lambda text: "null",
        lambda text: "[]",
        lambda text: "7",
        lambda text: '{"a": null}',
        lambda text: '{"a": {"costs": []}}',
        lambda text: '{"version": "1.2"}',
        lambda text: text.replace('"catch_up": 0.1, ', ""),
        lambda text: text.replace(', "width_change": 0.3', ""),
        lambda text: text.replace(', "draft_width_change": 0.05', ""),
        lambda text: text.replace('"rounds"', '"laps"'),
        lambda text: text.replace('"quiet"', '"a new field": 1, "quiet"'),
        lambda text: "\ud800",
        lambda text: text.replace("0.5", '"half"'),
        lambda text: text.replace("1.1", "NaN"),
        lambda text: text.replace("[1.0, 1.1]", "[]"),
        lambda text: text.replace("0.25", "null"),
        lambda text: '{"a": ' + "[" * 100_000,
    ],
)
def test_a_damaged_or_foreign_file_is_begun_anew(tmp_path: Path, damage: Callable[[str], str]) -> None:
    """A file that is cut short, or not ours, or another version's, is taken for empty and then replaced."""
    path = tmp_path / "c.json"
    path.write_bytes(damage(json.dumps({"a": whole()})).encode("utf-8", "surrogatepass"))
    one = store(path)
    assert one.get("a") is None
    one.put("b", ONE)
    assert store(path).get("b") == ONE and store(path).get("a") is None


def test_stale_ones_are_dropped(tmp_path: Path) -> None:
    """With each new calibration those that no longer count leave the file, so that it does not grow for ever."""
    path = tmp_path / "c.json"
    store(path).put("a", ONE)
    later = NOW + STALE_S
    store(path, later).put("b", replace(OTHER, measured_unix=later))
    assert list(json.loads(path.read_text())) == ["b"]


@pytest.mark.parametrize("place", ["missing/c.json", "file/c.json", "folder"])
def test_a_place_that_cannot_be_written_costs_only_the_file(tmp_path: Path, place: str) -> None:
    """Where nothing can be written the store goes on in memory."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    one = store(tmp_path / place)
    one.put("a", ONE)
    one.put("b", OTHER)
    one.forget("b")
    assert (one.get("a"), one.get("b")) == (ONE, None)


def test_store_without_a_file_writes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that was given no file leaves none behind."""
    monkeypatch.chdir(tmp_path)
    store().put("a", ONE)
    assert list(tmp_path.iterdir()) == []


# --- what a calibration is remembered by ----------------------------------------------------------------------------

RULE = {"temperature": 0.0, "top_p": 1.0, "top_k": 0}


def pair(draft: str = "d", target: str = "t", capacity: int = 512, **fields: Any) -> LoadedPair:
    """Returns a pair of tables with these digests."""
    files = [ModelFile(name, Path(name), digest * 64) for name, digest in (("d", draft), ("t", target))]
    models = [TableModel(random_table(4, 1), capacity) for _ in range(2)]
    weights = SimpleNamespace(offloaded=fields.pop("offloaded", None))
    given: dict[str, Any] = {"threads": 2, **fields}
    return LoadedPair(files[0], files[1], weights, weights, *models, **given)  # type: ignore[arg-type]


def key(loaded_pair: LoadedPair, context: int = 100, **rule: Any) -> str:
    """Returns the key for a pair, a context and a rule."""
    return CalibrationStore.key(loaded_pair.identity(), context, {**RULE, **rule})


def test_keys_differ_by_all_that_costs_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another draft, target, library, processor, thread count, context or rule has another key."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    keys = [
        key(pair()),
        key(pair(draft="e")),
        key(pair(target="u")),
        key(pair(draft="t", target="d")),
        key(pair(capacity=1024)),
        key(pair(threads=1)),
        key(pair(draft_threads=1)),
        key(pair(offloaded=(33, 33))),
        key(pair(device=Device("gpu", "", "GPU-1"))),
        key(pair(device=Device("gpu", "", "GPU-2"))),
        key(pair(), context=128),
        key(pair(), context=300),
        key(pair(), temperature=0.5),
        key(pair(), top_p=0.5),
        key(pair(), top_k=5),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(loaded, "version", lambda name: "9.9.9")
        keys.append(key(pair()))
    with monkeypatch.context() as patch:
        patch.setattr(loaded, "system_info", lambda: "another processor")
        keys.append(key(pair()))
    with monkeypatch.context() as patch:
        patch.setenv("GOMP_SPINCOUNT", "3000")
        keys.append(key(pair()))
    assert len(set(keys)) == len(keys)


def test_keys_do_not_differ_by_the_rest() -> None:
    """Contexts within one step of 128 tokens share a calibration; names and how threads were chosen do not matter."""
    assert key(pair(), 0) == key(pair(), 127) == key(pair(threads_tried={"1": 3.0}), 64)
    renamed = pair()
    renamed.draft_file = replace(renamed.draft_file, name="other", path=Path("elsewhere"))
    assert key(renamed) == key(pair())
