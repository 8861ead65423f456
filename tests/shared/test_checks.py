"""Every redundant or echoed field of a result, altered alone, is found and named."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared import labels
from shared.canonical import sha3_256_hex
from shared.checks import check_measurement, check_result
from shared.estimators import Step
from shared.schemas import Measurement
from shared.wire import ResultFrame
from tests.shared.build import (
    KEYS,
    PROMPT,
    example_measurement,
    golden,
    golden_steps,
    measurement,
    result,
    runs,
)

Run = tuple[int, int, str | None, list[Step]]
RATIOS = st.lists(st.floats(0.25, 4.0), min_size=0, max_size=12)


def findings(frame: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """What the check says about `frame` when `asked` is the frame that would have been right."""
    return check_result(
        ResultFrame.model_validate(frame),
        run_id=asked["run_id"],
        nonce=asked["nonce"],
        bound_request=asked["request"],
    )


def put(frame: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the frame with one value replaced."""
    return alter(frame, path, lambda _: value)


def at(frame: dict[str, Any], path: str) -> Any:
    """The value at a path."""
    place: Any = frame
    for name in path.split("."):
        place = place[int(name)] if isinstance(place, list) else place[name]
    return place


def alter(frame: dict[str, Any], path: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of the frame with one value changed."""
    altered = copy.deepcopy(frame)
    parents, _, last = path.rpartition(".")
    place = at(altered, parents) if parents else altered
    key: Any = int(last) if isinstance(place, list) else last
    place[key] = change(place[key])
    return altered


@given(runs(), RATIOS)
def test_consistent_results_pass(run: Run, ratios: list[float]) -> None:
    """Whatever the steps, however the run ended, a result that follows from them is accepted."""
    frame = result(measurement(*run, ratios=ratios))
    assert findings(frame, frame) == []


@given(runs(), RATIOS)
def test_results_without_timing_or_calibration_pass(run: Run, ratios: list[float]) -> None:
    """Optional parts may be absent or null."""
    measured = measurement(*run, ratios=ratios)
    for name in ("timing", "blocks", "context", "prompt_tokens"):
        del measured[name]
    measured.update(calibration=None, speedup_predicted=None, recommended_k=None)
    frame = result(measured)
    assert findings(frame, frame) == []


def nudge(value: Any) -> Any:
    """Another value of the same kind, close by."""
    if value is None:
        return 0.5
    return value + 1 if isinstance(value, int) else value + 1e-6 if value < 0.5 else value - 1e-6


REDUNDANT = [
    "n",
    "drafted",
    "accepted",
    "rejections",
    "emitted",
    "accepted_rate",
    "draft_acceptance_rate",
    "mean_accepted_len",
    "k_requested",
    "blocks",
    "quality.compared_tokens",
    "accepted_rate_ci95.0",
    "accepted_rate_ci95.1",
    "tokens_per_second.speculative",
    "tokens_per_second.target_only",
]


@pytest.mark.parametrize("field", REDUNDANT)
@given(run=runs(), down=st.booleans())
def test_altered_counts_and_rates(field: str, run: Run, down: bool) -> None:
    """A count one off or a rate a millionth off is refused and named."""
    frame = result(measurement(*run))
    if field.startswith("accepted_rate_ci95"):
        assume(frame["measurement"]["accepted_rate_ci95"])
    value = at(frame["measurement"], field)
    if field == "drafted" and run[2] in ("context", "end_of_text"):
        assume(frame["measurement"]["accepted"])  # or nothing tells how short the last, refused draft was
    low = 1 if field in ("n", "k_requested") else 0
    by = -1 if down and isinstance(value, int) and value > low else 1
    if field == "n" and value + by > 500 or field == "k_requested" and value + by > 16:
        by = -1
    change: Callable[[Any], Any] = (lambda v: v + by) if isinstance(value, int) else nudge
    found = findings(alter(frame, f"measurement.{field}", change), frame)
    named = re.sub(r"(ci95|tokens_per_second)\.\w+$", r"\1", field)
    assert any(re.search(rf"\b{named}\b", finding) for finding in found), found


@given(run=runs(), data=st.data())
def test_altered_histogram(run: Run, data: st.DataObject) -> None:
    """A histogram with any bin changed is refused and named."""
    frame = result(measurement(*run))
    index = data.draw(st.integers(0, run[0]))
    found = findings(alter(frame, f"measurement.acceptance_histogram.{index}", lambda v: v + 1), frame)
    assert any("acceptance_histogram" in finding for finding in found), found


@given(run=runs(), data=st.data())
def test_altered_conditional_acceptance(run: Run, data: st.DataObject) -> None:
    """A conditional acceptance a millionth off, or made up where nothing was examined, is refused."""
    frame = result(measurement(*run))
    index = data.draw(st.integers(0, run[0] - 1))
    found = findings(alter(frame, f"measurement.conditional_acceptance.{index}", nudge), frame)
    assert any("conditional_acceptance" in finding for finding in found), found


@given(run=runs(), other=st.sampled_from([None, "end_of_text", "context", "deadline"]))
def test_altered_stop(run: Run, other: str | None) -> None:
    """A stop that does not explain the counts is refused, for example null for a short run."""
    k, n_requested, _, steps = run
    frame = result(measurement(*run))
    found = findings(alter(frame, "measurement.stopped", lambda _: other), frame)
    cut = steps[-1].drafted < k
    no_bonus = steps[-1].emitted == steps[-1].accepted
    if other is None:
        explained = n_requested == len(steps) and not cut and not no_bonus
    else:
        explained = (other == "end_of_text" or not no_bonus) and (other != "deadline" or not cut)
    if explained:
        assert found == []
    else:
        assert any(
            "stopped" in finding or "emitted" in finding or "rejections" in finding for finding in found
        )


ECHOED = {
    "run_id": lambda _: KEYS.run_id(bytes(16), {"prompt": PROMPT}),
    "nonce": lambda nonce: nonce[:-1] + ("0" if nonce[-1] != "0" else "1"),
    "request.k": lambda k: k % 16 + 1,
    "request.n": lambda n: n % 500 + 1,
    "request.temperature": lambda _: 0.5,
    "request.top_p": lambda _: 0.5,
    "request.top_k": lambda _: 40,
    "request.seed": lambda _: 1,
    "request.chat": lambda _: True,
    "request.ignore_eos": lambda _: True,
    "request.include_output": lambda _: True,
    "request.prompt_commitment": lambda _: "0" * 64,
    "measurement.k_requested": lambda k: k % 16 + 1,
    "measurement.n_requested": lambda n: n % 500 + 1,
}


@pytest.mark.parametrize("path", ECHOED)
@given(run=runs())
def test_altered_echo(path: str, run: Run) -> None:
    """A run id, nonce or request that is not the one sent is refused and named."""
    frame = result(measurement(*run))
    found = findings(alter(frame, path, ECHOED[path]), frame)
    name = path.removeprefix("measurement.").partition(".")[0]
    assert any(re.search(rf"\b{name}\b", finding) for finding in found), found


def test_echo_is_typed() -> None:
    """An echoed request that is equal only loosely, 0 for 0.0 or 1 for true, is not the one sent."""
    frame = result(example_measurement(), chat=True)
    for path, value in (("request.temperature", 0), ("request.chat", 1), ("request.k", 4.0)):
        assert findings(put(frame, path, value), frame) == ["request is not the one that was sent"]


def test_echo_with_more_or_less() -> None:
    """A request echoed with a field too many or too few is not the one sent."""
    frame = result(example_measurement())
    more = {**frame, "request": {**frame["request"], "prompt": PROMPT}}
    less = {**frame, "request": {k: v for k, v in frame["request"].items() if k != "seed"}}
    for altered in (more, less):
        assert findings(altered, frame) == ["request is not the one that was sent"]


OTHERS: list[tuple[str, Any, str]] = [
    ("k", 5, "acceptance_histogram must have k + 1 entries"),
    ("accepted_rate", None, "accepted_rate is not"),
    ("accepted_rate_ci95", [0.73, 0.8], "accepted_rate_ci95 must"),
    ("accepted_rate_ci95", [0.8, 0.6], "accepted_rate_ci95 must"),
    ("accepted_rate_ci95", [-0.1, 0.8], "accepted_rate_ci95 must"),
    ("accepted_rate_ci95", [0.6, 1.1], "accepted_rate_ci95 must"),
    ("accepted_rate_ci95", None, "accepted_rate_ci95 must"),
    ("accepted_rate_ci95", [97 / 134, 97 / 134], "accepted_rate_ci95 must"),
    ("accepted_rate_ci95", [0.0, 1.0], "accepted_rate_ci95 is not the Wilson interval"),
    ("accepted_rate_ci95", [0.6539, 0.7839], "accepted_rate_ci95 is not the Wilson interval"),
    ("tokens_per_second.speculative", 6e9, "tokens_per_second is not emitted / the median of timing"),
    ("tokens_per_second.speculative", None, "tokens_per_second is not"),
    ("tokens_per_second", {"speculative": None, "target_only": None}, "tokens_per_second is not"),
    ("blocks", 999, "blocks is not two per pair in timing"),
    ("prompt_tokens", 10**8, "prompt_tokens and emitted do not fit into context"),
    ("context", 1, "prompt_tokens and emitted do not fit into context"),
    ("context", 6 + 147 - 2, "prompt_tokens and emitted do not fit into context"),
    ("speedup", "UNAVAILABLE", "speedup is UNAVAILABLE, yet timing has pairs enough"),
    ("speedup", "UNAVAILABLE", "verdict.valid cannot be true when speedup is UNAVAILABLE"),
    ("timing", None, "speedup has no timing behind it"),
    ("timing", None, "tokens_per_second has no timing behind it"),
    ("timing", None, "blocks has no timing behind it"),
    ("timing", {"speculative_s": [], "target_only_s": []}, "speedup.pairs is not the number of pairs"),
    ("timing.speculative_s.3", 5e-324, "timing has a pair whose ratio is not finite"),
    ("speedup.ci95", [1.0, 1.76], "verdict.valid cannot be true when speedup.ci95 is too wide"),
    ("speedup.median", 1.51, "speedup.median is not the median of timing"),
    ("speedup.ci95", [1.41, 1.6], "speedup.ci95 is not the order-statistic interval"),
    ("speedup.ci95", [1.4, 1.59], "speedup.ci95 is not the order-statistic interval"),
    ("speedup.ci95", [1.6, 1.4], "speedup.ci95 must be ordered"),
    ("speedup.ci95", [1.4, 1.45], "speedup.ci95 must be ordered"),
    ("speedup.ci95", [0.0, 1.6], "speedup.ci95 must be ordered"),
    ("speedup.pairs", 7, "speedup.pairs is not the number of pairs"),
    ("timing.speculative_s.3", 9.0, "speedup.ci95 is not the order-statistic interval"),
    ("timing.speculative_s.2", 9.0, "speedup.median is not the median of timing"),
    ("timing.target_only_s", [1.0], "timing must have one entry per pair"),
    ("speedup_predicted.value", 1.3, "speedup_predicted is not"),
    ("calibration.cost_ratio", 0.17, "speedup_predicted is not"),
    ("calibration.verify_cost.4", 1.5, "speedup_predicted is not"),
    ("calibration.verify_cost", [1.0, 1.1], "speedup_predicted has no calibration"),
    ("calibration", None, "speedup_predicted has no calibration"),
    ("recommended_k", 5, "recommended_k has no calibration"),
    ("quality.identical_rate", 0.875, "quality.label does not fit"),
    ("quality.identical_rate", None, "quality.label does not fit"),
    ("quality.label", labels.DIVERGED_TIE, "quality.label does not fit"),
    ("quality.label", labels.SAMPLED, "quality.label does not fit"),
    ("quality.label", "MEASURED (better than lossless)", "quality.label does not fit"),
    ("quality.label", "UNAVAILABLE because", "quality.label does not fit"),
    ("quality.compared_tokens", 148, "quality.compared_tokens must be emitted"),
    ("quality.compared_tokens", 1, "quality.compared_tokens must be emitted"),
    ("quality.compared_tokens", 0, "quality.compared_tokens must be emitted"),
    ("quality.identical_rate", None, "quality.compared_tokens must be emitted, or 0"),
    ("verdict.valid", False, "verdict.valid must be true exactly when"),
    ("verdict.reasons", ["throttled"], "verdict.valid must be true exactly when"),
    ("n_requested", 49, "n exceeds n_requested"),
    ("n_requested", 51, "stopped is null"),
]


@pytest.mark.parametrize(("path", "value", "finding"), OTHERS, ids=lambda part: str(part)[:40])
def test_altered_elsewhere(path: str, value: Any, finding: str) -> None:
    """Each further contradiction is found, and its sentence starts with the field's name."""
    altered = alter(example_measurement(), path, lambda _: value)
    found = check_measurement(Measurement.model_validate(altered))
    assert any(sentence.startswith(finding) for sentence in found), found


def test_a_fixed_run_that_claims_an_automatic_k() -> None:
    """A run of fixed length passed off as adaptive lacks the list of steps, and has what only a fixed k can have."""
    only_asked = alter(example_measurement(), "k_requested", lambda _: "auto")
    null_rate = "accepted_rate must be null when drafts were stopped by confidence"
    null_rest = "iid, speedup_predicted and residuals must be null when the draft length varied"
    assert check_measurement(Measurement.model_validate(only_asked)) == [
        "mode must be adaptive exactly when k_requested is auto",
        null_rate,
        null_rest,
    ]
    assert check_measurement(Measurement.model_validate({**only_asked, "mode": "adaptive"})) == [
        "per_step is missing, and an adaptive run cannot be checked without",
        null_rate,
        null_rest,
    ]
    only_mode = alter(example_measurement(), "mode", lambda _: "adaptive")
    assert check_measurement(Measurement.model_validate(only_mode)) == [
        "mode must be adaptive exactly when k_requested is auto"
    ]


def test_sampled_runs() -> None:
    """Above temperature 0 quality is UNAVAILABLE (sampled), at temperature 0 it never is."""
    measured = example_measurement()
    measured["quality"] = {"identical_rate": None, "label": labels.SAMPLED, "compared_tokens": 0}
    sampled = result(measured, temperature=0.7)
    assert findings(sampled, sampled) == []
    for frame in (result(measured), result(example_measurement(), temperature=0.7)):
        assert findings(frame, frame) == [
            "measurement.quality.label does not fit the temperature that was asked for"
        ]


def test_diverged_runs() -> None:
    """A divergence is accepted under its own label, and is never valid."""
    for label in (labels.DIVERGED_TIE, labels.DIVERGED_FAULT):
        measured = example_measurement()
        measured["quality"].update(identical_rate=0.875, label=label)
        assert check_measurement(Measurement.model_validate(measured)) == [
            "verdict.valid cannot be true when the output diverged"
        ]
        measured["verdict"] = {"valid": False, "reasons": [labels.OUTPUT_DIFFERS]}
        assert check_measurement(Measurement.model_validate(measured)) == []


@pytest.mark.parametrize("reason", [labels.OUTPUT_DIFFERS, labels.REPEATS_DIFFER])
def test_withheld_speedup(reason: str) -> None:
    """Where the sides did not decode the same tokens, pairs may be timed and give no speed-up and no rates."""
    measured = example_measurement()
    measured.update(speedup="UNAVAILABLE", verdict={"valid": False, "reasons": [reason]})
    measured["tokens_per_second"] = {"speculative": None, "target_only": None}
    assert check_measurement(Measurement.model_validate(measured)) == []
    measured["verdict"]["reasons"] = ["other work slowed the machine while it was timed"]
    assert check_measurement(Measurement.model_validate(measured)) == [
        "tokens_per_second is not emitted / the median of timing",
        "speedup is UNAVAILABLE, yet timing has pairs enough",
    ]


def test_slowed_runs() -> None:
    """A verdict may doubt numbers for a reason of its own, and they are checked all the same."""
    measured = example_measurement()
    reasons = ["other work slowed the machine while it was timed"]
    measured["verdict"] = {"valid": False, "reasons": reasons}
    assert check_measurement(Measurement.model_validate(measured)) == []


def test_untimed_runs() -> None:
    """A run that was not timed has no speed-up and no rates, and may say so with a null or with empty lists."""
    measured = measurement(4, 50, None, golden_steps(golden("measured")["cases"][0]), ratios=[])
    measured["quality"] = {"identical_rate": None, "label": labels.UNAVAILABLE, "compared_tokens": 0}
    frame = result(measured)
    assert findings(frame, frame) == []
    assert findings(put(frame, "measurement.verdict", {"valid": True, "reasons": []}), frame) == [
        "measurement.verdict.valid cannot be true when speedup is UNAVAILABLE"
    ]
    for name, value in (("blocks", None), ("timing", None)):
        frame = put(frame, f"measurement.{name}", value)
    assert findings(frame, frame) == []


def test_few_steps() -> None:
    """Nine steps are never enough, ten may be."""
    for n, found in ((9, ["verdict.valid cannot be true when n is below 10"]), (10, [])):
        measured = measurement(2, n, None, [Step(2, 1, True, 2)] * n)
        measured["verdict"] = {"valid": True, "reasons": []}
        assert check_measurement(Measurement.model_validate(measured)) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([0.6, 0.8], []),
        ([0.7, 0.7], ["accepted_rate_ci95 must be a range in 0 to 1 that contains accepted_rate"]),
        ([0.73, 0.8], ["accepted_rate_ci95 must be a range in 0 to 1 that contains accepted_rate"]),
    ],
)
def test_interval_without_timing(given: list[float], found: list[str]) -> None:
    """Who gives no timing may use another interval, if it contains the rate and is no point."""
    example = copy.deepcopy(golden("measured")["example_payload"]["measurement"])
    example["accepted_rate_ci95"] = given
    assert check_measurement(Measurement.model_validate(example)) == found


