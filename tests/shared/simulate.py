"""Simulated draft-then-verify steps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from shared.estimators import Step


def simulated_step(rng: random.Random, chances: Iterable[float]) -> Step:
    """A step whose drafts are accepted with these chances, one for each, until the first refusal."""
    chances = list(chances)
    for accepted, chance in enumerate(chances):
        if rng.random() >= chance:
            return Step(len(chances), accepted, True, accepted + 1)
    return Step(len(chances), len(chances), False, len(chances) + 1)


def simulated_steps(rng: random.Random, n: int, k: int, alpha: float) -> list[Step]:
    """The papers' model: every examined token is accepted with the same chance."""
    return [simulated_step(rng, [alpha] * k) for _ in range(n)]


def totals(steps: Sequence[Step]) -> tuple[int, int]:
    """Tokens accepted and tokens examined."""
    accepted = sum(step.accepted for step in steps)
    return accepted, accepted + sum(step.rejected for step in steps)
