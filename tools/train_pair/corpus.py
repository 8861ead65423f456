"""The two public corpora of the embedded pair, split into training and held-out documents.

Prose is the King James Bible (Debian package ``bible-kjv-text``; the text is in the public domain), one document a
chapter. Code is the standard library of the running CPython (PSF licence), one document a file. Every 40th chapter and
every 40th file is held out: no tokenizer or model sees it, and prompts for demo, tests and benchmarks come from there.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_EVERY = 40
_VERSE = re.compile(r"^(?P<book>\d?[A-Za-z]+)(?P<chapter>\d+):(?P<verse>\d+) (?P<text>.*)$")
# Generated tables and vendored copies teach a small model nothing; test suites would drown the rest.
_SKIPPED_PARTS = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "encodings",
    "pydoc_data",
    "site-packages",
    "__pycache__",
    "ensurepip",
}
_LARGEST_FILE = 120_000


@dataclass(frozen=True)
class Document:
    """One training or held-out text: `domain` is "prose" or "code", `name` says where it is from."""

    domain: str
    name: str
    text: str


def prose() -> list[Document]:
    """Returns the chapters of the King James Bible in order, one verse a line, without verse numbers."""
    listing = subprocess.run(
        ["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True
    ).stdout
    chapters: dict[str, list[str]] = {}
    for line in listing.splitlines():
        match = _VERSE.match(line)
        if match:
            chapters.setdefault(f"{match['book']} {match['chapter']}", []).append(match["text"])
    return [Document("prose", name, "\n".join(verses) + "\n") for name, verses in chapters.items()]


def code() -> list[Document]:
    """Returns the running interpreter's standard library sources, by path, large and generated ones left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_PARTS.intersection(relative.parts) or path.stat().st_size > _LARGEST_FILE:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            documents.append(Document("code", relative.as_posix(), text))
    return documents


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Returns (training, held out): every 40th document, from the 20th on, is held out."""
    held_out = documents[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    names = {document.name for document in held_out}
    return [document for document in documents if document.name not in names], held_out
