"""How much memory a model needs, from its metadata alone: to choose among models before any is loaded.

Weights take what their tensors take. The cache takes, for each layer and each token of context, one key and one value
for each of its key-value heads, in f16, llama.cpp's default (ggml-org/llama.cpp, src/llama-kv-cache.cpp and
llama-hparams.cpp):

    bytes = 2 · padded context · sum over layers of heads_kv · (key length + value length)

Models with latent attention (``key_length_mla``) keep keys alone. Of the working memory only the largest part is
counted, the logits of one batch in f32. For layers that see a window only, or share another's cache, this is an upper
bound; llama.cpp's own estimate decides before a pair is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent.gguf import Array

BATCH = 512
"""Tokens of a batch (`agent.llama.BATCH`)."""

_F16, _F32 = 2, 4
_PAD = 256
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Need:
    """Bytes that a model takes."""

    weights: int
    cache: int
    logits: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.cache + self.logits


def need(*, weights: int, cache_per_token: int, vocabulary: int, context: int) -> Need:
    """Returns the memory a model takes.

    Args:
        weights: Bytes of its tensors.
        cache_per_token: Bytes of cache for one token (`cache_per_token`).
        vocabulary: Its number of tokens.
        context: Tokens of context.
    """
    padded = -(-context // _PAD) * _PAD
    return Need(weights, padded * cache_per_token, vocabulary * min(BATCH, context) * _F32)


def cache_per_token(metadata: dict[str, Any]) -> int:
    """Returns the bytes of cache that one token takes; 0 if the file does not say.

    Args:
        metadata: The file's (`agent.gguf.read_metadata`).
    """
    family = metadata.get("general.architecture")

    def value(key: str) -> Any:
        return metadata.get(f"{family}.{key}")

    layers = _number(value("block_count"))
    heads = _each(value("attention.head_count"), layers)
    if not heads or layers > _MOST_LAYERS:
        return 0
    heads_kv = _each(value("attention.head_count_kv"), layers) or heads
    usual = _number(value("embedding_length")) // heads[0] if heads[0] else 0
    key = _number(value("attention.key_length")) or usual
    length = key
    if value("attention.key_length_mla") is None:
        length += _number(value("attention.value_length")) or usual
    return _F16 * length * sum(heads_kv)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _each(value: Any, layers: int) -> list[int]:
    """Returns a number for each layer, from one for all or an array of them."""
    if isinstance(value, Array):
        return [_number(item) for item in (value.values or ())[:layers]]
    return [_number(value)] * min(layers, _MOST_LAYERS) if _number(value) else []
