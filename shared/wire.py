"""The websocket protocol between edge and agent: JSON text frames, each with a `type`.

A frame may carry more fields than its model names; they are kept, never trusted. What goes into a receipt
(`measurement`, `energy`) is modeled strictly in `shared.schemas`. Optional are `ended_at` of a result, the time
at which the run ended, `k` of `accepted` and `progress`, the run's draft length, and `busy_s` of a run's last
frame and of `EXPIRED`, the seconds for which it held the decode worker, its wait in the queue left out.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeVar

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from shared.canonical import CanonicalError, strict_loads
from shared.errors import SpecdecError
from shared.models import Model, explain
from shared.runid import RUN_ID_PATTERN
from shared.schemas import (
    Capability,
    Count,
    Energy,
    Envelope,
    Hex64,
    K,
    Line,
    Measurement,
    Name,
    Positive,
    RunRequest,
    UtcTime,
)

SUBPROTOCOL: Final = "specdec.v1"
MAX_FRAME: Final = 256 * 1024  # bytes of UTF-8


class WireError(SpecdecError):
    """The frame is not one of the protocol's."""


class ErrorCode(StrEnum):
    """Why a run failed: the closed list."""

    BUSY = "BUSY"
    NO_PAIR = "NO_PAIR"
    BAD_MESSAGE = "BAD_MESSAGE"
    BAD_REQUEST = "BAD_REQUEST"
    CONFLICT = "CONFLICT"
    NOT_FOUND = "NOT_FOUND"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"
    DEADLINE = "DEADLINE"
    LOAD_FAILED = "LOAD_FAILED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    WORKER_DIED = "WORKER_DIED"
    WORKER_HUNG = "WORKER_HUNG"
    GPU_BUSY = "GPU_BUSY"
    INTERNAL = "INTERNAL"


F = TypeVar("F")
RunId = Annotated[str, Field(pattern=RUN_ID_PATTERN)]
Seconds = Annotated[float, Field(ge=0, lt=1e6)]


class Frame(Model):
    """Base of all frames."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)


class ProbeFrame(Frame):
    """Client asks: what can you do?"""

    type: Literal["probe"] = "probe"


class RunFrame(Frame):
    """Client asks for a run."""

    type: Literal["run"] = "run"
    run_id: RunId
    nonce: Hex64
    request: RunRequest
    deadline_s: Positive
    prompt_commitment: Hex64


class StatusFrame(Frame):
    """Client asks how a run is doing."""

    type: Literal["status"] = "status"
    run_id: RunId


class CancelFrame(Frame):
    """Client takes a run back."""

    type: Literal["cancel"] = "cancel"
    run_id: RunId


class CapabilityFrame(Capability, Frame):
    """Agent answers a probe."""

    type: Literal["capability"] = "capability"


class AcceptedFrame(Frame):
    """Agent has queued a run; `position` runs are ahead of it."""

    type: Literal["accepted"] = "accepted"
    run_id: RunId
    position: Count
    k: K | None = None


class ProgressFrame(Frame):
    """Agent is at work: `done` of `total` steps of `phase`."""

    type: Literal["progress"] = "progress"
    run_id: RunId
    phase: Name
    done: Count
    total: Count
    k: K | None = None


class ResultFrame(Frame):
    """Agent has measured; `request` is the bound request it ran."""

    type: Literal["result"] = "result"
    run_id: RunId
    nonce: Hex64
    measurement: Measurement
    energy: Energy
    output_sha3_256: Hex64
    attestation: Envelope | None = None
    output: str | None = None
    request: dict[str, JsonValue]
    ended_at: UtcTime | None = None
    busy_s: Seconds | None = None


class FailedFrame(Frame):
    """Agent could not; `run_id` is null when the frame named none, `retry_after` is in seconds."""

    type: Literal["failed"] = "failed"
    run_id: RunId | None
    code: Annotated[ErrorCode, Field(strict=False)]
    detail: Line
    retry_after: Seconds | None = None
    busy_s: Seconds | None = None


ClientFrame = ProbeFrame | RunFrame | StatusFrame | CancelFrame
AgentFrame = CapabilityFrame | AcceptedFrame | ProgressFrame | ResultFrame | FailedFrame

_LATER: Final = ConfigDict(defer_build=True)
_CLIENT: Final[TypeAdapter[ClientFrame]] = TypeAdapter(
    Annotated[ClientFrame, Field(discriminator="type")], config=_LATER
)
_AGENT: Final[TypeAdapter[AgentFrame]] = TypeAdapter(
    Annotated[AgentFrame, Field(discriminator="type")], config=_LATER
)


def parse_client_frame(text: str | bytes) -> ClientFrame:
    """Read a frame that a client sent.

    Raises:
        WireError: If it is binary, too large, not strict JSON, or no client frame.
    """
    return _parse(_CLIENT, text)


def parse_agent_frame(text: str | bytes) -> AgentFrame:
    """Read a frame that an agent sent.

    Raises:
        WireError: If it is binary, too large, not strict JSON, or no agent frame.
    """
    return _parse(_AGENT, text)


def encode(frame: Frame) -> str:
    """The text of a frame.

    Raises:
        WireError: If it would exceed `MAX_FRAME`.
    """
    text = json.dumps(
        frame.model_dump(mode="json"), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    if len(text.encode("utf-8")) > MAX_FRAME:
        raise WireError("BAD_MESSAGE", "the frame is larger than 256 KiB")
    return text


def _parse(adapter: TypeAdapter[F], text: str | bytes) -> F:
    if isinstance(text, bytes):
        raise WireError("BAD_MESSAGE", "the frame is binary, not text")
    # A character takes at least a byte, so an oversized text is refused before it is encoded.
    if len(text) > MAX_FRAME or len(text.encode("utf-8", "surrogatepass")) > MAX_FRAME:
        raise WireError("BAD_MESSAGE", "the frame is larger than 256 KiB")
    try:
        data = strict_loads(text)
    except CanonicalError as error:
        raise WireError("BAD_MESSAGE", error.cause) from None
    if not isinstance(data, dict):
        raise WireError("BAD_MESSAGE", "not a JSON object")
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        raise WireError("BAD_MESSAGE", explain(error)) from None
