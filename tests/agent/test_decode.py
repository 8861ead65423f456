"""Tests of `agent.decode`: the algorithm, its counts, its caches, and that it leaves the target's law unchanged."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from agent import decode, sampling
from agent.adaptive import Stopping
from agent.decode import CacheError, DraftLength, Generation, begin, prefill, speculative_step, target_only
from agent.sampling import Distribution, Greedy, Logits, Proposal, Rule, Sampled, Verdict, distribution, draw
from shared.curve import StepCosts
from shared.errors import SpecdecError
from shared.estimators import Step, summarise
from tests.agent.tables import Table, TableModel, near, random_table, sequence_law


def never(_: int) -> bool:
    """No token ends the text."""
    return False


def generate(
    draft: TableModel,
    target: TableModel,
    rule: Rule,
    *,
    k: int,
    steps: int,
    prompt: Sequence[int] = (0, 1),
    ends: Callable[[int], bool] = never,
    length: DraftLength | None = None,
) -> Generation:
    """Runs up to `steps` steps after `prompt` and checks both caches after each."""
    for model in (draft, target):
        prefill(prompt, model, lambda done: None)
    run = begin(prompt, draft, target)
    while len(run.steps) < steps and run.stopped is None:
        speculative_step(run, draft, target, rule, k, ends, length)
        committed = [*prompt, *run.tokens][:-1]
        assert target.cache == committed
        assert [*draft.cache, *run.unread] == [*prompt, *run.tokens]
        assert run.unread and run.pending == run.unread[-1]
        if length is None and k > 0:
            assert len(run.unread) in (1, 2)
    return run


# --- greedy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(1, 9))
def test_greedy_equals_target_only(k: int) -> None:
    """Greedy output is the target's own, whatever the draft, for 40 random pairs at each k."""
    for seed in range(40):
        table = random_table(12, seed)
        draft = TableModel(near(table, seed + 1000, noise=0.1 * (seed % 20)))
        run = generate(draft, TableModel(table), Greedy(), k=k, steps=10)
        target = TableModel(table)
        prefill((0, 1), target, lambda done: None)
        assert run.tokens == target_only((0, 1), target, Greedy(), len(run.tokens))


def test_perfect_draft_is_accepted_whole() -> None:
    """A draft equal to the target has every proposal accepted and earns the bonus each time."""
    table = random_table(9, 3)
    run = generate(TableModel(table), TableModel(table), Greedy(), k=3, steps=5)
    assert run.steps == [Step(3, 3, False, 4)] * 5


def test_hopeless_draft_gives_one_token_a_step() -> None:
    """A draft that is never right costs its proposals and yields the target's correction alone."""
    target = np.full((3, 3), -5, np.float32)
    target[:, 2] = 5
    draft = np.full((3, 3), -5, np.float32)
    draft[:, 1] = 5
    run = generate(TableModel(draft), TableModel(target), Greedy(), k=2, steps=4)
    assert run.steps == [Step(2, 0, True, 1)] * 4
    assert run.tokens == [2, 2, 2, 2]


def chain(*successors: int) -> Table:
    """Returns logits under which token t is followed by successors[t]."""
    return np.eye(len(successors), dtype=np.float32)[list(successors)] * 10


def test_passes_are_k_drafts_and_one_verification() -> None:
    """A step makes k draft passes and one target pass over k + 1 tokens; after full acceptance the draft catches up."""
    table = chain(1, 2, 3, 0)
    draft, target = TableModel(table), TableModel(table)
    generate(draft, target, Greedy(), k=3, steps=2)
    assert target.passes == [1, 4, 4]  # the prompt's first token, then two verifications
    assert draft.passes == [1, 1, 1, 1, 2, 1, 1]


def test_end_of_text_inside_the_draft_cuts_before_counting() -> None:
    """An accepted end of text counts as accepted; the draft after it was not examined; no bonus follows."""
    table = chain(1, 2, 3, 4, 5, 6, 0)
    run = generate(
        TableModel(table), TableModel(table), Greedy(), k=4, steps=9, ends=lambda token: token == 3
    )
    assert run.tokens == [2, 3]
    assert run.steps == [Step(4, 2, False, 2)]
    assert run.stopped == "end_of_text"


