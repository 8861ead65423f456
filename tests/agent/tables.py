"""Exact stand-ins for language models: the next token's logits are a table row chosen by the last token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agent.sampling import Logits

Table = npt.NDArray[np.float32]


class TableModel:
    """A first-order language model with a cache that remembers exactly what it was fed."""

    def __init__(self, table: Table, capacity: int = 10_000) -> None:
        """Takes logits [vocab, vocab]; row t holds those of the token after t."""
        self.table = table
        self.capacity = capacity
        self.cache: list[int] = []
        self.passes: list[int] = []

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        return len(self.cache)

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        """Appends tokens and returns the last rows, in a buffer that the next call overwrites."""
        self.cache += tokens
        self.passes.append(len(tokens))
        assert len(self.cache) <= self.capacity
        return self.table[list(tokens[-rows:])]

    def truncate(self, length: int) -> None:
        """Forgets everything from position `length` on."""
        assert 0 <= length <= len(self.cache)
        del self.cache[length:]


def random_table(vocab: int, seed: int, sharpness: float = 1.5) -> Table:
    """Returns random logits [vocab, vocab]."""
    return np.random.default_rng(seed).normal(0, sharpness, (vocab, vocab)).astype(np.float32)


def near(table: Table, seed: int, noise: float) -> Table:
    """Returns a table that agrees with `table` but for noise: a draft of that target."""
    return (table + np.random.default_rng(seed).normal(0, noise, table.shape)).astype(np.float32)


def sequence_law(rows: npt.NDArray[np.float64], start: int, length: int) -> dict[tuple[int, ...], float]:
    """Returns the exact probability of each sequence of `length` tokens after `start`.

    Args:
        rows: Next-token probabilities [vocab, vocab].
        start: The token before the sequence.
        length: Tokens in a sequence.
    """
    law = {}
    for sequence in itertools.product(range(len(rows)), repeat=length):
        probability, last = 1.0, start
        for token in sequence:
            probability *= rows[last, token]
            last = token
        law[sequence] = probability
    return law
