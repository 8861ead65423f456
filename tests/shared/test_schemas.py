"""Requests and queries: what is accepted, what is refused and in which words."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from shared.models import one_line, problems
from shared.schemas import CurveQuery, Energy, Measurement, Pair, RunRequest, explain
from tests.shared.build import example_energy, example_measurement, golden, gpu_measurement

PROMPT_RULE = "prompt must be a string of 1 to 16384 UTF-8 bytes without NUL or lone surrogates"


def refusal(model: Any, value: Any) -> str:
    """The sentence with which the model refuses the value."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(value)
    return explain(refused.value)


def test_defaults() -> None:
    """A prompt alone is a whole request, and its dump has the golden fields with the golden defaults."""
    request = golden("wire")["run_id"]["request"]
    assert RunRequest.model_validate({"prompt": request["prompt"]}).model_dump() == request


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x" * 16_384},
        {"prompt": "é" * 8_192},
        {"prompt": "\n\t \u2028 😀"},
        {"k": 1, "n": 1, "top_k": 1000, "seed": 2**53 - 1},
        {"k": 16, "n": 500, "temperature": 2, "top_p": 1},
        {"k": "auto", "temperature": 0.5, "top_p": 1e-9},
        {"chat": True, "ignore_eos": True, "include_output": True},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_accepted(fields: dict[str, Any]) -> None:
    """Limits are inclusive and each field keeps its value."""
    request = RunRequest.model_validate({"prompt": "x", **fields}).model_dump()
    assert {name: request[name] for name in fields} == fields


def test_numbers_are_normalised() -> None:
    """An integer or a negative zero is the same request as the float: one digest for one meaning."""
    request = RunRequest.model_validate({"prompt": "x", "temperature": -0.0, "top_p": 1})
    assert (repr(request.temperature), repr(request.top_p)) == ("0.0", "1.0")
    assert repr(RunRequest.model_validate({"prompt": "x", "temperature": 0}).temperature) == "0.0"


K_RULE = 'k must be an integer from 1 to 16, or "auto"'
SEED_RULE = "seed must be an integer from 0 to 9007199254740991"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        *[({"k": bad}, K_RULE) for bad in (0, 17, True, 4.0, "4", None, [4], "AUTO", 2**70)],
        *[({"n": bad}, "n must be an integer from 1 to 500") for bad in (0, 501, True, 50.0, "50", None)],
        *[({"seed": bad}, SEED_RULE) for bad in (-1, 2**53, False, 0.0)],
        *[({"top_k": bad}, "top_k must be an integer from 0 to 1000") for bad in (-1, 1001, True, 40.0)],
        *[
            ({"temperature": bad}, "temperature must be a number from 0 to 2")
            for bad in (-0.1, 2.1, True, "0", None, math.nan, math.inf)
        ],
        *[({"top_p": bad}, "top_p must be a number above 0, at most 1") for bad in (0, 0.0, 1.1, True, "1")],
        *[({"chat": bad}, "chat must be true or false") for bad in (1, 0, "true", None)],
        *[({"ignore_eos": bad}, "ignore_eos must be true or false") for bad in (1, "yes")],
        *[({"include_output": bad}, "include_output must be true or false") for bad in (1, "yes")],
        *[
            ({"prompt": bad}, PROMPT_RULE)
            for bad in ("", "a\0b", "x" * 16_385, "é" * 8_193, "\ud800", 5, None, ["x"], b"x")
        ],
        ({"kk": 1}, "kk is not a known field"),
        ({"two words": 1}, "<unnamed> is not a known field"),
        ({"ключ": 1}, "<unnamed> is not a known field"),
        ({"x" * 33: 1}, "<unnamed> is not a known field"),
    ],
    ids=lambda part: ascii(part)[:32],
)
def test_refused(fields: dict[Any, Any], sentence: str) -> None:
    """Everything out of range or of another type is refused in one sentence that names the field."""
    assert refusal(RunRequest, {"prompt": "x", **fields}) == sentence


@pytest.mark.parametrize("body", [None, [], "x", 5, True])
def test_no_object(body: Any) -> None:
    """A body that is no object, or one without a prompt, is refused in as plain words."""
    assert refusal(RunRequest, body) == "the value must be a JSON object"
    assert refusal(RunRequest, {}) == "prompt is required"


@given(st.text(min_size=1), st.text(min_size=3))
def test_refusals_never_repeat_values(name: str, secret: str) -> None:
    """No sentence and no error text holds a value, whatever was sent."""
    secret = f"<{secret}>"
    for value in ({"prompt": "\0" + secret}, {"prompt": "x", "k": secret}, {"prompt": "x", name: secret}):
        try:
            RunRequest.model_validate(value)
        except ValidationError as error:
            assert secret not in explain(error)
            assert secret not in str(error)


