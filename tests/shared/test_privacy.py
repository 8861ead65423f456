"""Whether a text repeats some of a prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.privacy import PIECE, shares_piece

SECRET = "my secret prompt\nof two lines"


@pytest.mark.parametrize(
    ("text", "secret", "shared"),
    [
        ("", SECRET, False),
        ("nothing of it", SECRET, False),
        (f"<{SECRET}>", SECRET, True),
        ("error at 'secret promp'", SECRET, True),
        ("secret prompt of two", SECRET, True),  # put on one line
        ("secret prom", SECRET, False),  # 11 characters
        ("secret\u0000\t prompt", SECRET, True),
        ("my secret\u202eprompt", SECRET, True),
        ("a b", "a", True),
        ("a b", "c", False),
        ("a", "ab", False),
        ("anything", "", False),
        ("", "", False),
        ("naïve 日本語の文章です、はい。", "日本語の文章です、はい。", True),
    ],
    ids=ascii,
)
def test_shares_piece(text: str, secret: str, shared: bool) -> None:
    """Twelve characters in a row are too much, and so is all of a shorter prompt."""
    assert shares_piece(text, secret) is shared


def test_length() -> None:
    """The length of a piece can be chosen."""
    assert shares_piece("secret", SECRET, 6) and not shares_piece("secret", SECRET, 8)


LETTERS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=PIECE)


@given(LETTERS, st.text(), st.text(), st.data())
def test_any_piece_is_found(secret: str, before: str, after: str, data: st.DataObject) -> None:
    """Wherever a piece comes from and wherever it stands, it is found."""
    start = data.draw(st.integers(0, len(secret) - PIECE))
    piece = secret[start : start + PIECE]
    assert shares_piece(before + piece + after, secret)
