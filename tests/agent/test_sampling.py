"""Tests of `agent.sampling`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from agent.decode import begin, speculative_step
from agent.sampling import (
    Greedy,
    Logits,
    Proposal,
    Sampled,
    Verdict,
    distribution,
    draw,
    residual,
    rule_for,
)
from shared.intervals import martingale_z
from tests.agent.tables import TableModel, near, random_table

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], dtype=np.float32))


class Fixed(np.random.Generator):
    """A generator whose uniform numbers are given."""

    def __init__(self, *uniforms: float) -> None:
        """Takes the numbers to come."""
        super().__init__(np.random.Philox(0))
        self.uniforms = list(uniforms)

    def random(self, *args: object, **kwargs: object) -> float:  # type: ignore[override]
        """Returns the next number."""
        return self.uniforms.pop(0)


def sampled(*uniforms: float, temperature: float = 1.0) -> Sampled:
    """Returns a rule at top_p 1 and no top_k, fed with given uniform numbers."""
    rule = Sampled(temperature, 1.0, 0, seed=0)
    rule._rng = Fixed(*uniforms)
    return rule


def test_distribution_is_softmax() -> None:
    """Without cuts the processed distribution is the softmax."""
    assert distribution(LOGITS, 1.0, 1.0, 0) == pytest.approx([0.1, 0.4, 0.2, 0.3], abs=1e-7)


def test_temperature_divides_the_logits() -> None:
    """Temperature 0.5 squares the odds."""
    squares = np.array([0.01, 0.16, 0.04, 0.09])
    assert distribution(LOGITS, 0.5, 1.0, 0) == pytest.approx(squares / squares.sum(), abs=1e-7)


def test_top_k_keeps_the_most_likely() -> None:
    """top_k 2 keeps two tokens and renormalises them."""
    assert distribution(LOGITS, 1.0, 1.0, 2) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=1e-7)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.01, {1}), (0.39, {1}), (0.41, {1, 3}), (0.69, {1, 3}), (0.71, {1, 2, 3}), (1.0, {0, 1, 2, 3})],
)
def test_nucleus_is_the_smallest_set_that_reaches_top_p(top_p: float, kept: set[int]) -> None:
    """top_p keeps the fewest most likely tokens whose mass reaches it, at least one."""
    assert set(np.flatnonzero(distribution(LOGITS, 1.0, top_p, 0))) == kept


def test_nucleus_is_taken_after_top_k() -> None:
    """The nucleus is measured in the mass that top_k has left: 0.4 of 0.7 reaches 0.5."""
    assert set(np.flatnonzero(distribution(LOGITS, 1.0, 0.5, 2))) == {1}


def test_ties_are_cut_by_id() -> None:
    """Among equals the lowest ids stay, so that a cut can be repeated."""
    assert set(np.flatnonzero(distribution(np.zeros(5, np.float32), 1.0, 1.0, 2))) == {0, 1}


def test_huge_logits_do_not_overflow() -> None:
    """Logits far outside exp's range give a proper distribution."""
    p = distribution(np.array([5e4, 4.9e4, -5e4], np.float32), 0.01, 1.0, 0)
    assert p.tolist() == [1.0, 0.0, 0.0]


