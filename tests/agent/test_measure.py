"""Tests of `agent.measure`, over exact table models: what is counted, timed, compared and refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from agent import calibration, measure
from agent.calibration import Calibration, CalibrationStore
from agent.errors import Cancelled, DeadlineExceeded, LoadFailed, NoPair, RequestRefused
from agent.measure import LoadedPair, RunOutcome, load_pair, run
from agent.pairs import ModelFile, PairChoice
from agent.sampling import Logits
from shared import labels
from shared.canonical import sha3_256_hex
from shared.checks import check_measurement
from shared.curve import StepCosts, best_k, predicted_curve
from shared.estimators import Step, accepted_rate, after_full_acceptance, median_interval, summarise
from shared.schemas import Measurement, RunRequest
from tests.agent.tables import Table, TableModel, near, random_table

VOCAB, END = 12, 11


class Words:
    """A vocabulary of one letter a token, whose last token ends the text."""

    def ends(self, token: int) -> bool:
        """Tells the end-of-text token."""
        return token == END

    def piece(self, token: int) -> bytes:
        """Spells a token."""
        return b"" if token == END else bytes([ord("a") + token])


class Texts:
    """Stands for loaded weights: a prompt's letters are its tokens."""

    gpu_layers = 0
    offloaded = None
    vocab = Words()

    def prompt_tokens(self, text: str, *, chat: bool) -> list[int]:
        """Spells a prompt."""
        return [ord(letter) - ord("a") for letter in text]


def pair_of(target: TableModel, draft: TableModel) -> LoadedPair:
    """Returns two table models as a loaded pair."""
    files = [ModelFile(name, None, "0" * 64) for name in ("small", "large")]  # type: ignore[arg-type]
    return LoadedPair(files[0], files[1], Texts(), Texts(), draft, target, threads=1)  # type: ignore[arg-type]


def endless(seed: int = 1) -> Table:
    """Returns random logits under which the text never ends."""
    table = random_table(VOCAB, seed)
    table[:, END] = -50
    return table


def request(**fields: Any) -> dict[str, Any]:
    """Returns a run request with its defaults filled in."""
    return RunRequest(prompt="ab", **{"n": 20, **fields}).model_dump()


def measured(target: Table, draft: Table, capacity: int = 4096, **fields: Any) -> RunOutcome:
    """Runs a request over two tables and checks the measurement against itself."""
    outcome = run(pair_of(TableModel(target, capacity), TableModel(draft, capacity)), request(**fields))
    assert check_measurement(Measurement.model_validate(outcome.measurement)) == []
    return outcome


COSTS = StepCosts(
    first=0.3,
    following=0.1,
    catch_up=0.05,
    verify=tuple(1 + 0.05 * m for m in range(17)),
    warming=(0.2,),
    draft_width_change=0.02,
)
"""A draft that is worth its costs where it is mostly right."""