def test_unasked_things() -> None:
    """Text that was not asked for, and an end of text that was to be ignored, are refused."""
    frame = {**result(example_measurement()), "output_sha3_256": sha3_256_hex(b"text")}
    assert findings({**frame, "output": "text"}, frame) == ["output was not asked for"]
    case = golden("measured")["cases"][1]
    ended = result(measurement(case["k"], 50, "end_of_text", golden_steps(case)), ignore_eos=True)
    assert findings(ended, ended) == ["measurement.stopped is end_of_text, which was to be ignored"]


def test_output_is_what_its_digest_names() -> None:
    """Text must have the digest given with it, unless some of its bytes were no text and cannot be told."""
    frame = result(example_measurement(), include_output=True)
    frame["output_sha3_256"] = sha3_256_hex("naïve".encode())
    for output in (None, "naïve", "na\ufffdve"):
        assert findings({**frame, "output": output}, frame) == []
    for output in ("", "naive", "naïve ", "\ud800"):
        assert findings({**frame, "output": output}, frame) == [
            "output is not the text that output_sha3_256 names"
        ]


@pytest.mark.parametrize("case", golden("measured")["cases"], ids=lambda case: case["name"])
def test_golden_cases_pass(case: dict[str, Any]) -> None:
    """The golden counts of every case, full runs and cut ones, are consistent."""
    expect = {name: value for name, value in case["expect"].items() if name in Measurement.model_fields}
    stopped = case.get("stopped")
    more = 5 if stopped else 0
    measured = measurement(case["k"], case["expect"]["n"] + more, stopped, golden_steps(case))
    assert check_measurement(Measurement.model_validate({**measured, **expect})) == []


