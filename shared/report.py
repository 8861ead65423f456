"""What a verification says: one check after the other, each with a word and a clause on why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "failed", "warning", "skipped"]


@dataclass(frozen=True)
class Check:
    """One check: its name, how it went, and one clause on why."""

    name: str
    status: Status
    detail: str


@dataclass(frozen=True)
class Report:
    """All checks of one receipt."""

    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(check.status != "failed" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}
