"""Do our loop and llama.cpp's server agree, token by token and count by count, on many prompts?

Our loop is cut as the server cuts itself (`bench.ours`). Where the two differ, the smallest gap between the two best
logits on the way is reported: passes over another number of tokens round differently, and a gap of that size is a tie.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.models import BenchPair
from bench.ours import CONTEXT, Ours, Watched, drafted_and_accepted
from bench.peer import running

TIE = 0.01
"""Logit gap below which a different choice is rounding, not a fault."""


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
            run = ours.speculative(k, count, rule)
            tokens, counts = [ours.first, *run.tokens], drafted_and_accepted(run)
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
