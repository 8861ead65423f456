"""Our loop as the comparison with llama.cpp's server runs it: as many tokens as the server, in the same steps.

The server is given a number of tokens, our loop one of steps, so ours is cut here as the server cuts itself: its first
token comes from the prompt's own pass, it drafts at most one token less than are still wanted, and a single token that
is left is decoded plainly. Both clocks start when the first token is there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agent.decode import Generation, begin, prefill, speculative_step, target_only
from agent.llama import Context, Weights
from agent.sampling import Greedy, Logits, Proposal, Rule, Verdict
from bench.models import BenchPair

CONTEXT = 1024


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


class Ours:
    """A pair in this process."""

    def __init__(self, pair: BenchPair, threads: int) -> None:
        """Loads the pair."""
        self.threads = threads
        self.target_weights = Weights(pair.target, "target")
        self.draft_weights = Weights(pair.draft, "draft")
        self.target = Context(self.target_weights, capacity=CONTEXT, threads=threads)
        self.draft = Context(self.draft_weights, capacity=CONTEXT, threads=threads)
        self.start: list[int] = []

    def read(self, text: str) -> None:
        """Reads a prompt into both caches and decodes the first token after it."""
        prompt = self.target_weights.prompt_tokens(text, chat=False)
        for model in (self.draft, self.target):
            prefill(prompt, model, lambda _: None)
        self.draft.forward(prompt[-1:], 1)
        self.start = [*prompt, Greedy().alone(self.target.forward(prompt[-1:], 1)[0])]

    @property
    def first(self) -> int:
        """The first token after the prompt."""
        return self.start[-1]

    def speculative(self, k: int, count: int, rule: Rule | None = None) -> Generation:
        """Decodes the `count` - 1 tokens after the first with the draft."""
        rule = rule or Greedy()
        run = begin(self.start, self.draft, self.target)
        while (left := count - 1 - len(run.tokens)) > 1:
            speculative_step(run, self.draft, self.target, rule, min(k, left - 1), lambda _: False)
        if left:
            run.tokens.append(rule.alone(self.target.forward([run.pending], 1)[0]))
        return run

    def plain(self, count: int) -> list[int]:
        """Decodes the `count` - 1 tokens after the first by the target alone."""
        return target_only(self.start, self.target, Greedy(), count - 1)

    def close(self) -> None:
        """Frees both models."""
        for part in (self.draft, self.target, self.draft_weights, self.target_weights):
            part.close()


def drafted_and_accepted(run: Generation) -> tuple[int, int]:
    """Returns how many tokens a generation drafted and how many of them were accepted."""
    return sum(step.drafted for step in run.steps), sum(step.accepted for step in run.steps)
