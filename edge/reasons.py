"""Why a run failed, in words for people."""

from __future__ import annotations

import re

from shared.wire import ErrorCode

MAX_DETAIL = 200
# A piece of the prompt this long in the tower's own words is too much.
PIECE = 12

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
        prompt: The prompt, where the edge still has it.
    """
    words = re.sub(r"[^!-~]+", " ", detail).strip()[:MAX_DETAIL].rstrip(". ")
    if not words or (prompt is not None and _share_a_piece(words, prompt)):
        return _REASONS[code]
    return f"{_REASONS[code]}: {words}"


def _share_a_piece(words: str, prompt: str) -> bool:
    size = min(PIECE, len(prompt))
    pieces = {prompt[start : start + size] for start in range(len(prompt) - size + 1)}
    return any(words[start : start + size] in pieces for start in range(len(words) - size + 1))