def test_residual_is_what_p_has_beyond_q() -> None:
    """The residual is the positive part of p - q, normalised."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    assert residual(p, q).tolist() == [1.0, 0.0, 0.0]
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.1, 0.7])
    assert residual(p, q) == pytest.approx([2 / 3, 1 / 3, 0])


def test_residual_of_equals_is_p() -> None:
    """Where rounding leaves no difference the residual falls back to p."""
    p = np.array([0.5, 0.5])
    assert residual(p, p.copy()).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999999999999999, 3)])
def test_draw_inverts_the_cumulative_sum(uniform: float, token: int) -> None:
    """Each token is drawn for exactly its share of uniform numbers; impossible tokens never."""
    assert draw(np.array([0.0, 0.25, 0.0, 0.75, 0.0]), Fixed(uniform)) == token


def test_greedy_judges_by_argmax() -> None:
    """Greedy accepts a matching prefix and corrects the first miss; all matching earn the bonus."""
    rows = np.eye(4, dtype=np.float32)[[2, 0, 3]]
    assert Greedy().judge([Proposal(2, None), Proposal(1, None)], rows) == (1, 0)
    assert Greedy().judge([Proposal(2, None), Proposal(0, None)], rows) == (2, 3)
    assert Greedy().judge([Proposal(0, None), Proposal(0, None)], rows) == (0, 2)


def test_acceptance_threshold_is_p_over_q() -> None:
    """A proposal with p/q = 1/2 is accepted just below one half and refused from there on."""
    q = np.array([0.2, 0.8, 0.0, 0.0])
    row = LOGITS[None]  # p(1) = 0.4
    rows = np.concatenate([row, row])
    just_below, at = 0.5 - 1e-6, 0.5 + 1e-6
    assert sampled(just_below, 0.05).judge([Proposal(1, q)], rows) == (1, 0)
    # Refused: residual of p beyond q is (0, 0, 0.2, 0.3) / 0.5.
    assert sampled(at, 0.39).judge([Proposal(1, q)], rows) == (0, 2)
    assert sampled(at, 0.41).judge([Proposal(1, q)], rows) == (0, 3)


def test_a_proposal_likelier_under_p_is_always_accepted() -> None:
    """Where p >= q, a proposal is accepted whatever the uniform number."""
    q = np.array([0.1, 0.1, 0.4, 0.4])
    rows = np.stack([LOGITS, LOGITS])
    assert sampled(1 - 2**-53, 0.0).judge([Proposal(1, q)], rows).accepted == 1


def test_bonus_comes_from_the_last_row() -> None:
    """After all proposals are accepted the bonus token is drawn from the target's last row."""
    rows = np.stack([LOGITS, np.array([-50, -50, 0, -50], np.float32)])
    q: npt.NDArray[np.float64] = distribution(LOGITS, 1.0, 1.0, 0)
    assert sampled(0.3, 0.5).judge([Proposal(1, q)], rows) == (1, 2)


def test_same_seed_same_draws() -> None:
    """Two rules of one seed propose the same tokens, and another seed does not."""
    flat = np.zeros(1000, np.float32)
    first, again, other = (Sampled(1.0, 1.0, 0, seed) for seed in (7, 7, 8))
    draws = [[rule.propose(flat).token for _ in range(20)] for rule in (first, again, other)]
    assert draws[0] == draws[1] != draws[2]


def test_rule_follows_the_temperature() -> None:
    """Temperature 0 is greedy, anything above samples with the request's settings."""
    request = {"temperature": 0.0, "top_p": 0.9, "top_k": 5, "seed": 3}
    assert isinstance(rule_for(request), Greedy)
    assert rule_for(request | {"temperature": 0.7}) == Sampled(0.7, 0.9, 5, 3)


def test_a_sampled_proposal_needs_its_distribution() -> None:
    """Judging a proposal without q is refused rather than guessed."""
    with pytest.raises(TypeError):
        sampled(0.5).judge([Proposal(0, None)], np.stack([LOGITS, LOGITS]))


# --- chances of acceptance ------------------------------------------------------------------------------------------


def test_betas_by_hand() -> None:
    """The chance of acceptance, sum(min(p, q)), is noted for each examined position and for no other, step by step."""
    rule = sampled(0.9, 0.5, 0.1, 0.2, 0.5, 0.3)
    rule.betas = []
    q = np.array([0.2, 0.8, 0.0, 0.0])  # with p = (0.1, 0.4, 0.2, 0.3): 0.1 + 0.4
    other = np.array([0.0, 0.0, 0.5, 0.5])  # 0.2 + 0.3
    near_p = np.array([0.1, 0.5, 0.1, 0.3])  # 0.1 + 0.4 + 0.1 + 0.3
    rows = np.stack([LOGITS] * 3)
    assert rule.judge([Proposal(1, q), Proposal(2, other)], rows).accepted == 0  # 0.9 * 0.8 > 0.4
    assert rule.judge([Proposal(3, near_p), Proposal(2, other)], rows).accepted == 2
    assert rule.judge([], rows[:1]).accepted == 0
    assert [len(step) for step in rule.betas] == [1, 2, 0]
    assert [beta for step in rule.betas for beta in step] == pytest.approx([0.5, 0.9, 0.5], abs=1e-7)


