"""What tells one tokenizer from another, and in what two of them differ.

Same family means one tokenizer, field by field (design: "Same family"); sharing a family's name is not enough.
llama.cpp's own check lets 128 missing tokens, other merges and another pre-tokeniser pass.

Most is taken from a load of the vocabulary alone by llama.cpp, as that is what decodes: attributes and special tokens
are in part found by llama.cpp itself. The texts, merges and scores are those of the file, hashed: a text with a NUL in
it is cut short by llama.cpp's functions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import LoadFailed
from agent.gguf import Array, read_arrays
from shared.models import one_line

if TYPE_CHECKING:
    from agent.llama import Vocabulary

SCORED = (1, 4)
"""Types of vocabulary that cut texts by scores: SPM and UGM (llama.h, enum llama_vocab_type)."""

SAMPLE = (
    "Hello, I'm 12345.67 — naïve\tcafé\r\n\n  def f(x): return x**2  # 日本語 🙂🙂\u200b Ελλάδα don't WON'T"
)
"""A text that tokenizers cut differently, for what no field tells: spaces put in front, normalisation, and so on."""

_NOUNS = {
    "kind": "tokenizer type",
    "type": "vocabulary type",
    "size": "vocabulary size",
    "texts": "token texts",
    "attributes": "token attributes",
    "scores": "token scores",
    "merges": "merges",
    "pre": "pre-tokeniser",
    "bos": "BOS token",
    "eos": "EOS token",
    "eot": "EOT token",
    "eog": "end-of-generation ids",
    "add_bos": "add-BOS rule",
    "add_eos": "add-EOS rule",
    "sample": "the way they cut a sample text",
}
"""What to call each value of a fingerprint."""

_ARRAYS = {
    "texts": ("tokenizer.ggml.tokens", "token"),
    "attributes": ("tokenizer.ggml.token_type", "attribute of token"),
    "scores": ("tokenizer.ggml.scores", "score of token"),
    "merges": ("tokenizer.ggml.merges", "merge"),
}
"""Those that are hashes of a whole array: where it is in the file, and what to call one of its items."""

_SHOWN = 24


@dataclass(frozen=True)
class Fingerprint:
    """A tokenizer, in values that are equal for equal ones; hashes are SHA-256 in hex.

    Attributes:
        kind: The file's name for the type of tokenizer.
        type: llama.cpp's number for it.
        size: Tokens.
        texts: Hash of the tokens' texts, by id.
        attributes: Hash of the tokens' attributes, by id.
        scores: Hash of the tokens' scores, by id; None where scores decide nothing.
        merges: Hash of the merges, in order; None if there are none.
        pre: The pre-tokeniser; None if the file names none.
        bos: Id of the begin-of-text token, -1 if there is none; `eos` and `eot` likewise for the ends of text and turn.
        eog: Ids that end a text.
        add_bos: Whether a text gets a begin-of-text token; `add_eos` likewise at its end.
        sample: Hash of the token ids of `SAMPLE`.
    """

    kind: str
    type: int
    size: int
    texts: str
    attributes: str
    scores: str | None
    merges: str | None
    pre: str | None
    bos: int
    eos: int
    eot: int
    eog: tuple[int, ...]
    add_bos: bool
    add_eos: bool
    sample: str


def fingerprint(vocabulary: Vocabulary, metadata: dict[str, Any]) -> Fingerprint:
    """Returns a tokenizer's fingerprint.

    Args:
        vocabulary: As llama.cpp has loaded it.
        metadata: The file's (`agent.gguf.read_metadata`).

    Raises:
        LoadFailed: If the file does not hold what a tokenizer must have.
    """
    import llama_cpp

    handle, size = vocabulary.handle, vocabulary.size
    kind, texts = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(kind, str) or not isinstance(texts, Array) or texts.count != size:
        raise LoadFailed("it has no whole tokenizer")
    attribute = llama_cpp.llama_vocab_get_attr
    attributes = b"".join(
        attribute(handle, token).to_bytes(4, "little", signed=True) for token in range(size)
    )
    number = int(llama_cpp.llama_vocab_type(handle))
    sample = vocabulary.tokenize(SAMPLE)
    return Fingerprint(
        kind=one_line(kind, 64),
        type=number,
        size=size,
        texts=texts.sha256,
        attributes=hashlib.sha256(attributes).hexdigest(),
        scores=_hash(metadata, "scores") if number in SCORED else None,
        merges=_hash(metadata, "merges"),
        pre=one_line(pre, 64) if isinstance(pre, str) else None,
        bos=int(llama_cpp.llama_vocab_bos(handle)),
        eos=int(llama_cpp.llama_vocab_eos(handle)),
        eot=int(llama_cpp.llama_vocab_eot(handle)),
        eog=tuple(token for token in range(size) if vocabulary.ends(token)),
        add_bos=bool(llama_cpp.llama_vocab_get_add_bos(handle)),
        add_eos=bool(llama_cpp.llama_vocab_get_add_eos(handle)),
        sample=hashlib.sha256(" ".join(map(str, sample)).encode()).hexdigest(),
    )


def _hash(metadata: dict[str, Any], key: str) -> str | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    return value.sha256 if isinstance(value, Array) else None


def differences(one: Fingerprint, other: Fingerprint, files: tuple[Path, Path] | None = None) -> list[str]:
    """Returns what two tokenizers differ in, each a noun with both values: "merge 3 ('a b' / 'a c')".

    Args:
        one: A tokenizer.
        other: Another one.
        files: Their files, read again to name the first token and merge that differ.
    """
    found: list[str] = []
    arrays: list[dict[str, list[Any]]] = []
    if files is not None and any(getattr(one, name) != getattr(other, name) for name in _ARRAYS):
        try:
            arrays = [read_arrays(path, frozenset(key for key, _ in _ARRAYS.values())) for path in files]
        except (OSError, LoadFailed):
            arrays = []
    for name, noun in _NOUNS.items():
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours == theirs or (name == "sample" and found):
            continue
        if name in _ARRAYS:
            found.append(_first(arrays, *_ARRAYS[name]) or noun)
        elif name == "sample":
            found.append(noun)
        else:
            found.append(f"{noun} ({_show(ours)} / {_show(theirs)})")
    return found


def _first(arrays: list[dict[str, list[Any]]], key: str, item: str) -> str | None:
    """Returns the first item of an array that differs between two files; None if that cannot be told."""
    ours, theirs = (array.get(key, []) for array in arrays or [{}, {}])
    for i, (mine, yours) in enumerate(zip(ours, theirs, strict=False)):
        if mine != yours:
            return f"{item} {i} ({_show(mine)} / {_show(yours)})"
    if len(ours) == len(theirs):
        return None
    i, longer = min(len(ours), len(theirs)), max(ours, theirs, key=len)
    return f"{item} {i} ({_show(longer[i])} is in one of them alone)"


def _show(value: Any) -> str:
    if isinstance(value, bytes):
        text = one_line(value.decode("utf-8", "replace"), _SHOWN + 1)
        return f"'{text[:_SHOWN]}…'" if len(text) > _SHOWN else f"'{text}'"
    if isinstance(value, tuple):
        return ", ".join(map(str, value[:8])) + (", …" if len(value) > 8 else "") if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None or value == -1 else str(value)
