"""Tests of `agent.memory`: its formula, and that llama.cpp allocates what it gives."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from agent import llama, memory
from agent.description import describe
from agent.filefacts import FileFacts
from agent.gguf import Array, read_metadata
from agent.llama import BATCH, Context, Weights
from agent.memory import cache_per_token, need
from tests.agent.ollama.support import DRAFT, TARGET, smollm2

SIZE = re.compile(r"^llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers")
MIB = 1024**2


def of(**values: Any) -> dict[str, Any]:
    """The metadata of a model of family x."""
    return {
        "general.architecture": "x",
        **{f"x.{key.replace('__', '.')}": value for key, value in values.items()},
    }


@contextmanager
def listening() -> Iterator[list[str]]:
    """Keeps what llama.cpp says."""
    llama.system_info()
    said: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(_: int, text: bytes, __: Any) -> None:
        said.append(text.decode("utf-8", "replace").strip())

    llama_cpp.llama_log_set(listen, ctypes.c_void_p(0))
    try:
        yield said
    finally:
        llama_cpp.llama_log_set(llama._listen, ctypes.c_void_p(0))


@pytest.mark.parametrize("context", [256, 1000, 2048])
@pytest.mark.parametrize("name", ["draft", "target", "smollm2"])
def test_llama_cpp_allocates_as_much(name: str, context: int) -> None:
    """For real models the weights and the cache are what llama.cpp says of them, to its last digit."""
    path = smollm2() if name == "smollm2" else {"draft": DRAFT, "target": TARGET}[name]
    needed = describe(path, FileFacts()).need(context)
    with listening() as said:
        weights = Weights(path, name)
        opened = Context(weights, capacity=context, threads=1)
        size = llama_cpp.llama_model_size(weights.handle)
        opened.close()
        weights.close()
    (told,) = [match for line in said if (match := SIZE.match(line))]
    assert needed.weights == size
    assert float(told[1]) == pytest.approx(needed.cache / MIB, abs=0.0051)
    assert int(told[2]) * cache_per_token(read_metadata(path)) == needed.cache
    assert needed.logits == weights.vocab.size * min(BATCH, context) * 4


def test_the_formula() -> None:
    """Two bytes for each key and value of each head of each layer, for every token of a context rounded up to 256."""
    plain = of(block_count=32, embedding_length=4096, attention__head_count=32, attention__head_count_kv=8)
    assert cache_per_token(plain) == 2 * 32 * 8 * (128 + 128)  # Llama 3.1 8B: 128 KiB a token
    one = need(weights=10**9, cache_per_token=131_072, vocabulary=128_256, context=4000)
    assert (one.weights, one.cache, one.logits) == (10**9, 131_072 * 4096, 128_256 * 512 * 4)
    assert one.total == one.weights + one.cache + one.logits
    assert need(weights=0, cache_per_token=1, vocabulary=10, context=100).cache == 256
    assert need(weights=0, cache_per_token=1, vocabulary=10, context=100).logits == 10 * 100 * 4
    assert memory.BATCH == BATCH


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # without a number of key-value heads each head has its own
        (of(block_count=2, embedding_length=64, attention__head_count=4), 2 * 2 * 4 * 32),
        # lengths that are told outrank the usual one
        (
            of(
                block_count=2,
                embedding_length=64,
                attention__head_count=4,
                attention__key_length=100,
                attention__value_length=50,
            ),
            2 * 2 * 4 * 150,
        ),
        (
            of(block_count=2, embedding_length=64, attention__head_count=4, attention__key_length=100),
            2 * 2 * 4 * 116,
        ),
        # latent attention keeps keys alone (DeepSeek V2: one head of 576)
        (
            of(
                block_count=27,
                embedding_length=2048,
                attention__head_count=16,
                attention__head_count_kv=1,
                attention__key_length=576,
                attention__value_length=512,
                attention__key_length_mla=192,
            ),
            2 * 27 * 576,
        ),
        # a number for each layer, of which some keep nothing
        (
            of(
                block_count=3,
                embedding_length=64,
                attention__head_count=Array(3, "", (4, 4, 4)),
                attention__head_count_kv=Array(3, "", (4, 0, 2)),
            ),
            2 * 32 * 6,
        ),
    ],
)
def test_models_of_other_shapes(values: dict[str, Any], expected: int) -> None:
    """Lengths of keys and values, latent attention and numbers for each layer are taken as the file gives them."""
    assert cache_per_token(values) == expected


@pytest.mark.parametrize(
    "values",
    [
        {},
        of(),
        of(block_count="many", attention__head_count=4),
        of(block_count=2, attention__head_count=-4),
        of(block_count=2, attention__head_count=Array(10**6, "")),
        of(block_count=2**63, embedding_length=64, attention__head_count=4),
    ],
)
def test_files_that_do_not_say(values: dict[str, Any]) -> None:
    """A file without sensible numbers says nothing of its cache."""
    assert cache_per_token(values) == 0


def test_numbers_for_each_layer_are_read_from_files(tmp_path: Path) -> None:
    """A number for each layer reaches the formula from a real file."""
    from tests.agent.test_gguf import gguf, text

    path = tmp_path / "model.gguf"
    pairs = {
        "general.architecture": struct.pack("<I", 8) + text("x"),
        "x.block_count": struct.pack("<II", 4, 3),
        "x.embedding_length": struct.pack("<II", 4, 64),
        "x.attention.head_count": struct.pack("<II", 4, 4),
        "x.attention.head_count_kv": struct.pack("<IIQ3I", 9, 4, 3, 4, 0, 2),
    }
    path.write_bytes(gguf(pairs))
    assert cache_per_token(read_metadata(path)) == 2 * 32 * 6
