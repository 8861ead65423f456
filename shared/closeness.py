"""When a number that was given is the one that a recomputation gives."""

from __future__ import annotations

import math


def close(given: float | None, expected: float | None) -> bool:
    """Whether two numbers are equal but for rounding in the last digits, or both are missing."""
    if given is None or expected is None:
        return given is expected
    return math.isclose(given, expected, rel_tol=1e-9, abs_tol=1e-12)


def close_or_rounded(given: float, expected: float) -> bool:
    """Whether they are `close`, or the given one is the expected one rounded to four digits."""
    return given == round(expected, 4) or close(given, expected)
