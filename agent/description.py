"""What a model file says of itself, and what llama.cpp makes of it: all that choosing a pair needs to know of a model.

Finding out takes about a second for a large vocabulary, and llama.cpp ends the process over some damaged files, so it
goes through `agent.filefacts`. No weights are read, and no GPU is touched: a CUDA build would otherwise set up its
context, some hundred MiB of GPU memory, only to look at a file.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agent import memory
from agent.errors import AgentError, LoadFailed, OutOfMemory
from agent.filefacts import FileFacts
from agent.gguf import Array, read_metadata
from agent.memory import Need, cache_per_token
from agent.vocabulary import Fingerprint, fingerprint
from shared.models import one_line

_MOST = 2**53 - 1

_UNCACHED = frozenset(
    "bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert modern-bert gemma-embedding "
    "wavtokenizer-dec".split()
)
"""Families of encoders, for which llama.cpp keeps no cache (src/llama-model.cpp, create_memory)."""

_PARTS = {"adapter": "an adapter", "mmproj": "a projector", "imatrix": "an importance matrix"}
"""What a file holds that is no model (``general.type``; "model" or absent for one)."""

_WORDS = re.compile(
    r"unknown (?:model architecture|pre-tokenizer type|tokenizer): '[^'/]{0,64}'"
    r"|(?:missing tensor|key not found in model:) '?[\w.-]{1,80}'?"
    r"|tensor '[\w.-]{1,80}' not found"
    r"|wrong number of tensors; expected \d+, got \d+"
    r"|tensor '[\w.-]{1,80}' data is not within the file bounds, model is corrupted or incomplete"
    r"|tensor '[\w.-]{1,80}' has wrong shape; expected [\d ,]+, got [\d ,]+"
    r"|cannot find tokenizer [\w ]+ in model file"
)
"""What of llama.cpp's own words may be shown: never a path."""


@dataclass(frozen=True)
class Description:
    """A model file; `fault` is why it cannot be one of a pair, as a clause.

    Attributes:
        family: Its architecture.
        parameters: Number of its weights.
        weights: Bytes of its tensors.
        trained_context: Tokens of context it was trained for.
        cache_per_token: Bytes of cache for one token of context.
        tokenizer: Its tokenizer's fingerprint; None if it has a fault.
        fault: Why it cannot be used; None if it can.
    """

    family: str | None = None
    parameters: int | None = None
    weights: int = 0
    trained_context: int = 0
    cache_per_token: int = 0
    tokenizer: Fingerprint | None = None
    fault: str | None = None

    def need(self, context: int) -> Need:
        """Returns the memory it takes at a number of tokens of context, of which it takes no more than it knows."""
        return memory.need(
            weights=self.weights,
            cache_per_token=self.cache_per_token,
            vocabulary=self.tokenizer.size if self.tokenizer else 0,
            context=min(context, self.trained_context or context),
        )


@cache
def _adapter() -> TypeAdapter[Description]:
    return TypeAdapter(Description)


def describe(path: Path, facts: FileFacts) -> Description:
    """Returns what there is to know of a model file, found out once for each version of it.

    Raises:
        LoadFailed: If processes have died over it.
        OutOfMemory: If there is no memory to look at it.
        OSError: If it cannot be read.
    """
    told = facts.described(path, lambda: asdict(_describe(path)))
    try:
        return _adapter().validate_python(told)
    except ValidationError:
        return _describe(path)  # the facts are damaged


def _describe(path: Path) -> Description:
    try:
        metadata = read_metadata(path)
    except LoadFailed as exc:
        return Description(fault=exc.cause)
    family = metadata.get("general.architecture")
    if not isinstance(family, str) or not family:
        return Description(fault="it has no tokenizer")
    family = one_line(family, 64)
    fault = _plain_fault(family, metadata)
    if fault is None:
        try:
            return _loaded_description(path, family, metadata)
        except OutOfMemory:
            raise
        except AgentError as exc:
            fault = exc.cause
    return Description(family, _count(metadata.get("general.parameter_count")), fault=fault)


def _plain_fault(family: str, metadata: dict[str, Any]) -> str | None:
    """Returns why a file cannot be used, as far as its metadata tells."""
    kind = metadata.get("general.type")
    parts = metadata.get("split.count")
    if kind in _PARTS:
        return f"it is {_PARTS[kind]}, not a model"
    if isinstance(parts, int) and parts > 1:
        return f"it is one of {parts} parts of a model"
    if family in _UNCACHED or metadata.get(f"{family}.attention.causal") is False:
        return "it is a model for embeddings, which writes no text"
    if isinstance(pooling := metadata.get(f"{family}.pooling_type"), int) and pooling > 0:
        return "it is a model for embeddings, which writes no text"
    if not isinstance(metadata.get("tokenizer.ggml.tokens"), Array):
        return "it has no tokenizer"
    return None


def _loaded_description(path: Path, family: str, metadata: dict[str, Any]) -> Description:
    import llama_cpp

    from agent.llama import Vocabulary

    with _loaded(path, vocab_only=True) as model:
        if llama_cpp.llama_model_has_encoder(model) or not llama_cpp.llama_model_has_decoder(model):
            raise LoadFailed("it needs an encoder, so it cannot go on with a text by itself")
        if llama_cpp.llama_model_is_diffusion(model):
            raise LoadFailed("it is a diffusion model, which does not write one token after the other")
        if llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model):
            raise LoadFailed(f"it is recurrent ({family}), so that refused tokens cannot be taken back")
        tokenizer = fingerprint(Vocabulary(llama_cpp.llama_model_get_vocab(model)), metadata)
        parameters, weights = llama_cpp.llama_model_n_params(model), llama_cpp.llama_model_size(model)
    # Loads the rest as if, without memory for it and without reading it: what llama.cpp would refuse, it refuses here.
    with _loaded(path, no_alloc=True, load_mode=llama_cpp.LLAMA_LOAD_MODE_NONE) as model:
        trained = llama_cpp.llama_model_n_ctx_train(model)
    return Description(
        family=family,
        parameters=_count(parameters),
        weights=int(weights),
        trained_context=max(0, int(trained)),
        cache_per_token=cache_per_token(metadata),
        tokenizer=tokenizer,
    )


@contextmanager
def _loaded(path: Path, **options: Any) -> Iterator[Any]:
    """Loads a file with llama.cpp on the processor.

    Raises:
        LoadFailed: If llama.cpp refuses it.
        OutOfMemory: If there is no memory for that.
    """
    import llama_cpp

    from agent import llama

    llama.system_info()
    llama._said.clear()
    params = llama_cpp.llama_model_default_params()
    no_devices = (ctypes.c_void_p * 1)()
    params.devices = ctypes.addressof(no_devices)
    params.n_gpu_layers = 0
    for name, value in options.items():
        setattr(params, name, value)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise _refusal(" ".join(llama._said))
    try:
        yield model
    finally:
        llama_cpp.llama_model_free(model)


def _refusal(said: str) -> AgentError:
    if any(sign in said.lower() for sign in ("out of memory", "failed to allocate", "bad_alloc")):
        return OutOfMemory("not enough memory to look at it")
    words = _WORDS.findall(said)
    if words:
        return LoadFailed(f"llama.cpp cannot load it ({one_line(words[-1], 120)})")
    return LoadFailed("llama.cpp cannot load it; its own words are in the agent's log")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= _MOST else None
