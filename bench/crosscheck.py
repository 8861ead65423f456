"""Do our loop and llama.cpp's server agree, token by token and count by count, on many prompts?

The server is given a number of tokens, our loop one of steps, so ours is cut here as the server cuts itself: its first
token comes from the prompt's own pass, it drafts at most one token less than are still wanted, and a single token that
is left is decoded plainly. Where the two differ, the smallest gap between the two best logits on the way is reported:
passes over another number of tokens round differently, and a gap of that size is a tie.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent.decode import begin, speculative_step
from agent.sampling import Greedy, Logits, Proposal, Verdict
from bench.models import BenchPair
from bench.peer import running
from bench.versus import CONTEXT, Ours

TIE = 0.01
"""Logit gap below which a different choice is rounding, not a fault."""


class Watched(Greedy):
    """Greedy choices, remembering the smallest gap between the two best logits."""

    def __init__(self) -> None:
        """Starts with no gap seen."""
        self.gap = float("inf")

    def _see(self, row: Logits) -> None:
        second, first = np.partition(row, -2)[-2:]
        self.gap = min(self.gap, float(first - second))

    def propose(self, row: Logits) -> Proposal:
        """Proposes the draft's argmax."""
        self._see(row)
        return super().propose(row)

    def judge(self, proposals: Any, rows: Logits) -> Verdict:
        """Accepts while the proposal is the argmax."""
        verdict = super().judge(proposals, rows)
        for row in rows[: verdict.accepted + 1]:
            self._see(row)
        return verdict

    def alone(self, row: Logits) -> int:
        """Returns the argmax."""
        self._see(row)
        return super().alone(row)


@dataclass
class Difference:
    """A prompt on which the two differ."""

    prompt: int
    same_tokens: bool
    ours: tuple[int, int]
    server: tuple[int, int]
    smallest_gap: float

    @property
    def explained(self) -> bool:
        """Whether a tie of two logits explains it."""
        return self.smallest_gap < TIE


def crosscheck(pair: BenchPair, binary: Path, *, k: int, threads: int, count: int) -> dict[str, Any]:
    """Decodes every prompt both ways and compares tokens, drafted and accepted tokens."""
    ours = Ours(pair, threads)
    differences = []
    with running(binary, pair.target, threads=threads, context=CONTEXT, draft=pair.draft, k=k) as server:
        for number, (_, text) in enumerate(pair.prompts):
            ours.read(text)
            rule = Watched()
            tokens, counts = _within_budget(ours, rule, k, count)
            answer = server.complete(text, count)
            timings = answer["timings"]
            theirs = (int(timings["draft_n"]), int(timings["draft_n_accepted"]))
            if answer["tokens"] != tokens or theirs != counts:
                same = answer["tokens"] == tokens
                differences.append(Difference(number, same, counts, theirs, rule.gap))
    ours.close()
    return {
        "pair": pair.name,
        "k": k,
        "tokens": count,
        "prompts": len(pair.prompts),
        "equal": len(pair.prompts) - len(differences),
        "explained_by_ties": sum(d.explained for d in differences),
        "unexplained": sum(not d.explained for d in differences),
        "differences": [asdict(d) for d in differences],
    }


def _within_budget(ours: Ours, rule: Watched, k: int, count: int) -> tuple[list[int], tuple[int, int]]:
    first = rule.alone(ours.target.forward([ours.prompt[-1]], 1)[0])
    ours.draft.forward([ours.prompt[-1]], 1)
    run = begin([*ours.prompt, first], ours.draft, ours.target)
    while (left := count - 1 - len(run.tokens)) > 1:
        speculative_step(run, ours.draft, ours.target, rule, min(k, left - 1), lambda _: False)
    if left:
        run.tokens.append(rule.alone(ours.target.forward([run.pending], 1)[0]))
    drafted, accepted = (sum(getattr(step, name) for step in run.steps) for name in ("drafted", "accepted"))
    return [first, *run.tokens], (drafted, accepted)
