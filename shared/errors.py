"""The one base error of the project."""

from __future__ import annotations


class SpecdecError(Exception):
    """Something went wrong that a person can act on.

    `str(error)` is one sentence: the cause and, where there is one, the remedy. Neither may hold a prompt, a
    token or any other value that a caller sent.

    Attributes:
        code: Short upper-case name for programs, for example `BAD_JSON`.
        cause: What is wrong, as a clause without a full stop.
        remedy: What to do about it, as a clause without a full stop; may be empty.
    """

    def __init__(self, code: str, cause: str, remedy: str = "") -> None:
        """Keep the three parts apart, so that each front end can show them its own way."""
        super().__init__(code, cause, remedy)
        self.code = code
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        """One sentence: the cause, then the remedy."""
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause
