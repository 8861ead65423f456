"""Tests of `tools.ollama_store`: a store as Ollama writes it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from agent.ollama.store import read_store
from agent.pairs import EMBEDDED, choose_pair
from tools.ollama_store import add_model, build_store, main, remove_model

DRAFT, TARGET = EMBEDDED / "draft.gguf", EMBEDDED / "target.gguf"
NAMES = {"llama3.2:1b": DRAFT, "llama3.1:8b": TARGET}


def blobs(root: Path) -> set[str]:
    """The names of all blobs."""
    return {path.name for path in (root / "blobs").iterdir()}


def test_the_manifest_is_as_ollama_writes_it(tmp_path: Path) -> None:
    """Fields, media types and digests are Ollama's, in its order, and every blob is what its name says."""
    root = build_store(tmp_path, {"llama3.2:1b": DRAFT})
    text = (root / "manifests/registry.ollama.ai/library/llama3.2/1b").read_text()
    assert text.startswith(
        '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":{"mediaType":'
        '"application/vnd.docker.container.image.v1+json","digest":"sha256:'
    )
    assert text.endswith("}\n")
    manifest = json.loads(text)
    assert [layer["mediaType"] for layer in manifest["layers"]] == [
        f"application/vnd.ollama.image.{kind}" for kind in ("model", "template", "license", "params")
    ]
    for layer in (manifest["config"], *manifest["layers"]):
        content = (root / "blobs" / layer["digest"].replace(":", "-")).read_bytes()
        assert layer["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert layer["size"] == len(content)
    assert len(blobs(root)) == 5
    config = json.loads((root / "blobs" / manifest["config"]["digest"].replace(":", "-")).read_text())
    assert (config["model_format"], config["model_family"]) == ("gguf", "llama")
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]


@pytest.mark.parametrize("v2", [False, True])
def test_the_agent_finds_the_pair(tmp_path: Path, v2: bool) -> None:
    """In a store built from the embedded pair the agent finds that pair, by Ollama's names."""
    choice = choose_pair(ollama_models=build_store(tmp_path, NAMES, v2=v2))
    assert choice.draft is not None and choice.target is not None
    assert (choice.draft.name, choice.target.name) == ("llama3.2:1b", "llama3.1:8b")


@pytest.mark.parametrize("v2", [False, True])
def test_removing_a_model(tmp_path: Path, v2: bool) -> None:
    """Manifest, folders left empty and blobs nobody names any more go; what another model names stays."""
    root = build_store(tmp_path, {"llama3.2:1b": DRAFT}, v2=v2)
    before = blobs(root)
    add_model(root, "alias:1", DRAFT, v2=v2)
    add_model(root, "llama3.1:8b", TARGET, v2=v2)
    remove_model(root, "alias:1")
    remove_model(root, "llama3.1:8b")
    remove_model(root, "llama3.1:8b")
    assert blobs(root) == before
    assert [str(model.name) for model in read_store(root).models] == ["llama3.2:1b"]
    assert not (root / "manifests/registry.ollama.ai/library/alias").exists()
    remove_model(root, "llama3.2:1b")
    assert (blobs(root), read_store(root).models) == (set(), ())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command builds a store, and refuses what is no name or no file."""
    root = tmp_path / "models"
    assert main([str(root), *(f"{name}={file}" for name, file in NAMES.items())]) == 0
    assert [str(model.name) for model in read_store(root).models] == ["llama3.1:8b", "llama3.2:1b"]
    for wrong in ("llama3.2:1b", f"../x={DRAFT}", f"m:1={tmp_path / 'gone'}"):
        with pytest.raises(SystemExit):
            main([str(root), wrong])
        assert "not NAME=FILE" in capsys.readouterr().err


def test_what_is_no_model_is_stored_all_the_same(tmp_path: Path) -> None:
    """Any file is stored, as Ollama stores what it pulls; a name that is none is refused."""
    (tmp_path / "text").write_text("hello")
    root = build_store(tmp_path / "models", {"text:1": tmp_path / "text"})
    assert read_store(root).models[0].fault is None
    with pytest.raises(ValueError, match="not a model name"):
        add_model(root, "../x", DRAFT)
