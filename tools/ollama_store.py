"""Builds an Ollama store as Ollama itself writes it, from GGUF files: `python -m tools.ollama_store DIR NAME=FILE ...`.

For tests and the soak run, on machines without Ollama. Layers are named by the SHA-256 of their content; each model
has a configuration, a template, a licence and parameters beside its weights (ollama/ollama, manifest/ and server/).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.errors import LoadFailed
from agent.gguf import read_metadata
from agent.ollama.names import HOST as FIRST_HOST
from agent.ollama.names import SECOND_HOST, ModelName, parse

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
IMAGE = "application/vnd.ollama.image."

TEMPLATE = "{{ if .System }}{{ .System }}\n{{ end }}{{ .Prompt }}"
LICENSE = "The licence of the model's weights applies.\n"
PARAMETERS = {"stop": ["<|eot_id|>"], "temperature": 0.6}


def build_store(root: Path, models: Mapping[str, Path], *, v2: bool = False) -> Path:
    """Makes a store with these models, and returns its folder.

    Args:
        root: The models folder, made if it is not there.
        models: GGUF files by name, such as ``llama3.2:1b``.
        v2: Whether to write manifests as newer versions of Ollama do.
    """
    for folder in ("blobs", "manifests"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, file in models.items():
        add_model(root, name, file, v2=v2)
    return root


def add_model(root: Path, name: str, file: Path, *, v2: bool = False, layers: Sequence[Any] = ()) -> Path:
    """Adds a model to a store as pulling it does, blobs first and its manifest last, and returns the manifest.

    Args:
        root: The models folder.
        name: Its name.
        file: Its GGUF file.
        v2: As for `build_store`.
        layers: Further layers, as (last part of the media type, content).
    """
    parsed = _parsed(name)
    weights = add_blob(root, IMAGE + "model", file)
    extra = [add_blob(root, IMAGE + kind, content) for kind, content in layers]
    written = [
        weights,
        *extra,
        add_blob(root, IMAGE + "template", TEMPLATE.encode()),
        add_blob(root, IMAGE + "license", LICENSE.encode()),
        add_blob(root, IMAGE + "params", json.dumps(PARAMETERS, separators=(",", ":")).encode()),
    ]
    config = add_blob(root, CONFIG, _config(file, written))
    return write_manifest(
        root,
        parsed,
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": written},
        v2=v2,
    )


def write_manifest(root: Path, name: ModelName, manifest: Any, *, v2: bool = False) -> Path:
    """Writes a manifest, whatever it says, and returns its file."""
    content = json.dumps(manifest, separators=(",", ":")).encode() + b"\n"
    if not v2:
        path = root / "manifests" / name.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path
    host = SECOND_HOST if name.host == FIRST_HOST else name.host
    path = root / "manifests-v2" / host / name.namespace / name.model / name.tag
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = add_blob(root, MANIFEST, content)["digest"]
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(blob_path(root, digest), path.parent))
    return path


def add_blob(root: Path, media_type: str, content: Path | bytes) -> dict[str, Any]:
    """Stores a file or bytes under their SHA-256, complete at once, and returns the layer that names them."""
    if isinstance(content, bytes):
        digest, size = hashlib.sha256(content).hexdigest(), len(content)
    else:
        with content.open("rb") as opened:
            digest, size = hashlib.file_digest(opened, "sha256").hexdigest(), content.stat().st_size
    blob = blob_path(root, f"sha256:{digest}")
    blob.parent.mkdir(parents=True, exist_ok=True)
    if not blob.exists():
        partial = blob.with_name(f"{blob.name}-partial")
        if isinstance(content, bytes):
            partial.write_bytes(content)
        else:
            shutil.copyfile(content, partial)
        os.replace(partial, blob)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def blob_path(root: Path, digest: str) -> Path:
    """Returns the file of a digest ``sha256:HEX``."""
    return root / "blobs" / digest.replace(":", "-")


def remove_model(root: Path, name: str) -> None:
    """Removes a model as Ollama does: its manifest, folders left empty, then the blobs that no other model names."""
    parsed = _parsed(name)
    hosts = {parsed.host, SECOND_HOST if parsed.host == FIRST_HOST else parsed.host}
    named: set[str] = set()
    for top in (root / "manifests", root / "manifests-v2"):
        for host in hosts:
            path = top / host / parsed.namespace / parsed.model / parsed.tag
            if path.exists():
                named |= _digests(path)
                path.unlink()
                for folder in path.parents:
                    if folder == top or any(folder.iterdir()):
                        break
                    folder.rmdir()
    kept = {
        d for top in ("manifests", "manifests-v2") for p in root.glob(f"{top}/*/*/*/*") for d in _digests(p)
    }
    for digest in named - kept:
        blob_path(root, digest).unlink(missing_ok=True)


def _digests(path: Path) -> set[str]:
    content = path.read_bytes()
    manifest = json.loads(content)
    return {
        f"sha256:{hashlib.sha256(content).hexdigest()}",
        manifest["config"]["digest"],
        *(layer["digest"] for layer in manifest["layers"]),
    }


def _config(file: Path, layers: Sequence[dict[str, Any]]) -> bytes:
    try:
        metadata = read_metadata(file)
    except LoadFailed:
        metadata = {}  # stored like any other: Ollama does not look into what it pulls either
    family = metadata.get("general.architecture", "unknown")
    parameters = metadata.get("general.parameter_count", 0)
    config = {
        "model_format": "gguf",
        "model_family": family,
        "model_families": [family],
        "model_type": f"{parameters / 1e6:.2f}M",
        "file_type": "unknown",
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    return json.dumps(config, separators=(",", ":")).encode()


def _parsed(name: str) -> ModelName:
    parsed = parse(name)
    if parsed is None:
        raise ValueError(f"not a model name: {name}")
    return parsed


def main(argv: Sequence[str] | None = None) -> int:
    """Builds a store; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.ollama_store", description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path, metavar="DIR", help="models folder to make or add to")
    parser.add_argument("models", nargs="+", metavar="NAME=FILE", help="such as llama3.2:1b=MODEL.gguf")
    parser.add_argument("--v2", action="store_true", help="write manifests as newer versions of Ollama do")
    options = parser.parse_args(argv)
    models = {}
    for given in options.models:
        name, equals, file = given.partition("=")
        if not equals or parse(name) is None or not Path(file).is_file():
            parser.error(f"not NAME=FILE with a model's name and a file that is there: {given}")
        models[name] = Path(file)
    build_store(options.root, models, v2=options.v2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
