"""Tests of agent.changes."""

import os
from pathlib import Path

from agent.changes import version


def test_version(tmp_path: Path) -> None:
    """A file's version changes with its time, its size and its identity; what is not there has none."""
    file = tmp_path / "file"
    assert version(file) is None and version(tmp_path / "nowhere" / "file") is None
    file.write_text("one")
    first = version(file)
    assert first is not None and version(file) == first
    os.utime(file, ns=(first[2], first[2] + 1))
    touched = version(file)
    assert touched is not None and touched != first
    (tmp_path / "other").write_text("two")
    os.utime(tmp_path / "other", ns=(touched[2], touched[2]))
    os.replace(tmp_path / "other", file)
    replaced = version(file)
    assert replaced is not None and replaced != touched and replaced[1:] == touched[1:]
    file.write_text("longer")
    os.utime(file, ns=(replaced[2], replaced[2]))
    assert version(file) not in (None, replaced)