def knowing(pair: LoadedPair, asked: dict[str, Any], costs: StepCosts = COSTS) -> LoadedPair:
    """Returns the pair with its costs for a request known, so that none are measured."""
    pair.calibrations = CalibrationStore(clock=lambda: 0.0)
    rule = {name: asked[name] for name in ("temperature", "top_p", "top_k")}
    key = pair.calibrations.key(pair.identity(), len(asked["prompt"]) + asked["n"], rule)
    pair.calibrations.put(key, Calibration(costs, 0.01, 22, 5, True, "2026-01-01T00:00:00Z", 0.0))
    assert pair.calibrations.get(key)
    return pair


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times the fewest pairs and the fewest rounds."""
    monkeypatch.setattr(measure, "TIMING_S", 0.0)
    monkeypatch.setattr(calibration, "SECONDS", 0.0)
    monkeypatch.setattr(calibration, "ROUNDS", 1)
    monkeypatch.setattr(calibration, "FEWEST_ROUNDS", 1)


@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_measurement_is_consistent(k: int, temperature: float) -> None:
    """Greedy and sampled measurements pass every check that the edge makes."""
    table = endless()
    outcome = measured(table, near(table, 2, 0.5), k=k, temperature=temperature)
    m = outcome.measurement
    assert (m["n"], m["k"], m["stopped"], m["speedup"]["pairs"]) == (20, k, None, 6)
    assert m["quality"]["label"] == (labels.SAMPLED if temperature else labels.LOSSLESS)
    assert m["emitted"] == len(outcome.output_text)
    assert outcome.output_sha3_256 == sha3_256_hex(outcome.output_text.encode())


def test_same_request_same_counts() -> None:
    """Two runs of one request give the same text and counts; only timings and what rests on them differ."""
    table = endless()
    runs = [measured(table, near(table, 2, 0.5), temperature=1.0, seed=9) for _ in range(2)]
    assert runs[0].output_text == runs[1].output_text
    timed = {"timing", "tokens_per_second", "speedup", "verdict"}
    timed |= {"calibration", "speedup_predicted", "predicted_curve", "recommended_k", "residuals"}
    assert all(r.measurement[name] is not None for r in runs for name in timed)
    counted = [{k: v for k, v in r.measurement.items() if k not in timed} for r in runs]
    assert {"per_step", "acceptance_histogram", "iid", "sum_min", "engine", "quality"} <= counted[0].keys()
    assert len(counted[0]) > 20
    assert counted[0] == counted[1]


def test_end_of_text_is_no_output() -> None:
    """The end-of-text token counts as emitted and is left out of the output."""
    table = np.full((VOCAB, VOCAB), -9, np.float32)
    for token in range(VOCAB - 1):
        table[token, token + 1] = 9
    outcome = measured(table, table, k=4)
    m = outcome.measurement
    assert outcome.output_text == "cdefghijk"
    assert (m["stopped"], m["n"], m["emitted"], m["accepted"]) == ("end_of_text", 2, 10, 8)
    assert outcome.output_sha3_256 == sha3_256_hex(b"cdefghijk")


def test_ignore_eos_goes_on() -> None:
    """With ignore_eos the text goes on past its end."""
    table = random_table(VOCAB, 1)
    table[:, END] = 9
    assert measured(table, table, n=5, ignore_eos=True).measurement["stopped"] is None
    assert measured(table, table, n=5).measurement["stopped"] == "end_of_text"


def test_context_end() -> None:
    """A run that fills the context says so and keeps its counts consistent."""
    table = endless()
    for capacity in range(8, 24):
        m = measured(table, near(table, 2, 0.5), capacity=capacity, k=4).measurement
        assert m["stopped"] == "context"


def test_blocks_alternate() -> None:
    """After a warm-up the blocks come in the order A B B A, A speculative and B the target alone."""
    log: list[str] = []

    class Logged(TableModel):
        def forward(self, tokens: Sequence[int], rows: int) -> Logits:
            """Notes which side is decoding: only speculation reads more than one token at a time."""
            side = "A" if len(tokens) > 1 else "B"
            if not log or log[-1] != side:
                log.append(side)
            return super().forward(tokens, rows)

    table = endless()
    asked = request(k=4)
    run(knowing(pair_of(Logged(table), TableModel(table)), asked), asked)
    # The prompt's first token, the counted generation, the warm-up; then A|BB|AA|BB|AA|BB|A with repeats folded.
    assert "".join(log) == "BAB" + "ABABAB" + "A"


def test_speedup_is_the_median_of_ratios() -> None:
    """The measured speed-up is the median and order-statistic interval of the pairs' time ratios."""
    table = endless()
    m = measured(table, near(table, 2, 0.5)).measurement
    timing = m["timing"]
    ratios = [a / s for a, s in zip(timing["target_only_s"], timing["speculative_s"], strict=True)]
    interval = median_interval(ratios)
    assert interval is not None
    assert (m["speedup"]["median"], tuple(m["speedup"]["ci95"])) == (interval[0], interval[1:])


class WidthSensitive(TableModel):
    """A target whose logits depend a little on how many tokens a pass reads, as kernels' rounding does."""

    def __init__(self, table: Table, shift: float) -> None:
        """Adds `shift` to token 3 in passes over more than one token."""
        super().__init__(table)
        self.shift = shift

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        """Shifts wide passes."""
        logits = super().forward(tokens, rows).copy()
        if len(tokens) > 1:
            logits[:, 3] += self.shift
        return logits


def undecided(gap: float) -> Table:
    """Returns logits under which token 2 leads token 3 by `gap` after token 1."""
    table = np.zeros((VOCAB, VOCAB), np.float32)
    table[:, 0] = 5
    table[1, 0] = 0
    table[1, 2], table[1, 3] = 5 + gap, 5
    return table


def test_divergence_within_rounding_is_a_tie() -> None:
    """Outputs that part where the top two are closer than the width's noise are called a tie, and not valid."""
    table = undecided(0.001)
    outcome = run(pair_of(WidthSensitive(table, 0.002), TableModel(table)), request())
    m = outcome.measurement
    assert m["quality"]["label"] == labels.DIVERGED_TIE
    # One free block differs; all later ones are led along the speculative tokens, and still choose otherwise once.
    assert m["quality"]["identical_rate"] == 0.0
    assert m["speedup"]["pairs"] == 6
    assert "the output differs from the target's own" in m["verdict"]["reasons"]
    assert check_measurement(Measurement.model_validate(m)) == []


