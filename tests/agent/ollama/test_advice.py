"""Tests of `agent.ollama.advice`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.ollama.advice import FAMILIES, family_of, pull
from agent.ollama.names import parse
from agent.vocabulary import Fingerprint
from tests.agent.test_vocabulary import PLAIN

LLAMA31 = replace(PLAIN, size=128_256, eos=128_009, eog=(128_001, 128_008, 128_009))


@pytest.mark.parametrize(
    ("architecture", "tokenizer", "small"),
    [
        ("llama", LLAMA31, "llama3.2:1b"),
        ("llama", replace(LLAMA31, eog=(128_001, 128_009)), None),
        ("llama", replace(LLAMA31, eos=128_001), None),
        ("llama", replace(LLAMA31, size=128_257), None),
        ("qwen3", LLAMA31, None),
        ("qwen3", replace(PLAIN, size=151_936, eos=151_645), "qwen3:0.6b"),
        ("qwen2", replace(PLAIN, size=151_936, eos=151_645, eog=(151_643, 151_645, 151_662)), "qwen2.5:0.5b"),
        ("qwen2", replace(PLAIN, size=152_064, eos=151_645, eog=(151_643, 151_645, 151_662)), "qwen2.5:7b"),
        ("qwen2", replace(PLAIN, size=151_936, eos=151_645, eog=(151_643, 151_645)), None),
        ("gemma2", replace(PLAIN, size=256_000, eos=1), "gemma2:2b"),
        ("llama", replace(PLAIN, size=49_152, eos=2), "smollm2:135m"),
        ("llama", None, None),
    ],
)
def test_the_vocabulary_tells_the_family(
    architecture: str, tokenizer: Fingerprint | None, small: str | None
) -> None:
    """Models are told by architecture, size and end tokens, whatever they are called."""
    for name in (None, parse("someone/own:1"), parse("hf.co/library/llama3.1:8b")):
        family = family_of(name, architecture, tokenizer)
        assert (family and family.small) == small


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("llama3.1:8b", "llama3.2:1b"),
        ("Llama3.3", "llama3.2:1b"),
        ("qwen3:32b", "qwen3:0.6b"),
        ("qwen2.5:32b", None),
        ("llama3:8b", None),
        ("someone/llama3.1:8b", None),
        ("hf.co/library/llama3.1:8b", None),
    ],
)
def test_the_name_tells_it_where_the_vocabulary_does_not(name: str, small: str | None) -> None:
    """A name of Ollama's library tells the family of a model whose vocabulary is none of those known."""
    family = family_of(parse(name), "llama", PLAIN)
    assert (family and family.small) == small


def test_the_table_is_sound() -> None:
    """All its models are names of the library, and no two families are alike."""
    for family in FAMILIES:
        for text in (family.small, family.large):
            name = parse(text)
            assert name is not None and name.in_library and str(name) == text
    keys = [(one.architecture, one.size, one.eos, one.ends) for one in FAMILIES]
    assert len(set(keys)) == len(keys)
    known = [model for family in FAMILIES for model in family.models]
    assert len(set(known)) == len(known)


def test_what_to_run() -> None:
    """One model or several are pulled by commands that can be copied."""
    assert pull("a:1") == "run `ollama pull a:1`"
    assert pull("a:1", "b:2") == "run `ollama pull a:1` and `ollama pull b:2`"
