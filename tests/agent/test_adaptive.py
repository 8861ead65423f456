"""Tests of `agent.adaptive`: single decisions by hand, what is learnt, and what the rule gains on modeled texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from agent.adaptive import LEARNING_RATE, MOST_MARGIN, OFFSET, RETRY_STEPS, SLOPE, Stopping, longest_draft
from agent.adaptive import rising as smoothed
from agent.sampling import Logits
from shared.curve import StepCosts

CANDIDATES = 20


def costs(
    first: float, following: float, verify: Sequence[float], warming: tuple[float, ...] = ()
) -> StepCosts:
    """Returns costs without catching up."""
    return StepCosts(first, following, 0.0, tuple(verify), warming)


def rising(by: float, to: int = 16) -> list[float]:
    """Returns v(1), v(2), ... that rise evenly."""
    return [1 + by * m for m in range(to + 1)]


def row(margin: float) -> Logits:
    """Returns logits whose likeliest token is by so much above all the others."""
    logits = np.full(CANDIDATES, -margin, np.float32)
    logits[0] = 0
    return logits


def drafts(rule: Stopping, margins: Sequence[float]) -> int:
    """Returns how many tokens the rule drafts where the draft's passes have these margins; does not end the step."""
    for count, one in enumerate(margins):
        if not (rule.draft_another() and rule.worth_verifying(row(one))):
            return count
    return len(margins)


# --- decisions ------------------------------------------------------------------------------------------------------


def test_no_draft_where_none_pays() -> None:
    """The limit is 0, and nothing is drafted, where even a draft that is nearly always right costs too much."""
    dear = costs(1.2, 1.2, rising(0.0))
    assert longest_draft(dear) == 0
    rule = Stopping(dear, 0.0)
    assert rule.limit == 0
    for _ in range(3 * RETRY_STEPS):
        assert not rule.draft_another()
        rule.learn(0, False, 1)


def test_limit_is_the_best_length_of_a_nearly_perfect_draft() -> None:
    """Without a limit given, drafts may be as long as pays when 98 % is accepted, and no longer."""
    assert longest_draft(costs(0.01, 0.01, rising(0.0))) == 16
    # 1.98 / 1.3 = 1.52 at k = 1; (1.98 + 0.98²) / 2.6 = 1.13 at k = 2, as v jumps there.
    assert longest_draft(costs(0.2, 0.2, [1, 1.1, 2.2])) == 1


def test_a_cheap_draft_runs_on_and_a_dear_one_stops() -> None:
    """At the same confidence a draft that costs little goes on to the limit, one that costs more stops before.

    At a margin of 1 a token's chance is 0.881. The dear draft's next one asks for a survival above
    1.3 * 0.4 / 0.8 = 0.65, and 0.881³ = 0.684 is that, 0.881⁴ = 0.602 is not.
    """
    even = [1.0] * 12
    assert drafts(Stopping(costs(0.01, 0.01, rising(0.001)), 1.0, limit=8), even) == 8
    assert drafts(Stopping(costs(0.2, 0.2, rising(0.2)), 1.0, limit=8), even) == 4


def test_a_length_is_kept_where_little_speaks_for_another() -> None:
    """A pass of another width than the last costs `width_change` more: going on must earn it, stopping must spare it.

    At a margin of 1 drafts are four long, as above; the survival is 0.684 after three tokens and 0.602 after four.
    After a step of three the fourth token asks for 1.3 * (0.4 + 0.15) / 0.8 = 0.89. After one of six two more tokens
    spare the change and ask for 1.3 * (0.8 - 0.15) / 1.44 = 0.587, after one of eight four for
    1.3 * (1.6 - 0.15) / 2.36.
    """
    given = replace(costs(0.2, 0.2, rising(0.2)), width_change=0.3)  # half of it counts in a decision
    even = [1.0] * 12
    lengths = []
    for before in (None, 3, 4, 6, 8):
        rule = Stopping(given, 1.0, limit=8)
        rule._previous = before
        rule._begin()
        lengths.append(drafts(rule, even))
    assert lengths == [4, 3, 4, 6, 4]


