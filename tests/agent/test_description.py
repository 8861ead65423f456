"""Tests of `agent.description`, on real files that llama.cpp takes, refuses, or dies over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from agent import filefacts
from agent.description import Description, describe
from agent.errors import LoadFailed, OutOfMemory
from agent.filefacts import FileFacts
from agent.gguf import read_metadata
from tests.agent.ollama.gguf_edit import STRING, Gguf
from tests.agent.ollama.support import DRAFT, smollm2, variant
from tests.agent.support import PATIENCE, ROOT


@pytest.fixture(autouse=True)
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files written just now count as settled."""
    monkeypatch.setattr(filefacts, "SETTLED_NS", -(10**18))


def added(path: Path, pairs: dict[str, tuple[int, Any]]) -> Path:
    """Writes the embedded draft with more metadata."""
    model = Gguf(DRAFT)
    model.pairs |= pairs
    return model.write(path)


def renamed(path: Path, family: str) -> Path:
    """Writes the embedded draft as a model of another family."""
    model = Gguf(DRAFT)
    model.pairs = {
        key.replace("llama.", f"{family}.") if key.startswith("llama.") else key: value
        for key, value in model.pairs.items()
    }
    model.pairs["general.architecture"] = (STRING, family.encode())
    return model.write(path)


def test_the_embedded_draft() -> None:
    """Of a model that can be used all is known that choosing and loading it needs."""
    known = describe(DRAFT, FileFacts())
    assert (known.family, known.fault, known.trained_context) == ("llama", None, 2048)
    assert known.parameters == 1_278_912
    assert known.cache_per_token == 2 * 2 * 3 * (64 + 64)
    assert known.tokenizer is not None and known.tokenizer.size == 2048
    assert known.need(10**6) == known.need(2048)


def test_smollm2() -> None:
    """A quantised model of the world outside is described as well."""
    known = describe(smollm2(), FileFacts())
    assert (known.family, known.fault, known.parameters) == ("llama", None, 134_515_008)
    assert known.tokenizer is not None and known.tokenizer.pre == "smollm"


@pytest.mark.parametrize("family", ["bert", "nomic-bert", "gemma-embedding"])
def test_encoders_write_no_text(tmp_path: Path, family: str) -> None:
    """Models for embeddings are told by their family, before llama.cpp is asked."""
    known = describe(renamed(tmp_path / "model.gguf", family), FileFacts())
    assert (known.family, known.fault) == (family, "it is a model for embeddings, which writes no text")


@pytest.mark.parametrize(
    ("pairs", "fault"),
    [
        ({"llama.attention.causal": (7, False)}, "it is a model for embeddings, which writes no text"),
        ({"llama.pooling_type": (4, 1)}, "it is a model for embeddings, which writes no text"),
        ({"llama.pooling_type": (4, 0)}, None),
        ({"general.type": (STRING, b"adapter")}, "it is an adapter, not a model"),
        ({"general.type": (STRING, b"mmproj")}, "it is a projector, not a model"),
        ({"general.type": (STRING, b"model")}, None),
        ({"split.count": (2, 3)}, "it is one of 3 parts of a model"),
        ({"split.count": (2, 1)}, None),
        ({"general.architecture": (STRING, b"")}, "it has no tokenizer"),
        ({"general.architecture": (4, 7)}, "it has no tokenizer"),
        ({"tokenizer.ggml.tokens": (STRING, b"none")}, "it has no tokenizer"),
    ],
)
def test_what_the_metadata_tell(tmp_path: Path, pairs: dict[str, tuple[int, Any]], fault: str | None) -> None:
    """What a file is by its own words decides before llama.cpp is asked."""
    assert describe(added(tmp_path / "model.gguf", pairs), FileFacts()).fault == fault


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("t5", "it needs an encoder, so it cannot go on with a text by itself"),
        ("t5encoder", "it needs an encoder, so it cannot go on with a text by itself"),
        ("eagle3", "it needs an encoder, so it cannot go on with a text by itself"),
        ("mamba", "it is recurrent (mamba), so that refused tokens cannot be taken back"),
        ("rwkv7", "it is recurrent (rwkv7), so that refused tokens cannot be taken back"),
        ("jamba", "it is recurrent (jamba), so that refused tokens cannot be taken back"),
        ("qwen3next", "it is recurrent (qwen3next), so that refused tokens cannot be taken back"),
        ("dream", "it is a diffusion model, which does not write one token after the other"),
        ("nosuchfamily", "llama.cpp cannot load it (unknown model architecture: 'nosuchfamily')"),
        ("mllama", "llama.cpp cannot load it (unknown model architecture: 'mllama')"),
    ],
)
def test_what_llama_cpp_says_of_a_family(tmp_path: Path, family: str, fault: str) -> None:
    """Families that cannot take part in speculation, or that llama.cpp does not know, are told as such."""
    known = describe(renamed(tmp_path / "model.gguf", family), FileFacts())
    assert (known.family, known.fault, known.tokenizer) == (family, fault, None)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"tokenizer.ggml.pre": lambda _: b"nosuchpre"}, "(unknown pre-tokenizer type: 'nosuchpre')"),
        ({"llama.block_count": lambda _: 3}, "(tensor 'blk.2.attn_norm.weight' not found)"),
        ({"llama.block_count": lambda _: 1}, "(wrong number of tensors; expected 20, got 11)"),
        ({"llama.feed_forward_length": lambda _: 500}, "has wrong shape; expected"),
        ({"tokenizer.ggml.model": lambda _: b"nosuchkind"}, "(unknown tokenizer: 'nosuchkind')"),
        ({"tokenizer.ggml.model": lambda _: b"no/such/kind"}, "; its own words are in the agent's log"),
    ],
)
def test_what_llama_cpp_would_not_load(
    tmp_path: Path, change: dict[str, Callable[[Any], Any]], fault: str
) -> None:
    """A file whose vocabulary loads and whose weights would not is found out without reading them.

    Ollama's own llama.cpp takes files that the plain one refuses, for example with other tensors than it expects.
    """
    known = describe(variant(tmp_path / "model.gguf", change), FileFacts())
    assert known.fault is not None
    assert known.fault.startswith("llama.cpp cannot load it") and fault in known.fault
    assert str(tmp_path) not in known.fault


