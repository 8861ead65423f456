"""Model names as Ollama writes, shows and files them.

A name has four parts, ``host/namespace/model:tag``. Left out, they are ``registry.ollama.ai``, ``library`` and
``latest``; on disk all four are folders and the tag is the file (ollama/ollama, types/model/name.go). Ollama shows the
model and the tag always, the host only if it is another, the namespace if it or the host is. Names that differ in
their case alone are one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"

SECOND_HOST = "ollama.com"
"""Newer versions file Ollama's own models under this host; the names are the same."""

MOST_SHOWN = 200
"""Longest name that is shown, in characters: what the wire protocol takes (`shared.schemas.Name`)."""

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", re.ASCII)


@dataclass(frozen=True)
class ModelName:
    """A whole name; `str(name)` is how Ollama shows it."""

    host: str
    namespace: str
    model: str
    tag: str

    def __str__(self) -> str:
        """Returns the name as Ollama shows it."""
        short = f"{self.model}:{self.tag}"
        if self.host.lower() != HOST:
            return f"{self.host}/{self.namespace}/{short}"
        return short if self.namespace.lower() == NAMESPACE else f"{self.namespace}/{short}"

    @property
    def folded(self) -> str:
        """What is equal for equal names."""
        return str(self).lower()

    @property
    def path(self) -> str:
        """Where the manifest is, below the folder of manifests."""
        return f"{self.host}/{self.namespace}/{self.model}/{self.tag}"

    @property
    def in_library(self) -> bool:
        """Whether it is a name of Ollama's own library, so that anybody may pull it."""
        return self.host.lower() == HOST and self.namespace.lower() == NAMESPACE


def parse(text: str) -> ModelName | None:
    """Returns the name that a text stands for, missing parts filled in; None if it is no name."""
    text = text.removeprefix("https://").removeprefix("http://")
    # A colon before the last slash belongs to the host.
    before, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        before, tag = text, TAG
    parts = before.split("/")
    if len(parts) > 3:
        return None
    host, namespace, model = [HOST, NAMESPACE][: 3 - len(parts)] + parts
    return _valid(host, namespace, model, tag)


def from_path(parts: Sequence[str]) -> ModelName | None:
    """Returns the name of a manifest at host, namespace, model, tag; None for any file that is no manifest.

    ``..``, hidden files such as ``.DS_Store`` and whatever Ollama itself would not take are no names.
    """
    return _valid(*parts) if len(parts) == 4 else None


def _valid(host: str, namespace: str, model: str, tag: str) -> ModelName | None:
    whole = _HOST.fullmatch(host) and _NAMESPACE.fullmatch(namespace)
    if not (whole and _PART.fullmatch(model) and _PART.fullmatch(tag)):
        return None
    name = ModelName(HOST if host.lower() == SECOND_HOST else host, namespace, model, tag)
    return name if len(str(name)) <= MOST_SHOWN else None
