"""What a measurement derives from its steps and costs: each field, altered alone, is found and named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent import measure
from shared import labels
from shared.checks import check_measurement
from shared.curve import StepCosts, best_k, predicted_curve
from shared.estimators import Step, summarise
from shared.schemas import Iid, Measurement
from tests.agent.tables import TableModel, near
from tests.agent.test_measure import COSTS, endless, knowing, pair_of, request
from tests.shared.build import golden

GREEDY, SAMPLED = "greedy", "sampled"
Kind = tuple[int | str, str]
FIXED: list[Kind] = [(3, GREEDY), (3, SAMPLED)]
ADAPTIVE: list[Kind] = [("auto", GREEDY), ("auto", SAMPLED)]


@cache
def _made(k: int | str, how: str, costs: StepCosts) -> str:
    asked = request(k=k, n=40, temperature=0.9 if how == SAMPLED else 0.0)
    table = endless(2)
    pair = knowing(pair_of(TableModel(table), TableModel(near(table, 3, 0.5))), asked, costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "TIMING_S", 0.0)
        return json.dumps(measure.run(pair, asked).measurement)


def made(k: int | str, how: str, costs: StepCosts = COSTS) -> dict[str, Any]:
    """What the agent measures over table models whose costs are known; a copy to be altered."""
    measured: dict[str, Any] = json.loads(_made(k, how, costs))
    return measured


def found(measured: dict[str, Any]) -> list[str]:
    """What the check says of a measurement that the schema accepts."""
    return check_measurement(Measurement.model_validate(measured))


def at(measured: dict[str, Any], path: str) -> tuple[Any, Any]:
    """The container of a value, and its key there."""
    *parents, last = path.split(".")
    place: Any = measured
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    return place, int(last) if isinstance(place, list) else last


def altered(measured: dict[str, Any], path: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy with one value changed."""
    measured = copy.deepcopy(measured)
    place, key = at(measured, path)
    place[key] = change(place[key])
    return measured


def nudged(value: Any) -> Any:
    """Another value of the same kind, close by."""
    if value is None:
        return 1
    if isinstance(value, int):
        return value - 1 if value else 1
    return value - 1e-6 if value >= 0.5 else value + 1e-6


@pytest.mark.parametrize(("k", "how"), FIXED + ADAPTIVE)
def test_what_the_agent_measures_passes(k: int | str, how: str) -> None:
    """Measurements of fixed and automatic k, greedy and sampled, have every part and agree with themselves."""
    measured = made(k, how)
    assert found(measured) == []
    given = {name for name in ("iid", "sum_min", "alpha", "residuals", "speedup_predicted") if measured[name]}
    fixed = {"iid", "residuals", "speedup_predicted"}
    assert given == (fixed if k == 3 else {"alpha"}) | ({"sum_min"} if how == SAMPLED else set())
    assert measured["calibration"]["draft"] and measured["predicted_curve"] and measured["per_step"]
    assert 0 < measured["accepted"] and 0 < measured["rejections"]


def test_golden_example_still_passes() -> None:
    """A measurement without any of the newer fields remains valid."""
    example = golden("measured")["example_payload"]["measurement"]
    assert not {"per_step", "iid", "predicted_curve", "residuals"} & example.keys()
    assert found(example) == []