def test_a_file_cut_short(tmp_path: Path) -> None:
    """A file that ends within its tensors is found out."""
    path = tmp_path / "model.gguf"
    path.write_bytes(DRAFT.read_bytes()[:-1000])
    fault = describe(path, FileFacts()).fault
    assert fault is not None and fault.endswith(
        "data is not within the file bounds, model is corrupted or incomplete)"
    )


@pytest.mark.parametrize(
    ("content", "fault"), [(b"", "it is not a GGUF file"), (b"GGUF" + bytes(2), "the GGUF file is cut short")]
)
def test_what_is_no_gguf_file(tmp_path: Path, content: bytes, fault: str) -> None:
    """A file of another kind, or damaged in its first bytes, is told as such."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert describe(path, FileFacts()) == Description(
        fault=fault if content else "the GGUF file is cut short"
    )


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A file that is gone is an error and no fault: it may come back."""
    with pytest.raises(FileNotFoundError):
        describe(tmp_path / "gone", FileFacts())


def test_names_that_are_no_names(tmp_path: Path) -> None:
    """A family's name is cut and made one line before anybody is shown it."""
    known = describe(renamed(tmp_path / "model.gguf", "evil\n" + "x" * 1000), FileFacts())
    assert known.family == "evil " + "x" * 59


def test_what_is_known_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out comes back from the facts as it was, without the file being opened; damaged facts do not."""
    path = tmp_path / "facts.json"
    model = variant(tmp_path / "model.gguf")
    first = describe(model, FileFacts(path))
    opened: list[Path] = []

    def counted(file: Path) -> dict[str, Any]:
        opened.append(file)
        return read_metadata(file)

    monkeypatch.setattr("agent.description.read_metadata", counted)
    assert describe(model, FileFacts(path)) == first
    assert opened == []
    content = json.loads(path.read_text())
    (entry,) = content["files"].values()
    assert entry["told"] == json.loads(json.dumps(asdict(first)))
    entry["told"]["weights"] = "heavy"
    path.write_text(json.dumps(content))
    assert describe(model, FileFacts(path)) == first
    assert opened == [model]


def test_no_memory_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that could not be looked at for want of memory is not held against it."""

    def refused(*_: Any) -> None:
        from agent import llama

        llama._said.append("ggml_aligned_malloc: failed to allocate 7 MB")

    facts = FileFacts(tmp_path / "facts.json")
    model = variant(tmp_path / "model.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_model_load_from_file", refused)
        with pytest.raises(OutOfMemory):
            describe(model, facts)
    assert describe(model, facts).fault is None


def test_no_weight_is_read(tmp_path: Path) -> None:
    """Looking at a model takes none of its weights into memory: what is no weight at all passes."""
    path = tmp_path / "model.gguf"
    content = DRAFT.read_bytes()
    path.write_bytes(content[:-1_000_000] + b"\xff" * 1_000_000)
    assert describe(path, FileFacts()).fault is None


def test_a_file_that_llama_cpp_dies_over(tmp_path: Path) -> None:
    """A file over which llama.cpp really ends the process is left alone after two deaths; the others are described."""

    def twice(items: list[bytes]) -> None:
        items[1234] = items[1235]

    model = variant(tmp_path / "model.gguf", {"tokenizer.ggml.tokens": twice})
    facts = tmp_path / "facts.json"
    code = (
        "import sys\nfrom pathlib import Path\nfrom agent import filefacts\nfrom agent.description import describe\n"
        "filefacts.SETTLED_NS = -10**18\nprint(describe(Path(sys.argv[1]), filefacts.FileFacts(Path(sys.argv[2]))))\n"
    )
    for _ in range(filefacts.DEATHS):
        done = subprocess.run(
            [sys.executable, "-c", code, str(model), str(facts)],
            cwd=ROOT,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
            capture_output=True,
            timeout=PATIENCE,
        )
        assert done.returncode < 0 and not done.stdout
    with pytest.raises(LoadFailed, match="llama.cpp died while reading it"):
        describe(model, FileFacts(facts))
    assert describe(DRAFT, FileFacts(facts)).fault is None