def test_end_of_text_as_correction_ends_the_run() -> None:
    """A correction that ends the text is emitted and ends the run; the refusal is counted."""
    target = chain(1, 3, 0, 0)
    draft = chain(1, 2, 0, 0)
    run = generate(
        TableModel(draft), TableModel(target), Greedy(), k=2, steps=9, ends=lambda token: token == 3
    )
    assert (run.tokens, run.steps, run.stopped) == ([3], [Step(2, 0, True, 1)], "end_of_text")


def test_end_of_text_as_bonus_ends_the_run() -> None:
    """A bonus token that ends the text is emitted and ends the run."""
    table = chain(1, 2, 3, 0)
    run = generate(
        TableModel(table), TableModel(table), Greedy(), k=1, steps=9, ends=lambda token: token == 3
    )
    assert (run.tokens, run.steps, run.stopped) == ([2, 3], [Step(1, 1, False, 2)], "end_of_text")


def test_a_refused_end_of_text_does_not_end_the_run() -> None:
    """An end of text that the target refuses is not emitted and stops nothing."""
    target, draft = chain(1, 2, 0), chain(1, 3, 0, 0)[:3, :3]
    draft[1] = 0
    draft[1, 0] = 5
    run = generate(
        TableModel(draft), TableModel(target), Greedy(), k=2, steps=1, ends=lambda token: token == 0
    )
    assert (run.tokens, run.stopped) == ([2], None)


def test_draft_shrinks_at_the_context_end() -> None:
    """The last step drafts what still fits, then the run stops with "context"; no cache exceeds its capacity."""
    table = chain(1, 2, 3, 0)
    run = generate(TableModel(table, capacity=10), TableModel(table, capacity=10), Greedy(), k=3, steps=99)
    assert run.steps == [Step(3, 3, False, 4), Step(3, 3, False, 4)]
    assert run.stopped == "context"
    run = generate(TableModel(table, capacity=12), TableModel(table, capacity=12), Greedy(), k=3, steps=99)
    assert run.steps == [Step(3, 3, False, 4), Step(3, 3, False, 4), Step(2, 2, False, 3)]
    assert run.stopped == "context"


def test_a_smaller_draft_context_bounds_the_run() -> None:
    """The draft's capacity counts too, also right after it fell one token behind."""
    table = chain(1, 2, 3, 0)
    run = generate(TableModel(table, capacity=8), TableModel(table, capacity=99), Greedy(), k=3, steps=99)
    assert run.stopped == "context"
    assert summarise(run.steps, 3).emitted == len(run.tokens)


def test_steps_agree_with_the_tokens() -> None:
    """Over random pairs, every step's counts agree with what was emitted."""
    for seed in range(30):
        table = random_table(8, seed)
        rule = Sampled(1.0, 1.0, 0, seed) if seed % 2 else Greedy()
        ends = (lambda token: token == 7) if seed % 3 == 0 else never
        run = generate(
            TableModel(near(table, seed + 500, 1)), TableModel(table, 60), rule, k=5, steps=20, ends=ends
        )
        counts = summarise(run.steps, 5)
        assert counts.emitted == len(run.tokens)
        assert counts.emitted == counts.accepted + counts.n - (
            run.steps[-1].emitted == run.steps[-1].accepted
        )


def test_seeded_sampling_repeats() -> None:
    """The same seed gives the same tokens and steps, another seed others."""
    table = random_table(20, 1)
    runs = [
        generate(
            TableModel(near(table, 2, 1)), TableModel(table), Sampled(1.0, 0.95, 10, seed), k=4, steps=12
        )
        for seed in (5, 5, 6)
    ]
    assert (runs[0].tokens, runs[0].steps) == (runs[1].tokens, runs[1].steps)
    assert runs[0].tokens != runs[2].tokens