def test_problems_lists_all() -> None:
    """Each wrong field is listed with what it must be."""
    with pytest.raises(ValidationError) as refused:
        RunRequest.model_validate({"k": 0, "chat": 1})
    assert problems(refused.value) == [
        ("prompt", "is required"),
        ("k", 'must be an integer from 1 to 16, or "auto"'),
        ("chat", "must be true or false"),
    ]


def curve(query: str, **defaults: Any) -> dict[str, Any]:
    """The parsed query."""
    return CurveQuery.from_pairs(parse_qsl(query, keep_blank_values=True), **defaults).model_dump()


def test_curve_defaults() -> None:
    """An empty query is the published curve; own defaults replace it, a parameter replaces both."""
    assert curve("") == {"k": 4, "cost_ratio": 0.2, "alpha": [0.5, 0.7, 0.9], "verify_cost": 1.0}
    assert curve("k=3", k=8, cost_ratio=0.1)["k"] == 3
    assert curve("", k=8, cost_ratio=0.1)["cost_ratio"] == 0.1


def test_curve_query() -> None:
    """Numbers are read from text, alpha repeats in order, a negative zero is zero."""
    query = "k=0&cost_ratio=1e-1&alpha=0&alpha=1&alpha=-0.0&alpha=.5&verify_cost=100"
    with pytest.raises(ValidationError):
        curve(query)  # ".5" is no JSON number
    parsed = curve(query.replace("=.5", "=0.5"))
    assert parsed == {"k": 0, "cost_ratio": 0.1, "alpha": [0.0, 1.0, 0.0, 0.5], "verify_cost": 100.0}
    assert repr(parsed["alpha"][2]) == "0.0"


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        *[
            (f"k={bad}", "k must be an integer from 0 to 64")
            for bad in ("-1", "65", "4.0", "", "1_0", "%204", "0x4", "true", "9" * 5000, "%D9%A4", "4&k=4")
        ],
        *[
            (f"cost_ratio={bad}", "cost_ratio must be a number from 0 to 10")
            for bad in ("-0.1", "10.1", "nan", "inf", "1e999", "", "1,5", "1_0", "0.2&cost_ratio=0.2")
        ],
        *[
            (f"verify_cost={bad}", "verify_cost must be a number from 1 to 100")
            for bad in ("0.99", "100.5", "NaN", "Infinity", "x")
        ],
        *[
            (f"alpha={bad}", "alpha must be 1 to 64 numbers, each from 0 to 1")
            for bad in ("-0.1", "1.1", "nan", "0.5,0.7", "", "0.5&alpha=x", "0&alpha=".join("0" * 66))
        ],
        ("gamma=4", "gamma is not a known field"),
    ],
    ids=lambda part: part[:32],
)
def test_curve_refused(query: str, sentence: str) -> None:
    """A parameter out of range, no plain number, repeated or unknown is named in one sentence."""
    with pytest.raises(ValidationError) as refused:
        curve(query)
    assert explain(refused.value) == sentence


def test_measurement_round_trip() -> None:
    """The golden and a whole measurement survive parsing and dumping unchanged."""
    for measured in (golden("measured")["example_payload"]["measurement"], example_measurement()):
        assert Measurement.model_validate(measured).model_dump(mode="json") == measured


def test_measurement_drops_unknown_fields() -> None:
    """A field nobody checks does not get into what is signed; further facts of the engine must be plain."""
    measured = {**example_measurement(), "joules": 5}
    assert "joules" not in Measurement.model_validate(measured).model_dump()
    measured["engine"]["flash_attention"] = True
    assert Measurement.model_validate(measured).model_dump()["engine"]["flash_attention"] is True
    for nested in ({"nested": 1}, [1], math.inf):
        measured["engine"]["flash_attention"] = nested
        assert refusal(Measurement, measured) == (
            "engine.flash_attention must be text, a number, true, false or null"
        )


@pytest.mark.parametrize("part", ["engine", "draft", "target"])
def test_further_facts_are_short_few_and_named(part: str) -> None:
    """What a tower adds to a description is cut to a short line; its names look like fields, and are not many."""
    facts = {"a": "x" * 1000, "b": "two\nlines", "c": None, "d": 1, "e": 0.5, "f": False}
    kept = Measurement.model_validate(added(part, facts)).model_dump(mode="json")[part]
    assert {name: kept[name] for name in facts} == {**facts, "a": "x" * 200, "b": "two lines"}
    rule = f"{part} must hold at most 32 more facts, named like fields"
    Measurement.model_validate(added(part, {f"f{i}": i for i in range(32)}))
    assert refusal(Measurement, added(part, {f"f{i}": i for i in range(33)})) == rule
    for name in ("", "two words", "x" * 33, "ключ", "a\n"):
        assert refusal(Measurement, added(part, {name: 1})) == rule


