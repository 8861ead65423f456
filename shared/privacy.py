"""Keeping a prompt out of what others may read: `shares_piece` tells whether a text repeats some of it."""

from __future__ import annotations

from typing import Final

from shared.models import printable

PIECE: Final = 12  # so many characters of a prompt in another's words are too much


def shares_piece(text: str, secret: str, length: int = PIECE) -> bool:
    """Whether `text` holds a piece of `secret`, of `length` characters or all of a shorter one.

    A run of white space and unprintable characters counts as one space, so a prompt that was put on one line
    is found too. A secret of a character or two is found in most texts.
    """
    text, secret = _folded(text), _folded(secret)
    size = min(length, len(secret))
    pieces = {secret[start : start + size] for start in range(len(secret) - size + 1)} - {""}
    return any(text[start : start + size] in pieces for start in range(len(text) - size + 1))


def _folded(text: str) -> str:
    return " ".join(printable(text).split())
