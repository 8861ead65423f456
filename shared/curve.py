"""The modeled curve: what speculative decoding would yield if acceptance were i.i.d.

Source: Leviathan, Kalman, Matias 2023 (arXiv:2211.17192). Eq. 1 gives the expected tokens per step,
Theorem 3.8 the walltime improvement. Theorem 3.8 takes a target pass over k + 1 positions to cost as much
as one over a single position; `verify_cost` v(k + 1) lifts that assumption (Sequoia, arXiv:2402.12374,
section 3.3, uses the same hardware term).

Units: all costs are in target passes over one token. alpha is a probability, k a count of draft tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shared.errors import SpecdecError
from shared.labels import ACCOUNTING_LABEL, DEFAULT_ALPHAS

MAX_K: Final = 64


class CurveError(SpecdecError):
    """A parameter lies outside the model's range."""


def expected_tokens(alpha: float, k: int) -> float:
    """Expected tokens per draft-then-verify step (Eq. 1), the correction or bonus token included.

    The closed form (1 - alpha^(k+1)) / (1 - alpha) loses every digit next to alpha = 1, so the series
    1 + alpha + ... + alpha^k is summed by Horner's rule: k + 1 positive terms, relative error under 1e-13.

    Args:
        alpha: Chance that a draft token is accepted, 0 to 1.
        k: Draft tokens per step, 0 to 64.

    Returns:
        Tokens per step, 1 to k + 1.

    Raises:
        CurveError: If an argument is out of range.
    """
    if not 0.0 <= alpha <= 1.0:
        raise CurveError("BAD_ALPHA", "alpha must be a number from 0 to 1")
    _check_k(k)
    total = 1.0
    for _ in range(k):
        total = 1.0 + alpha * total
    return total


def expected_speedup(alpha: float, k: int, cost_ratio: float, verify_cost: float = 1.0) -> float:
    """Expected walltime speedup over plain decoding (Theorem 3.8): E[tokens] / (k c + v(k + 1)).

    Args:
        alpha: Chance that a draft token is accepted, 0 to 1.
        k: Draft tokens per step, 0 to 64.
        cost_ratio: c, one draft step in target passes, at least 0.
        verify_cost: v(k + 1), the verifying pass in target passes; 1 is the theorem's assumption.

    Raises:
        CurveError: If an argument is out of range.
    """
    if not (math.isfinite(cost_ratio) and cost_ratio >= 0.0):
        raise CurveError("BAD_COST_RATIO", "cost_ratio must be a finite number, at least 0")
    if not (math.isfinite(verify_cost) and verify_cost > 0.0):
        raise CurveError("BAD_VERIFY_COST", "verify_cost must be a finite number above 0")
    return expected_tokens(alpha, k) / (k * cost_ratio + verify_cost)


def predicted_speedup(alpha: float, k: int, cost_ratio: float, verify_costs: Sequence[float]) -> float:
    """Speedup predicted from measured costs; still MODELED, because alpha is taken as i.i.d.

    Args:
        alpha: Acceptance rate, 0 to 1.
        k: Draft tokens per step.
        cost_ratio: Measured c.
        verify_costs: Measured v(1), v(2), ...: `verify_costs[m - 1]` is the cost of a pass over m tokens.

    Raises:
        CurveError: If an argument is out of range or v(k + 1) was not measured.
    """
    _check_k(k)
    if len(verify_costs) <= k:
        raise CurveError("NO_VERIFY_COST", "verify_costs does not reach k + 1 tokens")
    return expected_speedup(alpha, k, cost_ratio, verify_costs[k])


def optimal_k(
    alpha: float, cost_ratio: float, verify_cost: float | Callable[[int], float] = 1.0, max_k: int = 16
) -> int:
    """The k in 0...max_k with the highest modeled speedup; the smallest on a tie; 0 means: do not speculate.

    Args:
        alpha: Acceptance rate, 0 to 1.
        cost_ratio: c, at least 0.
        verify_cost: v(m) as a function of m, or one number for every m > 1 (v(1) is 1 by definition).
        max_k: Largest k to consider, 0 to 64.

    Raises:
        CurveError: If an argument is out of range.
    """
    _check_k(max_k)

    def speedup(k: int) -> float:
        if callable(verify_cost):
            cost = verify_cost(k + 1)
        else:
            cost = verify_cost if k else 1.0
        return expected_speedup(alpha, k, cost_ratio, cost)

    return max(range(max_k + 1), key=lambda k: (speedup(k), -k))


