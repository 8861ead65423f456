"""Tests of `agent.engines.compare`: who is asked what, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from agent.engines.compare import compare
from agent.engines.engine import Completion
from agent.engines.errors import EngineInput


class Recording:
    """An engine that notes what it is asked."""

    def __init__(self, name: str, log: list[tuple[str, str, int]]) -> None:
        """Note everything in `log`."""
        self.name, self.log = name, log

    def complete(
        self, prompt: str, *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Completion:
        """Note the request."""
        assert (temperature, max_tokens) == (0, 7)
        self.log.append((self.name, prompt, seed))
        return Completion("same", tokens=7, wall_s=1.0)

    def describe(self) -> dict[str, Any]:
        """Return its name."""
        return {"name": self.name}


def test_order() -> None:
    """After a warm-up of both, pairs go A B, B A, A B over the prompts in turn, greedy, each with its own seed."""
    log: list[tuple[str, str, int]] = []
    report = compare(Recording("A", log), Recording("B", log), ["p", "q"], pairs=4, max_tokens=7)
    assert log == [
        ("A", "p", 0),
        ("B", "p", 0),
        ("A", "p", 1),
        ("B", "p", 1),
        ("B", "q", 2),
        ("A", "q", 2),
        ("A", "p", 3),
        ("B", "p", 3),
        ("B", "q", 4),
        ("A", "q", 4),
    ]
    assert report.engines == {"speculative": {"name": "A"}, "plain": {"name": "B"}}
    assert report.counts == {"pairs": 4, "prompts": 2, "max_tokens": 7, "pairs_with_equal_text": 4}


@pytest.mark.parametrize(
    ("prompts", "pairs", "max_tokens"), [([], 6, 8), (["a", ""], 6, 8), (["a"], 0, 8), (["a"], 6, 1)]
)
def test_bad_input(prompts: list[str], pairs: int, max_tokens: int) -> None:
    """No prompt, no pair or nothing to time is refused before any server is asked."""
    log: list[tuple[str, str, int]] = []
    with pytest.raises(EngineInput):
        compare(Recording("A", log), Recording("B", log), prompts, pairs=pairs, max_tokens=max_tokens)
    assert not log
