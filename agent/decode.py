"""Speculative decoding: one step, and whole generations with and without a draft.

`speculative_step` is Algorithm 1 of Leviathan et al. 2023 (arXiv:2211.17192) over two causal language models that keep
a KV cache. Between steps, with C tokens committed and one token *pending* (emitted or the prompt's last, not yet read
by the target):

* the target's cache holds exactly the C committed tokens;
* the draft's cache holds the same C, or C - 1 after a step in which every proposal was accepted: the draft has not read
  its own last proposal yet, and reads it together with the pending token in its next first pass.

Nothing else is ever in a cache: every roll-back is checked, and so are both lengths after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent.errors import AgentError
from agent.sampling import Logits, Proposal, Rule
from shared.estimators import Step

Ends = Callable[[int], bool]
"""Whether a token ends the text."""

PREFILL_PART = 256
"""Tokens of the prompt read between two signs of life."""


class CacheError(AgentError):
    """A KV cache does not hold what the algorithm put there."""

    default_remedy = "restart the worker; if it comes back, this model's memory cannot be rolled back"


class CausalModel(Protocol):
    """A causal language model with a KV cache of at most `capacity` tokens."""

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        ...

    @property
    def capacity(self) -> int:
        """Largest possible `length`."""
        ...

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        """Appends `tokens`; returns logits [rows, vocab] after each of the last `rows` of them.

        The array may be a view that the next call overwrites.
        """
        ...

    def truncate(self, length: int) -> None:
        """Forgets every token from position `length` on.

        Raises:
            CacheError: If the cache cannot be rolled back to exactly that length.
        """
        ...


@dataclass
class Generation:
    """One speculative generation: its state between steps, and its record.

    Attributes:
        pending: The token that the target reads next.
        unread: What the draft reads next: [pending], or [its own last proposal, pending].
        tokens: Emitted tokens, an end-of-text token included.
        steps: What each step did.
        stopped: None, "end_of_text", or "context" when no room is left.
    """

    pending: int
    unread: list[int]
    tokens: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    stopped: str | None = None


def begin(prompt: Sequence[int], draft: CausalModel, target: CausalModel) -> Generation:
    """Starts a generation after `prompt` (at least one token), of which both caches hold all but the last."""
    draft.truncate(len(prompt) - 1)
    target.truncate(len(prompt) - 1)
    return Generation(pending=prompt[-1], unread=[prompt[-1]])


def prefill(prompt: Sequence[int], model: CausalModel, between: Callable[[int], None]) -> None:
    """Makes `model` read all but the last token of `prompt`, from an empty cache.

    Args:
        prompt: Token ids, at least one.
        model: The model.
        between: Told the number of tokens read so far, after each `PREFILL_PART` of them; may raise to stop.
    """
    model.truncate(0)
    last = len(prompt) - 1
    for start in range(0, last, PREFILL_PART):
        model.forward(prompt[start : min(start + PREFILL_PART, last)], 1)
        between(model.length)


def speculative_step(
    run: Generation, draft: CausalModel, target: CausalModel, rule: Rule, k: int, ends: Ends
) -> None:
    """Drafts k tokens, verifies them in one target pass, emits the survivors and one more, rolls both caches back.

    Where the context ends fewer are drafted, or none, and the run stops with "context". An accepted
    end-of-text token ends the run: drafts after it are not examined, and no bonus token follows it.

    Args:
        run: The generation, advanced in place by one step, or stopped.
        draft: The draft model.
        target: The target model, over the same vocabulary.
        rule: How to propose and how to judge.
        k: Tokens to draft, at least 1.
        ends: Whether a token ends the text.
    """
    committed = target.length
    room = min(target.capacity - 1, draft.capacity) - committed
    if room < 1:
        run.stopped = "context"
        return

    # Sample k guesses from the draft, autoregressively.
    proposals: list[Proposal] = []
    reading = run.unread
    for _ in range(min(k, room)):
        proposals.append(rule.propose(draft.forward(reading, 1)[0]))
        reading = [proposals[-1].token]

    # Run the target over all of them in parallel: row i judges proposal i, the last row gives the bonus token.
    drafted = [proposal.token for proposal in proposals]
    rows = target.forward([run.pending, *drafted], len(drafted) + 1)

    # Determine the number of accepted guesses, and the target's own token after them.
    accepted, next_token = rule.judge(proposals, rows)
    rejected = accepted < len(drafted)
    emitted = [*drafted[:accepted], next_token]
    for position, token in enumerate(emitted):
        if ends(token):
            run.stopped = "end_of_text"
            if position < accepted:
                # The text ended inside the draft: what follows was never examined, and nothing is added to it.
                accepted, rejected = position + 1, False
                del emitted[position + 1 :]
            break
    run.tokens += emitted
    run.steps.append(Step(len(drafted), accepted, rejected, len(emitted)))
    if len(drafted) < k and run.stopped is None:
        run.stopped = "context"

    # Roll back: both caches keep what is committed now, which is everything but the last emitted token.
    committed += len(emitted)
    target.truncate(committed)
    draft.truncate(min(committed, draft.length))
    run.pending = emitted[-1]
    run.unread = (
        [*drafted[accepted - 1 : accepted], run.pending] if draft.length < committed else [run.pending]
    )
    if target.length != committed or draft.length + len(run.unread) != committed + 1:
        raise CacheError(
            f"after a step the caches hold {target.length} and {draft.length} tokens, not {committed}"
        )


def target_only(
    prompt: Sequence[int],
    target: CausalModel,
    rule: Rule,
    count: int,
    forced: Sequence[int] | None = None,
    between: Callable[[], None] = lambda: None,
) -> list[int]:
    """Decodes `count` tokens with the target alone; its cache holds all but the last token of `prompt`.

    Args:
        prompt: Token ids, at least one.
        target: The target model.
        rule: How to choose the next token.
        count: Number of tokens; an end-of-text token does not stop it, so that equal work can be timed.
        forced: Tokens to go on with instead of those chosen (the choosing is done all the same), so that a sampled
            generation can be timed over the very tokens that another one drew.
        between: Called after each token; may raise to stop.

    Returns:
        The tokens that were chosen.
    """
    target.truncate(len(prompt) - 1)
    chosen: list[int] = []
    reading = prompt[-1]
    for position in range(count):
        chosen.append(rule.alone(target.forward([reading], 1)[0]))
        reading = chosen[-1] if forced is None else forced[position]
        between()
    return chosen
