"""What the agent and its decode worker say to each other: one JSON object a line, on its standard pipes.

The agent sends operations, the worker answers with events. This module only turns them into lines and back.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from agent.errors import AgentError
from agent.pairs import ModelFile

LOADING = "loading"
"""The phase of a run until the pair is in memory."""

MAX_LINE = 1024 * 1024
"""Bytes of the longest line either side reads; a result with its output is far below."""


class PipeError(AgentError):
    """The other end sent something that is not of this protocol."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class PairOp(_Message):
    """Look for a pair."""

    op: Literal["pair"] = "pair"


class ProveOp(_Message):
    """Decode one step with the pair, to show that it can be done."""

    op: Literal["prove"] = "prove"


class RunOp(_Message):
    """Decode one request, prompt included."""

    op: Literal["run"] = "run"
    run_id: str
    request: dict[str, Any]
    deadline_s: float


class CancelOp(_Message):
    """Stop this run, if it is the one being decoded."""

    op: Literal["cancel"] = "cancel"
    run_id: str


class ExitOp(_Message):
    """End, at once."""

    op: Literal["exit"] = "exit"


class PairEvent(_Message):
    """What looking for a pair has found, what would decode it, and whether energy can be read there."""

    event: Literal["pair"] = "pair"
    found: bool
    reason: str
    draft: ModelFile | None = None
    target: ModelFile | None = None
    family: str | None = None
    models: list[dict[str, Any]] = []
    ranked: list[dict[str, Any]] = []
    ollama: dict[str, Any] | None = None
    energy: dict[str, Any] | None = None
    device: dict[str, Any] | None = None


class ProvedEvent(_Message):
    """One step has been decoded."""

    event: Literal["proved"] = "proved"


class ProgressEvent(_Message):
    """A sign of life; `run_id` is None outside of runs."""

    event: Literal["progress"] = "progress"
    run_id: str | None
    phase: str
    done: NonNegativeInt
    total: NonNegativeInt


class ResultEvent(_Message):
    """A run has been measured."""

    event: Literal["result"] = "result"
    run_id: str
    measurement: dict[str, Any]
    energy: dict[str, Any]
    output: str
    output_sha3_256: str


class FailedEvent(_Message):
    """A run, or another operation (`run_id` None), has failed; `code` is a wire code."""

    event: Literal["failed"] = "failed"
    run_id: str | None
    code: str
    detail: str


Op = PairOp | ProveOp | RunOp | CancelOp | ExitOp
Event = PairEvent | ProvedEvent | ProgressEvent | ResultEvent | FailedEvent

_OPS: TypeAdapter[Op] = TypeAdapter(Annotated[Op, Field(discriminator="op")])
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def encode(message: Op | Event) -> bytes:
    """Return the line of a message, newline included."""
    return message.model_dump_json().encode() + b"\n"


def decode_op(line: bytes) -> Op:
    """Return the operation of a line the agent sent.

    Raises:
        PipeError: It is none.
    """
    try:
        return _OPS.validate_json(line)
    except ValidationError:
        # Not chained and not quoted: a validation error's text holds its input, which may hold a prompt.
        raise PipeError("the agent sent something that is not an operation") from None


def decode_event(line: bytes) -> Event:
    """Return the event of a line the worker sent.

    Raises:
        PipeError: It is none.
    """
    try:
        return _EVENTS.validate_json(line)
    except ValidationError:
        raise PipeError("the decode worker sent something that is not an event") from None