def test_forced_target_pass_follows_the_given_tokens() -> None:
    """Forced decoding reads the given tokens, yet returns what it would have chosen."""
    target = TableModel(chain(1, 2, 3, 0))
    prefill((0, 1), target, lambda done: None)
    chosen = target_only((0, 1), target, Greedy(), 3, forced=[3, 3, 1])
    assert target.cache == [0, 1, 3, 3]
    assert chosen == [2, 0, 0]


def test_prefill_reads_all_but_the_last_in_parts() -> None:
    """A long prompt is read in parts, each reported; a single token leaves the cache empty."""
    model, said = TableModel(random_table(4, 0)), list[int]()
    prefill([0, 1, 2, 3] * 200, model, said.append)
    assert model.length == 799
    assert said == [256, 512, 768, 799]
    prefill([1], model, said.append)
    assert model.length == 0


def test_a_cache_that_does_not_roll_back_is_an_error() -> None:
    """A model whose cache keeps rejected tokens is found out in the first step that rejects."""

    class Sticky(TableModel):
        def truncate(self, length: int) -> None:
            """Forgets nothing."""

    draft, target = TableModel(chain(0, 0, 0, 0)), Sticky(chain(1, 2, 3, 0))
    run = begin((0,), draft, target)
    with pytest.raises(CacheError):
        speculative_step(run, draft, target, Greedy(), 2, never)


# --- draft lengths --------------------------------------------------------------------------------------------------


class Told(DraftLength):
    """A draft length that is told how many passes to make and tokens to keep, and checks how it is asked."""

    def __init__(self, plan: Callable[[int], tuple[int, bool]]) -> None:
        """Takes a plan: from a step's number to the tokens to propose, and whether a pass more comes to nothing."""
        self.plan = plan
        self.proposed: list[int] = []
        self.passes: list[int] = []
        self.learnt: list[tuple[int, bool, int]] = []
        self._kept = self._made = 0
        self._asked_row = False

    def draft_another(self) -> bool:
        """Goes on to the number planned, and one pass more if that is planned."""
        assert not self._asked_row
        keep, one_more = self.plan(len(self.learnt))
        self._asked_row = self._kept < keep + one_more
        self._made += self._asked_row
        return self._asked_row

    def worth_verifying(self, row: Logits) -> bool:
        """Keeps as many as planned."""
        assert self._asked_row and row.ndim == 1
        self._asked_row = False
        keep = self._kept < self.plan(len(self.learnt))[0]
        self._kept += keep
        return keep

    def learn(self, accepted: int, rejected: bool, emitted: int) -> None:
        """Notes the step."""
        self.proposed.append(self._kept)
        self.passes.append(self._made)
        self.learnt.append((accepted, rejected, emitted))
        self._kept = self._made = 0
        self._asked_row = False


def at_random(seed: int) -> Callable[[int], tuple[int, bool]]:
    """Plans 0 to 6 tokens, in half of the steps with a pass that comes to nothing."""
    rng = np.random.default_rng(seed)
    plans = [(int(rng.integers(7)), bool(rng.integers(2))) for _ in range(60)]
    return lambda step: plans[step]


PLANS: dict[str, Callable[[int], tuple[int, bool]]] = {
    "random": at_random(1),
    "random again": at_random(2),
    "never": lambda step: (0, False),
    "always read, never propose": lambda step: (0, True),
    "no limit": lambda step: (99, False),
    "alternating": lambda step: (5 * (step % 2), step % 4 == 0),
    "rarely": lambda step: (4 * (step % 7 == 6), False),
}


