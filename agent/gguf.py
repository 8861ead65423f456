"""Reads the metadata of a GGUF file: what a model says of itself and of its tokenizer, without loading it.

Format: little-endian ``GGUF``, version (2 or 3), number of tensors, number of key-value pairs, then the pairs
(ggml-org/ggml, docs/gguf.md). Arrays are not kept but hashed; short ones of integers, such as a number for each layer,
are kept too.

The file is read, never mapped: one that is cut short meanwhile would kill a process that has it mapped.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agent.errors import LoadFailed
from agent.filefacts import open_regular

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_INTEGERS = frozenset({0, 1, 2, 3, 4, 5, 7, 10, 11})
_LENGTH = struct.Struct("<Q")

_MOST_PAIRS = 10_000
_MOST_ITEMS = 10_000_000
_MOST_KEPT = 1024
_MOST_BYTES = 256 * 1024 * 1024
"""Bounds of what is read of a file that may hold anything: llama.cpp knows at most 512 layers, and the largest
vocabularies (256,000 tokens with their merges) take about 20 MiB."""

_CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True)
class Array:
    """A metadata array: how many items it has, and the SHA-256 of their bytes, lengths included.

    `values` are the items if they are at most 1,024 integers, else None.
    """

    count: int
    sha256: str
    values: tuple[int, ...] | None = None


class _Reader:
    """Reads on in a file whose beginning it keeps."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._data = bytearray()
        self._at = 0

    def _reach(self, end: int) -> None:
        """Reads until the first `end` bytes are there."""
        while len(self._data) < end:
            if end > _MOST_BYTES:
                raise LoadFailed("the GGUF file has metadata of more than 256 MiB, or is damaged")
            piece = self._file.read(max(_CHUNK, end - len(self._data)))
            if not piece:
                raise LoadFailed("the GGUF file is cut short")
            self._data += piece

    def take(self, size: int) -> bytes:
        end = self._at + size
        self._reach(end)
        piece = bytes(self._data[self._at : end])
        self._at = end
        return piece

    def scalar(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        return self.take(self.scalar("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise LoadFailed("the GGUF file has metadata of an unknown type")
        return self.scalar(_SCALARS[kind])

    def items(self) -> list[Any]:
        """Returns all items of an array: strings as bytes, numbers as they are."""
        kind, count = self._array_head()
        if kind == _STRING:
            return [self.take(self.scalar("<Q")) for _ in range(count)]
        return self._numbers(kind, self.take(count * struct.calcsize(_SCALARS[kind])))

    def _array(self) -> Array:
        kind, count = self._array_head()
        start = self._at
        if kind == _STRING:
            self._skip_strings(count)
        else:
            self.take(count * struct.calcsize(_SCALARS[kind]))
        content = bytes(self._data[start : self._at])
        short = kind in _INTEGERS and count <= _MOST_KEPT
        values = tuple(int(item) for item in self._numbers(kind, content)) if short else None
        return Array(count, hashlib.sha256(content).hexdigest(), values)

    def _array_head(self) -> tuple[int, int]:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if count > _MOST_ITEMS or kind == _ARRAY:
            raise LoadFailed("the GGUF file has an array that cannot be read")
        if kind != _STRING and kind not in _SCALARS:
            raise LoadFailed("the GGUF file has metadata of an unknown type")
        return kind, count

    def _skip_strings(self, count: int) -> None:
        at, data = self._at, self._data
        for _ in range(count):
            if at + 8 > len(data):
                self._reach(at + 8)
            at += 8 + _LENGTH.unpack_from(data, at)[0]
        self._reach(at)
        self._at = at

    @staticmethod
    def _numbers(kind: int, content: bytes) -> list[Any]:
        return [item[0] for item in struct.iter_unpack(_SCALARS[kind], content)]


def read_metadata(path: Path) -> dict[str, Any]:
    """Returns all key-value pairs of a GGUF file; arrays as `Array`.

    Raises:
        LoadFailed: If it is not a GGUF file of version 2 or 3, or damaged.
        OSError: If it cannot be read.
    """
    with open_regular(path) as file:
        reader = _Reader(file)
        return {key: reader.value(kind) for key, kind in _pairs(reader)}


def read_arrays(path: Path, wanted: frozenset[str]) -> dict[str, list[Any]]:
    """Returns the items of some metadata arrays, strings as bytes; those that the file lacks are left out.

    Raises:
        LoadFailed: As `read_metadata` does.
        OSError: If the file cannot be read.
    """
    with open_regular(path) as file:
        reader = _Reader(file)
        found: dict[str, list[Any]] = {}
        for key, kind in _pairs(reader):
            if kind == _ARRAY and key in wanted:
                found[key] = reader.items()
            else:
                reader.value(kind)
    return found


def _pairs(reader: _Reader) -> Iterator[tuple[str, int]]:
    """Yields each pair's key and type; whoever asks for the next has read its value."""
    if reader.take(4) != b"GGUF":
        raise LoadFailed("it is not a GGUF file")
    version, _tensors, pairs = reader.scalar("<I"), reader.scalar("<Q"), reader.scalar("<Q")
    if version not in (2, 3) or pairs > _MOST_PAIRS:
        raise LoadFailed("it is not a GGUF file of version 2 or 3")
    for _ in range(pairs):
        yield reader.text(), reader.scalar("<I")
