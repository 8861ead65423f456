"""Tests of `agent.ollama.names`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ollama.names import ModelName, from_path, parse


@pytest.mark.parametrize(
    ("text", "path", "shown"),
    [
        ("llama3.2", "registry.ollama.ai/library/llama3.2/latest", "llama3.2:latest"),
        ("llama3.2:1b", "registry.ollama.ai/library/llama3.2/1b", "llama3.2:1b"),
        ("someone/model", "registry.ollama.ai/someone/model/latest", "someone/model:latest"),
        ("library/model:x", "registry.ollama.ai/library/model/x", "model:x"),
        (
            "hf.co/someone/Some-GGUF:Q4_K_M",
            "hf.co/someone/Some-GGUF/Q4_K_M",
            "hf.co/someone/Some-GGUF:Q4_K_M",
        ),
        (
            "localhost:5000/library/model",
            "localhost:5000/library/model/latest",
            "localhost:5000/library/model:latest",
        ),
        ("127.0.0.1:80/a/b:c", "127.0.0.1:80/a/b/c", "127.0.0.1:80/a/b:c"),
        ("https://example.com/a/b", "example.com/a/b/latest", "example.com/a/b:latest"),
        ("http://example.com/a/b:v1.0", "example.com/a/b/v1.0", "example.com/a/b:v1.0"),
        ("ollama.com/library/model:x", "registry.ollama.ai/library/model/x", "model:x"),
        ("_a/_b:_c", "registry.ollama.ai/_a/_b/_c", "_a/_b:_c"),
    ],
)
def test_names_as_ollama_shows_and_files_them(text: str, path: str, shown: str) -> None:
    """A name is filled in, filed under its four parts, and shown as short as Ollama shows it."""
    name = parse(text)
    assert name is not None
    assert (name.path, str(name)) == (path, shown)
    assert from_path(path.split("/")) == name
    assert parse(shown) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "/",
        "a:",
        ":a",
        "a/",
        "/a",
        "a//b",
        "..",
        "../a",
        "a/..:b",
        "a:..",
        "a/../b:c",
        "h/n/m/t",
        ".hidden",
        "a:.hidden",
        "-a",
        "a b",
        "a\nb",
        "a\0",
        "é",
        "a:b:c",
        "dotted.name/model",
        "host/dotted.space/model",
        "https://",
        "a" * 81,
        "model:" + "t" * 81,
        "h" * 120 + "/" + "n" * 80 + "/model",
        "model@sha256-" + "0" * 64,
    ],
)
def test_what_is_no_name(text: str) -> None:
    """Empty, hidden, over-long and climbing parts, and characters that Ollama does not take, make no name."""
    assert parse(text) is None


@pytest.mark.parametrize(
    "parts",
    [
        ("registry.ollama.ai", "library", "llama3.2", ".DS_Store"),
        ("registry.ollama.ai", "library", ".DS_Store", "latest"),
        ("registry.ollama.ai", "library", "llama3.2", ".."),
        ("registry.ollama.ai", "library", "", "latest"),
        ("registry.ollama.ai", "library", "llama3.2"),
        ("registry.ollama.ai", "library", "skill", "llama3.2", "latest"),
        ("registry.ollama.ai", "library", "llama3.2", "a:b"),
        ("registry.ollama.ai", "library", "llama3.2", "a\udcff"),
        (),
    ],
)
def test_what_is_no_manifest(parts: tuple[str, ...]) -> None:
    """Files that Ollama would not take for a manifest are none."""
    assert from_path(parts) is None


def test_names_in_another_case_are_one() -> None:
    """Names that differ in case alone are equal once folded, yet keep their case on disk."""
    one, other = parse("HF.co/Someone/Model:Q4"), parse("hf.co/someone/model:q4")
    assert one is not None and other is not None
    assert one.folded == other.folded
    assert one.path == "HF.co/Someone/Model/Q4"
    assert str(parse("Registry.Ollama.AI/Library/Model")) == "Model:latest"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama3.2:1b", True),
        ("LIBRARY/llama3.2", True),
        ("someone/llama3.2", False),
        ("hf.co/library/llama3.2", False),
    ],
)
def test_names_of_the_library(text: str, expected: bool) -> None:
    """A name of Ollama's own library has its host and its namespace."""
    name = parse(text)
    assert name is not None and name.in_library is expected


@given(st.text(alphabet="aB0_-.:/@ \n\0é", max_size=20))
def test_whatever_is_a_name_comes_back(text: str) -> None:
    """A text is refused or becomes a name that is the same after being shown, and after being filed."""
    name = parse(text)
    if name is not None:
        assert parse(str(name)) == name
        assert from_path(name.path.split("/")) == name
        assert ".." not in name.path.split("/")


def test_a_whole_name() -> None:
    """The parts of a name are as they were given."""
    assert parse("h.x:1/n/m:t") == ModelName("h.x:1", "n", "m", "t")
