"""What can go wrong with the tower, in words for people."""

from __future__ import annotations

from enum import StrEnum


class FaultKind(StrEnum):
    """What went wrong with the tower; the values are codes in receipts."""

    UNREACHABLE = "TOWER_UNREACHABLE"
    REFUSED = "TOWER_REFUSED"
    BUSY = "TOWER_BUSY"
    SILENT = "TOWER_SILENT"
    CLOSED = "TOWER_CLOSED"
    GARBLED = "REPLY_REFUSED"


class TowerFault(Exception):
    """The tower did not do its part."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        """Say which part, and in words for people, free of anything that the tower sent."""
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
