"""Reads the metadata of a GGUF file: what a model says of itself and of its tokenizer, without loading it.

Format: little-endian ``GGUF``, version (2 or 3), number of tensors, number of key-value pairs, then the pairs
(ggml-org/ggml, docs/gguf.md). Long arrays (tokens, merges) are not kept but hashed.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.errors import LoadFailed

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_MOST_PAIRS = 10_000
_MOST_ITEMS = 10_000_000


@dataclass(frozen=True)
class Array:
    """A metadata array: how many items it has, and the SHA-256 of their bytes, lengths included."""

    count: int
    sha256: str


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if size < 0 or len(piece) != size:
            raise LoadFailed("the GGUF file is cut short")
        self._at += size
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

    def _array(self) -> Array:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if count > _MOST_ITEMS or kind == _ARRAY:
            raise LoadFailed("the GGUF file has an array that cannot be read")
        start = self._at
        if kind == _STRING:
            for _ in range(count):
                size = self.scalar("<Q")
                if not 0 <= size <= len(self._data) - self._at:
                    raise LoadFailed("the GGUF file is cut short")
                self._at += size
        elif kind in _SCALARS:
            self.take(count * struct.calcsize(_SCALARS[kind]))
        else:
            raise LoadFailed("the GGUF file has metadata of an unknown type")
        return Array(count, hashlib.sha256(self._data[start : self._at]).hexdigest())


def read_metadata(path: Path) -> dict[str, Any]:
    """Returns all key-value pairs of a GGUF file; arrays as `Array`.

    Raises:
        LoadFailed: If it is not a GGUF file of version 2 or 3, or damaged.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise LoadFailed("it is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _Reader(data)
            reader.take(4)
            version, _tensors, pairs = reader.scalar("<I"), reader.scalar("<Q"), reader.scalar("<Q")
            if version not in (2, 3) or pairs > _MOST_PAIRS:
                raise LoadFailed("it is not a GGUF file of version 2 or 3")
            return {reader.text(): reader.value(reader.scalar("<I")) for _ in range(pairs)}
