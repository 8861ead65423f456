"""Tests of `agent.vocabulary`, on real files that differ from the embedded draft in one value."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import LoadFailed
from agent.gguf import read_arrays, read_metadata
from agent.llama import Weights
from agent.vocabulary import Fingerprint, differences, fingerprint
from tests.agent.ollama.gguf_edit import ARRAY, Gguf
from tests.agent.ollama.support import DRAFT, TARGET, smollm2, spm, variant

PLAIN = Fingerprint(
    kind="gpt2",
    type=2,
    size=4,
    texts="t",
    attributes="a",
    scores=None,
    merges="m",
    pre="gpt-2",
    bos=0,
    eos=0,
    eot=-1,
    eog=(0,),
    add_bos=True,
    add_eos=False,
    sample="s",
)


def taken(path: Path) -> Fingerprint:
    """The fingerprint of a file."""
    weights = Weights(path, "model", vocab_only=True)
    try:
        return fingerprint(weights.vocab, read_metadata(path))
    finally:
        weights.close()


def setting(index: int, value: Any) -> Callable[[list[Any]], None]:
    """Returns what sets one item of a list."""

    def change(items: list[Any]) -> None:
        items[index] = value

    return change


def swapped(items: list[Any]) -> None:
    """Exchanges the first two items."""
    items[0], items[1] = items[1], items[0]


def test_the_embedded_pair_has_one_tokenizer() -> None:
    """Both embedded models have the same fingerprint, that of a byte-level BPE of 2,048 tokens."""
    ours = taken(DRAFT)
    assert ours == taken(TARGET) == taken(DRAFT)
    assert (ours.kind, ours.type, ours.size, ours.pre) == ("gpt2", 2, 2048, "gpt-2")
    assert (ours.bos, ours.eos, ours.eot, ours.eog) == (0, 0, 0, (0,))
    assert (ours.add_bos, ours.add_eos, ours.scores) == (True, False, None)
    assert differences(ours, ours, (DRAFT, TARGET)) == []


@pytest.mark.parametrize(
    ("key", "change", "told"),
    [
        ("tokens", setting(1234, b"zzq"), ["token 1234 ('{token}' / 'zzq')"]),
        ("tokens", setting(1234, b"x" * 30), ["token 1234 ('{token}' / 'xxxxxxxxxxxxxxxxxxxxxxxx…')"]),
        ("token_type", setting(1234, 4), ["attribute of token 1234 (1 / 4)"]),
        ("merges", swapped, ["merge 0 ('{merges[0]}' / '{merges[1]}')"]),
        ("merges", lambda items: items[:-1], ["merge 1790 ('{merges[1790]}' is in one of them alone)"]),
        ("pre", lambda _: b"llama-bpe", ["pre-tokeniser (gpt-2 / llama-bpe)"]),
        ("bos_token_id", lambda _: 7, ["BOS token (0 / 7)"]),
        ("eos_token_id", lambda _: 7, ["EOS token (0 / 7)", "end-of-generation ids (0 / 0, 7)"]),
        ("add_bos_token", lambda _: False, ["add-BOS rule (yes / no)"]),
        ("add_eos_token", lambda _: True, ["add-EOS rule (no / yes)"]),
    ],
)
def test_one_difference_is_named(
    tmp_path: Path, key: str, change: Callable[[Any], Any], told: list[str]
) -> None:
    """One token's text or attribute, one merge, one special token or rule makes another tokenizer, and is named."""
    path = variant(tmp_path / "other.gguf", {f"tokenizer.ggml.{key}": change})
    ours, theirs = taken(DRAFT), taken(path)
    assert ours != theirs
    arrays = read_arrays(DRAFT, frozenset({"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}))
    token = arrays["tokenizer.ggml.tokens"][1234].decode()
    merges = [merge.decode() for merge in arrays["tokenizer.ggml.merges"]]
    assert differences(ours, theirs, (DRAFT, path)) == [
        clause.format(token=token, merges=merges) for clause in told
    ]


def test_texts_are_compared_beyond_a_nul(tmp_path: Path) -> None:
    """Texts that differ after a NUL alone, where llama.cpp's functions end them, are two texts."""
    paths = [
        variant(tmp_path / name, {"tokenizer.ggml.tokens": setting(1234, b"zzq\0" + name.encode())})
        for name in ("one", "two")
    ]
    ours, theirs = map(taken, paths)
    assert differences(ours, theirs, (paths[0], paths[1])) == ["token 1234 ('zzq one' / 'zzq two')"]


def test_a_missing_token_is_named(tmp_path: Path) -> None:
    """A vocabulary that lacks the last token is another: llama.cpp's own check would let 128 of them pass."""
    cut = {f"tokenizer.ggml.{key}": lambda items: items[:-1] for key in ("tokens", "token_type")}
    path = variant(tmp_path / "other.gguf", cut)
    found = differences(taken(DRAFT), taken(path), (DRAFT, path))
    assert found[0] == "vocabulary size (2048 / 2047)"
    assert found[1].startswith("token 2047 (") and found[1].endswith(" is in one of them alone)")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("eot_token_id", 9, ["EOT token (0 / 9)", "end-of-generation ids (0 / 0, 9)"]),
        ("eom_token_id", 9, ["end-of-generation ids (0 / 0, 9)"]),
        ("fim_pad_token_id", 9, ["end-of-generation ids (0 / 0, 9)"]),
    ],
)
def test_one_more_token_that_ends_texts_is_named(
    tmp_path: Path, key: str, value: int, told: list[str]
) -> None:
    """A token that ends texts in one model alone makes another tokenizer, whichever kind of end it is."""
    model = Gguf(DRAFT)
    model.pairs[f"tokenizer.ggml.{key}"] = (4, value)
    path = model.write(tmp_path / "other.gguf")
    assert differences(taken(DRAFT), taken(path), (DRAFT, path)) == told


def test_what_llama_cpp_finds_by_itself_is_no_difference(tmp_path: Path) -> None:
    """A file that leaves out what llama.cpp takes anyway decodes the same, and is the same tokenizer."""
    model = Gguf(DRAFT)
    del model.pairs["tokenizer.ggml.add_eos_token"]
    model.pairs["tokenizer.ggml.eot_token_id"] = (4, 0)
    assert taken(model.write(tmp_path / "other.gguf")) == taken(DRAFT)


def test_no_field_tells_but_a_sample_does(tmp_path: Path) -> None:
    """Files that cut a text differently by a rule that is in no field compared have other tokenizers."""
    model = spm()
    one = model.write(tmp_path / "one.gguf")
    model.pairs["tokenizer.ggml.add_space_prefix"] = (7, False)
    other = model.write(tmp_path / "other.gguf")
    assert differences(taken(one), taken(other), (one, other)) == ["the way they cut a sample text"]


def test_scores_count_where_they_decide(tmp_path: Path) -> None:
    """Scores are compared in vocabularies that cut by them, and left aside in those that cut by merges."""
    bpe = Gguf(DRAFT)
    bpe.pairs["tokenizer.ggml.scores"] = (ARRAY, (6, [float(-i) for i in range(2048)]))
    assert taken(bpe.write(tmp_path / "bpe.gguf")) == taken(DRAFT)
    one = spm().write(tmp_path / "one.gguf")
    other = spm().change("tokenizer.ggml.scores", setting(777, -0.5)).write(tmp_path / "other.gguf")
    assert differences(taken(one), taken(other), (one, other)) == ["score of token 777 (-777.0 / -0.5)"]


def test_other_families_differ_in_much(tmp_path: Path) -> None:
    """SmolLM2 and the embedded pair call themselves one architecture and share hardly anything of their tokenizers."""
    found = differences(taken(DRAFT), taken(smollm2()), (DRAFT, smollm2()))
    assert found[0] == "vocabulary size (2048 / 49152)"
    assert found[1].startswith("token 1 (")
    assert "pre-tokeniser (gpt-2 / smollm)" in found


def test_every_value_is_compared() -> None:
    """Whatever field of two fingerprints differs, something is told, and nothing for equal ones."""
    assert differences(PLAIN, PLAIN) == []
    for field in fields(Fingerprint):
        value = getattr(PLAIN, field.name)
        other: dict[type, Any] = {str: "other", int: 77, bool: not value, tuple: (5,), type(None): "other"}
        changed: dict[str, Any] = {field.name: other[type(value)]}
        found = differences(PLAIN, replace(PLAIN, **changed))
        assert len(found) == 1, field.name


def test_without_files_the_kind_is_told() -> None:
    """Without the files, or with files that cannot be read any more, what differs is told without its place."""
    other = replace(PLAIN, texts="x", merges="y")
    assert differences(PLAIN, other) == ["token texts", "merges"]
    gone = Path("/nowhere/at/all")
    assert differences(PLAIN, other, (gone, gone)) == ["token texts", "merges"]
    assert differences(PLAIN, other, (DRAFT, DRAFT)) == ["token texts", "merges"]


def test_how_values_are_shown() -> None:
    """Missing tokens and rules, and long lists, are shown as words."""
    other = replace(PLAIN, bos=-1, eog=tuple(range(10)), merges=None, pre=None)
    assert differences(PLAIN, other) == [
        "merges",
        "pre-tokeniser (gpt-2 / none)",
        "BOS token (0 / none)",
        "end-of-generation ids (0 / 0, 1, 2, 3, 4, 5, 6, 7, …)",
    ]
    assert differences(PLAIN, replace(PLAIN, eog=())) == ["end-of-generation ids (0 / none)"]


@pytest.mark.parametrize("changed", [{"tokenizer.ggml.model": 7}, {"tokenizer.ggml.tokens": "x"}])
def test_a_file_that_says_something_else_is_refused(changed: dict[str, Any]) -> None:
    """Metadata that are not those llama.cpp has loaded make no fingerprint."""
    weights = Weights(DRAFT, "draft", vocab_only=True)
    try:
        with pytest.raises(LoadFailed, match="no whole tokenizer"):
            fingerprint(weights.vocab, read_metadata(DRAFT) | changed)
        with pytest.raises(LoadFailed, match="no whole tokenizer"):
            fingerprint(weights.vocab, read_metadata(smollm2()))
    finally:
        weights.close()


def test_gguf_edit_changes_nothing_else(tmp_path: Path) -> None:
    """The tests' own way of changing files leaves what it does not change as it is, byte for byte."""
    assert Gguf(DRAFT).write(tmp_path / "same.gguf").read_bytes() == DRAFT.read_bytes()
    cut = Gguf(DRAFT).write(tmp_path / "cut.gguf", tensors=False).read_bytes()
    assert struct.unpack_from("<Q", cut, 8) == (0,)
