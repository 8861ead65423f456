"""Tests of `agent.gguf`."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import LoadFailed
from agent.gguf import Array, read_arrays, read_metadata
from agent.pairs import EMBEDDED


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
    expected["kinds"] = Array(3, hashlib.sha256(struct.pack("<3i", 1, 2, 3)).hexdigest(), (1, 2, 3))
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


@pytest.mark.parametrize("last", ["kinds", "tokens", "name"])
def test_every_cut_is_refused(tmp_path: Path, last: str) -> None:
    """A file cut anywhere is refused, never half read, whatever kind of value it ends with."""
    pairs = {key: value for key, value in WHOLE.items() if key != last} | {last: WHOLE[last]}
    path, whole = tmp_path / "model.gguf", gguf(pairs)
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


@pytest.mark.parametrize(("count", "kept"), [(0, True), (1024, True), (1025, False)])
def test_short_arrays_of_integers_are_kept(tmp_path: Path, count: int, kept: bool) -> None:
    """Of up to 1,024 integers the values are kept, as there may be one for each layer; of more the hash alone."""
    path = tmp_path / "model.gguf"
    numbers = tuple(range(count))
    path.write_bytes(gguf({"heads": struct.pack(f"<IIQ{count}I", 9, 4, count, *numbers)}))
    array = read_metadata(path)["heads"]
    assert (array.count, array.values) == (count, numbers if kept else None)


def test_other_arrays_are_not_kept(tmp_path: Path) -> None:
    """Strings and floats are hashed alone, however few they are; booleans are kept as 0 and 1."""
    path = tmp_path / "model.gguf"
    path.write_bytes(
        gguf(
            {
                "texts": strings(["a"]),
                "scores": struct.pack("<IIQf", 9, 6, 1, 0.5),
                "windows": struct.pack("<IIQ2?", 9, 7, 2, True, False),
            }
        )
    )
    metadata = read_metadata(path)
    assert (metadata["texts"].values, metadata["scores"].values, metadata["windows"].values) == (
        None,
        None,
        (1, 0),
    )


@pytest.mark.parametrize("count", [10_000_001, 2**40, 2**64 - 1])
def test_arrays_without_end_are_refused(tmp_path: Path, count: int) -> None:
    """An array of more items than any vocabulary has is refused, be they in the file or not."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf({"tokens": struct.pack("<IIQ", 9, 0, count) + bytes(min(count, 10_000_001))}))
    with pytest.raises(LoadFailed, match="an array that cannot be read"):
        read_metadata(path)


def test_wanted_arrays_are_read_whole(tmp_path: Path) -> None:
    """The items of the arrays asked for come back, strings as bytes; what is no array or not there does not."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(WHOLE | {"texts": strings(["\0x", "é"])}))
    wanted = frozenset({"tokens", "kinds", "texts", "name", "gone"})
    assert read_arrays(path, wanted) == {
        "tokens": [b"a", b"bc"],
        "kinds": [1, 2, 3],
        "texts": [b"\0x", "é".encode()],
    }


def test_metadata_longer_than_one_piece_of_reading(tmp_path: Path) -> None:
    """Arrays that reach over the pieces in which the file is read are read as one; a cut within them is found."""
    path = tmp_path / "model.gguf"
    texts = [f"{i:0100000}" for i in range(100)]
    path.write_bytes(gguf({"tokens": strings(texts), "count": struct.pack("<II", 4, 7)}))
    assert read_metadata(path)["count"] == 7
    assert read_arrays(path, frozenset({"tokens"}))["tokens"][99] == texts[99].encode()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 200_000])
    with pytest.raises(LoadFailed):
        read_metadata(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A named pipe or a folder in a model's place is refused at once: nobody may ever write into it."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="regular file"):
            read_metadata(path)


def test_a_real_model() -> None:
    """Of the embedded draft the metadata are those it was made with."""
    metadata = read_metadata(EMBEDDED / "draft.gguf")
    assert (metadata["general.architecture"], metadata["llama.block_count"]) == ("llama", 2)
    assert metadata["tokenizer.ggml.tokens"].count == 2048
