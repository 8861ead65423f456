"""From logits to decisions: the processed distribution, drawing from it, and the accept or reject rules.

Two rules decide what the target lets through. Both leave the target's own output law unchanged:

* `Greedy`: a draft is accepted while it is the target's argmax (temperature 0).
* `Sampled`: speculative sampling, Leviathan et al. 2023 (arXiv:2211.17192) Algorithm 1 and Chen et al. 2023
  (arXiv:2302.01318) Algorithm 2: a draft x ~ q is accepted with probability min(1, p(x)/q(x)), otherwise the token is
  drawn from the residual norm(max(0, p - q)). p and q are the *processed* distributions (same temperature, top-k and
  top-p on both sides), so what is preserved is the distribution that plain sampling with those settings would have.

There is no lenience: a token the target would not have drawn is never let through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Distribution = npt.NDArray[np.float64]


class Proposal(NamedTuple):
    """A drafted token and, when sampling, the distribution q [vocab] it was drawn from."""

    token: int
    q: Distribution | None


class Verdict(NamedTuple):
    """How many proposals the target let through, and the target's own token after them.

    `next_token` is the residual's (or argmax) token at the first refusal, else the bonus token.
    """

    accepted: int
    next_token: int


class Rule(Protocol):
    """A decoding rule: how the draft proposes, how the target judges, how the target goes on alone."""

    def propose(self, row: Logits) -> Proposal:
        """Picks the draft's next token from its logits [vocab]."""
        ...

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Judges k proposals by the target's logits [k + 1, vocab], row i being before proposal i."""
        ...

    def alone(self, row: Logits) -> int:
        """Picks the target's next token from its logits [vocab], without a draft."""
        ...


class Greedy:
    """Exact match with the target's argmax; the lowest id wins a tie of equal logits, on both sides."""

    def propose(self, row: Logits) -> Proposal:
        """Proposes the draft's argmax."""
        return Proposal(int(row.argmax()), None)

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Accepts while the proposal is the argmax; the first argmax that differs is the correction."""
        choices = rows.argmax(axis=1).tolist()
        for accepted, proposal in enumerate(proposals):
            if choices[accepted] != proposal.token:
                return Verdict(accepted, choices[accepted])
        return Verdict(len(proposals), choices[len(proposals)])

    def alone(self, row: Logits) -> int:
        """Returns the argmax."""
        return int(row.argmax())


@dataclass
class Sampled:
    """Speculative sampling with one seeded stream of random numbers (Philox, so the same on every machine).

    Attributes:
        temperature: Above 0.
        top_p: As for `distribution`.
        top_k: As for `distribution`.
        seed: Of the stream.
        betas: If not None, takes per step sum(min(p, q)) at each examined position: the chance of acceptance there
            (Leviathan et al. 2023, Theorem 3.5).
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int
    betas: list[list[float]] | None = None

    def __post_init__(self) -> None:
        """Starts the random stream."""
        self._rng = np.random.Generator(np.random.Philox(self.seed))

    def distribution(self, row: Logits) -> Distribution:
        """Returns the processed distribution of logits [vocab] under this rule's settings."""
        return distribution(row, self.temperature, self.top_p, self.top_k)

    def propose(self, row: Logits) -> Proposal:
        """Draws a proposal from the draft's processed distribution q."""
        q = self.distribution(row)
        return Proposal(draw(q, self._rng), q)

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Accepts x with probability min(1, p(x)/q(x)); draws from the residual, or the bonus token from p."""
        if self.betas is not None:
            self.betas.append([])
        for accepted, (token, q) in enumerate(proposals):
            p = self.distribution(rows[accepted])
            if q is None:
                raise TypeError("a sampled proposal carries its distribution")
            if self.betas is not None:
                self.betas[-1].append(float(np.minimum(p, q).sum()))
            # r < p/q without the division; q(x) > 0 because x was drawn from q.
            if self._rng.random() * q[token] >= p[token]:
                return Verdict(accepted, draw(residual(p, q), self._rng))
        return Verdict(len(proposals), draw(self.distribution(rows[len(proposals)]), self._rng))

    def alone(self, row: Logits) -> int:
        """Draws from the target's processed distribution p."""
        return draw(self.distribution(row), self._rng)


def rule_for(request: dict[str, Any]) -> Rule:
    """Returns a fresh rule for a run request's `temperature`, `top_p`, `top_k` and `seed`."""
    if request["temperature"] == 0:
        return Greedy()
    return Sampled(request["temperature"], request["top_p"], request["top_k"], request["seed"])


def distribution(row: Logits, temperature: float, top_p: float, top_k: int) -> Distribution:
    """Returns softmax(logits / temperature), cut to the top k tokens and then to the top-p nucleus, renormalised.

    The nucleus is the smallest set of most likely tokens whose mass reaches `top_p` (Holtzman et al. 2020,
    arXiv:1904.09751); at least one token stays. Ties are cut by id, lowest first, so that the cut is repeatable.

    Args:
        row: Logits [vocab].
        temperature: Above 0.
        top_p: 0 < top_p <= 1; 1 keeps everything.
        top_k: Number of tokens kept; 0 keeps everything.
    """
    scaled = row.astype(np.float64)
    scaled -= scaled.max()
    scaled /= temperature
    p: Distribution = np.exp(scaled, out=scaled)
    kept = top_k if 0 < top_k < p.size else p.size
    if kept < p.size or top_p < 1:
        order = np.argsort(-p, kind="stable")[:kept]
        if top_p < 1:
            mass = np.cumsum(p[order])
            # Everything before the first position at which the mass reaches top_p, and that position.
            order = order[: int(np.searchsorted(mass, top_p * mass[-1])) + 1]
        cut = np.zeros_like(p)
        cut[order] = p[order]
        p = cut
    p /= p.sum()
    return p


def residual(p: Distribution, q: Distribution) -> Distribution:
    """Returns norm(max(0, p - q)), the law of the token after a refusal (Leviathan et al. 2023, section 2.3).

    A refusal is possible only where p < q somewhere, hence p > q elsewhere; when rounding leaves nothing of the
    difference, p itself is its limit.
    """
    difference: Distribution = np.maximum(p - q, 0.0)
    mass = difference.sum()
    return difference / mass if mass > 0 else p


def draw(p: Distribution, rng: np.random.Generator) -> int:
    """Draws an id from p [vocab] by inverting its cumulative sum with one uniform number."""
    cumulative = np.cumsum(p)
    index = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
    # Rounding can carry the product up to the total itself: then the last possible token is meant.
    return index if index < p.size else int(np.flatnonzero(p)[-1])
