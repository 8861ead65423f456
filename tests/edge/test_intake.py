"""Bad input of every kind: one clear sentence, the right status, and never the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.intake import Preference, parse_idempotency_key, parse_preference
from tests.edge.support import PROMPT, Client, Reply, assert_problem, client, make_event

# Nothing here may reach a tower: the URL in `client()` is a closed port, and a 4xx comes before any dialling.
EDGE = client()

QUOTED = json.dumps(PROMPT)
BAD_BODIES: list[tuple[str, str | bytes, int]] = [
    ("empty", "", 400),
    ("blank", " \n", 400),
    ("one megabyte", json.dumps({"prompt": PROMPT * 20_000}), 413),
    ("one megabyte of bytes", b"\x00" * 1_000_000, 413),
    ("just over the limit", b" " * (128 * 1024) + b"{}", 413),
    ("not UTF-8", b'{"prompt": "\xff\xfe"}', 400),
    ("UTF-16", json.dumps({"prompt": PROMPT}).encode("utf-16"), 400),
    ("not JSON", PROMPT, 400),
    ("form", "prompt=Marmalade", 400),
    ("cut short", f'{{"prompt": {QUOTED}', 400),
    ("two values", f'{{"prompt": {QUOTED}}} {{}}', 400),
    ("NaN", f'{{"prompt": {QUOTED}, "temperature": NaN}}', 400),
    ("Infinity", f'{{"prompt": {QUOTED}, "temperature": -Infinity}}', 400),
    ("1e999", f'{{"prompt": {QUOTED}, "temperature": 1e999}}', 400),
    ("integer beyond 2^53", f'{{"prompt": {QUOTED}, "seed": 9007199254740993}}', 400),
    ("integer of 5,000 digits", f'{{"prompt": {QUOTED}, "seed": {"9" * 5000}}}', 400),
    ("100,000 brackets", "[" * 100_000, 400),
    ("100,000 objects", '{"a":' * 20_000, 400),
    ("duplicate key", f'{{"prompt": {QUOTED}, "prompt": {QUOTED}}}', 400),
    ("lone surrogate", '{"prompt": "\\ud800"}', 400),
    ("array", "[]", 422),
    ("string", QUOTED, 422),
    ("null", "null", 422),
]

BAD_FIELDS: list[dict[str, Any]] = [
    {"prompt": None},
    {"prompt": 5},
    {"prompt": [PROMPT]},
    {"prompt": ""},
    {"prompt": "x" * 16_385},
    {"prompt": "é" * 8_193},
    {"prompt": "a\0b"},
    {"k": 0},
    {"k": 17},
    {"k": -1},
    {"k": True},
    {"k": 4.0},
    {"k": 4.5},
    {"k": "4"},
    {"k": None},
    {"k": "Auto"},
    {"n": 0},
    {"n": 501},
    {"n": True},
    {"n": "50"},
    {"temperature": -0.1},
    {"temperature": 2.1},
    {"temperature": True},
    {"temperature": "0"},
    {"top_p": 0},
    {"top_p": 1.1},
    {"top_k": -1},
    {"top_k": 1001},
    {"top_k": 1.5},
    {"seed": -1},
    {"seed": 1.5},
    {"chat": 1},
    {"chat": "true"},
    {"ignore_eos": None},
    {"include_output": 0},
    {"stream": True},
    {"prompt_salt": "00"},
    {"Prompt": PROMPT},
    {"Marmalade and zeppelins: a prompt nobody else would write": 1},
]


@pytest.mark.parametrize(("body", "status"), [pytest.param(*bad, id=name) for name, *bad in BAD_BODIES])
def test_bad_body_is_a_problem(body: str | bytes, status: int) -> None:
    """A body that is no JSON object with one meaning is refused in one sentence."""
    assert_problem(EDGE.post(body), status)


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=[str(fields)[:40] for fields in BAD_FIELDS])
def test_bad_field_is_422(fields: dict[str, Any]) -> None:
    """A wrong field is refused by name, without its value."""
    detail = assert_problem(EDGE.post({"prompt": PROMPT, **fields}), 422)
    name = next(iter(fields))
    assert name in detail or len(name) > 32


def test_missing_prompt_is_422() -> None:
    """The prompt is the one field without a default."""
    assert assert_problem(EDGE.post({}), 422) == "prompt is required."


def test_bad_k_is_told_of_both_kinds() -> None:
    """A k that is refused is told that it may be a number or "auto"."""
    detail = assert_problem(EDGE.post({"prompt": PROMPT, "k": "Auto"}), 422)
    assert detail == 'k must be an integer from 1 to 16, or "auto".'


def test_bad_base64_is_400() -> None:
    """A body that claims to be Base64 and is not is the caller's error."""
    event = make_event("POST", "/run", body=b"x", headers={"content-type": "application/json"})
    event["body"] = "%%%"
    assert_problem(EDGE.send(event), 400)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonx"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_other_content_type_is_415(headers: dict[str, str]) -> None:
    """Only JSON in UTF-8, as it is, is read."""
    event = make_event("POST", "/run", body=json.dumps({"prompt": PROMPT}), headers=headers)
    assert_problem(EDGE.send(event), 415)


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON;charset=UTF-8", 'application/json; charset="utf-8"'],
)
def test_json_content_types_are_read(content_type: str) -> None:
    """Case, parameters and Base64 make no difference to a good body."""
    for body in ("{}", b"{}"):
        event = make_event("POST", "/run", body=body, headers={"Content-Type": content_type})
        assert assert_problem(EDGE.send(event), 422) == "prompt is required."