CURVE = "predicted_curve is not what calibration and alpha give"
COSTS_OF_A_STEP = "residuals.cost.predicted is not what calibration and per_step give"
PARTS = "calibration.cost_ratio is not what calibration.draft gives"
TOKENS = "residuals.tokens is not what accepted_rate and the counts give"
OWN_RATE = "alpha.value is not accepted / (accepted + rejections) of its own steps"
OWN_INTERVAL = "alpha.ci95 is not the Wilson interval of its own counts"
ANY_K = {
    "calibration.cost_ratio": PARTS,
    "calibration.draft.first": PARTS,
    "calibration.draft.warming.0": PARTS,
    "calibration.draft.following": CURVE,
    "calibration.draft.catch_up": CURVE,
    "calibration.draft.width_change": CURVE,
    "calibration.draft.k": PARTS,
    "calibration.draft.after_full_acceptance": "calibration.draft.after_full_acceptance is not",
    "calibration.verify_cost.0": "calibration.verify_cost must begin with 1",
    "recommended_k": "recommended_k is not the best k of predicted_curve",
    **{f"calibration.verify_cost.{m}": CURVE for m in range(1, 17)},
    **{f"predicted_curve.speedup.{k}": CURVE for k in range(17)},
    **{f"unconditional_acceptance.{j}": "unconditional_acceptance is not what" for j in range(3)},
    **{f"conditional_acceptance.{j}": "conditional_acceptance is not what per_step" for j in range(3)},
    **{f"per_step.{side}.{i}": "per_step" for side in ("drafted", "accepted") for i in range(0, 40, 3)},
}
FIXED_K = {
    "calibration.draft.first": COSTS_OF_A_STEP,
    "calibration.draft.k": "calibration.draft.k is not k",
    "calibration.verify_cost.3": COSTS_OF_A_STEP,
    "speedup_predicted.value": "speedup_predicted is not what calibration and accepted_rate give",
    "residuals.cost.predicted": COSTS_OF_A_STEP,
    "residuals.cost.measured": "residuals.cost.measured is not what timing gives",
    "residuals.cost.ratio": "residuals.cost.ratio is not predicted / measured",
    "residuals.tokens.expected": TOKENS,
    "residuals.tokens.seen": TOKENS,
    "residuals.tokens.ratio": TOKENS,
    **{f"iid.{name}": "iid is not the test of per_step" for name in Iid.model_fields if name != "conclusion"},
}
AUTO_K = {
    "alpha.value": OWN_RATE,
    "alpha.accepted": OWN_RATE,
    "alpha.rejections": OWN_INTERVAL,
    "alpha.ci95.0": OWN_INTERVAL,
    "alpha.ci95.1": OWN_INTERVAL,
}


@pytest.mark.parametrize("kind", FIXED + ADAPTIVE)
def test_altered_derived_fields(kind: Kind) -> None:
    """A derived value a millionth or one off is found, and the finding names it or what follows from it."""
    measured = made(*kind)
    for path, sentence in [*ANY_K.items(), *(FIXED_K if kind in FIXED else AUTO_K).items()]:
        sentences = found(altered(measured, path, nudged))
        assert any(sentence in finding for finding in sentences), (path, sentences)


@pytest.mark.parametrize("kind", FIXED + ADAPTIVE)
@pytest.mark.parametrize("conclusion", ["not rejected", "rejected", "too few steps"])
def test_another_conclusion(kind: Kind, conclusion: str) -> None:
    """A test of the model says what its steps give: no other conclusion, and none for a varying length."""
    measured = made(*kind)
    if kind in ADAPTIVE:
        measured["iid"] = {**made(3, SAMPLED)["iid"], "conclusion": conclusion}
        assert any(finding.startswith("iid, speedup_predicted") for finding in found(measured))
        return
    right = measured["iid"]["conclusion"] == conclusion
    measured["iid"]["conclusion"] = conclusion
    assert found(measured) == ([] if right else ["iid is not the test of per_step"])


@pytest.mark.parametrize("kind", [(3, SAMPLED), ("auto", SAMPLED)])
def test_sum_min_is_over_what_was_examined(kind: Kind) -> None:
    """A sampled run's sum_min is over as many tokens as were accepted or refused."""
    for by in (-1, 1):
        measured = altered(made(*kind), "sum_min.examined", lambda count, by=by: count + by)  # type: ignore[misc]
        assert found(measured) == ["sum_min.examined is not accepted + rejections"]


def lengths(entries: list[Any]) -> Iterator[list[Any]]:
    """Lists of other lengths."""
    yield entries[:-1]
    yield [*entries, entries[-1]]
    yield []


@pytest.mark.parametrize("kind", FIXED + ADAPTIVE)
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("per_step.drafted", "per_step"),
        ("per_step.accepted", "per_step"),
        ("predicted_curve.speedup", "predicted_curve"),
        ("calibration.verify_cost", "predicted_curve"),
        ("unconditional_acceptance", "unconditional_acceptance"),
        ("conditional_acceptance", "conditional_acceptance"),
    ],
)
def test_lists_of_another_length(kind: Kind, path: str, name: str) -> None:
    """A list with an entry too few or too many is found, unless the schema refuses it."""
    place, key = at(made(*kind), path)
    for other in lengths(place[key]):
        try:
            sentences = found(altered(made(*kind), path, lambda _, other=other: other))  # type: ignore[misc]
        except ValidationError:
            assert not other or len(other) > 16
            continue
        assert any(name in finding for finding in sentences), sentences


