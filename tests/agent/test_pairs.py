"""Tests of `agent.pairs`."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from agent.pairs import choose_pair
from shared.schemas import ModelListing
from tests.agent.test_gguf import gguf, strings, text

Pairs = dict[str, bytes]


def number(value: int) -> bytes:
    """Encodes an unsigned 32-bit value."""
    return struct.pack("<II", 4, value)


def tokenizer(**changes: bytes) -> Pairs:
    """Returns the metadata of a small model, some of it changed."""
    plain = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("gpt2"),
        "tokenizer.ggml.pre": struct.pack("<I", 8) + text("gpt-2"),
        "tokenizer.ggml.tokens": strings(["<end>", "a", "b", "ab"]),
        "tokenizer.ggml.token_type": struct.pack("<IIQ4i", 9, 5, 4, 3, 1, 1, 1),
        "tokenizer.ggml.merges": strings(["a b"]),
        "tokenizer.ggml.bos_token_id": number(0),
        "tokenizer.ggml.eos_token_id": number(0),
        "tokenizer.ggml.add_bos_token": struct.pack("<I?", 7, True),
    }
    return plain | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def write(path: Path, pairs: Pairs, weight: int = 0) -> Path:
    """Writes a model whose size grows with `weight`."""
    path.write_bytes(gguf(pairs) + bytes(weight))
    return path


def test_embedded_pair_is_found() -> None:
    """The pair in the package is one family."""
    choice = choose_pair(embedded=True)
    assert (choice.found, choice.reason) == (True, "one vocabulary")
    assert choice.draft is not None and choice.draft.name == "embedded:draft"
    assert choice.target is not None and choice.target.name == "embedded:target"
    assert choice.family == "llama"
    assert [ModelListing.model_validate(model).loadable for model in choice.models] == [True, True]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokens": strings(["<end>", "a", "c", "ab"])}, "token texts"),
        ({"tokens": strings(["<end>", "a", "b", "ab", "x"])}, "token texts"),
        ({"token_type": struct.pack("<IIQ4i", 9, 5, 4, 3, 1, 1, 4)}, "token attributes"),
        ({"merges": strings(["b a"])}, "merges"),
        ({"pre": struct.pack("<I", 8) + text("llama-bpe")}, "pre-tokeniser"),
        ({"eos_token_id": number(3)}, "EOS token"),
        ({"eot_token_id": number(3)}, "EOT token"),
        ({"add_bos_token": struct.pack("<I?", 7, False)}, "add-BOS rule"),
        ({"model": struct.pack("<I", 8) + text("llama")}, "tokenizer type"),
    ],
)
def test_one_difference_is_no_family(tmp_path: Path, changes: Pairs, named: str) -> None:
    """Two models that differ in one tokenizer field are no pair, and the reason names the field."""
    draft = write(tmp_path / "draft.gguf", tokenizer())
    target = write(tmp_path / "target.gguf", tokenizer(**changes), weight=9)
    choice = choose_pair(draft=draft, target=target)
    assert not choice.found
    assert choice.reason == f"draft and target differ in their {named}"
    assert len(choice.models) == 2


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    """A file that is not there, or is no model, gives a reason with its name and no path."""
    good = write(tmp_path / "good.gguf", tokenizer())
    (tmp_path / "text.gguf").write_text("hello")
    assert choose_pair(draft=good, target=tmp_path / "gone.gguf").reason == (
        "gone cannot be used: the file does not exist"
    )
    assert choose_pair(draft=tmp_path / "text.gguf", target=good).reason == (
        "text cannot be used: it is not a GGUF file"
    )
    assert choose_pair(draft=tmp_path, target=good).reason.endswith("the file cannot be read")
    assert not choose_pair(draft=good).found


def test_one_file_is_no_pair(tmp_path: Path) -> None:
    """The same file as draft and target is refused: it could only be slower."""
    model = write(tmp_path / "m.gguf", tokenizer())
    (tmp_path / "link.gguf").symlink_to(model)
    choice = choose_pair(draft=tmp_path / "link.gguf", target=model)
    assert (choice.found, choice.reason) == (False, "draft and target are the same file")


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    """A model replaced at the same path gives another choice, so that a loaded pair is not taken for it."""
    draft, target = write(tmp_path / "d.gguf", tokenizer()), write(tmp_path / "t.gguf", tokenizer(), 5)
    before = choose_pair(draft=draft, target=target)
    assert before == choose_pair(draft=draft, target=target)
    write(target, tokenizer(), 6)
    assert before != choose_pair(draft=draft, target=target)


def store(root: Path, models: dict[str, bytes]) -> Path:
    """Lays out an Ollama store: manifest path to blob content."""
    (root / "blobs").mkdir(parents=True)
    for number_, (name, content) in enumerate(models.items()):
        digest = f"{number_:064x}"
        (root / "blobs" / f"sha256-{digest}").write_bytes(content)
        manifest = root / "manifests" / name
        manifest.parent.mkdir(parents=True, exist_ok=True)
        layers = [
            {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:ff", "size": 1},
            {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 1},
        ]
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return root


def test_ollama_store_pairs_the_smallest_with_the_largest(tmp_path: Path) -> None:
    """Of one vocabulary the smallest model drafts and the largest is the target, named as Ollama names them."""
    library = "registry.ollama.ai/library"
    other = gguf(tokenizer(pre=struct.pack("<I", 8) + text("qwen2")))
    root = store(
        tmp_path,
        {
            f"{library}/llama3.1/8b": gguf(tokenizer()) + bytes(800),
            f"{library}/llama3.2/3b": gguf(tokenizer()) + bytes(300),
            f"{library}/llama3.2/1b": gguf(tokenizer()) + bytes(100),
            f"{library}/qwen/14b": other + bytes(1400),
            "hf.co/someone/broken/latest": b"not a model",
        },
    )
    choice = choose_pair(ollama_models=root)
    assert choice.draft is not None and choice.target is not None
    assert (choice.draft.name, choice.target.name) == ("llama3.2:1b", "llama3.1:8b")
    listed = {model["name"]: model for model in choice.models}
    assert listed["hf.co/someone/broken:latest"]["loadable"] is False
    assert listed["hf.co/someone/broken:latest"]["reason"] == "it is not a GGUF file"


def test_a_store_without_a_pair_says_what_is_missing(tmp_path: Path) -> None:
    """One model alone is no pair, and neither is an empty store; the reason says so."""
    root = store(tmp_path / "one", {"registry.ollama.ai/library/llama3.1/8b": gguf(tokenizer())})
    assert choose_pair(ollama_models=root).reason == "llama3.1:8b has no smaller model with its vocabulary"
    empty = choose_pair(ollama_models=tmp_path / "none")
    assert (empty.found, empty.reason) == (False, "the Ollama store holds no model that can be used")


def test_damaged_manifests_are_passed_over(tmp_path: Path) -> None:
    """Manifests that are no JSON, or of another shape, or name a missing blob, stop nothing."""
    root = store(tmp_path, {"registry.ollama.ai/library/llama3.1/8b": gguf(tokenizer()) + bytes(9)})
    folder = root / "manifests/registry.ollama.ai/library/other"
    folder.mkdir()
    for name, content in {"a": "{", "b": "[]", "c": '{"layers": [1]}', "d": "{}"}.items():
        (folder / name).write_text(content)
    gone = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:dead", "size": 1}
    (folder / "gone").write_text(json.dumps({"layers": [gone]}))
    choice = choose_pair(ollama_models=root)
    assert not choice.found
    assert {model["name"]: model["loadable"] for model in choice.models} == {
        "llama3.1:8b": True,
        "other:gone": False,
    }
