"""One point in time that every inner wait is cut to."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Deadline:
    """A moment on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds left, never less than zero."""
        return max(0.0, self.at - time.monotonic())

    def later(self, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` after this one."""
        return Deadline(self.at + seconds)

    def sooner(self, seconds: float) -> Deadline:
        """Return this deadline or the one ``seconds`` from now, whichever comes first."""
        return min(self, Deadline.after(seconds), key=lambda deadline: deadline.at)


NEVER: Final = Deadline(math.inf)
"""The deadline of what need not end at a given moment."""


@dataclass(frozen=True)
class Budget:
    """The time of one invocation.

    Attributes:
        wait_until: When waiting for others must end, so that there is time to sign and store what they said.
        answer_by: When the answer must be there.
    """

    wait_until: Deadline
    answer_by: Deadline