@pytest.mark.parametrize("plan", PLANS)
def test_greedy_equals_target_only_at_any_draft_length(plan: str) -> None:
    """However lengths are chosen, greedy output is the target's own, and counts and caches are right."""
    for seed in range(30):
        table = random_table(12, seed)
        draft = TableModel(near(table, seed + 1000, noise=0.1 * (seed % 12)))
        length = Told(PLANS[plan])
        run = generate(draft, TableModel(table), Greedy(), k=5, steps=25, length=length)
        alone = TableModel(table)
        prefill((0, 1), alone, lambda done: None)
        assert run.tokens == target_only((0, 1), alone, Greedy(), len(run.tokens))
        wanted = [min(PLANS[plan](step)[0], 5) for step in range(25)]
        assert length.proposed == [step.drafted for step in run.steps] == wanted
        assert length.learnt == [(step.accepted, step.rejected, step.emitted) for step in run.steps]
        assert summarise(run.steps, 5).emitted == len(run.tokens)
        assert len(draft.passes) == 1 + sum(length.passes)


def test_steps_without_the_draft_leave_it_unread_text() -> None:
    """A draft that was not asked for some steps reads all it has missed in its next pass."""
    table = chain(1, 2, 3, 4, 5, 6, 7, 0)
    draft, target = TableModel(table), TableModel(table)
    length = Told(lambda step: (2 if step in (4, 5) else 0, step in (2, 5)))
    run = generate(draft, target, Greedy(), k=3, steps=7, length=length)
    # The prompt's first token; the pass of step 2 reads three tokens and comes to nothing; step 4's first reads two;
    # that of step 5 the last proposal and the bonus, and its third pass, read for nothing, keeps the cache level.
    assert draft.passes == [1, 3, 2, 1, 2, 1, 1]
    assert target.passes == [1, 1, 1, 1, 1, 3, 3, 1]
    assert [step.drafted for step in run.steps] == [0, 0, 0, 0, 2, 2, 0]
    assert [step.emitted for step in run.steps] == [1, 1, 1, 1, 3, 3, 1]


def test_k_of_zero_never_asks_the_draft() -> None:
    """At k = 0 each step emits one token of the target's own; the draft's cache stays where it was."""
    table = random_table(12, 5)
    draft, target = TableModel(random_table(12, 6)), TableModel(table)
    run = generate(draft, target, Greedy(), k=0, steps=20)
    assert run.steps == [Step(0, 0, False, 1)] * 20
    assert (draft.passes, draft.cache, len(run.unread)) == ([1], [0], 21)
    assert target.passes == [1] * 21


@pytest.mark.parametrize("plan", PLANS)
def test_text_ends_at_any_draft_length(plan: str) -> None:
    """A text ends where the target ends it, as a draft's token, a correction or the bonus, and nothing follows."""
    for seed in range(10):
        table = random_table(8, seed)
        alone = TableModel(table)
        prefill((0, 1), alone, lambda done: None)
        plain = target_only((0, 1), alone, Greedy(), 40)
        draft = TableModel(near(table, seed + 50, 0.3))
        for end in set(plain):
            run = generate(
                draft,
                TableModel(table),
                Greedy(),
                k=4,
                steps=40,
                ends=lambda token, end=end: token == end,  # type: ignore[misc]
                length=Told(PLANS[plan]),
            )
            assert run.stopped == "end_of_text"
            assert run.tokens == plain[: plain.index(end) + 1]
            assert summarise(run.steps, 4).emitted == len(run.tokens)


@pytest.mark.parametrize("plan", PLANS)
def test_context_ends_at_any_draft_length(plan: str) -> None:
    """No cache exceeds its capacity, and a run goes on until there is no room for a token and a draft of it."""
    table = random_table(12, 3)
    for capacity in range(3, 24):
        draft = TableModel(near(table, 4, 0.3), capacity)
        run = generate(draft, TableModel(table, capacity), Greedy(), k=4, steps=60, length=Told(PLANS[plan]))
        assert run.stopped == "context"
        assert len(run.steps) < 60
        committed = 1 + len(run.tokens)
        assert committed <= capacity
        if all(step.drafted == 0 for step in run.steps):
            assert committed == capacity - 1


# --- sampling: the law of the output --------------------------------------------------------------------------------