def test_steps_in_another_order() -> None:
    """Steps in another order have the same sums and other tests, residuals and costs."""
    measured = made(3, SAMPLED)
    accepted = measured["per_step"]["accepted"]
    # Accepted whole, and no step after it: so the order decides how many follow such a one.
    assert accepted[-1] == 3
    accepted.sort(reverse=True)
    sentences = found(measured)
    assert "iid is not the test of per_step" in sentences
    assert "residuals.cost.predicted is not what calibration and per_step give" in sentences


def test_a_short_step_amid_a_fixed_run() -> None:
    """With k fixed only the last draft may be short; one amid the run is found though the sums agree."""
    measured = made(3, SAMPLED)
    short = next(i for i, taken in enumerate(measured["per_step"]["accepted"]) if taken < 2 and i < 39)
    measured["per_step"]["drafted"][short] = 2
    measured["drafted"] -= 1
    measured["draft_acceptance_rate"] = measured["accepted"] / measured["drafted"]
    assert found(measured) == [
        "per_step.drafted is not k in every step but a last one that was cut short",
    ]


@pytest.mark.parametrize("how", [GREEDY, SAMPLED])
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"accepted_rate": 0.5}, "accepted_rate must be null when drafts were stopped by confidence"),
        ({"accepted_rate_ci95": [0.1, 0.9]}, "accepted_rate must be null when drafts were stopped"),
        ({"per_step": None}, "per_step is missing, and an adaptive run cannot be checked without"),
        ({"mode": "linear"}, "mode must be adaptive exactly when k_requested is auto"),
        ({"k_requested": 16}, "mode must be adaptive exactly when k_requested is auto"),
        (
            {"speedup_predicted": {"label": "MODELED", "value": 1.5}},
            "iid, speedup_predicted and residuals must be null when the draft length varied",
        ),
        (
            {"residuals": ...},
            "iid, speedup_predicted and residuals must be null when the draft length varied",
        ),
        (
            {"iid": ...},
            "iid, speedup_predicted and residuals must be null when the draft length varied",
        ),
        ({"alpha": None}, "predicted_curve is not what calibration and alpha give"),
        ({"calibration": None}, "predicted_curve and residuals need calibration.draft"),
        ({"calibration": None}, "recommended_k has no calibration behind it"),
    ],
    ids=lambda part: ",".join(part) if isinstance(part, dict) else part[:30],
)
def test_what_an_adaptive_run_cannot_say(how: str, changes: dict[str, Any], sentence: str) -> None:
    """An adaptive run claims no rate or prediction of a fixed k, and has its steps, alpha and costs."""
    fixed = made(3, how)  # from which an ellipsis takes the value
    values = {name: fixed[name] if value is ... else value for name, value in changes.items()}
    sentences = found({**made("auto", how), **values})
    assert any(finding.startswith(sentence) for finding in sentences), sentences


