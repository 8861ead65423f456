"""Two servers of one target, one of them with a draft: does speculation pay there, and is the text the same?

Both complete the same prompts greedily, in turn: A B, B A, A B, ... (A with the draft), each pair with a seed of its
own. What may be said of that is decided in `agent.engines.judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.engines.engine import Engine
from agent.engines.errors import EngineInput
from agent.engines.judge import MIN_PAIRS, Comparison, Pair, judge


def compare(
    speculative: Engine,
    plain: Engine,
    prompts: Sequence[str],
    *,
    pairs: int = MIN_PAIRS,
    max_tokens: int = 64,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Compares a server that speculates with one that does not.

    Args:
        speculative: The server with the draft.
        plain: The same target without.
        prompts: Used in turn.
        pairs: Number of pairs; with fewer than `MIN_PAIRS` there is no speed-up.
        max_tokens: Most tokens a completion.
        on_progress: Told (pairs done, pairs).

    Raises:
        EngineInput: If there is no prompt, or a number is out of range.
        EngineError: If a server fails.
    """
    if not prompts or not all(prompts):
        raise EngineInput("there must be a prompt, and none may be empty")
    if pairs < 1 or max_tokens < 2:
        raise EngineInput("there must be at least 1 pair and 2 tokens")

    sides = {"speculative": speculative, "plain": plain}

    def pair(number: int, seed: int) -> Pair:
        at = number % len(prompts)
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        completions = {
            side: sides[side].complete(prompts[at], max_tokens=max_tokens, seed=seed) for side in order
        }
        return Pair(at, completions["speculative"], completions["plain"])

    warm_up, done = pair(0, seed=0), []  # not timed, and the first prompt's repeat
    for number in range(pairs):
        done.append(pair(number, seed=number + 1))
        on_progress(len(done), pairs)
    return judge(
        warm_up,
        done,
        counts={"pairs": pairs, "prompts": len(prompts), "max_tokens": max_tokens},
        engines={side: engine.describe() for side, engine in sides.items()},
    )