def test_the_cost_of_a_change_is_counted_once() -> None:
    """The running cost of a step holds the change where its width is not that of the step before, and only there."""
    given = replace(costs(0.2, 0.2, rising(0.2)), width_change=0.5)
    rule = Stopping(given, 1.0, limit=8)
    spent = []
    for count in (2, 2, 1):
        before = rule._cost
        drafts(rule, [1.5] * count)
        rule.learn(count, False, count + 1)
        spent.append(rule._cost - before)
    two, one = 2 * 0.2 + 1.4, 0.2 + 1.2
    assert spent == pytest.approx([two, two, one + 0.5])


def test_lucky_costs_are_evened_out() -> None:
    """Costs that fall are pooled with those before them until none does; costs that rise stay as they are."""
    assert smoothed([1, 2, 3]) == [1, 2, 3]
    assert smoothed([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert smoothed([1, 5, 4, 1.5]) == [1, 3.5, 3.5, 3.5]
    assert smoothed([1, 2, 2, 1]) == [1, 5 / 3, 5 / 3, 5 / 3]
    # A lucky v(5) does not make drafts of four longer than it should: the rule works with the evened costs.
    lucky = Stopping(costs(0.1, 0.1, [1, 1.2, 1.6, 2.0, 1.2]), 1.0, limit=4)
    assert lucky._verifying(4) == pytest.approx((1.6 + 2.0 + 1.2) / 3)


def test_unsure_passes_end_a_draft() -> None:
    """A draft goes on while the draft model is sure and ends where it is not."""
    rule = Stopping(costs(0.05, 0.05, rising(0.45)), 1.0, limit=8)
    assert drafts(rule, [1.5, 1.5, 1.5, 0.1, 1.5, 1.5]) == 3


def test_a_decision_by_hand() -> None:
    """At a rate of 1.3 tokens per pass, v(2) = 1.6 asks for a chance above 1.3 * 0.6 = 0.78.

    The chance is 0.78 at a margin of ln(0.78 / 0.22) / 2 = 0.633.
    """
    given = costs(0.01, 0.01, [1, 1.6])
    # Before the pass: 1.3 * (0.01 + 0.6) / 0.8 = 0.991 < 1.15. With a pass of 0.11 it would be 1.154.
    for margin, worth in ((0.64, True), (0.62, False)):
        rule = Stopping(given, 1.0, limit=1)
        assert rule.draft_another()
        assert rule.worth_verifying(row(margin)) == worth
    assert Stopping(costs(0.1, 0.1, [1, 1.6]), 1.0, limit=1).draft_another()
    assert not Stopping(costs(0.11, 0.11, [1, 1.6]), 1.0, limit=1).draft_another()


def test_a_later_decision_by_hand() -> None:
    """A second pass is made only if the first token survives with more than 1.3 * (0.25 + 0.3) / 0.8 = 0.894."""
    given = costs(0.01, 0.25, [1, 1.1, 1.4])
    # The chance is 0.894 at a margin of ln(0.894 / 0.106) / 2 = 1.066.
    for margin, more in ((1.05, False), (1.08, True)):
        rule = Stopping(given, 1.0, limit=2)
        assert drafts(rule, [margin]) == 1
        assert rule.draft_another() == more


def test_a_jump_of_the_verifying_pass_is_looked_past() -> None:
    """One token does not pay for a jump in v, but four together do; if v goes on rising as much, none are drafted."""
    # 1.3 * 0.82 / 0.8 = 1.33 for one, 1.3 * 0.88 / (0.8 + 0.64 + 0.512 + 0.4096) = 0.484 for four.
    jump = costs(0.02, 0.02, [1, *[1.8] * 8])
    assert Stopping(jump, 1.0, limit=4).draft_another()
    assert not Stopping(jump, 1.0, limit=1).draft_another()
    assert not Stopping(costs(0.02, 0.02, rising(0.8)), 1.0, limit=4).draft_another()
    # In the middle of a draft too: v(3) stays, v(4) jumps, and the tokens up to v(7) pay for it.
    later = costs(0.02, 0.02, [1, 1, 1, 1.8, 1.8, 1.8, 1.8])
    assert drafts(Stopping(later, 1.0, limit=6), [1.5] * 6) == 6
    assert drafts(Stopping(later, 1.0, limit=3), [1.5] * 6) == 2


def test_the_limit_holds() -> None:
    """No step drafts more than the limit, however sure the draft is."""
    rule = Stopping(costs(0.0, 0.0, rising(0.0)), 1.0, limit=5)
    for _ in range(20):
        assert drafts(rule, [1.5] * 16) == 5
        rule.learn(5, False, 6)


@pytest.mark.parametrize(
    ("logits", "temperature", "margin"),
    [
        ([0.0, -1.0, -5.0], 1.0, 1.0),
        ([-5.0, 0.0, -0.5], 0.5, 1.0),
        ([-2.0, 0.0], 2.0, 1.0),
        ([7.0, 6.0], 0.0, 1.0),  # greedy: read at temperature 1
        ([3.0, 3.0], 1.0, 0.0),
        ([0.0, -50.0], 1.0, MOST_MARGIN),
    ],
)
def test_confidence_by_hand(logits: list[float], temperature: float, margin: float) -> None:
    """The margin is the two likeliest tokens' difference over the temperature, up to a bound; the logits stay."""
    rule = Stopping(costs(0.0, 0.0, rising(0.0)), temperature, limit=2)
    given = np.array(logits, np.float32)
    assert rule.draft_another() and rule.worth_verifying(given)
    assert given.tolist() == logits
    assert rule._confidence == pytest.approx([margin], rel=1e-5, abs=1e-5)
    assert rule._survival == pytest.approx(1 / (1 + math.exp(-(OFFSET + SLOPE * margin))))


# --- learning -------------------------------------------------------------------------------------------------------


def test_learning_by_hand() -> None:
    """Each examined token moves the offset along its log-likelihood's gradient; what was not examined moves nothing."""
    rule = Stopping(costs(0.0, 0.0, rising(0.0)), 1.0, limit=4)
    assert drafts(rule, [1.0, 0.0, 3.0, 3.0]) == 4
    rule.learn(1, True, 2)
    offset = OFFSET + LEARNING_RATE * (1 - 1 / (1 + math.exp(-(OFFSET + SLOPE))))
    offset += LEARNING_RATE * (0 - 1 / (1 + math.exp(-offset)))
    assert rule._offset == pytest.approx(offset, rel=1e-6)


def test_an_end_of_text_in_the_draft_is_no_refusal() -> None:
    """Tokens after an accepted end of text were not examined and teach nothing."""
    rule = Stopping(costs(0.0, 0.0, rising(0.0)), 1.0, limit=4)
    assert drafts(rule, [1.0] * 4) == 4
    rule.learn(2, False, 2)
    offset = OFFSET
    for _ in range(2):
        offset += LEARNING_RATE * (1 - 1 / (1 + math.exp(-(offset + SLOPE))))
    assert rule._offset == pytest.approx(offset, rel=1e-6)


def test_acceptance_lengthens_drafts_and_refusal_shortens_them() -> None:
    """At the same confidence and costs, a draft that has been right gets longer, one that has been wrong shorter."""
    given, even = costs(0.2, 0.2, rising(0.2)), [1.0] * 8
    before = drafts(Stopping(given, 1.0, limit=8), even)
    right, wrong = Stopping(given, 1.0, limit=8), Stopping(given, 1.0, limit=8)
    for _ in range(40):
        done = drafts(right, even)
        right.learn(done, False, done + 1)
        wrong.learn(0, drafts(wrong, even) > 0, 1)
    assert drafts(wrong, even) < before < drafts(right, even)
    assert wrong._chance(1.0) < 0.8 < 0.9 < right._chance(1.0)


def test_equal_pasts_give_equal_decisions() -> None:
    """Two rules that saw the same passes and outcomes decide alike, through 300 random steps."""
    rng = np.random.default_rng(4)
    given = costs(0.2, 0.1, rising(0.08), (0.15,))
    one, other = (Stopping(given, 0.7, limit=8) for _ in range(2))
    seen = set()
    for _ in range(300):
        margins = rng.uniform(0, 2, 8).tolist()
        done = drafts(one, margins)
        assert drafts(other, margins) == done
        accepted = int(rng.integers(done + 1))
        for rule in (one, other):
            rule.learn(accepted, accepted < done, accepted + 1)
        seen.add(done)
    assert len(seen) > 4


def test_drafting_is_tried_again_after_a_while() -> None:
    """Where drafting does not pay, one token is drafted after every eight steps without, to see whether it does now."""
    rule = Stopping(costs(0.5, 0.5, rising(0.5)), 1.0, limit=4)
    lengths = [drafts_and_fails(rule) for _ in range(80)]
    first = lengths.index(0)
    assert all(lengths[:first]) and lengths[first:][: 3 * RETRY_STEPS + 3] == [*[0] * RETRY_STEPS, 1] * 3


def test_a_draft_that_becomes_right_is_taken_up_again() -> None:
    """A rule that had given up drafting takes it up again once the tries are accepted."""
    rule = Stopping(costs(0.2, 0.2, rising(0.2)), 1.0, limit=4)
    for _ in range(60):
        drafts_and_fails(rule)
    while rule._idle_steps >= RETRY_STEPS:
        drafts_and_fails(rule)
    assert rule._idle_steps < RETRY_STEPS and drafts(rule, [1.5] * 4) == 0
    rule.learn(0, False, 1)
    lengths = []
    for _ in range(250):
        done = drafts(rule, [1.5] * 4)
        rule.learn(done, False, done + 1)
        lengths.append(done)
    assert lengths[-1] == 4


def drafts_and_fails(rule: Stopping) -> int:
    """Makes a step in which all that is drafted is refused; returns how much that was."""
    done = drafts(rule, [1.0] * 4)
    rule.learn(0, done > 0, 1)
    return done


# --- beginning with a rate of acceptance ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "begun_with"), [(0.5, 0.5), (0.8, 0.8), (0.95, 0.95), (0.0, 0.02), (1.0, 0.98), (0.001, 0.02)]
)
def test_a_known_rate_of_acceptance_by_hand(alpha: float, begun_with: float) -> None:
    """A rate that is known shifts the chances by its log-odds against 0.8, and gives the rate of tokens to begin with.

    The shift is bounded: a few steps that accepted all or nothing prove no certainty.
    """
    given = costs(0.1, 0.1, [1, 1.2, 1.3])
    rule = Stopping(given, 1.0, limit=2, alpha=alpha)
    shift = math.log(begun_with / (1 - begun_with)) - math.log(0.8 / 0.2)
    assert rule._chance(1.0) == pytest.approx(1 / (1 + math.exp(-(OFFSET + SLOPE + shift))))
    one = (1 + begun_with) / (0.1 + 1.2)
    two = (1 + begun_with + begun_with**2) / (0.2 + 1.3)
    assert rule._rate == pytest.approx(max(1.0, one, two))
    assert rule._accepted == pytest.approx(begun_with)


def test_what_is_known_decides_the_first_steps() -> None:
    """At the same confidence a pair known to agree drafts to the limit from the start, one known not to, nothing."""
    given, even = costs(0.1, 0.1, rising(0.1)), [1.0] * 8
    lengths = [drafts(Stopping(given, 1.0, limit=8, alpha=alpha), even) for alpha in (0.05, 0.5, 0.98)]
    assert lengths[0] == 0 < lengths[1] < lengths[2] == 8


# --- what the rule gains, in modeled costs --------------------------------------------------------------------------

MODELED = StepCosts(first=0.25, following=0.12, catch_up=0.05, verify=tuple(rising(0.05)), warming=(0.18,))
TOKENS = 400
LONG = 4 * TOKENS


class Text:
    """A text whose every position has the draft's margin there, and whether the target would accept.

    The chance of acceptance is logistic in the margin, with an offset of the text's own. Whoever decodes it, and
    however, meets the same positions.
    """

    def __init__(self, seed: int, ease: float, spread: float, offset: float) -> None:
        """Draws a text: mean and spread of the margins, and the offset."""
        rng = np.random.default_rng(seed)
        margins = np.abs(rng.normal(ease, spread, LONG + 40))
        self.margins: list[float] = margins.tolist()
        chances = 1 / (1 + np.exp(-(offset + SLOPE * margins)))
        self.accepts: list[bool] = (rng.random(LONG + 40) < chances).tolist()


def cost_of(text: Text, k: int | None, tokens: int = TOKENS, alpha: float | None = None) -> float:
    """Returns the modeled cost of decoding a text at a fixed length, or by `Stopping`, begun with alpha, if k is None.

    Tokens beyond the number asked for, which the last step may give, count as a part of that step.
    """
    rule = Stopping(MODELED, 1.0, alpha=alpha) if k is None else None
    at, cost, full = 0, 0.0, False
    while at < tokens:
        passes = drafted = k or 0
        if rule is not None:
            while rule.draft_another():
                passes += 1
                if not rule.worth_verifying(row(text.margins[at + drafted])):
                    break
                drafted += 1
        accepted = 0
        while accepted < drafted and text.accepts[at + accepted]:
            accepted += 1
        if rule is not None:
            rule.learn(accepted, accepted < drafted, accepted + 1)
        cost += MODELED.draft(passes, float(full)) + MODELED.verify[drafted]
        full = accepted == drafted > 0
        at += accepted + 1
    return cost * tokens / at


def test_a_mix_of_texts_is_decoded_faster_than_at_any_fixed_length() -> None:
    """On texts from easy to hard the rule yields at least 3 % more tokens per cost than the best single length."""
    texts = [
        Text(seed, ease, 1.0, offset)
        for seed, (ease, offset) in enumerate([(2, 1), (1.5, 0), (1, 0), (0.5, 0), (0, -0.5), (2, 0)] * 4)
    ]
    fixed = [sum(cost_of(text, k) for text in texts) for k in range(MODELED.max_k + 1)]
    adaptive = sum(cost_of(text, None) for text in texts)
    assert 0 < fixed.index(min(fixed)) < MODELED.max_k
    assert min(fixed) / adaptive >= 1.03


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("ease", "spread", "offset", "best"),
    [
        (5, 1, 2, (14, 16)),
        (1, 0.1, 1, (10, 14)),
        (1, 1, 1, (9, 13)),
        (0, 0.1, 0, (1, 3)),
        (0, 0.3, -1, (0, 2)),
    ],
)
def test_texts_of_one_kind_lose_little(
    ease: float, spread: float, offset: float, best: tuple[int, int], known: bool
) -> None:
    """Where all texts are alike, so that one length suits them, the rule is at least 0.9 times as fast as that one."""
    texts = [Text(seed, ease, spread, offset) for seed in range(8)]
    fixed = [sum(cost_of(text, k) for text in texts) for k in range(MODELED.max_k + 1)]
    assert best[0] <= fixed.index(min(fixed)) <= best[1]  # from useless to nearly perfect drafts
    alpha = float(np.mean([text.accepts for text in texts])) if known else None
    adaptive = sum(cost_of(text, None, alpha=alpha) for text in texts)
    assert min(fixed) / adaptive >= 0.9, min(fixed) / adaptive