def test_an_accepted_end_of_text_needs_its_stop() -> None:
    """One token fewer than the steps give is an accepted end of text, and stopped must say so."""
    measured = made("auto", SAMPLED)
    measured["per_step"]["drafted"][-1] = measured["per_step"]["accepted"][-1] = 2
    steps = [
        Step(drafted, accepted, accepted < drafted, accepted + 1)
        for drafted, accepted in zip(*measured["per_step"].values(), strict=True)
    ]
    steps[-1] = Step(2, 2, False, 2)
    counts = summarise(steps, 16)
    measured.update(
        {name: getattr(counts, name) for name in ("drafted", "accepted", "rejections", "emitted")},
        acceptance_histogram=list(counts.acceptance_histogram),
        conditional_acceptance=list(counts.conditional),
        draft_acceptance_rate=counts.accepted / counts.drafted,
        mean_accepted_len=counts.emitted / counts.n,
        tokens_per_second={"speculative": None, "target_only": None},
        speedup=labels.UNAVAILABLE,
        verdict={"valid": False, "reasons": ["fewer than 6 timed pairs"]},
        timing={"speculative_s": [], "target_only_s": []},
        blocks=0,
    )
    del measured["sum_min"], measured["unconditional_acceptance"]
    assert found({**measured, "stopped": "end_of_text"}) == []
    for stopped in (None, "context", "deadline"):
        assert found({**measured, "stopped": stopped}) == [
            "emitted is one short of what per_step gives, and stopped is not end_of_text"
        ]


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("mode", "adaptive", "mode must be adaptive exactly when k_requested is auto"),
        ("per_step", None, "iid has no per_step behind it"),
        ("per_step", None, "residuals have no alpha, steps or costs behind them"),
        ("timing", None, "residuals.cost.measured has no timing behind it"),
        ("calibration", None, "predicted_curve and residuals need calibration.draft"),
        ("calibration", None, "speedup_predicted has no calibration behind it"),
        ("calibration", None, "recommended_k has no calibration behind it"),
        ("calibration.draft", None, "predicted_curve and residuals need calibration.draft"),
        ("calibration.verify_cost", [1.0], "speedup_predicted has no calibration behind it"),
        ("calibration.verify_cost", [1.0], "residuals have no alpha, steps or costs behind them"),
        ("calibration.verify_cost", [1.0] * 65, "predicted_curve is not what calibration and alpha give"),
        ("accepted_rate", None, "predicted_curve is not what calibration and alpha give"),
        ("residuals.cost.measured", None, "residuals.cost.ratio is not predicted / measured"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_fields_with_nothing_behind_them(path: str, value: Any, sentence: str) -> None:
    """What a fixed run derives is refused when what it is derived from is missing."""
    sentences = found(altered(made(3, SAMPLED), path, lambda _: value))
    assert any(finding.startswith(sentence) for finding in sentences), sentences


@pytest.mark.parametrize("kind", FIXED + ADAPTIVE)
def test_newer_fields_may_be_absent(kind: Kind) -> None:
    """A tower that predicts nothing and tests nothing is believed as before; a list of steps stays with auto."""
    measured = made(*kind)
    for name in ("unconditional_acceptance", "iid", "sum_min", "alpha", "calibration", "residuals"):
        del measured[name]
    for name in ("speedup_predicted", "predicted_curve", "recommended_k"):
        measured[name] = None
    if kind in FIXED:
        del measured["per_step"]
    assert found(measured) == []


def test_a_residual_without_timing() -> None:
    """A run whose timings were withheld predicts a step's cost and has none to compare."""
    measured = made(3, SAMPLED)
    measured["residuals"]["cost"].update(measured=None, ratio=None)
    assert found(measured) == []


def test_a_tied_curve_recommends_the_smaller_k() -> None:
    """Where drafting gains exactly nothing the recommendation is not to draft."""
    measured = made("auto", SAMPLED, StepCosts(9.0, 9.0, 0.0, tuple([1.0] * 17)))
    assert (measured["k"], measured["recommended_k"], measured["drafted"]) == (0, 0, 0)
    assert found(measured) == []
    measured["recommended_k"] = 1
    assert found(measured) == ["recommended_k is not the best k of predicted_curve"]


def test_a_calibration_of_another_run() -> None:
    """The share of fully accepted steps, from which a run's cost ratio follows, is that of its own steps."""
    for kind in FIXED + ADAPTIVE:
        measured = made(*kind)
        draft = measured["calibration"]["draft"]
        draft["after_full_acceptance"] = 1.0
        costs = StepCosts(
            draft["first"],
            draft["following"],
            draft["catch_up"],
            tuple(measured["calibration"]["verify_cost"]),
            tuple(draft["warming"]),
            draft_width_change=draft["width_change"],
        )
        measured["calibration"]["cost_ratio"] = costs.cost_ratio(draft["k"], 1.0)
        assert any("calibration.draft.after_full_acceptance" in finding for finding in found(measured))


@pytest.mark.parametrize("width_change", [0.05 + 1e-9, 0.5, 999_999.0])
def test_a_draft_that_would_cost_less_than_nothing(width_change: float) -> None:
    """What a graph costs is part of what two tokens cost; a greater share could make a step's cost negative."""
    measured = made(3, SAMPLED)
    measured["calibration"]["draft"]["width_change"] = width_change
    assert found(measured) == ["calibration.draft.width_change is more than the catch_up it is part of"]


def test_a_receipt_from_before_it_was_measured() -> None:
    """Without the cost of a draft's graph, or with null, it counts as nothing."""
    measured = made(3, SAMPLED, replace(COSTS, draft_width_change=0.0))
    del measured["calibration"]["draft"]["width_change"]
    assert found(measured) == []
    measured["calibration"]["draft"]["width_change"] = None
    assert found(measured) == []


def test_costs_that_agree_but_for_alpha() -> None:
    """A curve for another alpha, with the k that is best on it, is refused."""
    measured = made(3, SAMPLED)
    curve = predicted_curve(0.9, COSTS)
    measured["predicted_curve"]["speedup"], measured["recommended_k"] = curve, best_k(curve)
    assert found(measured) == ["predicted_curve is not what calibration and alpha give"]


INTEGERS = st.sampled_from([0, 0, 1, 2, 16, 17, 40, 65, 500, 10**9])
FLOATS = st.one_of(
    st.sampled_from([0.0, 5e-324, 1e-300, 1e-12, 0.5, 1.0, 1 - 2**-53, 1e5, 9.9e11]), st.floats(0, 1)
)
LISTS: list[list[Any]] = [[], [0], [1.0], [None], [0.0, 1.0], [1.0] * 65, [5e-324] * 17, [16] * 500]
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 2**63, 10**400, -0.0, 1e300, float("nan"), float("inf"), float("-inf")]),
    st.sampled_from(["", "auto", "linear", "adaptive", labels.UNAVAILABLE, "end_of_text", "rejected"]),
    st.sampled_from(LISTS).map(lambda entries: list(entries)),
)