def test_divergence_beyond_rounding_is_a_fault() -> None:
    """Outputs that part where the target was not undecided are called a fault."""
    table = endless()

    class Broken(TableModel):
        broken = True

        def forward(self, tokens: Sequence[int], rows: int) -> Logits:
            """Shuffles the logits of wide passes while broken."""
            logits = super().forward(tokens, rows)
            return logits[:, ::-1] if len(tokens) == 5 and self.broken else logits

    target = Broken(table)
    pair = pair_of(target, TableModel(table))

    def honest_noise(self: Any, ours: Sequence[int], theirs: Sequence[int]) -> bool:
        target.broken = False
        return bool(original(self, ours, theirs))

    original = measure._Run._is_tie
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure._Run, "_is_tie", honest_noise)
        m = run(pair, request(k=4)).measurement
    assert m["quality"]["label"] == labels.DIVERGED_FAULT
    assert m["verdict"]["valid"] is False


def test_unrepeatable_speculation_is_not_valid() -> None:
    """When a repeat of the speculative decoding gives other tokens the verdict says so."""
    table = endless()

    class Drifting(TableModel):
        passes_so_far = 0

        def forward(self, tokens: Sequence[int], rows: int) -> Logits:
            """Changes its mind after a while."""
            self.passes_so_far += 1
            logits = super().forward(tokens, rows)
            return logits[:, ::-1] if self.passes_so_far > 200 else logits

    asked = request(k=2)
    m = run(knowing(pair_of(TableModel(table), Drifting(table)), asked), asked).measurement
    assert m["quality"]["label"] == labels.LOSSLESS
    assert "repeats of the speculative decoding did not give the same tokens" in m["verdict"]["reasons"]
    assert m["speedup"] == labels.UNAVAILABLE
    assert m["tokens_per_second"] == {"speculative": None, "target_only": None}
    assert m["timing"] == {"speculative_s": [], "target_only_s": []}


def test_a_block_that_goes_its_own_way_is_not_timed() -> None:
    """A free target-only block that differs is left out of the pairs; all pairs are over the same tokens."""
    table = endless()

    class Moody(TableModel):
        blocks = 0

        def truncate(self, length: int) -> None:
            """Counts the target-only blocks by their return to the prompt."""
            super().truncate(length)
            self.blocks += length == 1

        def forward(self, tokens: Sequence[int], rows: int) -> Logits:
            """Goes astray in one narrow pass of one block."""
            logits = super().forward(tokens, rows)
            astray = self.blocks == 5 and len(tokens) == 1 and self.length == 7
            return logits[:, ::-1] if astray else logits

    m = run(pair_of(Moody(table), TableModel(table)), request(k=4)).measurement
    assert (m["speedup"]["pairs"], m["quality"]["identical_rate"]) == (6, 1 - 1 / 8)
    assert m["quality"]["label"] == labels.DIVERGED_FAULT
    assert check_measurement(Measurement.model_validate(m)) == []


def test_classing_a_divergence_heeds_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no time is left to look into a divergence it is called a fault, and what was measured is kept."""
    table = undecided(0.001)
    pair = pair_of(WidthSensitive(table, 0.002), TableModel(table))
    monkeypatch.setattr(measure._Run, "_quality", _late(measure._Run._quality))
    m = run(pair, request(), deadline=float("inf")).measurement
    assert m["quality"]["label"] == labels.DIVERGED_FAULT
    assert m["speedup"]["pairs"] == 6


def _late(quality: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the deadline lie in the past once quality is looked into."""

    def wrapped(self: Any, *args: Any) -> Any:
        self.deadline = float("-inf")
        return quality(self, *args)

    return wrapped


