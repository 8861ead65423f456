"""Frames: golden round trips, and a refusal for everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.wire import (
    MAX_FRAME,
    AcceptedFrame,
    AgentFrame,
    CapabilityFrame,
    ClientFrame,
    ErrorCode,
    FailedFrame,
    ProbeFrame,
    ProgressFrame,
    ResultFrame,
    RunFrame,
    StatusFrame,
    WireError,
    encode,
    parse_agent_frame,
    parse_client_frame,
)
from tests.shared.build import golden

WIRE = golden("wire")
RUN_ID = WIRE["run_id"]["run_id"]


def named(frame: dict[str, Any]) -> str:
    """The frame's type, for test ids."""
    return str(frame["type"])


@pytest.mark.parametrize("frame", WIRE["client"], ids=named)
def test_golden_client_frames(frame: dict[str, Any]) -> None:
    """Every golden client frame survives parsing and encoding, and is no agent frame."""
    assert json.loads(encode(parse_client_frame(json.dumps(frame)))) == frame
    with pytest.raises(WireError, match="unknown 'type'"):
        parse_agent_frame(json.dumps(frame))


@pytest.mark.parametrize("frame", WIRE["agent"], ids=named)
def test_golden_agent_frames(frame: dict[str, Any]) -> None:
    """Every golden agent frame survives parsing and encoding, and is no client frame."""
    assert json.loads(encode(parse_agent_frame(json.dumps(frame)))) == frame
    with pytest.raises(WireError, match="unknown 'type'"):
        parse_client_frame(json.dumps(frame))


def test_types() -> None:
    """Each frame is parsed into its own class."""
    parsed: list[ClientFrame | AgentFrame] = [
        *(parse_client_frame(json.dumps(frame)) for frame in WIRE["client"]),
        *(parse_agent_frame(json.dumps(frame)) for frame in WIRE["agent"]),
    ]
    assert [type(frame) for frame in parsed[:3]] == [ProbeFrame, RunFrame, StatusFrame]
    assert [type(frame) for frame in parsed[4:8]] == [
        CapabilityFrame,
        AcceptedFrame,
        ProgressFrame,
        ResultFrame,
    ]
    failed = parsed[8]
    assert isinstance(failed, FailedFrame) and failed.code is ErrorCode.BUSY


def test_frames_built_in_code() -> None:
    """A frame built in code needs no `type`, and what it leaves out is absent."""
    assert encode(ProbeFrame()) == '{"type":"probe"}'
    failed = FailedFrame(run_id=None, code=ErrorCode.BAD_MESSAGE, detail="line\nbreak")
    assert json.loads(encode(failed)) == {
        "type": "failed",
        "run_id": None,
        "code": "BAD_MESSAGE",
        "detail": "line break",
    }


RESULT = next(frame for frame in WIRE["agent"] if frame["type"] == "result")


