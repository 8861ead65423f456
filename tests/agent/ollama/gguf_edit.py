"""Rewrites GGUF files for tests: real models that differ in one value of their metadata."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

STRING, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Value = tuple[int, Any]
"""A type and what is of it: a number, bytes, or for an array the type of its items and a list of them."""


class Gguf:
    """A file, taken apart: `pairs` may be changed, the tensors stay as they are."""

    def __init__(self, path: Path) -> None:
        """Reads a file."""
        self._data, self._at = path.read_bytes(), 4
        self._version, self._tensors, pairs = self._take("IQQ")
        self.pairs: dict[str, Value] = {}
        for _ in range(pairs):
            key = self._text().decode()
            (kind,) = self._take("I")
            self.pairs[key] = (kind, self._value(kind))
        start = self._at
        for _ in range(self._tensors):
            self._text()
            (dimensions,) = self._take("I")
            self._take(f"{dimensions}QIQ")
        self._infos = self._data[start : self._at]
        self._weights = self._data[-(-self._at // 32) * 32 :]

    def change(self, key: str, change: Callable[[Any], Any]) -> Gguf:
        """Changes a value; of an array, its list of items in place or by what is returned."""
        kind, value = self.pairs[key]
        if kind == ARRAY:
            items = list(value[1])
            changed = change(items)
            self.pairs[key] = (kind, (value[0], items if changed is None else changed))
        else:
            self.pairs[key] = (kind, change(value))
        return self

    def write(self, path: Path, *, tensors: bool = True) -> Path:
        """Writes the file; without tensors it is a vocabulary alone."""
        body = b"".join(
            _text(key.encode()) + struct.pack("<I", kind) + _value(kind, value)
            for key, (kind, value) in self.pairs.items()
        )
        count = self._tensors if tensors else 0
        head = b"GGUF" + struct.pack("<IQQ", self._version, count, len(self.pairs)) + body
        if tensors:
            head += self._infos
            head += bytes(-len(head) % 32) + self._weights
        path.write_bytes(head)
        return path

    def _take(self, code: str) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{code}")
        self._at += size
        return struct.unpack(f"<{code}", self._data[self._at - size : self._at])

    def _text(self) -> bytes:
        (size,) = self._take("Q")
        self._at += size
        return self._data[self._at - size : self._at]

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._text()
        if kind == ARRAY:
            item, count = self._take("IQ")
            if item == STRING:
                return item, [self._text() for _ in range(count)]
            return item, list(self._take(f"{count}{CODES[item]}"))
        return self._take(CODES[kind])[0]


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == ARRAY:
        item, items = value
        head = struct.pack("<IQ", item, len(items))
        if item == STRING:
            return head + b"".join(map(_text, items))
        return head + struct.pack(f"<{len(items)}{CODES[item]}", *items)
    return struct.pack(f"<{CODES[kind]}", value)
