"""Words for failed runs."""

from __future__ import annotations

import pytest

from edge.reasons import failure_reason
from shared.wire import ErrorCode


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_words(code: ErrorCode) -> None:
    """No failure is told by its code alone."""
    assert len(failure_reason(code, "", None)) > 10


def test_detail_is_cleaned_and_cut() -> None:
    """The tower's words are one line of printable ASCII of bounded length."""
    reason = failure_reason(ErrorCode.INTERNAL, "a\x00b\nc \u202e d." + "x" * 1000, None)
    assert reason.startswith("the tower failed: a b c d.x")
    assert len(reason) < 250


@pytest.mark.parametrize(
    ("detail", "prompt", "shown"),
    [
        ("no room for 700 tokens", "a prompt on other things", True),
        ("cannot read 'a prompt on o'", "a prompt on other things", False),
        ("cannot read secret", "secret", False),
        ("the context is full", "secret", True),
    ],
)
def test_detail_that_may_repeat_the_prompt_is_left_out(detail: str, prompt: str, shown: bool) -> None:
    """Twelve characters in common, or the whole of a short prompt, are too much."""
    assert (detail in failure_reason(ErrorCode.INTERNAL, detail, prompt)) is shown