@pytest.mark.parametrize(
    "time", ["2026-11-30T00:00:00Z", "2024-02-29T23:59:59Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
)
def test_end_of_a_run(time: str) -> None:
    """A result may say when its run ended."""
    frame = parse_agent_frame(json.dumps({**RESULT, "ended_at": time}))
    assert isinstance(frame, ResultFrame) and frame.ended_at == time
    assert json.loads(encode(frame)) == {**RESULT, "ended_at": time}


@pytest.mark.parametrize(
    "time",
    [
        *("", "2026-11-30", "2026-11-30T00:00Z", "2026-11-30 00:00:00Z", "2026-11-30t00:00:00z"),
        *("2026-11-30T00:00:00", "2026-11-30T00:00:00.5Z", "2026-11-30T00:00:00+00:00"),
        *("2026-11-30T24:00:00Z", "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "0000-01-01T00:00:00Z"),
        *("2026-11-30T00:00:60Z", "2026-11-30T00:00:61Z", "2026-11-30T00:00:00Z\n", "٢026-11-30T00:00:00Z"),
        *(1796083200, True, ["2026-11-30T00:00:00Z"]),
    ],
    ids=ascii,
)
def test_end_of_a_run_refused(time: Any) -> None:
    """Any other spelling of a time, and a time that does not exist, is refused."""
    with pytest.raises(WireError, match="^result.ended_at must be a UTC time like 2026-11-30T00:00:00Z$"):
        parse_agent_frame(json.dumps({**RESULT, "ended_at": time}))


@pytest.mark.parametrize("kind", ["accepted", "progress"])
def test_k_of_a_run_under_way(kind: str) -> None:
    """While a run goes on its frames may say its k, which is held to the request's range."""
    frame = next(frame for frame in WIRE["agent"] if frame["type"] == kind)
    parsed = parse_agent_frame(json.dumps({**frame, "k": 8}))
    assert isinstance(parsed, AcceptedFrame | ProgressFrame) and parsed.k == 8
    assert json.loads(encode(parsed)) == {**frame, "k": 8}
    for bad in (0, 17, 4.0, True, "4", "auto"):
        with pytest.raises(WireError, match=f"^{kind}.k must be"):
            parse_agent_frame(json.dumps({**frame, "k": bad}))


@pytest.mark.parametrize("frame", [*WIRE["client"], *WIRE["agent"]], ids=named)
def test_more_fields(frame: dict[str, Any]) -> None:
    """A frame may carry more fields than the protocol names, and keeps them."""
    parse = parse_client_frame if frame in WIRE["client"] else parse_agent_frame
    more = {**frame, "later": {"version": [2]}}
    assert json.loads(encode(parse(json.dumps(more)))) == more


@pytest.mark.parametrize("frame", [*WIRE["client"], *WIRE["agent"]], ids=named)
def test_every_field_is_typed(frame: dict[str, Any]) -> None:
    """A frame with any field replaced by an object of another kind is refused."""
    parse = parse_client_frame if frame in WIRE["client"] else parse_agent_frame
    for name in frame:
        wrongs: list[Any] = [{"a": {"b": 1}}, [[]], 1e300]
        for wrong in wrongs:
            if name == "request" and frame["type"] == "result" or name == "attestation":
                continue  # compared as a whole with what was sent
            with pytest.raises(WireError):
                parse(json.dumps({**frame, name: wrong}))


@pytest.mark.parametrize("frame", [*WIRE["client"], *WIRE["agent"]], ids=named)
def test_every_field_is_needed(frame: dict[str, Any]) -> None:
    """A frame without a field that the protocol requires is refused."""
    parse = parse_client_frame if frame in WIRE["client"] else parse_agent_frame
    for name in frame:
        if name in ("attestation", "output", "retry_after"):
            continue
        with pytest.raises(WireError):
            parse(json.dumps({key: value for key, value in frame.items() if key != name}))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the text is not JSON"),
        ("[]", "not a JSON object"),
        ('"probe"', "not a JSON object"),
        ("{}", "the value needs a 'type'"),
        ('{"type":1}', "the value has an unknown 'type'"),
        ('{"type":["probe"]}', "the value has an unknown 'type'"),
        ('{"type":"probe","type":"probe"}', "an object names a key twice"),
        ('{"type":"probe","x":NaN}', "NaN and Infinity are not JSON"),
        ('{"type":"probe","x":1e999}', "a number is not finite"),
        ('{"type":"probe","x":"\\ud800"}', "a string holds a lone surrogate"),
        ('{"type":"probe","x":"\ud800"}', "a string holds a lone surrogate"),
        ('{"type":"probe","x":' + "[" * 100_000 + "}", "the JSON is nested deeper than 32"),
        (b'{"type":"probe"}', "the frame is binary, not text"),
        ('{"type":"status","run_id":"a.b.c"}', "status.run_id has the wrong form"),
        (f'{{"type":"status","run_id":"{RUN_ID}\\n"}}', "status.run_id has the wrong form"),
    ],
    ids=lambda part: ascii(part)[:32],
)
def test_malformed(text: str | bytes, sentence: str) -> None:
    """A malformed frame is refused as BAD_MESSAGE in one sentence."""
    for parse in (parse_client_frame, parse_agent_frame):
        with pytest.raises(WireError) as refused:
            parse(text)
        assert refused.value.code == "BAD_MESSAGE"
        if parse is parse_client_frame:
            assert str(refused.value) == sentence


def test_bad_request_in_a_frame() -> None:
    """A run frame's request is held to the same rules as an HTTP body, and its prompt is not repeated."""
    frame = next(frame for frame in WIRE["client"] if frame["type"] == "run")
    bad = {**frame, "request": {**frame["request"], "prompt": "secret", "k": 99}}
    with pytest.raises(WireError, match='^run.request.k must be an integer from 1 to 16, or "auto"$'):
        parse_client_frame(json.dumps(bad))


def test_size_limit() -> None:
    """A frame of exactly 256 KiB is read, one byte more is not, and none such is written."""
    room = MAX_FRAME - len('{"type":"probe","x":""}')
    assert isinstance(parse_client_frame('{"type":"probe","x":"' + "a" * room + '"}'), ProbeFrame)
    for text in ("a" * (room + 1), "é" * (room // 2 + 1)):
        with pytest.raises(WireError, match="larger than 256 KiB"):
            parse_client_frame('{"type":"probe","x":"' + text + '"}')
    accepted = AcceptedFrame.model_validate({"run_id": RUN_ID, "position": 0, "x": "a" * MAX_FRAME})
    with pytest.raises(WireError, match="larger than 256 KiB"):
        encode(accepted)


def test_closed_list_of_codes() -> None:
    """The codes are the fifteen of the protocol, and no other is read."""
    assert " ".join(ErrorCode) == (
        "BUSY NO_PAIR BAD_MESSAGE BAD_REQUEST CONFLICT NOT_FOUND EXPIRED CANCELLED DEADLINE LOAD_FAILED "
        "OUT_OF_MEMORY WORKER_DIED WORKER_HUNG GPU_BUSY INTERNAL"
    )
    with pytest.raises(WireError, match="^failed.code must be 'BUSY'"):
        parse_agent_frame('{"type":"failed","run_id":null,"code":"TIRED","detail":"d"}')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*WIRE["client"], *WIRE["agent"]]), st.data())
def test_any_frame_is_read_or_refused(frame: dict[str, Any], data: st.DataObject) -> None:
    """Whatever stands in a frame's fields, the parsers return a frame or raise their own error."""
    fields = {**frame, data.draw(st.sampled_from(sorted(frame))): data.draw(JSON)}
    for parse in (parse_client_frame, parse_agent_frame):
        try:
            encode(parse(json.dumps(fields)))
        except WireError:
            pass