@pytest.mark.parametrize("ease", [0.0, 2.0, 5.0])
def test_a_draft_known_to_be_useless_costs_hardly_anything(ease: float) -> None:
    """A draft whose few accepted tokens are known of is within 5 % of plain decoding from the first token on."""
    for seed in range(10):
        text = Text(seed, ease, 1.0, 0.0)
        text.accepts = (np.random.default_rng(100 + seed).random(LONG + 40) < 0.05).tolist()
        assert cost_of(text, None, alpha=0.05) <= 1.05 * TOKENS


@pytest.mark.parametrize("ease", [0.0, 2.0, 5.0])
def test_a_useless_draft_costs_little(ease: float) -> None:
    """A draft that is accepted one time in twenty, however sure it is, ends within 5 % of plain decoding.

    Finding out costs something once, and more where the draft is sure of itself.
    """
    for seed in range(10):
        text = Text(seed, ease, 1.0, 0.0)
        rng = np.random.default_rng(100 + seed)
        text.accepts = (rng.random(LONG + 40) < 0.05).tolist()
        found_out, whole = cost_of(text, None), cost_of(text, None, LONG)
        assert whole - found_out <= 1.05 * (LONG - TOKENS)
        assert found_out <= {0.0: 1.1, 2.0: 1.3, 5.0: 1.35}[ease] * TOKENS
        # A fixed length goes on losing.
        assert cost_of(text, 4) > 1.6 * TOKENS
