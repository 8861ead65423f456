"""Tests of `agent.llama`: llama.cpp itself, with the embedded pair's draft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from agent import llama
from agent.decode import CacheError
from agent.errors import LoadFailed, OutOfMemory, RequestRefused
from agent.llama import BATCH, Context, Weights
from agent.pairs import EMBEDDED

DRAFT = EMBEDDED / "draft.gguf"

ROUNDING = 0.02
"""Logits of equal contexts differ by less when read in passes of other widths: kernels for f16 weights round
activations to f16 or not. Logits of contexts that differ in one token are apart by whole units."""


@pytest.fixture(scope="module")
def weights() -> Iterator[Weights]:
    """The embedded draft."""
    loaded = Weights(DRAFT, "draft")
    yield loaded
    loaded.close()


@pytest.fixture
def context(weights: Weights) -> Iterator[Context]:
    """A context of 1,024 tokens on one thread."""
    opened = Context(weights, capacity=1024, threads=1)
    yield opened
    opened.close()


def test_rows_are_the_last_positions(context: Context) -> None:
    """Several rows of one pass equal the rows of single passes over the same tokens."""
    tokens = [0, 5, 9, 200, 31]
    context.forward(tokens[:1], 1)
    wide = context.forward(tokens[1:], 3).copy()
    assert wide.shape == (3, 2048)
    context.truncate(2)
    for row, token in zip(wide, tokens[2:], strict=True):
        narrow = context.forward([token], 1)[0]
        assert np.abs(narrow - row).max() < ROUNDING
        assert narrow.argmax() == row.argmax()
    assert min(np.abs(one - other).max() for one, other in zip(wide, wide[1:], strict=False)) > 1


def test_rolled_back_tokens_leave_no_trace(context: Context) -> None:
    """Logits after a roll-back are those of a cache that never held the forgotten tokens."""
    clean = context.forward([0, 5, 9], 1)[0].copy()
    context.truncate(2)
    context.forward([77, 78, 79, 80], 4)
    context.truncate(2)
    again = context.forward([9], 1)[0]
    assert np.abs(again - clean).max() < ROUNDING
    assert context.length == 3


def test_long_inputs_are_read_in_parts(context: Context) -> None:
    """An input longer than one batch fills the cache and ends in the same logits as shorter ones do."""
    tokens = [0, *range(1, 700)]
    assert len(tokens) > BATCH
    whole = context.forward(tokens, 1)[0].copy()
    assert context.length == 700
    context.truncate(0)
    for start in range(0, 700, 100):
        parts = context.forward(tokens[start : start + 100], 1)[0]
    assert np.abs(whole - parts).max() < ROUNDING


def test_a_full_context_is_an_error(weights: Weights) -> None:
    """Tokens beyond the capacity are refused before llama.cpp sees them, and the cache stays as it was."""
    small = Context(weights, capacity=64, threads=1)
    small.forward([1] * 60, 1)
    with pytest.raises(CacheError, match="5 tokens after 60 do not fit"):
        small.forward([1] * 5, 1)
    assert small.length == 60
    small.forward([1] * 4, 4)
    small.close()


def test_truncate_cannot_lengthen(context: Context) -> None:
    """A roll-back to beyond the end, or one that llama.cpp refuses, is an error."""
    context.forward([0, 1, 2], 1)
    with pytest.raises(CacheError):
        context.truncate(4)


def test_every_roll_back_is_checked(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's refusal to remove tokens is noticed, and so is a cache that kept them all the same."""
    context.forward([0, 1, 2, 3], 1)
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_memory_seq_rm", lambda *args: False)
        with pytest.raises(CacheError, match="cannot be rolled back"):
            context.truncate(2)
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_memory_seq_rm", lambda *args: True)
        with pytest.raises(CacheError, match="the cache ends at 4, not at 2"):
            context.truncate(2)


