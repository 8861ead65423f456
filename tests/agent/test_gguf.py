"""Tests of `agent.gguf`."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import LoadFailed
from agent.gguf import Array, read_metadata


def text(value: str) -> bytes:
    """Encodes a GGUF string."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def strings(values: list[str]) -> bytes:
    """Encodes the value of a GGUF array of strings, its type first."""
    return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(text(value) for value in values)


def gguf(pairs: dict[str, bytes], version: int = 3) -> bytes:
    """Returns a GGUF file without tensors; values come encoded, their type first."""
    body = b"".join(text(key) + value for key, value in pairs.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + body


WHOLE: dict[str, bytes] = {
    "name": struct.pack("<I", 8) + text("pair"),
    "count": struct.pack("<II", 4, 7),
    "add": struct.pack("<I?", 7, True),
    "base": struct.pack("<If", 6, 0.5),
    "tokens": strings(["a", "bc"]),
    "kinds": struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3),
}


def test_every_kind_of_value(tmp_path: Path) -> None:
    """Strings, integers, booleans, floats and arrays are read; arrays as their count and digest."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(WHOLE))
    expected: dict[str, Any] = {"name": "pair", "count": 7, "add": True, "base": 0.5}
    expected["tokens"] = Array(2, hashlib.sha256(text("a") + text("bc")).hexdigest())
    expected["kinds"] = Array(3, hashlib.sha256(struct.pack("<3i", 1, 2, 3)).hexdigest())
    assert read_metadata(path) == expected


def test_arrays_that_concatenate_alike_differ(tmp_path: Path) -> None:
    """The digest covers lengths: ["ab", "c"] is not ["a", "bc"]."""
    for name, values in (("one", ["ab", "c"]), ("two", ["a", "bc"])):
        (tmp_path / name).write_bytes(gguf({"tokens": strings(values)}))
    assert read_metadata(tmp_path / "one") != read_metadata(tmp_path / "two")


@pytest.mark.parametrize(
    "content", [b"", b"GGU", b"GGML" + bytes(40), gguf(WHOLE, version=1), gguf(WHOLE, version=9)]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """Empty files, other formats and other versions are refused."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadFailed):
        read_metadata(path)


def test_every_cut_is_refused(tmp_path: Path) -> None:
    """A file cut anywhere is refused, never half read."""
    path, whole = tmp_path / "model.gguf", gguf(WHOLE)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(LoadFailed):
            read_metadata(path)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(4, len(gguf(WHOLE)) - 1), byte=st.integers(0, 255))
def test_damage_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int) -> None:
    """A changed byte is either harmless or refused: nothing else is raised, and huge counts allocate nothing."""
    damaged = bytearray(gguf(WHOLE))
    damaged[at] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        read_metadata(path)
    except LoadFailed:
        pass