@pytest.mark.parametrize(
    "query",
    [
        "k=-1",
        "k=65",
        "k=4.0",
        "k=+4",
        "k=1_0",
        "k=%204",
        "k=",
        "k=4&k=4",
        "k=true",
        "k=auto",
        "k=٤",
        "k=99999999999999999999",
        "cost_ratio=-0.1",
        "cost_ratio=10.1",
        "cost_ratio=nan",
        "cost_ratio=inf",
        "cost_ratio=1e999",
        "cost_ratio=1&cost_ratio=1",
        "alpha=nan",
        "alpha=NaN",
        "alpha=inf",
        "alpha=1_0",
        "alpha=%2B1",
        "alpha=+1",
        "alpha=0.5%20",
        "alpha=0.5%0A",
        "alpha=%D9%A1",
        "alpha=",
        "alpha",
        "alpha=1.1",
        "alpha=-0.5",
        "alpha=0x1",
        "alpha=.5e",
        "alpha=0.5,0.7",
        "alpha=0.5&alpha=x",
        "alpha=" + "&alpha=".join(["0.5"] * 65),
        "alpha=" + "&alpha=".join(["0.5"] * 5000),
        "alpha=%FF",
        "verify_cost=0.9",
        "verify_cost=101",
        "beta=1",
        "k=4&prompt=Marmalade",
        "&",
        "k",
        "=4",
    ],
)
def test_bad_curve_query_is_refused(query: str) -> None:
    """Whatever is not a plain number in range, or not a parameter, is refused."""
    reply = EDGE.get("/curve", query)
    assert_problem(reply, reply.status)
    assert reply.status in (400, 422)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, Preference()),
        ("", Preference()),
        ("wait=10", Preference(10.0, "wait=10")),
        ('wait = "10"', Preference(10.0, "wait=10")),
        ("respond-async", Preference(0.0, "respond-async")),
        ("respond-async, wait=7", Preference(7.0, "respond-async, wait=7")),
        ("wait=7, wait=9", Preference(7.0, "wait=7")),
        ("wait=600", Preference(27.0, "wait=27")),
        ("wait=-1", Preference()),
        ("wait=1.5", Preference()),
        ("wait=", Preference()),
        ("return=minimal", Preference()),
    ],
)
def test_preferences_are_read_as_rfc_7240_says(header: str | None, expected: Preference) -> None:
    """What is understood is honoured, the first value counts, the rest is ignored."""
    assert parse_preference({} if header is None else {"prefer": header}, 27) == expected


def test_idempotency_key_is_stripped() -> None:
    """Blanks around a key do not make another key."""
    assert parse_idempotency_key({"idempotency-key": " abc "}) == "abc"
    assert parse_idempotency_key({}) is None


def _is_answered(edge: Client, reply: Reply) -> None:
    assert edge
    assert reply.status < 500, reply.text
    if reply.status >= 400:
        assert_problem(reply, reply.status)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).filter(lambda text: "\ud800" not in text))
def test_any_body_is_answered(body: str | bytes) -> None:
    """No body gives a 5xx."""
    _is_answered(EDGE, EDGE.post(body))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["k", "n", "seed", "top_k", "chat", "temperature", "x"]), _JSON))
def test_any_json_is_answered(body: dict[str, Any]) -> None:
    """No JSON object gives a 5xx; without a prompt each is refused."""
    assert 400 <= EDGE.post(body).status < 500


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="&=%+,.-_0123456789abcefhklnoprstvy٣", max_size=40))
def test_any_query_is_answered(query: str) -> None:
    """No query gives a 5xx."""
    _is_answered(EDGE, EDGE.get("/curve", query))
