"""When a number that was given is the one that a recomputation gives."""

from __future__ import annotations

import math
from typing import Any


def close(given: float | None, expected: float | None) -> bool:
    """Whether two numbers are equal but for rounding in the last digits, or both are missing."""
    if given is None or expected is None:
        return given is expected
    return math.isclose(given, expected, rel_tol=1e-9, abs_tol=1e-12)


def close_or_rounded(given: float, expected: float) -> bool:
    """Whether they are `close`, or the given one is the expected one rounded to four digits."""
    return given == round(expected, 4) or close(given, expected)


def same_json(left: Any, right: Any) -> bool:
    """Equality as JSON: True is not 1, and 1.0 and 1 are one number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right)
