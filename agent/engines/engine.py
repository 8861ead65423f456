"""What an engine is: something that completes a prompt and says what that took.

A number that an engine does not report is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Completion:
    """One completed prompt.

    Attributes:
        text: The text, without the prompt.
        tokens: Number of tokens emitted.
        token_ids: Their ids.
        decode_s: Seconds from the first token to the last by the server's clock: prefill left out, so the time of
            tokens - 1 tokens.
        wall_s: Seconds from request to answer by our clock: prefill, queue and network included.
        drafted: Draft tokens proposed, examined or not.
        accepted: Draft tokens accepted.
        drafts: Draft-then-verify steps. The first token comes from the prefill, and the last may be decoded plainly.
        accepted_per_position: For each place in the draft, the number of steps that accepted it.
        stopped: "end_of_text", "limit", "stop_word" or "context".
        no_counts: Why `drafted` and `accepted` are None.
        disturbed: Why neither counts nor times of this completion can be relied on.
        notes: What a reader of its numbers should know.
        server_figures: What the server itself says of its speculation, not measured here.
    """

    text: str
    tokens: int
    wall_s: float
    token_ids: tuple[int, ...] | None = None
    decode_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    drafts: int | None = None
    accepted_per_position: tuple[int, ...] | None = None
    stopped: str | None = None
    no_counts: str | None = None
    disturbed: str | None = None
    notes: tuple[str, ...] = ()
    server_figures: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """A server, or anything else, that completes prompts."""

    def complete(
        self, prompt: str, *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Completion:
        """Completes a prompt.

        Args:
            prompt: The text to go on from.
            max_tokens: Most tokens to emit.
            temperature: 0 for greedy.
            seed: Of the sampling; at temperature 0 nothing may depend on it.

        Raises:
            EngineError: If there is no completion.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Returns name, version, model, url, and settings as served; None for what the server does not tell."""
        ...
