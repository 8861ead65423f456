"""Tests of agent.pipe."""

from pathlib import Path

import pytest

from agent.pairs import ModelFile
from agent.pipe import (
    CancelOp,
    Event,
    ExitOp,
    FailedEvent,
    Op,
    PairEvent,
    PairOp,
    PipeError,
    ProgressEvent,
    ProvedEvent,
    ProveOp,
    ResultEvent,
    RunOp,
    decode_event,
    decode_op,
    encode,
)

FILE = ModelFile("small", Path("/models/small"), None, (2, 3))
OPS: list[Op] = [
    PairOp(),
    ProveOp(),
    RunOp(run_id="r", request={"prompt": "two\nlines", "n": 2}, deadline_s=1.5),
    CancelOp(run_id="r"),
    ExitOp(),
]
EVENTS: list[Event] = [
    PairEvent(found=False, reason="none"),
    PairEvent(found=True, reason="one", draft=FILE, target=FILE),
    ProgressEvent(run_id=None, phase="pair", done=0, total=0),
    ProvedEvent(),
    ResultEvent(run_id="r", measurement={"n": 2}, energy={}, output="two\nlines", output_sha3_256="0"),
    FailedEvent(run_id="r", code="INTERNAL", detail="it failed"),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.op)
def test_operations(op: Op) -> None:
    """An operation is one line, and the same when it is read again."""
    line = encode(op)
    assert line.index(b"\n") == len(line) - 1
    assert decode_op(line) == op


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event)
def test_events(event: Event) -> None:
    """An event is one line, and the same when it is read again."""
    line = encode(event)
    assert line.index(b"\n") == len(line) - 1
    assert decode_event(line) == event


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"secret", b"[]", b'{"secret": 1}', b'{"op": "secret"}', b"\xff"]
)
def test_nonsense(line: bytes) -> None:
    """Anything else is refused, without being quoted."""
    for decode in (decode_op, decode_event):
        with pytest.raises(PipeError) as caught:
            decode(line)
        assert "secret" not in str(caught.value) and caught.value.__suppress_context__
