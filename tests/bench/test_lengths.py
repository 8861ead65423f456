"""Tests of `bench.lengths` and `bench.tables`: what is summed up, and how it is shown."""

from __future__ import annotations

import pytest

from agent.calibration import Calibration
from agent.decode import Generation
from bench import lengths, tables
from shared.curve import StepCosts
from shared.estimators import Step

COSTS = StepCosts(0.1, 0.1, 0.0, tuple(1 + 0.1 * m for m in range(17)))


def variant(k: int | str, cost: float) -> lengths.Variant:
    """Returns a variant whose two steps accepted everything and one token, at a given cost per token."""
    drafted = 4 if isinstance(k, str) else k
    steps = [Step(drafted, drafted, False, drafted + 1), Step(drafted, 0, True, 1)]
    made = Generation(0, [0], list(range(drafted + 2)), steps)
    per_step = cost * (drafted + 2) / 2
    return lengths.Variant(made, [*[per_step] * 5, 9.0], [*[cost] * 5, 9.0])


def results(prompts: int = 6) -> list[tuple[dict[int | str, lengths.Variant], Calibration]]:
    """Returns equal prompts on which 5 is the best k, and auto a tenth faster."""
    costs: dict[int | str, float] = {k: 0.5 + 0.05 * abs(5 - k) for k in range(1, 9)}
    costs["auto"] = 0.5 / 1.1
    calibration = Calibration(COSTS, 0.01, 64, 3, True, "2026-11-30T00:00:00Z", 0.0)
    return [({k: variant(k, cost) for k, cost in costs.items()}, calibration) for _ in range(prompts)]


def test_rows_by_hand() -> None:
    """A row's speed-up is the inverse mean cost; medians ignore a disturbed round; predictions stand beside."""
    row = next(r for r in lengths._rows("prose", results()) if r["k"] == 4)
    assert row["prompts"] == 6
    assert row["tokens_per_step"] == 3.0
    assert row["speedup"] == pytest.approx(1 / 0.55)
    assert row["accepted_rate"] == pytest.approx(0.8)
    # Predicted 4 * 0.1 + v(5) = 1.8 against 0.55 * 6 / 2 = 1.65 measured.
    assert row["cost_ratio"] == pytest.approx(1.8 / 1.65)
    assert row["yield_ratio"] == pytest.approx((1 - 0.8**5) / 0.2 / 3)


def test_auto_is_compared_with_the_best_fixed_length() -> None:
    """The best fixed length is the one that is fastest over all prompts."""
    auto = lengths._auto([variants for variants, _ in results()])
    assert auto["best_fixed_k"] == 5
    assert auto["auto_over_best_fixed"] == pytest.approx(1.1)


def test_recommended_against_measured_best() -> None:
    """The recommended length's measured speed is given as a share of the best one's."""
    recommended = lengths._recommended(results())
    assert recommended["measured_best_k"] == 5
    chosen = recommended["recommended_k"]
    ratio = 0.5 / (0.5 + 0.05 * abs(5 - chosen))
    assert recommended["recommended_over_best"] == pytest.approx(ratio)
    assert recommended["ci95"] is None  # equal prompts tell of no spread


def test_luck_makes_no_best_length() -> None:
    """A length that is fastest in every other round only, and slow between, is no rival for the recommended one."""
    lucky = results()
    chosen = lengths._recommended(lucky)["recommended_k"]
    for variants, _ in lucky:
        variants[1].token_cost = [0.1, 2.0] * 3
        variants[chosen].token_cost = [0.5] * 6
    # Rounds 1, 3, 5 are compared with the best of the others, which is k = 1 at 2.0; the others with k = 5 at 0.5.
    found = lengths._recommended(lucky)["recommended_over_best"]
    assert found == pytest.approx((2.0 + 0.5) / (0.5 + 0.5))


def test_tables_hold_every_row() -> None:
    """Each row is in the table; what was not given is a dash."""
    rows = lengths._rows("all", results())
    result = {
        "rows": rows,
        "auto": {"best_fixed_k": 5, "auto_over_best_fixed": 1.1, "ci95": None},
        "recommended": {
            "recommended_k": 4,
            "measured_best_k": 5,
            "recommended_over_best": 0.9,
            "ci95": (0.8, 1),
        },
    }
    text = tables.lengths({"pair": result})
    assert "| all | auto | 3.00 | – | 2.200 | – | – | – |" in text
    assert text.count("| all |") == 9
    assert "auto / best fixed k (5): 1.100." in text
    assert "0.900 (95 % 0.800 to 1.000)." in text
    checked = [
        {
            "pair": "p",
            "k": 4,
            "tokens": 9,
            "prompts": 60,
            "equal": 59,
            "explained_by_ties": 1,
            "unexplained": 0,
        }
    ]
    assert "| p | 4 | 9 | 60 | 59 | 1 | 0 |" in tables.crosscheck(checked)


def test_prompts_that_diverge_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt whose text depends on a pass's width gives no figure, is counted, and that is said under the table."""
    found = iter(results(4))

    def one_prompt(_: object, prompt: list[int], *__: int) -> object:
        if prompt == [9]:
            raise lengths.Diverged
        return next(found)

    monkeypatch.setattr(lengths, "one_prompt", one_prompt)
    prompts = [("prose", [1]), ("prose", [9]), ("code", [1]), ("code", [1])]
    measured = lengths.measure(None, prompts, 8, 2)  # type: ignore[arg-type]
    assert measured["left_out"] == 1
    assert {row["prompts"] for row in measured["rows"] if row["domain"] == "all"} == {3}
    table = tables.lengths({"pair": measured})
    assert "Left out: 1 prompt(s) whose text depends on the width of a pass." in table
