"""Tests of `agent.engines.metrics`: what counters say, and what they do not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.metrics import (
    LLAMA,
    SGLANG,
    TENSORRT,
    VLLM,
    Exposition,
    Growth,
    growth,
    server_figures,
    sglang_readings,
)

TWO_ENGINES = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="n \\"x\\", {1}\\\\"} 100.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1.2e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 1.0
vllm:generation_tokens_total{engine="0",model_name="m"} 64.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0
vllm:request_decode_time_seconds_bucket{le="+Inf",model_name="m"} 3.0
vllm:request_decode_time_seconds_sum{model_name="m"} 0.75
python_gc_objects_collected_total{generation="0"} 9.0
"""


def test_series_of_one_model_are_summed() -> None:
    """Series of all engines and reasons are summed for the model asked for, other models' are left out."""
    grown = growth(VLLM, Exposition("", "m"), Exposition(TWO_ENGINES, "m"))
    assert grown == Growth(15, 40, 12, (8, 4), 64, 3, 0.75, backwards=False)
    assert Exposition(TWO_ENGINES, 'n "x", {1}\\').total(VLLM.drafts) == 100
    assert Exposition(TWO_ENGINES).total(VLLM.drafts) == 115


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("sglang:token_usage 0.1\n", SGLANG),
        ("trtllm_kv_cache_hit_rate 0.1\n", TENSORRT),
        ("llamacpp:n_decode_total 3\n", LLAMA),
        (TWO_ENGINES, VLLM),
        ("process_cpu_seconds_total 3\n", None),
        ("", None),
    ],
)
def test_whose_metrics(text: str, family: object) -> None:
    """The names tell whose metrics these are."""
    assert Exposition(text).family() is family


@pytest.mark.parametrize("text", ['[{"iter": 1}]', "<html><body>hello</body></html>", 'a{b="c} 1\n', "a b\n"])
def test_what_is_no_exposition(text: str) -> None:
    """JSON, a web page and broken lines are refused."""
    with pytest.raises(ValueError):
        Exposition(text)


def test_what_is_absent_is_none() -> None:
    """Counters that a server does not keep, or that are no numbers, are None and never 0."""
    nothing = Growth(None, None, None, None, None, None, None, backwards=False)
    assert growth(VLLM, Exposition(""), Exposition("")) == nothing
    assert growth(VLLM, Exposition(""), Exposition("vllm:generation_tokens_total NaN\n")) == nothing
    assert growth(SGLANG, Exposition(""), Exposition(TWO_ENGINES)) == nothing


def test_counters_that_did_not_move() -> None:
    """A counter that stood still grew by 0, which is not the same as being absent."""
    reading = Exposition(TWO_ENGINES, "m")
    still = growth(VLLM, reading, reading)
    assert (still.drafts, still.drafted, still.accepted, still.per_position) == (0, 0, 0, (0, 0))


@pytest.mark.parametrize("lost", ["10.0", "40.0", "7.0", "64.0", "0.75"])
def test_backwards(lost: str) -> None:
    """A counter that fell, or vanished, is noticed whichever it is."""
    before = Exposition(TWO_ENGINES, "m")
    assert growth(VLLM, before, Exposition(TWO_ENGINES.replace(f" {lost}", " 0.5"), "m")).backwards
    kept = [line for line in TWO_ENGINES.splitlines() if not line.startswith("vllm:generation_tokens")]
    assert growth(VLLM, before, Exposition("\n".join(kept) + "\n", "m")).backwards


def test_six_digits_are_not_enough() -> None:
    """llama.cpp's server prints six digits: from a million on its counters do not tell single tokens apart."""
    before = Exposition("llamacpp:tokens_predicted_total 999990\nllamacpp:spec_decode_num_drafts_total 5\n")
    after = Exposition(
        "llamacpp:tokens_predicted_total 1.00006e+06\nllamacpp:spec_decode_num_drafts_total 9\n"
    )
    grown = growth(LLAMA, before, after)
    assert (grown.tokens, grown.drafts, grown.backwards) == (None, 4, False)
    assert growth(replace(LLAMA, exact_below=math.inf), before, after).tokens == 70


def test_gauges_are_the_servers_own_figures() -> None:
    """Gauges are passed on under a label that says that nothing was measured; a server without them has none."""
    text = "trtllm_spec_decode_acceptance_length 2.5\ntrtllm_spec_decode_draft_overhead 0.1\n"
    figures = server_figures(TENSORRT, Exposition(text))
    assert figures["label"].startswith("UNAVAILABLE") and "readings" not in figures
    assert figures["gauges"]["trtllm_spec_decode_acceptance_length"] == 2.5
    assert server_figures(VLLM, Exposition(TWO_ENGINES)) == {}
    both = server_figures(
        SGLANG, Exposition("sglang:spec_accept_length 2.78\nsglang:spec_accept_rate 0.695\n")
    )
    assert len(both["readings"]) == 2
    one = server_figures(SGLANG, Exposition("sglang:spec_accept_length 2.78\n"))
    assert "readings" not in one


def test_published_example_reads_as_59_percent() -> None:
    """Length 2.78 and rate 69.5 % with four places are 59 % of the draft tokens in the older reading."""
    older, newer = sglang_readings(2.78, 0.695)
    assert older["num_draft_tokens"] == pytest.approx(4)
    assert older["draft_acceptance_rate"] == pytest.approx(1.78 / 3)
    assert newer["draft_acceptance_rate"] == 0.695
    assert newer["num_draft_tokens"] == pytest.approx(1 + 1.78 / 0.695)


@given(st.integers(1, 1000), st.integers(2, 16), st.data())
def test_each_reading_undoes_its_own_definition(passes: int, places: int, data: st.DataObject) -> None:
    """From gauges made by either definition, its reading gives back accepted ÷ drafted and the number of places."""
    accepted = data.draw(st.integers(1, passes * (places - 1)))
    length, truth = 1 + accepted / passes, accepted / (passes * (places - 1))
    older, _ = sglang_readings(length, (accepted + passes) / (passes * places))
    _, newer = sglang_readings(length, accepted / (passes * (places - 1)))
    for reading in (older, newer):
        assert reading["draft_acceptance_rate"] == pytest.approx(truth, rel=1e-9)
        assert reading["num_draft_tokens"] == pytest.approx(places, rel=1e-9)


def test_readings_of_a_server_that_has_not_speculated() -> None:
    """Gauges at 0 mean that nothing was verified yet: no reading makes a rate of them."""
    for reading in sglang_readings(0.0, 0.0):
        assert reading["draft_acceptance_rate"] is None and reading["num_draft_tokens"] is None
