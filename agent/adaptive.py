"""Adaptive draft length: stop drafting when one more token is expected to gain less than it costs.

A step of g draft tokens yields 1 + P(1) + ... + P(g) tokens on average, where P(j) is the chance that the first j are
all accepted, and costs what calibration has measured. Decoding is a renewal process, so the best rule maximises
tokens / cost, which is to go on exactly while

    expected tokens gained - rate * cost added > 0,

rate being the tokens per unit of cost that decoding achieves as a whole (the renewal-reward theorem; Ross,
Introduction to Probability Models, section 7.4). The gain of going on is that of the best number of further tokens,
not of one: v(m) rises in jumps, and one more token may pay only together with the next. And a pass as wide as the one
before costs less than one of another width, whose graph is built anew; so a length is kept where little speaks for
another.

P(j) is a product of the tokens' chances of acceptance, each read off the draft's margin between its two likeliest
tokens by a logistic curve. Its offset follows what was accepted so far in this very text, as texts differ more than
pairs do.

Every decision is made before the token that it is about is drawn, from the draft's distribution q and from the past
only, and every token that was drawn is verified. So whichever length comes out, the step is Algorithm 1 of Leviathan
et al. 2023 (arXiv:2211.17192) at that length, and its output keeps the target's law, at temperature 0 and above.
Dropping a token *after* it was drawn, because its own probability is low, would not: unlikely tokens would be refused
twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from agent.sampling import Logits
from shared.curve import StepCosts, best_k, predicted_curve

OFFSET, SLOPE = 0.0, 2.0
"""The logistic curve from the draft's margin to a token's chance, at the start of a text.

The margin is by how much its likeliest token's logit exceeds the next one's, over the temperature. At no margin the
target may say either, so the offset is near 0 in every text. Over the embedded pair's held-out prompts the margin tells
twice as much of the outcome as the probability of the likeliest token does (log-loss 0.27 and 0.31 nats a token, 0.36
knowing neither), and is quicker to find.
"""

TYPICAL_ALPHA, TYPICAL_RATE = 0.8, 1.3
"""Rate of acceptance and tokens per unit of cost that a text is begun with if nothing is known of it."""

LEARNING_RATE = 0.03
"""Step of the offset along the log-likelihood's gradient, per examined token."""

FORGETTING = 0.03
"""Weight of the newest examined token in the running rate of acceptance."""

CHANGE_WEIGHT = 0.5
"""Share of a change of width that counts in a decision: to keep a width now often only puts the change off."""

PRIOR_COST = 60.0
"""Cost (target passes) for which the rate is taken to have been at its starting value."""

RETRY_STEPS = 8
"""Steps after which drafting is tried again where it did not seem to pay."""

MOST_MARGIN = 1.5
"""Margin above which the draft's confidence says nothing more."""

WORTH_A_LOOK = 1.15
"""Survival asked of a first token below which the draft's first pass is paid for, to see its margin. Above 1, since to
pass a good step by costs more than to look in vain.
"""

NOWHERE = -math.inf

LOOKAHEAD = 4
"""Most further tokens considered at once; v(m) has no wider steps than the kernels' tiles."""

HOPE = 0.98
"""Acceptance rate at which a draft length must pay to be considered at all."""