VOCAB, K, LENGTH, START = 4, 2, 3, 1
SAMPLES, LEVEL = 12_000, 1e-4
DETECTABLE = 0.1
"""Cohen's w of the smallest deviation the test below is sure to see: sqrt(sum (p' - p)^2 / p)."""


def test_power_of_the_law_test() -> None:
    """The χ² test on 64 sequences sees a deviation of w = 0.1 with probability above 0.999 at level 1e-4."""
    freedom = VOCAB**LENGTH - 1
    power = stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom, SAMPLES * DETECTABLE**2)
    assert power > 0.999


def p_value(
    make_rule: Callable[[int], Rule],
    table: Table,
    draft_table: Table,
    samples: int = SAMPLES,
    step: Callable[..., None] = speculative_step,
    make_length: Callable[[], DraftLength | None] = lambda: None,
) -> float:
    """Draws sequences of three tokens speculatively and returns the χ² p-value against their exact law.

    Args:
        make_rule: Returns the rule for a sample's seed.
        table: The target's logits.
        draft_table: The draft's logits.
        samples: Number of sequences.
        step: Makes a step of at most K tokens.
        make_length: Returns what stops the drafts of one sequence.
    """
    rows = np.stack([distribution(row, 1.0, 1.0, 0) for row in table])
    law = sequence_law(rows, START, LENGTH)
    draft, target = TableModel(draft_table), TableModel(table)
    seen: Counter[tuple[int, ...]] = Counter()
    rule = make_rule(2211)
    for _ in range(samples):
        run = begin((START,), draft, target)
        length = make_length()
        while len(run.tokens) < LENGTH:
            step(run, draft, target, rule, K, never, length)
        seen[tuple(run.tokens[:LENGTH])] += 1
    observed = np.array([seen[sequence] for sequence in law])
    expected = samples * np.array(list(law.values()))
    assert expected.min() > 5  # the χ² approximation holds in every cell
    return float(stats.chisquare(observed, expected).pvalue)


def tables() -> tuple[Table, Table]:
    """Returns a target and a draft that often disagree, with no sequence too rare to test."""
    table = random_table(VOCAB, 11, sharpness=0.7)
    return table, near(table, 12, noise=0.8)


def test_sampled_output_has_the_targets_law() -> None:
    """12,000 sequences of three tokens follow the target's exact joint law (χ², level 1e-4, power above)."""
    assert p_value(lambda seed: Sampled(1.0, 1.0, 0, seed), *tables()) > LEVEL


def test_cut_distributions_keep_the_targets_law() -> None:
    """With temperature, top-k and top-p on both sides the first token follows the target's processed distribution."""
    table, draft_table = random_table(6, 21), near(random_table(6, 21), 22, noise=1.0)
    rule = Sampled(0.8, 0.9, 4, seed=7)
    expected = rule.distribution(table[START])
    draft, target = TableModel(draft_table), TableModel(table)
    counts = np.zeros(6)
    for _ in range(SAMPLES):
        run = begin((START,), draft, target)
        speculative_step(run, draft, target, rule, K, never)
        counts[run.tokens[0]] += 1
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], SAMPLES * expected[possible]).pvalue > LEVEL


COSTS = StepCosts(first=0.1, following=0.1, catch_up=0.0, verify=(1.0, 1.5, 2.0))
"""Costs at which `Stopping` drafts 0, 1 or 2 tokens in many steps each over the tables above."""


class Confident(DraftLength):
    """Goes on while the draft's likeliest token leads the next by a margin; learns nothing."""

    def draft_another(self) -> bool:
        """Always looks."""
        return True

    def worth_verifying(self, row: Logits) -> bool:
        """Looks at the lead of the likeliest token."""
        second, first = np.sort(row)[-2:]
        return bool(first - second > 0.5)

    def learn(self, accepted: int, rejected: bool, emitted: int) -> None:
        """Learns nothing."""


def lasting_stopping() -> Callable[[], DraftLength]:
    """Returns one and the same rule for all sequences, so that it learns from the ones before."""
    one = Stopping(COSTS, 1.0, limit=2)
    return lambda: one