def test_other_load_makes_a_run_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the decoding threads had to wait for a processor the verdict says so."""
    table = endless()
    slow = iter(range(10**6))
    monkeypatch.setattr("agent.measure.time.process_time", lambda: next(slow) * 1e-9)
    m = run(pair_of(TableModel(table), TableModel(table)), request()).measurement
    assert "other work slowed the machine while it was timed" in m["verdict"]["reasons"]
    assert m["verdict"]["valid"] is False


def test_few_steps_are_not_valid() -> None:
    """A run of fewer than ten steps is measured, and marked as too short."""
    table = endless()
    assert "fewer than 10 steps" in measured(table, table, n=3).measurement["verdict"]["reasons"]


def test_cancel_stops_between_steps() -> None:
    """A run that is asked to stop ends at once, in the counted generation and in the timed ones."""
    table = endless()
    for after in (3, 60):
        asked = iter(range(1000))
        with pytest.raises(Cancelled):
            run(
                pair_of(TableModel(table), TableModel(table)),
                request(),
                should_stop=lambda after=after, asked=asked: "cancelled" if next(asked) >= after else None,  # type: ignore[misc]
            )


def stop_clock(monkeypatch: pytest.MonkeyPatch, at: Callable[[], bool]) -> None:
    """Makes the deadline pass once `at()` is true."""
    monkeypatch.setattr("agent.measure.time.monotonic", lambda: 1e9 if at() else 0.0)


def test_deadline_keeps_the_steps_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline within the counted generation keeps its steps, says so, and leaves the speed-up unavailable."""
    table = endless()
    target = TableModel(table)
    stop_clock(monkeypatch, lambda: target.length >= 30)
    m = run(pair_of(target, TableModel(table)), request(k=4, n=50), deadline=1.0).measurement
    assert m["stopped"] == "deadline"
    assert 0 < m["n"] < 50
    assert m["speedup"] == labels.UNAVAILABLE
    assert m["tokens_per_second"] == {"speculative": None, "target_only": None}
    assert check_measurement(Measurement.model_validate(m)) == []


