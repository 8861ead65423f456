"""Reads an Ollama store on disk: which models are there, by which name, in which file, and what is wrong with them.

Layout (ollama/ollama, manifest/): ``manifests/HOST/NAMESPACE/MODEL/TAG`` is a JSON file that lists layers, each with a
media type, a digest ``sha256:HEX`` and a size; the layer's content is ``blobs/sha256-HEX``. Newer versions write
``manifests-v2/`` as well, whose files are symbolic links to blobs and come first, and lists of manifests, one for each
program that can run the model. A download under way is ``blobs/sha256-HEX-partial``.

The store belongs to somebody else and may change or become unreadable at any moment: nothing here raises for that, and
nothing is ever written, waited for, or read beyond a bound.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent.filefacts import key_of, open_regular, settled
from agent.ollama.names import ModelName, from_path
from shared.models import one_line

MOST_MODELS = 10_000
MOST_MANIFEST = 4 * 1024 * 1024
"""Bounds of what is looked at: manifests, and bytes of one (of a model in thousands of tensor files: about 1 MiB)."""

_FOLDERS = ("manifests-v2", "manifests")
_IMAGE = "application/vnd.ollama.image."
_LIST = "application/vnd.ollama.manifest.list.v2+json"
_MODEL, _ADAPTER, _TENSOR = _IMAGE + "model", _IMAGE + "adapter", _IMAGE + "tensor"
_RUNNERS = ("ollama", "llamacpp")
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class StoredModel:
    """A name in the store.

    Attributes:
        name: The name.
        manifest: The file that gives it.
        digest: SHA-256 of that file, which Ollama's server shows as the model's digest; None if it cannot be read.
        blob: The GGUF file; None if there is none.
        size: Bytes the GGUF file must have.
        fault: Why it cannot be used, as a clause.
    """

    name: ModelName
    manifest: Path
    digest: str | None = None
    blob: Path | None = None
    size: int = 0
    fault: str | None = None


@dataclass(frozen=True)
class Store:
    """What a store holds, by name; `fault` says what there is to say of it as a whole."""

    root: Path | None = None
    models: tuple[StoredModel, ...] = ()
    fault: str | None = None


def usual_stores() -> list[Path]:
    """Returns where Ollama keeps its models: where it was told to, in the user's folder, or in its service's."""
    places = [Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/.ollama/models")]
    try:
        places.insert(0, Path.home() / ".ollama/models")
    except RuntimeError:
        pass  # a user without a home
    configured = os.environ.get("OLLAMA_MODELS")
    return [Path(configured), *places] if configured else places


def find_store(folder: Path | None = None) -> Path | None:
    """Returns the store that is read.

    Args:
        folder: The models folder; None takes the first usual one that holds a model, else the first that is there.
    """
    return _located(folder)[0]


def read_store(folder: Path | None = None) -> Store:
    """Returns what is in a store (`find_store`)."""
    root, manifests, denied = _located(folder)
    if root is None or not manifests:
        missing = "there is no Ollama store" if root is None else "the Ollama store holds no model"
        return Store(root, fault="the agent's user may not read the Ollama store" if denied else missing)
    models = sorted((_model(root, *manifest) for manifest in manifests), key=lambda model: model.name.folded)
    fault = "the agent's user may not read all of the Ollama store" if denied else None
    if len(models) >= MOST_MODELS:
        fault = f"the Ollama store holds more than the {MOST_MODELS} models that are looked at"
    return Store(root, tuple(models), fault)


def _located(folder: Path | None) -> tuple[Path | None, list[tuple[ModelName, Path]], bool]:
    """Returns the store's folder, its manifests by name, and whether something may not be read."""
    root, refused = None, False
    for place in [folder] if folder else usual_stores():
        manifests, denied = _manifests(place)
        if manifests:
            return place, manifests, denied
        refused = refused or denied
        if root is None and any(os.path.isdir(place / name) for name in _FOLDERS):
            root = place
    return root, [], refused


def snapshot(folder: Path | None = None) -> str:
    """Returns a digest of all that a pair's choice could depend on in a store: equal ones mean that nothing changed.

    Takes milliseconds: manifests that are as they were are not read again, and blobs never are.

    Args:
        folder: As for `find_store`.
    """
    store = read_store(folder)
    lines = [str(store.root), str(store.fault)]
    for model in store.models:
        version = ""
        if model.blob is not None:
            with contextlib.suppress(OSError):
                version = key_of(model.blob.stat())
        lines.append(f"{model.name} {model.digest} {model.blob} {version} {model.fault}")
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def blob_digest(path: Path) -> str | None:
    """Returns the SHA-256, in hex, that a blob's content must have by its name; None if it is no blob's name."""
    match = _DIGEST.fullmatch(path.name)
    return match[1].lower() if match else None


# Manifests


def _manifests(root: Path) -> tuple[list[tuple[ModelName, Path]], bool]:
    """Returns the names and files of all manifests, and whether something may not be read."""
    found: dict[str, tuple[ModelName, Path]] = {}
    denied = False
    for folder in _FOLDERS:
        for parts, path in _files(root / folder, ()):
            if path is None:
                denied = True
                continue
            name = from_path(parts)
            if name is not None:
                found.setdefault(name.folded, (name, path))
            if len(found) >= MOST_MODELS:
                return list(found.values()), denied
    return list(found.values()), denied