@pytest.mark.parametrize(
    "make_length",
    [lasting_stopping(), Confident, lambda: Told(PLANS["random"])],
    ids=["stopping", "confident", "told"],
)
def test_stopped_drafts_keep_the_targets_law(make_length: Callable[[], DraftLength]) -> None:
    """Drafts stopped by their confidence give the target's exact joint law (12,000 sequences, χ², level 1e-4)."""
    drafted = Counter[int]()

    def counted(run: Generation, *args: object) -> None:
        speculative_step(run, *args)  # type: ignore[arg-type]
        drafted[run.steps[-1].drafted] += 1

    assert (
        p_value(lambda seed: Sampled(1.0, 1.0, 0, seed), *tables(), step=counted, make_length=make_length)
        > LEVEL
    )
    # The test means something only if lengths differ with what is drafted.
    assert sum(count > SAMPLES / 20 for count in drafted.values()) >= 2


def test_dropping_unlikely_tokens_once_drawn_breaks_the_law() -> None:
    """The test above refuses a step that drops a drawn token because its own probability is low."""
    source = inspect.getsource(speculative_step)
    line = "reading = [proposals[-1].token]"
    assert source.count(line) == 1
    unlikely = "proposals[-1].q[proposals[-1].token] < 0.3"
    space = dict(vars(decode))
    exec(  # noqa: S102 - our own source
        source.replace(
            line,
            f"{line}\n        if {unlikely}:\n            reading = []\n            proposals.pop()\n            break",
        ),
        space,
    )
    found = p_value(
        lambda seed: Sampled(1.0, 1.0, 0, seed), *tables(), SAMPLES // 4, step=space["speculative_step"]
    )
    assert found < LEVEL


class WrongQ(Sampled):
    """Judges by a q that is not the one drawn from: its entries are one id off."""

    def propose(self, row: Logits) -> Proposal:
        """Draws from q but reports it shifted."""
        token, q = super().propose(row)
        assert q is not None
        return Proposal(token, np.roll(q, 1))


class UnprocessedQ(Sampled):
    """Reports a q flatter than the one drawn from, as if the temperature had been forgotten."""

    def propose(self, row: Logits) -> Proposal:
        """Draws from q but reports it at another temperature."""
        return Proposal(super().propose(row).token, distribution(row, 2.5, 1.0, 0))


class SkippedResidual(Sampled):
    """Draws the correction from p instead of the residual."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Replaces the correction."""
        accepted, token = super().judge(proposals, rows)
        if accepted < len(proposals):
            token = draw(self.distribution(rows[accepted]), self._rng)
        return Verdict(accepted, token)


class MisalignedResidual(Sampled):
    """Subtracts candidates by rank instead of by id, as lists sorted by probability would."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Replaces the correction by one from a residual of sorted lists."""
        accepted, token = super().judge(proposals, rows)
        if accepted < len(proposals):
            p, q = self.distribution(rows[accepted]), proposals[accepted].q
            assert q is not None
            by_rank = np.zeros_like(p)
            by_rank[np.argsort(-p)] = q[np.argsort(-q)]
            token = draw(sampling.residual(p, by_rank), self._rng)
        return Verdict(accepted, token)


class OneTooMany(Sampled):
    """Accepts one proposal more than it should: off by one."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Lets the first refused proposal through."""
        accepted, token = super().judge(proposals, rows)
        return Verdict(min(accepted + 1, len(proposals)), token)


class OneTooFew(Sampled):
    """Throws away the last accepted proposal and goes on with the token that belongs after it."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Reports one acceptance less."""
        accepted, token = super().judge(proposals, rows)
        return Verdict(max(accepted - 1, 0), token)


class MisplacedBonus(Sampled):
    """Takes the bonus token from the row before the last."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Replaces the bonus token."""
        accepted, token = super().judge(proposals, rows)
        if accepted == len(proposals):
            token = draw(self.distribution(rows[accepted - 1]), self._rng)
        return Verdict(accepted, token)


