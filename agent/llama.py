"""llama.cpp behind the two things the decode core needs: a vocabulary, and a causal model with a cache to roll back.

Uses the low-level functions of llama-cpp-python only. Its high-level class keeps logits in Python lists, maps sequence
ids differently from the C function of the same name, and turns flash attention off instead of leaving it to llama.cpp.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from agent.decode import CacheError
from agent.errors import AgentError, LoadFailed, OutOfMemory, RequestRefused
from agent.sampling import Logits

BATCH = 512
"""Most tokens read in one pass (llama.cpp's n_batch and n_ubatch)."""

_WARNINGS = (3, 4)
"""Levels of ggml's log: warning, error (ggml.h, enum ggml_log_level)."""

_logits_at = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(
    ("llama_get_logits_ith", llama_cpp.llama_cpp._lib)
)
"""The same C function as llama_cpp's, as a plain address: its pointer objects cost more than an argmax."""

_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_CACHE_SIZE = re.compile(r"^llama_kv_cache\S*: size = +([\d.]+) MiB")
_COMPUTE_SIZE = re.compile(r"compute buffer size = +([\d.]+) MiB")
"""What llama.cpp tells in its log alone: layers that are on the GPU, and the sizes of cache and work buffers."""

log = logging.getLogger(__name__)
_said: deque[str] = deque(maxlen=50)
_told: list[str] = []


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _listen(level: int, text: bytes, _: Any) -> None:
    """Keeps llama.cpp's latest words for `_why`; warnings and errors go to the log."""
    line = text.decode("utf-8", "replace").strip()
    if line:
        _said.append(line)
        if _OFFLOADED.search(line) or _CACHE_SIZE.search(line) or _COMPUTE_SIZE.search(line):
            _told.append(line)
        if level in _WARNINGS:
            log.info("llama.cpp", extra={"data": {"said": line}})


@lru_cache(maxsize=1)
def system_info() -> str:
    """Returns llama.cpp's description of processor and build, having started it once in this process."""
    llama_cpp.llama_log_set(_listen, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return str(llama_cpp.llama_print_system_info().decode()).strip().strip("|").strip()


def _why(what: str) -> AgentError:
    """Returns the error for a model or context that could not be had, after what llama.cpp said last."""
    said = " ".join(_said).lower()
    if any(
        sign in said for sign in ("out of memory", "failed to allocate", "unable to allocate", "bad_alloc")
    ):
        return OutOfMemory(f"not enough memory for {what}")
    return LoadFailed(f"llama.cpp could not load {what}; its own words are in the agent's log")


def _offloaded() -> tuple[int, int] | None:
    """Returns the last (layers on the GPU, layers in all) that llama.cpp has told of."""
    found = [match for line in _told if (match := _OFFLOADED.search(line))]
    return (int(found[-1][1]), int(found[-1][2])) if found else None


def dry_load(path: Path, name: str, *, capacity: int, gpu_layers: int) -> tuple[int, int, int]:
    """Returns the bytes of weights, cache and work buffers that a model with its context would take.

    llama.cpp goes through all of loading without allocating or reading a weight (`no_alloc`, which its memory-mapped
    loading does not know), so a file with a tensor missing is refused here too.

    Args:
        path: The file.
        name: What to call it in errors.
        capacity: Tokens of context, at most what the model was trained for.
        gpu_layers: Layers to offload; -1 offloads all.

    Raises:
        LoadFailed: If llama.cpp refuses the file.
    """
    system_info()
    _said.clear()
    _told.clear()
    params, _devices = _model_params(gpu_layers)
    params.no_alloc, params.load_mode = True, llama_cpp.LLAMA_LOAD_MODE_NONE
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise _why(name)
    try:
        capacity = min(capacity, int(llama_cpp.llama_model_n_ctx_train(model)))
        context = llama_cpp.llama_init_from_model(model, _context_params(capacity, threads=1))
        if not context:
            raise _why(f"the context of {name}")
        llama_cpp.llama_free(context)
        weights = int(llama_cpp.llama_model_size(model))
    finally:
        llama_cpp.llama_model_free(model)
    return weights, _bytes_told(_CACHE_SIZE), _bytes_told(_COMPUTE_SIZE)


def _model_params(gpu_layers: int) -> tuple[Any, Any]:
    """Returns parameters to load by, and what must live as long as they: without layers to offload, no devices."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    devices = (ctypes.c_void_p * 1)()
    if gpu_layers == 0:
        params.devices = ctypes.addressof(devices)
    return params, devices


def _bytes_told(pattern: re.Pattern[str]) -> int:
    sizes = [float(match[1]) for line in _told if (match := pattern.search(line))]
    return round(sum(sizes) * 1024**2)


def _context_params(capacity: int, *, threads: int) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = capacity
    params.n_batch = params.n_ubatch = min(BATCH, capacity)
    params.n_seq_max = 1
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
    params.no_perf = True
    return params


class Weights:
    """A model file, loaded; `vocab_only` reads its tokenizer alone."""

    def __init__(self, path: Path, name: str, *, gpu_layers: int = 0, vocab_only: bool = False) -> None:
        """Loads a GGUF file.

        Args:
            path: The file.
            name: What to call it in errors, which reach the public: never a path.
            gpu_layers: Layers to offload; -1 offloads all.
            vocab_only: Whether to leave the weights out.

        Attributes:
            offloaded: Layers on the GPU and layers in all, as llama.cpp counts them; None if it says nothing of it,
                as builds without GPU support do.

        Raises:
            LoadFailed: If llama.cpp refuses the file.
            OutOfMemory: If it does not fit.
        """
        system_info()
        _said.clear()
        _told.clear()
        params, self._devices = _model_params(gpu_layers)
        params.vocab_only = vocab_only
        self.name = name
        self.gpu_layers = gpu_layers
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise _why(name)
        self.offloaded = _offloaded()
        self.vocab = Vocabulary(llama_cpp.llama_model_get_vocab(self.handle))

    @property
    def trained_context(self) -> int:
        """Tokens of context the model was trained for."""
        return int(llama_cpp.llama_model_n_ctx_train(self.handle))

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return int(llama_cpp.llama_model_n_params(self.handle))

    def metadata(self, key: str) -> str | None:
        """Returns one GGUF metadata value as text, None if it is absent."""
        buffer = ctypes.create_string_buffer(4096)
        size = llama_cpp.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if size >= 0 else None

    def prompt_tokens(self, text: str, *, chat: bool) -> list[int]:
        """Returns the token ids of a prompt, begun as the model asks (BOS).

        Args:
            text: What the user typed. Control tokens spelt out in it stay plain text, so that no prompt can forge a
                turn or an end of text.
            chat: Whether to put it, as one user message, into the model's own chat template.

        Raises:
            RequestRefused: If a template is asked for and the model has none that llama.cpp can apply.
        """
        if not chat:
            return self.vocab.tokenize(text)
        before, after = self._chat_frame()
        framed = self.vocab.tokenize(before, special=True)
        framed += self.vocab.tokenize(text, begin=False)
        return framed + self.vocab.tokenize(after, begin=False, special=True)

    def _chat_frame(self) -> tuple[str, str]:
        """Returns what the chat template writes before and after a single user message."""
        template = llama_cpp.llama_model_chat_template(self.handle, None)
        if not template:
            raise RequestRefused(f"{self.name} has no chat template", "leave out chat")
        place = b"THE-MESSAGE"
        message = (llama_cpp.llama_chat_message * 1)()
        message[0].role, message[0].content = b"user", place
        buffer = ctypes.create_string_buffer(65_536)
        size = llama_cpp.llama_chat_apply_template(template, message, 1, True, buffer, len(buffer))
        before, found, after = buffer.raw[: max(size, 0)].partition(place)
        if not found:
            raise RequestRefused(f"llama.cpp cannot apply the chat template of {self.name}", "leave out chat")
        return before.decode("utf-8", "replace"), after.decode("utf-8", "replace")

    def close(self) -> None:
        """Frees the weights; its contexts must be closed before."""
        if self.handle:
            llama_cpp.llama_model_free(self.handle)
            self.handle = None


class Vocabulary:
    """A tokenizer."""

    def __init__(self, handle: Any) -> None:
        """Wraps llama.cpp's vocabulary; it lives as long as its model."""
        self.handle = handle
        self.size = int(llama_cpp.llama_vocab_n_tokens(handle))
        self._ends = frozenset(t for t in range(self.size) if llama_cpp.llama_vocab_is_eog(handle, t))

    def tokenize(self, text: str, *, begin: bool = True, special: bool = False) -> list[int]:
        """Returns the token ids of `text`.

        Args:
            text: Text.
            begin: Whether to begin as the model asks (BOS, where it wants one).
            special: Whether the spelling of a control token becomes that token.
        """
        encoded = text.encode()
        tokens = (llama_cpp.llama_token * (len(encoded) + 8))()
        count = llama_cpp.llama_tokenize(
            self.handle, encoded, len(encoded), tokens, len(tokens), begin, special
        )
        if count < 0:
            raise RequestRefused("the prompt cannot be tokenised")
        return list(tokens[:count])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Returns the bytes of a token; those of a control token only if `special`."""
        buffer = ctypes.create_string_buffer(256)
        size = llama_cpp.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = llama_cpp.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        return buffer.raw[:size]

    def ends(self, token: int) -> bool:
        """Whether a token ends the text (llama.cpp's end-of-generation set)."""
        return token in self._ends


class Context:
    """A `agent.decode.CausalModel` over loaded weights: sequence 0 of one llama.cpp context."""

    def __init__(self, weights: Weights, *, capacity: int, threads: int) -> None:
        """Allocates a context.

        Both of llama.cpp's thread counts are set to `threads`: it uses one for single tokens and the other for batches,
        and an OpenMP team that changes size between draft and verify is torn down and built again each time.

        Args:
            weights: The loaded model.
            capacity: Tokens the cache holds.
            threads: Threads to decode with.

        Raises:
            OutOfMemory: If the cache does not fit.
        """
        _said.clear()
        params = _context_params(capacity, threads=threads)
        self.handle = llama_cpp.llama_init_from_model(weights.handle, params)
        if not self.handle:
            raise _why(f"the context of {weights.name}")
        self.capacity = min(capacity, int(llama_cpp.llama_n_ctx(self.handle)))
        self.length = 0
        self._width = weights.vocab.size
        self._memory = llama_cpp.llama_get_memory(self.handle)
        self._tokens = (llama_cpp.llama_token * BATCH)()
        self._shapes: dict[tuple[int, int], Any] = {}
        self._views: dict[tuple[int, int], Logits] = {}

    def set_threads(self, threads: int) -> None:
        """Changes the number of threads to decode with."""
        llama_cpp.llama_set_n_threads(self.handle, threads, threads)

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        """Appends `tokens`; returns a view of the logits [rows, vocab] after each of the last `rows` of them.

        Long inputs are read `BATCH` tokens at a time; the rows must lie in the last such part.

        Raises:
            CacheError: If llama.cpp cannot place or process them.
        """
        count = len(tokens)
        if self.length + count > self.capacity:
            raise CacheError(f"{count} tokens after {self.length} do not fit a context of {self.capacity}")
        if count > BATCH:
            last = (count - 1) // BATCH * BATCH
            for start_at in range(0, last, BATCH):
                self._decode(tokens[start_at : start_at + BATCH], 1)
            tokens = tokens[last:]
        self._decode(tokens, rows)
        # Outputs lie one after the other in the order of the batch; index -rows is the first that is wanted.
        address = _logits_at(self.handle, -rows)
        view = self._views.get((address, rows))
        if view is None:
            view = self._view(address, rows)
        return view

    def _decode(self, tokens: Sequence[int], rows: int) -> None:
        count = len(tokens)
        shape = self._shapes.get((count, rows)) or self._shape(count, rows)
        buffer = self._tokens
        for i, token in enumerate(tokens):
            buffer[i] = token
        code = llama_cpp.llama_decode(self.handle, shape)
        if code != 0:
            self._recover()
            raise CacheError(f"llama.cpp could not decode {count} tokens after {self.length} (code {code})")
        self.length += count

    def _shape(self, count: int, rows: int) -> Any:
        """Returns a batch of `count` tokens that gives logits for the last `rows`; made once, used again and again.

        Positions and sequence ids are left to llama.cpp, which goes on in sequence 0 where its cache ends: that is at
        `length`, as every roll-back checks.
        """
        wanted = (ctypes.c_int8 * count)(*[i >= count - rows for i in range(count)])
        batch = llama_cpp.llama_batch(n_tokens=count)
        batch.token = ctypes.cast(self._tokens, type(batch.token))  # type: ignore[type-var]
        batch.logits = ctypes.cast(wanted, type(batch.logits))  # type: ignore[type-var]
        self._shapes[count, rows] = batch
        return batch

    def _view(self, address: int, rows: int) -> Logits:
        if len(self._views) > 64:
            self._views.clear()
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        view = self._views[address, rows] = np.ctypeslib.as_array(pointer, (rows, self._width))
        return view

    def truncate(self, length: int) -> None:
        """Forgets every token from position `length` on.

        Raises:
            CacheError: If llama.cpp cannot, or if the cache does not end there afterwards.
        """
        if length < self.length:
            if not llama_cpp.llama_memory_seq_rm(self._memory, 0, length, -1):
                raise CacheError("this model's memory cannot be rolled back")
            self.length = length
        last = llama_cpp.llama_memory_seq_pos_max(self._memory, 0)
        if length != self.length or last != length - 1:
            raise CacheError(f"the cache ends at {last + 1}, not at {length}")

    def _recover(self) -> None:
        """Drops whatever a failed decode has left beyond its own beginning.

        Raises:
            CacheError: If that cannot be done either.
        """
        if not llama_cpp.llama_memory_seq_rm(self._memory, 0, self.length, -1):
            raise CacheError("this model's memory cannot be rolled back after a failed decode")

    def close(self) -> None:
        """Frees the context."""
        if self.handle:
            self._views.clear()
            llama_cpp.llama_free(self.handle)
            self.handle = None
