"""Looking for the corpus's mark in what the edge says and keeps, in every spelling that a careless writer could use."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Final

from tests.edge.hostile.entry import MARK

PIECE: Final = 12
"""So many letters of the mark that follow each other are as bad as all of it."""

_BREAK: Final = r"(?:\+|-|%20|\\n|\\r|\\t|\\u0020|\s)+"


def _spellings(piece: str) -> list[str]:
    """Patterns of a piece: as it is, its hex digits, its Base64 wherever it begins in a group of three bytes."""
    whole = [base64.b64encode(b"\0" * shift + piece.encode() + b"\0\0").decode() for shift in range(3)]
    # Without the letters that neighbours would have a part in.
    codes = [code[4:-6] for code in whole] + [piece.encode().hex()]
    return [_BREAK.join(map(re.escape, piece.split(" "))), *codes]


_PIECES: Final = [MARK[start : start + PIECE] for start in range(len(MARK) - PIECE + 1)]
_PATTERN: Final = re.compile(
    "|".join(pattern for piece in _PIECES for pattern in _spellings(piece)), re.IGNORECASE
)


def shows(text: str) -> bool:
    """Whether a text holds a piece of the mark, in any spelling."""
    return _PATTERN.search(text) is not None


def shows_in(file: Path) -> bool:
    """Whether a file, or its name, does."""
    return shows(file.name) or shows(file.read_bytes().decode("latin-1"))