def test_betas_are_of_the_processed_distributions() -> None:
    """The chance is that under the cuts that tokens are drawn with: where top_k leaves nothing in common it is 0."""
    rule = Sampled(1.0, 1.0, 1, seed=0)
    rule.betas = []
    draft = np.log(np.array([0.3, 0.2, 0.4, 0.1], np.float32))
    assert rule.judge([rule.propose(draft)], np.stack([LOGITS] * 2)) == (0, 1)
    assert rule.betas == [[0.0]]


def test_noting_betas_changes_no_draw() -> None:
    """A rule that notes chances draws the same tokens as one that does not."""
    assert run_long(Sampled(0.8, 0.95, 10, 3), 50)[0] == run_long(noting(Sampled(0.8, 0.95, 10, 3)), 50)[0]


class Forgiving(Sampled):
    """Lets one in ten refused proposals through."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Judges leniently."""
        accepted, token = super().judge(proposals, rows)
        return Verdict(accepted + (accepted < len(proposals) and self._rng.random() < 0.1), token)


class Strict(Sampled):
    """Refuses the last accepted proposal of one step in three."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Judges too hard."""
        accepted, token = super().judge(proposals, rows)
        if accepted and self._rng.random() < 1 / 3:
            assert self.betas is not None
            del self.betas[-1][accepted:]
            accepted -= 1
        return Verdict(accepted, token)


class Unscaled(Sampled):
    """Accepts with probability p(x), as if q had been forgotten."""

    def judge(self, proposals: Sequence[Proposal], rows: Logits) -> Verdict:
        """Judges by a q of 1 at each proposal; the chances noted stay those of the q that was drawn from."""
        assert self.betas is not None
        betas = []
        for (_, q), row in zip(proposals, rows, strict=False):
            assert q is not None
            betas.append(float(np.minimum(self.distribution(row), q).sum()))
        verdict = super().judge([Proposal(token, np.ones_like(q)) for token, q in proposals], rows)
        self.betas[-1] = betas[: verdict.accepted + 1]
        return verdict


def noting(rule: Sampled) -> Sampled:
    """Has a rule note its chances of acceptance."""
    rule.betas = []
    return rule


def run_long(rule: Sampled, steps: int) -> tuple[list[int], int]:
    """Decodes over random tables; returns the tokens and how many were accepted."""
    table = random_table(20, 1)
    draft, target = TableModel(near(table, 2, 0.8)), TableModel(table)
    run = begin((0,), draft, target)
    for _ in range(steps):
        speculative_step(run, draft, target, rule, 4, lambda token: False)
    return run.tokens, sum(step.accepted for step in run.steps)


def z_of(rule: Sampled) -> float:
    """Returns by how many standard deviations acceptance differs from what 3,000 steps' betas promise."""
    accepted = run_long(noting(rule), 3000)[1]
    assert rule.betas is not None
    z = martingale_z(accepted, [beta for step in rule.betas for beta in step])
    assert z is not None
    return z


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.9, 8)])
def test_as_many_are_accepted_as_the_betas_promise(temperature: float, top_p: float, top_k: int) -> None:
    """Over 3,000 steps the accepted tokens are within 4 standard deviations of the sum of their chances."""
    assert abs(z_of(Sampled(temperature, top_p, top_k, 11))) < 4


@pytest.mark.parametrize("broken", [Forgiving, Strict, Unscaled])
def test_betas_betray_a_broken_rule(broken: type[Sampled]) -> None:
    """A rule that accepts too much or too little is more than 4 standard deviations off."""
    assert abs(z_of(broken(1.0, 1.0, 0, 11))) > 4
