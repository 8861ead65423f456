"""Speculative decoding: one step, and whole generations with and without a draft.

`speculative_step` is Algorithm 1 of Leviathan et al. 2023 (arXiv:2211.17192) over two causal language models that keep
a KV cache. Between steps, with C tokens committed and one token *pending* (emitted or the prompt's last, not yet read
by the target):

* the target's cache holds exactly the C committed tokens;
* the draft's cache holds the first tokens of those C, and what it has not read yet is `unread`: the pending token
  alone; its own last proposal too, after a step in which every proposal was accepted; more, after steps without it.

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


class DraftLength(Protocol):
    """Decides while a step is drafting how many tokens it drafts, from the past and the draft's distributions only.

    Asked in this order: `draft_another`, and if so, after the draft's pass, `worth_verifying`, again and again until
    either says no; then `learn`, once a step.
    """

    def draft_another(self) -> bool:
        """Whether the draft shall make another pass."""
        ...

    def worth_verifying(self, row: Logits) -> bool:
        """Whether to propose a token from the logits [vocab] of that pass; asked before the token is drawn."""
        ...

    def learn(self, accepted: int, rejected: bool, emitted: int) -> None:
        """Takes in how the step ended."""
        ...


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
        unread: What the draft reads next: all that is committed but not in its cache, and the pending token.
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
    run: Generation,
    draft: CausalModel,
    target: CausalModel,
    rule: Rule,
    k: int,
    ends: Ends,
    length: DraftLength | None = None,
) -> None:
    """Drafts up to k tokens, verifies them in one target pass, emits the survivors and one more, rolls both back.

    Where the context ends fewer are drafted, or none, and the run stops with "context". An accepted
    end-of-text token ends the run: drafts after it are not examined, and no bonus token follows it.

    Args:
        run: The generation, advanced in place by one step, or stopped.
        draft: The draft model.
        target: The target model, over the same vocabulary.
        rule: How to propose and how to judge.
        k: Tokens to draft, at most; 0 decodes one token without the draft.
        ends: Whether a token ends the text.
        length: What may stop a draft before k; without it exactly k are drafted.
    """
    committed = target.length
    room = min(target.capacity - 1, draft.capacity) - committed
    if room < 1:
        run.stopped = "context"
        return

    # Sample guesses from the draft, autoregressively.
    proposals: list[Proposal] = []
    reading = run.unread
    while len(proposals) < k and len(proposals) < room:
        if length is not None and not length.draft_another():
            break
        row = draft.forward(reading, 1)[0]
        reading = []
        if length is not None and not length.worth_verifying(row):
            break
        proposals.append(rule.propose(row))
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
    if length is not None:
        length.learn(accepted, rejected, len(emitted))
    if room < k and len(drafted) == room and run.stopped is None:
        run.stopped = "context"

    # Roll back: both caches keep what is committed now, which is everything but the last emitted token.
    known = [
        *run.unread,
        *emitted,
    ]  # the draft's cache ended before these, or since then before a tail of them
    committed += len(emitted)
    target.truncate(committed)
    draft.truncate(min(committed, draft.length))
    run.pending = emitted[-1]
    run.unread = known[draft.length - committed - 1 :]
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
