"""Why a run failed, in words for people, and whether a tower's words repeat the prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from shared import labels
from shared.models import printable
from shared.privacy import PIECE, shares_piece
from shared.schemas import ClockEvent, ComputeMode, EnergyMeasured
from shared.wire import ErrorCode, ResultFrame

MAX_DETAIL = 200
# Sentences of an honest tower have twelve characters in common with many a prompt, but not this many.
SENTENCE_PIECE = 32
# What honest measurements hold and a prompt may speak of.
_KNOWN = (
    *(labels.LOSSLESS, labels.DIVERGED_TIE, labels.DIVERGED_FAULT, labels.SAMPLED, "llama-cpp-python"),
    *(labels.ENERGY_SCOPE, *labels.ENERGY_METHODS, *labels.ENERGY_CODES),
    *(*get_args(ClockEvent), *get_args(ComputeMode)),
)
_KNOWN_TEXT = re.compile("|".join(map(re.escape, _KNOWN)))
# What a graphics card is called; the one part that is free is shorter than a piece of a prompt.
_PRODUCT = re.compile(
    r"NVIDIA(?: (?:GeForce|Quadro|Tesla|TITAN|RTX|GTX|PRO)){0,3} [A-Z]{0,3}[0-9]{0,4}[A-Z]{0,2}"
    r"(?:[ -](?:Ti|SUPER|D|Ada|Blackwell|Generation|Laptop|GPU|Workstation|Server|Edition|Max-Q"
    r"|PCIe|PCIE|NVL|SXM[0-9]?|HBM[0-9]e?|[0-9]{1,3}GB)){0,6}"
)

_REASONS = {
    ErrorCode.BUSY: "the tower's queue is full",
    ErrorCode.NO_PAIR: "the tower holds no same-family pair",
    ErrorCode.BAD_MESSAGE: "the tower did not understand the edge",
    ErrorCode.BAD_REQUEST: "the tower refused the request",
    ErrorCode.CONFLICT: "this run id belongs to another request",
    ErrorCode.NOT_FOUND: "the tower does not know this run",
    ErrorCode.EXPIRED: "the tower has forgotten this run, and no run is made twice",
    ErrorCode.CANCELLED: "the run was cancelled",
    ErrorCode.DEADLINE: "the run did not finish one step before its deadline",
    ErrorCode.LOAD_FAILED: "the tower could not load the pair",
    ErrorCode.OUT_OF_MEMORY: "the tower ran out of memory",
    ErrorCode.WORKER_DIED: "the tower's decode process died",
    ErrorCode.WORKER_HUNG: "the tower's decode process hung",
    ErrorCode.GPU_BUSY: "other programs hold the tower's GPU",
    ErrorCode.INTERNAL: "the tower failed",
}


def failure_reason(code: ErrorCode, detail: str, prompt: str | None) -> str:
    """Return one clause on a failed run.

    Args:
        code: The tower's code.
        detail: The tower's own words; added unless they might repeat the prompt.
        prompt: The prompt; without it the tower's words are left out, as nothing tells whether they repeat it.
    """
    words = re.sub(r"[^!-~]+", " ", detail).strip()[:MAX_DETAIL].rstrip(". ")
    words = without_prompt(words, prompt, instead="")
    return f"{_REASONS[code]}: {words}" if words else _REASONS[code]


def without_prompt(words: str, prompt: str | None, *, instead: str) -> str:
    """Return a tower's words, or others instead where they might repeat the prompt.

    Args:
        words: What the tower said or named.
        prompt: The prompt; None where the edge does not have it and so cannot tell.
        instead: The edge's own words.
    """
    return instead if prompt is None or shares_piece(words, prompt) else words


def repeats_prompt(result: ResultFrame, prompt: str) -> bool:
    """Tell whether anything in a result that would enter a receipt repeats a piece of the prompt.

    A prompt shorter than a piece is not looked for: it would be found in the names of most models.
    """
    if len(" ".join(printable(prompt).split())) < PIECE:
        return False
    measurement, energy = result.measurement, result.energy
    sentences = {*measurement.verdict.reasons, getattr(energy, "reason", None)}
    products = {name for name in _gpu_names(result) if _PRODUCT.fullmatch(name)}
    return any(
        shares_piece(_KNOWN_TEXT.sub("", text), prompt, SENTENCE_PIECE if text in sentences else PIECE)
        for text in _texts([measurement, energy])
        if text not in products
    )


def _gpu_names(result: ResultFrame) -> Iterator[str]:
    """Yield what the GPU is called in a result."""
    gpus = [result.measurement.gpu, result.energy.gpu if isinstance(result.energy, EnergyMeasured) else None]
    yield from (gpu.name for gpu in gpus if gpu is not None)


def _texts(value: Any) -> Iterator[str]:
    """Yield every string in a value of models, names of fields that no model knows included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, BaseModel):
        yield from _texts([list(value.model_extra or ()), [item for _, item in value]])
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
