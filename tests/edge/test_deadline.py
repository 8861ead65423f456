"""Deadlines."""

from __future__ import annotations

import time

from edge.deadline import Deadline


def test_time_left_is_never_negative() -> None:
    """A deadline that has passed leaves nothing."""
    assert Deadline(time.monotonic() - 5).remaining() == 0.0
    assert 9 < Deadline.after(10).remaining() <= 10


def test_later_extends() -> None:
    """What is nobody's wait is added."""
    assert Deadline(5.0).later(1.5) == Deadline(6.5)


def test_sooner_never_extends() -> None:
    """An inner wait is cut to the outer one."""
    outer = Deadline.after(5)
    assert outer.sooner(60) == outer
    assert outer.sooner(1).at < outer.at