@dataclass(frozen=True)
class StepCosts:
    """Measured costs of the parts of a step, all in target passes over one token.

    A draft's first pass of a step costs more than the ones after it, because the target's weights have pushed the
    draft's out of the cache meanwhile. After a step in which every draft token was accepted that first pass
    reads one token more, the draft's own last proposal.

    Attributes:
        first: First draft pass of a step, over one token.
        following: Each later draft pass, once settled.
        catch_up: What reading two tokens in the first pass adds to it, after a draft pass over one token.
        verify: v(1), v(2), ...: a target pass over so many tokens, judging included; v(1) is 1.
        warming: Second, third, ... draft pass of a step, as long as they differ from later ones: each finds more of
            what it needs in the processor's caches.
        width_change: What a target pass adds if the one before was over another number of tokens, because its graph
            is built anew. Steps of one k never pay it.
        draft_width_change: The same for a draft pass: part of `catch_up`, and paid again by the pass that follows.
    """

    first: float
    following: float
    catch_up: float
    verify: tuple[float, ...]
    warming: tuple[float, ...] = ()
    width_change: float = 0.0
    draft_width_change: float = 0.0

    @property
    def max_k(self) -> int:
        """Largest k whose verifying pass was measured."""
        return len(self.verify) - 1

    def draft(self, k: int, all_accepted: float) -> float:
        """Cost of drafting k tokens; `all_accepted`, a, is the share of steps that follow a fully accepted one.

        A first pass over two tokens has its graph built anew, which is in `catch_up`, and so has the pass over one
        token after it. At k = 1 every pass is a first one: a share a^2 of them reads two tokens as the one before
        did, which saves what `catch_up` counts, and a share a (1 - a) reads one token after two.
        """
        if k == 0:
            return 0.0
        warming = self.warming[: k - 1]
        settled = (k - 1 - len(warming)) * self.following
        changes = all_accepted * (1 - 2 * all_accepted) if k == 1 else all_accepted
        first = self.first + all_accepted * self.catch_up + changes * self.draft_width_change
        return first + sum(warming) + settled

    def step(self, k: int, all_accepted: float) -> float:
        """Cost of a whole step with k draft tokens.

        Raises:
            CurveError: If v(k + 1) was not measured.
        """
        _check_k(k)
        if k > self.max_k:
            raise CurveError("NO_VERIFY_COST", "verify does not reach k + 1 tokens")
        return self.draft(k, all_accepted) + self.verify[k]

    def cost_ratio(self, k: int, all_accepted: float) -> float:
        """The c of Theorem 3.8 as the loop spends it: draft cost per draft token, k at least 1."""
        return self.draft(k, all_accepted) / k


def predicted_curve(alpha: float, costs: StepCosts) -> list[float]:
    """Speedup predicted from measured costs for k = 0, 1, ..., as far as they reach; MODELED, alpha being i.i.d.

    Under the model a share alpha^k of the steps accepts everything. Entry 0 is 1: plain decoding.

    Raises:
        CurveError: If alpha is out of range.
    """
    return [expected_tokens(alpha, k) / costs.step(k, alpha**k) if k else 1.0 for k in range(costs.max_k + 1)]


def best_k(curve: Sequence[float]) -> int:
    """The k with the highest entry, the smallest on a tie; 0 means: do not speculate."""
    return max(range(len(curve)), key=lambda k: (curve[k], -k))


def accounting_modeled(
    k: int,
    cost_ratio: float,
    verify_cost: float = 1.0,
    alphas: Sequence[float] = DEFAULT_ALPHAS,
) -> dict[str, Any]:
    """The `accounting_modeled` block of a payload: the curve at a few alphas, rounded to 4 digits.

    Keys of both maps are `repr(float(alpha))`.

    Raises:
        CurveError: If an argument is out of range.
    """
    points = {repr(float(alpha)): float(alpha) for alpha in alphas}
    return {
        "label": ACCOUNTING_LABEL,
        "k": k,
        "cost_ratio": float(cost_ratio),
        "verify_cost": float(verify_cost),
        "expected_tokens_per_step_at_alpha": {
            key: round(expected_tokens(alpha, k), 4) for key, alpha in points.items()
        },
        "expected_speedup_at_alpha": {
            key: round(expected_speedup(alpha, k, cost_ratio, verify_cost), 4)
            for key, alpha in points.items()
        },
    }


def _check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= MAX_K:
        raise CurveError("BAD_K", f"k must be an integer from 0 to {MAX_K}")