def _files(folder: Path, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Path | None]]:
    """Yields the files four levels down, in order, with their parts; no path where a folder may not be read."""
    try:
        with os.scandir(folder) as entries:
            children = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:  # not permitted, or we ourselves have too many files open: there may be more than is seen
        yield above, None
        return
    for entry in children:
        parts = (*above, entry.name)
        try:
            is_folder = entry.is_dir()
        except OSError:
            is_folder = False  # a link in a circle: as a file it will be told what it is
        if len(parts) < 4 and is_folder:
            yield from _files(Path(entry.path), parts)
        elif len(parts) == 4 and not is_folder:
            yield parts, Path(entry.path)


@dataclass(frozen=True)
class _Manifest:
    """What a manifest says; `references` are the digests of further manifests, of which the first one holds."""

    digest: str | None
    blob: str | None = None
    size: int = 0
    fault: str | None = None
    references: tuple[str, ...] = ()


def _parsed(path: Path) -> _Manifest:
    """Returns what the manifest at a path says, reading it unless this version of it has been read.

    Raises:
        OSError: If it cannot be found.
    """
    facts = path.stat()
    return _read_once(path, key_of(facts)) if settled(facts) else _read(path)


@lru_cache(maxsize=2 * MOST_MODELS)
def _read_once(path: Path, _version: str) -> _Manifest:
    return _read(path)


def _read(path: Path) -> _Manifest:
    with open_regular(path) as file:
        content = file.read(MOST_MANIFEST + 1)
    digest = hashlib.sha256(content).hexdigest()
    if len(content) > MOST_MANIFEST:
        return _Manifest(None, fault="its manifest is too large")
    try:
        manifest = json.loads(content)
        if manifest.get("mediaType") == _LIST:
            return _from_list(digest, manifest)
        return _from_layers(digest, manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _Manifest(digest, fault="its manifest is damaged")


def _from_list(digest: str, manifest: dict[str, Any]) -> _Manifest:
    children = {str(child.get("runner", "")).lower(): child for child in reversed(manifest["manifests"])}
    child = next((children[runner] for runner in _RUNNERS if runner in children), None)
    if child is None:
        kinds = one_line(", ".join(sorted(children)), 80)
        return _Manifest(digest, fault=f"it is stored for other programs than llama.cpp ({kinds})")
    if child.get("layers"):
        return _from_layers(digest, child)
    return _Manifest(digest, references=(_hex(child["digest"]),))


def _from_layers(digest: str, manifest: dict[str, Any]) -> _Manifest:
    layers = [(str(layer["mediaType"]), layer) for layer in manifest["layers"]]
    kinds = [kind for kind, _ in layers]
    models = [layer for kind, layer in layers if kind == _MODEL]
    if len(models) > 1:
        return _Manifest(digest, fault=f"it is split into {len(models)} files")
    if _ADAPTER in kinds:
        return _Manifest(digest, fault="it is a model with an adapter, which would be left out here")
    if not models:
        if _TENSOR in kinds:
            return _Manifest(digest, fault="it is stored as safetensors, not as GGUF")
        others = sorted({kind.removeprefix(_IMAGE) for kind in kinds})
        held = f"only {one_line(', '.join(others), 80)}" if others else "nothing"
        return _Manifest(digest, fault=f"it has no GGUF file ({held})")
    size = models[0]["size"]
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise TypeError
    return _Manifest(digest, _hex(models[0]["digest"]), size)


def _hex(digest: Any) -> str:
    """Returns the hex of a digest, which names a file: nothing but a digest passes.

    Raises:
        ValueError: If it is none.
    """
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if match is None:
        raise ValueError
    return match[1].lower()


# Models


def _model(root: Path, name: ModelName, path: Path) -> StoredModel:
    model = StoredModel(name, path)
    try:
        parsed = _parsed(path)
        if parsed.references:
            parsed = replace(_parsed(_blob(root, parsed.references[0])), digest=parsed.digest)
    except OSError as exc:
        return replace(model, fault=_why("its manifest", exc))
    if parsed.references:
        return replace(model, digest=parsed.digest, fault="its manifest is damaged")
    model = replace(model, digest=parsed.digest, size=parsed.size, fault=parsed.fault)
    if parsed.blob is None:
        return model
    blob = _blob(root, parsed.blob)
    return replace(model, blob=blob, fault=_blob_fault(blob, parsed.size))


def _blob(root: Path, digest: str) -> Path:
    return root / "blobs" / f"sha256-{digest}"


def _blob_fault(blob: Path, size: int) -> str | None:
    try:
        facts = blob.stat()
    except FileNotFoundError:
        under_way = os.path.lexists(f"{blob}-partial")
        return "its download is not complete" if under_way else "its file is missing from the store"
    except OSError as exc:
        return _why("its file", exc)
    if not stat.S_ISREG(facts.st_mode):
        return "its file is not a regular file"
    if facts.st_size < size:
        return f"its download is not complete ({facts.st_size} of {size} bytes)"
    if facts.st_size > size:
        return f"its file is damaged ({facts.st_size} bytes, not {size})"
    if not os.access(blob, os.R_OK):
        return "the agent's user may not read its file"
    return None


def _why(what: str, exc: OSError) -> str:
    if isinstance(exc, PermissionError):
        return f"the agent's user may not read {what}"
    if isinstance(exc, FileNotFoundError):
        return f"{what} is missing from the store"
    if exc.errno == errno.ELOOP:
        return f"{what} is a symbolic link in a circle"
    return f"{what} cannot be read"