def somewhere(data: st.DataObject, document: Any) -> tuple[Any, Any]:
    """Some container within a JSON document and a key of it, fields being as likely as the lists beside them."""
    keys = sorted(document) if isinstance(document, dict) else range(len(document))
    key = data.draw(st.sampled_from(keys))
    if document[key] and isinstance(document[key], dict | list) and data.draw(st.booleans()):
        return somewhere(data, document[key])
    return document, key


@given(kind=st.sampled_from(FIXED + ADAPTIVE), data=st.data())
def test_hostile_values_never_raise(kind: Kind, data: st.DataObject) -> None:
    """Whatever numbers, nulls and lists stand in a measurement, it is refused or checked; nothing is raised."""
    measured = made(*kind)
    for _ in range(data.draw(st.integers(1, 3))):
        place, key = somewhere(data, measured)
        old = place[key]
        if isinstance(old, list) and old and data.draw(st.booleans()):
            place[key] = data.draw(st.sampled_from([old[:-1], old[1:], [*old, old[-1]], 3 * old]))
        else:
            alike = INTEGERS if isinstance(old, int) else FLOATS if isinstance(old, float) else HOSTILE
            place[key] = data.draw(st.one_of(alike, alike, HOSTILE))
    try:
        parsed = Measurement.model_validate(measured)
    except ValidationError:
        return
    assert all(isinstance(finding, str) and finding for finding in check_measurement(parsed))


@pytest.mark.parametrize("kind", FIXED + ADAPTIVE)
@pytest.mark.parametrize(
    "changes",
    [
        {"emitted": 0},
        {"emitted": 0, "n": 1},
        {"accepted": 0, "rejections": 0, "accepted_rate": None, "accepted_rate_ci95": None},
        {"k": 15},
        {"k": 0},
        {"n": 500},
        {"acceptance_histogram": [0]},
        {"acceptance_histogram": [10**9] * 17},
        {"timing": {"speculative_s": [5e-324] * 6, "target_only_s": [9e11] * 6}},
        {"timing": {"speculative_s": [9e11] * 6, "target_only_s": [5e-324] * 6}},
        {"timing": {"speculative_s": [], "target_only_s": []}},
        {"predicted_curve": {"label": "MODELED", "speedup": [9e11] * 65}},
        {"per_step": {"drafted": [16] * 500, "accepted": [16] * 500}},
        {"per_step": {"drafted": [0] * 40, "accepted": [16] * 40}},
        {"per_step": {"drafted": [], "accepted": []}},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_extreme_values_are_found(kind: Kind, changes: dict[str, Any]) -> None:
    """Extreme values that the schema lets pass are found and never divide by nothing."""
    assert found({**made(*kind), **changes})


@pytest.mark.parametrize("verify", [5e-324, 9e11])
@pytest.mark.parametrize("kind", FIXED + ADAPTIVE)
def test_extreme_costs_are_found(kind: Kind, verify: float) -> None:
    """Costs next to nothing or beyond measure are found too, alone and with free drafts."""
    measured = made(*kind)
    measured["calibration"]["verify_cost"] = [verify] * 17
    assert found(measured)
    measured["calibration"]["draft"].update(first=0.0, warming=[0.0] * 16, following=0.0, catch_up=0.0)
    measured["calibration"]["cost_ratio"] = 0.0
    assert found(measured)


@pytest.mark.parametrize(
    "path", ["calibration.cost_ratio", "residuals.cost.predicted", "iid.p_value", "alpha.value"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none(path: str, value: float) -> None:
    """NaN and infinities never reach the check: the schema refuses them."""
    measured = made("auto" if path.startswith("alpha") else 3, SAMPLED)
    with pytest.raises(ValidationError):
        Measurement.model_validate(altered(measured, path, lambda _: value))