def test_golden_example_passes() -> None:
    """The golden example measurement is consistent, its rounded prediction included."""
    example = golden("measured")["example_payload"]["measurement"]
    assert check_measurement(Measurement.model_validate(example)) == []


def test_an_end_that_no_step_explains() -> None:
    """A bonus given up to an end of text needs a step that accepted something."""
    measured = measurement(2, 9, "end_of_text", [Step(2, 0, True, 1)] * 3)
    measured.update(emitted=2, mean_accepted_len=2 / 3)
    assert "drafted, rejections, emitted and stopped fit no last step" in check_measurement(
        Measurement.model_validate(measured)
    )


@pytest.mark.parametrize("stopped", [None, "deadline"])
def test_a_short_draft_nobody_explains(stopped: str | None) -> None:
    """Only the context's end cuts a draft short, so elsewhere a draft too few is found though no rate shows it."""
    measured = measurement(2, 3, stopped, [Step(2, 0, True, 1)] * 3)
    measured.update(drafted=5)
    assert check_measurement(Measurement.model_validate(measured)) == [
        "drafted is not k per step, or a last step is short without stopped saying why"
    ]


def test_a_refusal_left_out() -> None:
    """One refusal fewer needs a last step that accepted all it drafted, or the end of the text."""
    measured = measurement(2, 9, "context", [Step(2, 0, True, 1), Step(2, 2, False, 3), Step(2, 1, True, 2)])
    measured.update(rejections=1, accepted_rate=0.75)
    assert "drafted, rejections, emitted and stopped fit no last step" in check_measurement(
        Measurement.model_validate(measured)
    )