class Lenient(Sampled):
    """Accepts with probability min(1, 2 p/q): lenience (Leviathan et al. 2023, A.5), which is lossy."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Judges against half of q."""
        halved: list[Proposal] = [Proposal(token, _half(q)) for token, q in proposals]
        return super().judge(halved, rows)


def _half(q: Distribution | None) -> Distribution:
    assert q is not None
    return q / 2


@pytest.mark.parametrize(
    "mutant",
    [
        WrongQ,
        UnprocessedQ,
        SkippedResidual,
        MisalignedResidual,
        OneTooMany,
        OneTooFew,
        MisplacedBonus,
        Lenient,
    ],
)
def test_the_law_test_catches_mutations(mutant: type[Sampled]) -> None:
    """Each known mistake makes the very test above fail, with a quarter of its samples."""
    assert p_value(lambda seed: mutant(1.0, 1.0, 0, seed), *tables(), samples=SAMPLES // 4) < LEVEL


def greedy_is_right(step: Callable[..., None]) -> bool:
    """Tells whether a `speculative_step` keeps greedy output, counts and caches right over several pairs."""
    try:
        for seed in range(24):
            table = random_table(9, seed)
            end = 8 if seed % 2 else None
            draft, target = TableModel(near(table, seed + 1000, 0.1 * seed)), TableModel(table)
            run = begin((0,), draft, target)
            for _ in range(8):
                step(run, draft, target, Greedy(), 3, lambda token, end=end: token == end)
                if run.stopped:
                    break
                if target.cache != [0, *run.tokens][:-1] or [*draft.cache, *run.unread] != [0, *run.tokens]:
                    return False
            alone = target_only((0,), TableModel(table), Greedy(), len(run.tokens))
            cut = alone.index(end) + 1 if end in alone else len(alone)
            if run.tokens != alone[:cut] or summarise(run.steps, 3).emitted != len(run.tokens):
                return False
            full = [one for one in run.steps if one.accepted == one.drafted]
            if any(one.emitted != one.accepted + 1 for one in full[:-1]):
                return False
        table = chain(1, 2, 3, 4, 5, 6, 0)
        run = begin((0,), TableModel(table), TableModel(table))
        step(run, TableModel(table), TableModel(table), Greedy(), 4, lambda token: token == 2)
        return run.steps == [Step(4, 2, False, 2)]
    except (CacheError, IndexError, AssertionError, SpecdecError):
        return False


def test_greedy_is_right_as_it_stands() -> None:
    """The unchanged algorithm passes the check that its mutations must fail."""
    assert greedy_is_right(speculative_step)


@pytest.mark.parametrize(
    ("line", "mutation"),
    [
        ("emitted = [*drafted[:accepted], next_token]", "emitted = [*drafted[:accepted], next_token][:k]"),
        (
            "emitted = [*drafted[:accepted], next_token]",
            "emitted = drafted[:accepted] + ([] if not rejected else [next_token])",
        ),
        ("emitted = [*drafted[:accepted], next_token]", "emitted = [*drafted[: accepted + 1], next_token]"),
        ("committed += len(emitted)", "committed += accepted"),
        ("target.truncate(committed)", "pass"),
        ("draft.truncate(min(committed, draft.length))", "pass"),
        ("target.forward([run.pending, *drafted]", "target.forward([*drafted, run.pending]"),
        ("reading = run.unread", "reading = [run.pending]"),
        ("accepted, rejected = position + 1, False", "pass"),
        ("del emitted[position + 1 :]", "pass"),
    ],
)
def test_mutations_of_the_algorithm_are_caught(line: str, mutation: str) -> None:
    """Each changed line (dropped bonus, off by one, missed roll-back, ...) fails the check."""
    source = inspect.getsource(speculative_step)
    assert source.count(line) == 1
    space = dict(vars(decode))
    exec(source.replace(line, mutation), space)  # noqa: S102 - our own source
    assert not greedy_is_right(space["speculative_step"])