def added(part: str, facts: dict[str, Any]) -> dict[str, Any]:
    """A measurement with further facts in one part."""
    measured = example_measurement()
    measured[part].update(facts)
    return measured


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("label", "MODELED"),
        ("mode", "tree"),
        ("n", 0),
        ("n", 50.0),
        ("n", True),
        ("accepted", -1),
        ("accepted_rate", 1.1),
        ("accepted_rate", "0.7"),
        ("mean_accepted_len", math.nan),
        ("stopped", "bored"),
        ("acceptance_histogram", [1.5, 2]),
        ("acceptance_histogram", [1] * 18),
        ("tokens_per_second", {"speculative": 0.0, "target_only": 1.0}),
        ("tokens_per_second", {"speculative": math.inf, "target_only": 1.0}),
        ("speedup", {"label": "MEASURED", "median": 1.0, "ci95": [1.0, 1.0], "pairs": 5}),
        ("speedup", "MEASURED"),
        ("speedup", None),
        ("verdict", {"valid": 1, "reasons": []}),
        ("draft", {"name": "x", "sha256": "short"}),
    ],
    ids=str,
)
def test_measurement_refused(field: str, value: Any) -> None:
    """A wrong type, a number out of range or not finite, or fewer than six pairs is refused by name."""
    assert refusal(Measurement, {**example_measurement(), field: value}).startswith(field)


def test_energy() -> None:
    """Energy is MEASURED with joules or UNAVAILABLE with a code, and never a zero for a missing reading."""
    adapter: TypeAdapter[Any] = TypeAdapter(Energy)
    for good in (
        {"label": "MEASURED", "joules_per_token": {"speculative": 1.5, "target_only": 2}, "window_s": 3.5},
        {"label": "MEASURED", "joules_per_token": {"speculative": 1.5, "target_only": None}},
        {"label": "UNAVAILABLE", "code": "NO_NVML"},
        {"label": "UNAVAILABLE", "code": "NO_NVML", "reason": "no library"},
        example_energy(),
    ):
        assert adapter.validate_python(good).model_dump(mode="json") == good
    for bad in (
        {"label": "MEASURED", "joules_per_token": {"speculative": 0.0, "target_only": 2.0}},
        {"label": "MEASURED"},
        {"label": "UNAVAILABLE"},
        {"label": "UNAVAILABLE", "code": "NO_NVML", "more": ["x"]},
        {"label": "UNAVAILABLE", "code": "NO_NVML", "a prompt of some length": 1},
        {"label": "ESTIMATED", "code": "X"},
        {"code": "NO_NVML"},
        {**example_energy(), "method": "a wattmeter"},
        {**example_energy(), "windows": [{**example_energy()["windows"][0], "joules": 0.0}]},
        {**example_energy(), "windows": [{**example_energy()["windows"][0], "tokens": 0}]},
        {**example_energy(), "windows": example_energy()["windows"] * 6},
        {**example_energy(), "idle_watts": 0.0},
        {**example_energy(), "refresh_s": None, "gpu": {"uuid": "two words", "name": "n"}},
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)


def test_gpu() -> None:
    """What was seen of a GPU is kept as far as it is known; names of its processes have no place."""
    readings = {
        "sm_clock_mhz": 2535,
        "p_state": 0,
        "temperature_c": 61,
        "events": ["power_cap"],
        "power_watts": None,
    }
    gpu = {
        "driver": "550.54.14",
        "before": readings,
        "after": None,
        "foreign_processes": 0,
        "memory_total": 2**34,
    }
    measured = gpu_measurement(**gpu)
    assert Measurement.model_validate(measured).model_dump(mode="json") == measured
    assert (
        "processes"
        not in Measurement.model_validate(gpu_measurement(processes=["firefox"])).model_dump()["gpu"]
    )
    for field, value in (
        ("uuid", "a b"),
        ("events", ["hot"]),
        ("ecc", 1),
        ("foreign_processes", -1),
        ("before", 1),
    ):
        assert refusal(Measurement, gpu_measurement(**{field: value})).startswith(f"gpu.{field}")


def test_pair_is_named() -> None:
    """A pair that was found has both names."""
    assert refusal(Pair, {"found": True, "reason": "r", "draft": "d"}) == (
        "the value must name draft and target when a pair is found"
    )
    assert Pair(found=False, reason="tower unreachable").model_dump() == {
        "found": False,
        "reason": "tower unreachable",
    }


def test_text_from_elsewhere_is_one_line() -> None:
    """Control characters, terminal escapes and excess length do not survive."""
    assert one_line("a\x1b[31m\nb\u202ec") == "a [31m b c"
    assert len(one_line("x" * 10_000)) == 500 and one_line("abc", 2) == "ab"
