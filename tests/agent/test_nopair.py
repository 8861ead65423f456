"""Tests of `agent.nopair`, for what no store in `test_pairs` shows: models of the families people have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.candidates import Candidate, ModelFile
from agent.description import Description
from agent.nopair import differing, too_large, unmatched_draft, unmatched_target
from agent.ollama.names import parse
from agent.vocabulary import Fingerprint
from tests.agent.ollama.test_advice import LLAMA31
from tests.agent.test_vocabulary import PLAIN

GIB = 1024**3


def model(name: str, size: int, tokenizer: Fingerprint | None, family: str = "llama") -> Candidate:
    """A model that can be used."""
    known = Description(family=family, tokenizer=tokenizer)
    return Candidate(ModelFile(name, Path("/none"), version=(size, 0)), known, id=(0, size), name=parse(name))


@pytest.mark.parametrize(
    ("name", "tokenizer", "reason"),
    [
        (
            "llama3.1:8b",
            LLAMA31,
            "llama3.1:8b has no smaller model with its vocabulary: run `ollama pull llama3.2:1b`",
        ),
        (
            "someone/finetune:8b",
            LLAMA31,
            "someone/finetune:8b has no smaller model with its vocabulary: run `ollama pull llama3.2:1b`",
        ),
        (
            "llama3.2:1b",
            LLAMA31,
            "llama3.2:1b has no larger model with its vocabulary: run `ollama pull llama3.1:8b`",
        ),
        (
            "some:1",
            PLAIN,
            "some:1 has no smaller model with its vocabulary: pull a smaller model of its family with `ollama pull`, "
            "or name a pair with --draft and --target",
        ),
    ],
)
def test_what_a_lone_model_lacks(name: str, tokenizer: Fingerprint, reason: str) -> None:
    """A model alone lacks a smaller one, or a larger one if it is the smallest of its family."""
    alone = model(name, 10, tokenizer)
    assert unmatched_target(alone, [alone], [alone]) == reason


def test_the_closest_relative_is_named() -> None:
    """Of smaller models of the architecture the one that differs in least is named, and no other architecture's."""
    target = model("llama3.1:8b", 10, LLAMA31)
    far = model("far:1", 5, replace(LLAMA31, size=1, texts="x", merges="y"))
    near = model("near:1", 7, replace(LLAMA31, add_bos=False))
    foreign = model("foreign:1", 6, replace(LLAMA31, pre="x"), family="qwen2")
    larger = model("larger:1", 11, replace(LLAMA31, pre="x"))
    everyone = [far, near, foreign, larger, target]
    assert unmatched_target(target, everyone, everyone) == (
        "llama3.1:8b has no smaller model with its vocabulary (near:1 differs in add-BOS rule (yes / no)): "
        "run `ollama pull llama3.2:1b`"
    )
    assert "(" not in unmatched_target(target, [foreign, larger, target], everyone)


def test_many_differences_are_cut() -> None:
    """Of tokenizers that have nothing in common the first four differences are told."""
    one, other = (
        model("a:1", 1, PLAIN),
        model("b:1", 2, replace(PLAIN, size=5, texts="x", merges="y", pre="z", bos=3)),
    )
    assert (
        differing(one, other) == "vocabulary size (4 / 5), token texts, merges, pre-tokeniser (gpt-2 / z), …"
    )
    assert differing(one, model("c:1", 3, None)) == "their tokenizer"


def test_the_largest_of_a_family_lacks_a_larger_one() -> None:
    """A pinned draft that is what people take as the target is not told to pull itself."""
    assert unmatched_draft(model("llama3.1:8b", 10, LLAMA31)).endswith(
        "pull a larger model of its family with `ollama pull`, or name a pair with --draft and --target"
    )
    assert unmatched_draft(model("own:3b", 10, LLAMA31)).endswith(": run `ollama pull llama3.1:8b`")


def test_sizes_are_told_in_units_that_fit() -> None:
    """Needs of gigabytes and of megabytes are told in those."""
    one = model("a:1", 1, PLAIN)
    told = too_large(one, one, needed=12 * GIB, context=4096, memory=GIB // 2)
    assert "need 12.0 GiB for 4096 tokens of context, and there are 512.0 MiB" in told