def rising(costs: Sequence[float]) -> list[float]:
    """The nearest costs, by least squares, that fall nowhere (pool adjacent violators; Ayer et al. 1955).

    A wider pass costs no less than a narrower one. Where it seems to, that is chance, and a rule that looks for cheap
    widths would always find the luckiest.
    """
    pools: list[tuple[float, int]] = []
    for cost in costs:
        pools.append((cost, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, m), (right, n) = pools[-2:]
            pools[-2:] = [((left * m + right * n) / (m + n), m + n)]
    return [cost for cost, size in pools for _ in range(size)]


def longest_draft(costs: StepCosts) -> int:
    """The draft length that is best if nearly everything is accepted; 0 if even then no draft pays."""
    return best_k(predicted_curve(HOPE, costs))


class Stopping:
    """The rule, and what it has learnt in one generation. Equal costs and equal pasts give equal decisions.

    Attributes:
        limit: Most tokens to draft in a step.
    """

    def __init__(
        self,
        costs: StepCosts,
        temperature: float,
        limit: int | None = None,
        alpha: float | None = None,
    ) -> None:
        """Starts afresh.

        Args:
            costs: What calibration has measured.
            temperature: That of the run; confidence is read at it, or at 1 when greedy.
            limit: Most tokens to draft; by default `longest_draft`.
            alpha: Rate of acceptance to begin with, if steps of a fixed length have shown one.
        """
        self.limit = longest_draft(costs) if limit is None else limit
        self._costs = costs
        self._verify = rising(costs.verify)
        self._drafting = [costs.draft(passes, 0.0) for passes in range(self.limit + 1)]
        self._temperature = temperature or 1.0
        self._offset, self._slope = OFFSET, SLOPE
        self._accepted = TYPICAL_ALPHA
        self._tokens, self._cost = TYPICAL_RATE * PRIOR_COST, PRIOR_COST
        if alpha is not None:
            self._accepted = min(max(alpha, 1 - HOPE), HOPE)
            self._offset += _logit(self._accepted) - _logit(TYPICAL_ALPHA)
            self._tokens = max(predicted_curve(self._accepted, costs)) * PRIOR_COST
        self._idle_steps = 0
        self._previous: int | None = None  # tokens drafted in the step before
        self._by_width: dict[int | None, list[float]] = {}
        self._begin()

    def _begin(self) -> None:
        self._passes = 0
        self._survival = 1.0
        self._confidence: list[float] = []
        self._rate = self._tokens / self._cost
        if self._previous not in self._by_width:
            lengths = range(self.limit + 1)
            self._by_width[self._previous] = [self._drafting[n] + self._verifying(n) for n in lengths]
        self._step = self._by_width[self._previous]  # cost of a step that drafts 0, 1, ... tokens
        # Further tokens that h more drafts bring: a + ... + a^h, or 1 + ... + a^(h-1) once the next one's own chance is
        # known and part of the survival. a is the running rate of acceptance.
        powers = list(accumulate([self._accepted] * LOOKAHEAD, mul, initial=1.0))
        self._known, self._unknown = list(accumulate(powers[:-1])), list(accumulate(powers[1:]))

    def draft_another(self) -> bool:
        """Whether to pay for the draft's pass that gives the next token's distribution."""
        drafted = len(self._confidence)
        if drafted >= self.limit:
            return False
        if drafted:
            if self._survival <= self._gain_needed(drafted, self._unknown, self._step[drafted]):
                return False
        elif self._idle_steps < RETRY_STEPS:
            if self._gain_needed(0, self._unknown, self._step[0]) >= WORTH_A_LOOK:
                return False
        self._passes += 1
        return True

    def worth_verifying(self, row: Logits) -> bool:
        """Whether to draw a token from the distribution that the draft's pass has given, and verify it.

        Args:
            row: The draft's logits [vocab]; the same afterwards, but not meanwhile.
        """
        # Python's own numbers: arithmetic on NumPy's single ones costs more than both searches.
        likeliest = row.argmax()
        top = row.item(likeliest)
        row[likeliest] = NOWHERE
        second = row.max().item()
        row[likeliest] = top
        return self._worth(min((top - second) / self._temperature, MOST_MARGIN))

    def _worth(self, margin: float) -> bool:
        """Decides on a token whose distribution has this margin."""
        chance = self._chance(margin)
        drafted = len(self._confidence)
        spent = self._step[drafted] + self._drafting[drafted + 1] - self._drafting[drafted]
        if self._survival * chance <= self._gain_needed(drafted, self._known, spent):
            if drafted or self._idle_steps < RETRY_STEPS:
                return False
        self._survival *= chance
        self._confidence.append(margin)
        return True

    def learn(self, accepted: int, rejected: bool, emitted: int) -> None:
        """Takes in how the step ended, and begins the next one.

        Args:
            accepted: Draft tokens accepted.
            rejected: Whether the target refused the next.
            emitted: Tokens emitted.
        """
        drafted = len(self._confidence)
        for position in range(min(accepted + rejected, drafted)):
            right = 1.0 if position < accepted else 0.0
            self._offset += LEARNING_RATE * (right - self._chance(self._confidence[position]))
            self._accepted += FORGETTING * (right - self._accepted)
        self._idle_steps = 0 if drafted else self._idle_steps + 1
        self._tokens += emitted
        self._cost += self._drafting[self._passes] + self._verifying(drafted, 1.0)
        self._previous = drafted
        self._begin()

    def _verifying(self, drafted: int, change: float = CHANGE_WEIGHT) -> float:
        """Cost of the pass that verifies so many tokens after the step before, with a share of a change of width."""
        same = self._previous is None or drafted == self._previous
        return self._verify[drafted] + (0.0 if same else change * self._costs.width_change)

    def _chance(self, margin: float) -> float:
        """Chance of acceptance, from the draft's margin."""
        return 1.0 / (1.0 + math.exp(-(self._offset + self._slope * margin)))

    def _gain_needed(self, drafted: int, tokens: list[float], spent: float) -> float:
        """Smallest chance of surviving so far at which going on pays.

        Args:
            drafted: Tokens drafted so far.
            tokens: What 1, 2, ... further ones bring, over the survival (see `_begin`).
            spent: Cost of the step if it stops here.
        """
        costs = self._step[drafted + 1 : drafted + 1 + LOOKAHEAD]
        return self._rate * min(
            [(cost - spent) / gained for cost, gained in zip(costs, tokens, strict=False)]
        )


def _logit(chance: float) -> float:
    return math.log(chance / (1.0 - chance))