def test_a_failed_decode_is_rolled_back(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """After llama.cpp reports a failure the cache is as before, and decoding goes on."""
    context.forward([0, 1], 1)
    decode = llama_cpp.llama_decode

    def failing(handle: Any, batch: Any) -> int:
        decode(handle, batch)  # as after a fatal error, what was processed stays in the cache
        return -3

    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", failing)
        with pytest.raises(CacheError, match="code -3"):
            context.forward([2, 3, 4], 1)
    assert context.length == 2
    context.truncate(2)
    context.forward([2], 1)


def test_control_tokens_are_never_made_from_user_text(weights: Weights) -> None:
    """A control token spelt out is text, unless a template of ours writes it."""
    vocab = weights.vocab
    assert vocab.tokenize("<|endoftext|>", begin=False, special=True) == [0]
    assert 0 not in vocab.tokenize("<|endoftext|>", begin=False)
    assert vocab.ends(0) and not vocab.ends(1)
    assert (vocab.piece(0), vocab.piece(0, special=True)) == (b"", b"<|endoftext|>")


def test_chat_needs_a_template(weights: Weights) -> None:
    """A model without a chat template refuses chat; one with a template frames the message."""
    with pytest.raises(RequestRefused, match="draft has no chat template"):
        weights.prompt_tokens("hello", chat=True)


def test_chat_frames_the_message(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message stands inside the template as plain text; only the template's own control tokens count."""
    monkeypatch.setattr(llama_cpp, "llama_model_chat_template", lambda *args: b"chatml")
    tokens = weights.prompt_tokens("hi <|endoftext|>", chat=True)
    text = b"".join(weights.vocab.piece(token, special=True) for token in tokens[1:]).decode()
    assert text == "<|im_start|>user\nhi <|endoftext|><|im_end|>\n<|im_start|>assistant\n"
    assert tokens[0] == 0 and 0 not in tokens[1:]
    monkeypatch.setattr(llama_cpp, "llama_model_chat_template", lambda *args: b"{{ nobody knows this }}")
    with pytest.raises(RequestRefused, match="cannot apply the chat template"):
        weights.prompt_tokens("hi", chat=True)


def test_unusable_files(tmp_path: Path) -> None:
    """A missing or damaged file is an error that names the model and no path."""
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(DRAFT.read_bytes()[:100_000])
    for path in (damaged, tmp_path / "gone.gguf"):
        with pytest.raises(LoadFailed) as raised:
            Weights(path, "mine")
        assert "mine" in str(raised.value)
        assert str(tmp_path) not in str(raised.value)


def test_memory_that_cannot_be_had(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """When llama.cpp says that it could not allocate, the error is OUT_OF_MEMORY."""

    def exhausted(*args: Any) -> None:
        llama._listen(4, b"ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer", None)

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", exhausted)
    with pytest.raises(OutOfMemory, match="the context of draft"):
        Context(weights, capacity=64, threads=1)


def test_description() -> None:
    """Metadata, size and the library's own description can be read."""
    vocab_only = Weights(DRAFT, "draft", vocab_only=True)
    assert vocab_only.vocab.size == 2048
    assert vocab_only.metadata("general.architecture") == "llama"
    assert vocab_only.metadata("no.such.key") is None
    vocab_only.close()
    assert "CPU" in llama.system_info()


@pytest.mark.parametrize(
    ("lines", "offloaded"),
    [
        ([], None),
        (["load_tensors: offloaded 33/33 layers to GPU"], (33, 33)),
        (["load_tensors: offloaded 7/33 layers to GPU"], (7, 33)),
        (["load_tensors: offloading 32 repeating layers to GPU"], None),
        (
            ["load_tensors: offloaded 1/33 layers to GPU", "load_tensors: offloaded 29/29 layers to GPU"],
            (29, 29),
        ),
    ],
)
def test_offloaded_layers(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], offloaded: tuple[int, int] | None
) -> None:
    """What llama.cpp logs of offloaded layers is read; what it does not say is not made up."""
    monkeypatch.setattr(llama, "_told", lines)
    assert llama._offloaded() == offloaded


def test_the_library_still_says_so() -> None:
    """The installed library has that very sentence, so that a new one which words it otherwise is noticed here."""
    library = Path(llama_cpp.__file__).parent / "lib" / "libllama.so"
    assert b"offloaded %d/%d layers to GPU" in library.read_bytes()