def test_deadline_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that passes while the prompt is read leaves nothing to report."""
    table = endless()
    stop_clock(monkeypatch, lambda: True)
    with pytest.raises(DeadlineExceeded):
        run(pair_of(TableModel(table), TableModel(table)), request(), deadline=1.0)


def test_progress_is_told() -> None:
    """Progress speaks of the prompt, then of steps up to n, then of pairs."""
    table, said = endless(), list[tuple[str, int, int]]()
    run(
        pair_of(TableModel(table), TableModel(table)), request(n=4), on_progress=lambda *now: said.append(now)
    )
    assert said[0] == ("prefill", 1, 2)
    assert [now for now in said if now[0] == "measuring"] == [("measuring", i, 4) for i in range(1, 5)]
    assert [now[1] for now in said if now[0] == "timing"] == list(range(6))


def test_prompt_longer_than_the_context_is_refused() -> None:
    """A prompt that leaves no room for one step is refused with its length, before anything is decoded."""
    table = endless()
    with pytest.raises(RequestRefused, match="2 tokens, too many for a context of 5"):
        run(pair_of(TableModel(table, 5), TableModel(table, 5)), request(k=4))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_automatic_k(temperature: float) -> None:
    """An automatic k drafts by confidence, claims no acceptance rate, and takes alpha from steps of fixed length."""
    table = endless()
    asked = request(k="auto", n=40, temperature=temperature)
    pair = knowing(pair_of(TableModel(table), TableModel(near(table, 2, 0.5))), asked)
    outcome = run(pair, asked)
    m = outcome.measurement
    assert check_measurement(Measurement.model_validate(m)) == []
    assert (m["mode"], m["k_requested"], m["n"], m["speedup"]["pairs"]) == ("adaptive", "auto", 40, 6)
    assert m["k"] == best_k(predicted_curve(0.98, COSTS)) > 4
    assert m["drafted"] == sum(m["per_step"]["drafted"]) > 0
    assert max(m["per_step"]["drafted"]) <= m["k"] and len(set(m["per_step"]["drafted"])) > 1
    nothing = ("accepted_rate", "accepted_rate_ci95", "iid", "speedup_predicted", "residuals")
    assert [m[name] for name in nothing] == [None] * 5
    alpha = m["alpha"]
    assert (alpha["label"], alpha["k"]) == (labels.MEASURED, 4)
    assert alpha["value"] == accepted_rate(alpha["accepted"], alpha["rejections"])
    assert m["predicted_curve"]["speedup"] == predicted_curve(alpha["value"], COSTS)
    assert m["recommended_k"] == best_k(m["predicted_curve"]["speedup"])
    assert m["quality"]["label"] == (labels.SAMPLED if temperature else labels.LOSSLESS)
    assert len(outcome.output_text) == m["emitted"]


def test_automatic_k_measures_costs_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """An automatic k begins with measuring costs, which the next request of the kind need not repeat."""
    table, said = endless(), list[str]()
    pair = pair_of(TableModel(table), TableModel(near(table, 2, 0.5)))
    measured_now = list[Calibration]()
    monkeypatch.setattr(pair.calibrations, "put", lambda key, found: measured_now.append(found))
    m = run(pair, request(k="auto"), on_progress=lambda phase, *now: said.append(phase)).measurement
    assert check_measurement(Measurement.model_validate(m)) == []
    assert m["mode"] == "adaptive" and m["calibration"]["verify_cost"] == list(measured_now[0].costs.verify)
    assert list(dict.fromkeys(said)) == ["prefill", "calibrating", "measuring", "timing"]
    said.clear()
    asked = request(k="auto")
    run(knowing(pair, asked), asked, on_progress=lambda phase, *now: said.append(phase))
    assert "calibrating" not in said


def test_automatic_k_drafts_nothing_where_nothing_pays() -> None:
    """Where drafting costs more than it can gain, an automatic k is 0 and the run decodes plainly."""
    table, asked = endless(), request(k="auto")
    costs = StepCosts(2.0, 2.0, 0.0, COSTS.verify)
    m = run(knowing(pair_of(TableModel(table), TableModel(table)), asked, costs), asked).measurement
    assert check_measurement(Measurement.model_validate(m)) == []
    assert (m["k"], m["drafted"], m["emitted"], m["acceptance_histogram"]) == (0, 0, 20, [20])


def test_automatic_k_without_room_for_costs_is_refused() -> None:
    """Where the context has no room to measure costs, an automatic k is refused; a k that is named is not."""
    table = endless()
    pair = pair_of(TableModel(table, 10), TableModel(table, 10))
    with pytest.raises(RequestRefused, match="name a k"):
        run(pair, request(k="auto"))
    m = run(pair, request(k=4)).measurement
    assert (m["stopped"], m["calibration"], m["predicted_curve"]) == ("context", None, None)
    assert check_measurement(Measurement.model_validate(m)) == []


def test_predictions_rest_on_the_costs() -> None:
    """Prediction, curve and residuals of a run of fixed length are what its alpha, steps and known costs give."""
    table, asked = endless(), request(k=3)
    pair = knowing(pair_of(TableModel(table), TableModel(near(table, 2, 0.5))), asked)
    m = run(pair, asked).measurement
    steps = [
        Step(g, a, a < g, a + 1)
        for g, a in zip(m["per_step"]["drafted"], m["per_step"]["accepted"], strict=True)
    ]
    assert summarise(steps, 3).emitted == m["emitted"]
    drafting = 0.3 + 0.2 + 0.1 + (0.05 + 0.02) * after_full_acceptance(steps)
    assert m["calibration"]["cost_ratio"] == pytest.approx(drafting / 3)
    alpha = m["accepted_rate"]
    expected = 1 + alpha + alpha**2 + alpha**3
    assert m["speedup_predicted"]["value"] == pytest.approx(expected / (drafting + 1.15))
    assert m["predicted_curve"]["speedup"] == predicted_curve(alpha, COSTS)
    assert m["residuals"]["cost"]["predicted"] == pytest.approx(drafting + 1.15)
    assert m["residuals"]["tokens"]["expected"] == pytest.approx(expected)


@pytest.mark.parametrize(("ratio", "kept"), [(1.14, True), (1.16, False), (0.88, True), (0.86, False)])
def test_costs_that_did_not_hold_are_forgotten(ratio: float, kept: bool) -> None:
    """Costs are measured anew after a run whose steps lasted 15 % more or less than they predict."""
    table, asked = endless(), request(k=3)
    pair = knowing(pair_of(TableModel(table), TableModel(table)), asked)
    one = measure._Run(pair, asked, lambda *now: None, lambda: None, float("inf"))
    assert one._calibration() is not None
    one._doubt({"cost": {"ratio": ratio}})
    assert (pair.calibrations.get(one.calibration_key) is not None) == kept


def test_end_of_text_inside_a_sampled_draft() -> None:
    """When a sampled draft runs past the end of the text, only what was examined before the end is counted."""
    table = np.full((VOCAB, VOCAB), -9, np.float32)
    for token in range(VOCAB - 1):
        table[token, token + 1] = 9
    table[END] = 0
    m = measured(table, table, k=5, temperature=1.0).measurement
    assert (m["stopped"], m["accepted"], m["rejections"], m["emitted"]) == ("end_of_text", 9, 0, 10)
    assert m["sum_min"]["examined"] == 9


def test_loading_without_a_pair_is_refused(tmp_path: Any) -> None:
    """Loading where no pair was found, or from a damaged file, is an error that names no path."""
    with pytest.raises(NoPair, match="none here"):
        load_pair(PairChoice(False, "none here"), n_ctx=64, threads=1)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    file = ModelFile("broken", broken)
    with pytest.raises(LoadFailed) as raised:
        load_pair(PairChoice(True, "", file, file), n_ctx=64, threads=1)
    assert str(tmp_path) not in str(raised.value)
