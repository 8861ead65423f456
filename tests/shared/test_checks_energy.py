"""Whatever an energy or a verdict says against its own windows or what the GPU did is found and named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from shared.checks import check_measurement, check_result
from shared.checks_energy import check_energy
from shared.schemas import Energy, Measurement
from shared.wire import ResultFrame
from tests.shared.build import example_energy, example_measurement, gpu_measurement, result

ENERGY: TypeAdapter[Any] = TypeAdapter(Energy)


def findings(energy: dict[str, Any], measured: dict[str, Any] | None = None) -> list[str]:
    """What is found, as sentences."""
    measurement = Measurement.model_validate(measured or gpu_measurement())
    return check_energy(ENERGY.validate_python(energy), measurement)


def altered(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The example, with something done to it."""
    energy = copy.deepcopy(example_energy())
    change(energy)
    return energy


def test_consistent_energy_passes() -> None:
    """The example passes, with and without what is optional; so does UNAVAILABLE, and the shortest form."""
    assert findings(example_energy()) == []
    less = {**example_energy(), "ratio": None, "gpu": None, "power_limit_watts": None, "idle_watts": None}
    assert findings(less) == []
    assert findings({"label": "UNAVAILABLE", "code": "NO_LIBRARY"}, example_measurement()) == []
    assert (
        findings({"label": "MEASURED", "joules_per_token": {"speculative": 1.0, "target_only": None}}) == []
    )


def test_two_pairs_have_no_interval() -> None:
    """Too few pairs for an interval pass with none, and fail with one."""
    energy = example_energy()
    windows = energy["windows"][:4]
    costs = [w["joules"] / w["tokens"] for w in windows]
    ratios = sorted([costs[1] / costs[0], costs[2] / costs[3]])
    few = {
        **energy,
        "windows": windows,
        "joules_per_token": {
            "speculative": (windows[0]["joules"] + windows[3]["joules"]) / 588,
            "target_only": (windows[1]["joules"] + windows[2]["joules"]) / 294,
        },
        "ratio": {"median": sum(ratios) / 2, "ci95": None, "pairs": 2},
    }
    assert findings(few) == []
    few["ratio"] = {**few["ratio"], "ci95": ratios}
    assert findings(few) == ["ratio is not what windows give"]


FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "joules of a window": (lambda e: e["windows"][2].update(joules=200.0), "joules_per_token is not"),
    "tokens of a window": (lambda e: e["windows"][0].update(tokens=295), "joules_per_token is not"),
    "mode of a pair": (
        lambda e: (e["windows"][0].update(mode="target_only"), e["windows"][1].update(mode="speculative")),
        "joules_per_token is not",
    ),
    "joules per token": (
        lambda e: e["joules_per_token"].update(speculative=0.8351),
        "joules_per_token is not",
    ),
    "joules per token null": (
        lambda e: e["joules_per_token"].update(target_only=None),
        "joules_per_token is not",
    ),
    "ratio": (lambda e: e["ratio"].update(median=2.1), "ratio is not"),
    "interval": (lambda e: e["ratio"]["ci95"].__setitem__(0, 2.0), "ratio is not"),
    "no interval": (lambda e: e["ratio"].update(ci95=None), "ratio is not"),
    "pairs": (lambda e: e["ratio"].update(pairs=7), "ratio is not"),
    "a short window": (lambda e: e["windows"][5].update(seconds=1.99), "windows are too short"),
    "a coarse counter": (lambda e: e.update(refresh_s=0.11), "windows are too short"),
    "sampled power": (lambda e: e.update(method="sampled_power"), "windows are too short"),
    "a low limit": (lambda e: e.update(power_limit_watts=100.0), "windows have more power"),
    "one pair": (lambda e: e.update(windows=e["windows"][:2]), "windows must be 2 or more pairs"),
    "half a pair": (lambda e: e.update(windows=e["windows"][:11]), "windows must be 2 or more pairs"),
    "one way only": (lambda e: [w.update(mode="speculative") for w in e["windows"]], "windows must be"),
    "no method": (lambda e: e.update(method=None), "method and refresh_s must"),
    "no refresh period": (lambda e: e.update(refresh_s=None), "method and refresh_s must"),
    "no windows": (lambda e: e.update(windows=None), "windows are missing"),
    "a method alone": (lambda e: e.update(windows=None, ratio=None, refresh_s=None), "windows are missing"),
    "a ratio alone": (lambda e: e.update(windows=None, method=None, refresh_s=None), "windows are missing"),
    "a period alone": (lambda e: e.update(windows=None, method=None, ratio=None), "windows are missing"),
    "another GPU": (lambda e: e["gpu"].update(uuid="GPU-2"), "gpu is not the one"),
    "a token's energy too small": (
        lambda e: e["windows"][0].update(joules=5e-324, tokens=10**9),
        "ratio is not",
    ),
    "all energies too small": (
        lambda e: [w.update(joules=5e-324, tokens=10**9) for w in e["windows"]],
        "ratio is not",
    ),
    "a ratio too large": (
        lambda e: (e["windows"][0].update(joules=5e-324, tokens=1), e["windows"][1].update(joules=9e11)),
        "ratio is not",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_energy(name: str) -> None:
    """An energy that contradicts itself is refused, and the finding names the field."""
    change, expected = FORGED[name]
    found = findings(altered(change))
    assert any(finding.startswith(expected) for finding in found), found


def test_a_window_of_one_second() -> None:
    """However fast the counter is refreshed, a window lasts a second; by power, five."""
    for method, least in (("total_energy_counter", 1.0), ("sampled_power", 5.0)):
        energy = {**example_energy(), "refresh_s": 0.001, "method": method, "power_limit_watts": None}
        for seconds, expected in (
            (least, []),
            (least - 0.001, ["windows are too short for their method and refresh_s"]),
        ):
            assert (
                findings({**energy, "windows": [{**w, "seconds": seconds} for w in energy["windows"]]})
                == expected
            )


def test_the_limit_has_a_tenth_of_tolerance() -> None:
    """A window's mean power may be over the limit by the sensor's error, not by more."""
    energy = example_energy()
    most = max(w["joules"] / w["seconds"] for w in energy["windows"])
    assert findings({**energy, "power_limit_watts": most / 1.0999}) == []
    assert findings({**energy, "power_limit_watts": most / 1.1001}) == [
        "windows have more power than power_limit_watts"
    ]


def test_a_processor_has_no_such_energy() -> None:
    """A run that had nothing on a GPU has no energy of a GPU."""
    found = findings(example_energy(), example_measurement())
    assert found == ["label is MEASURED, yet nothing of the models was on a GPU"]


def test_a_result_is_checked_with_its_energy() -> None:
    """What the edge checks of a tower's result includes its energy."""
    frame = {**result(gpu_measurement()), "energy": example_energy()}

    def found() -> list[str]:
        parsed = ResultFrame.model_validate(frame)
        return check_result(
            parsed, run_id=frame["run_id"], nonce=frame["nonce"], bound_request=frame["request"]
        )

    assert found() == []
    frame["energy"]["joules_per_token"]["speculative"] *= 0.5
    assert found() == ["energy.joules_per_token is not what windows give"]


@pytest.mark.parametrize(
    ("gpu", "doubt"),
    [
        ({"events": ["hw_slowdown"]}, "the GPU was throttled"),
        ({"events": ["sw_thermal"]}, "the GPU was throttled"),
        ({"events": ["hw_thermal"]}, "the GPU was throttled"),
        ({"events": ["power_brake"]}, "the GPU was throttled"),
        ({"violation_thermal_ns": 1}, "the GPU was throttled"),
        ({"foreign_processes": 1}, "another program computed on the GPU"),
        ({"trouble": "GPU_LOST"}, "the GPU could not be watched to the end"),
    ],
    ids=str,
)
def test_verdicts(gpu: dict[str, Any], doubt: str) -> None:
    """A verdict that is valid in spite of what the GPU did is refused; one that is not valid need not say why."""
    measured = gpu_measurement(**gpu)
    found = check_measurement(Measurement.model_validate(measured))
    assert found == [f"verdict.valid cannot be true when {doubt}"]
    measured["verdict"] = {"valid": False, "reasons": ["because"]}
    assert check_measurement(Measurement.model_validate(measured)) == []


def test_what_is_no_reason_for_doubt() -> None:
    """The power cap, an idle moment and what a GPU does not say leave a verdict valid."""
    for gpu in (
        {"events": ["power_cap", "idle", "sync_boost", "other"], "violation_power_ns": 10**9},
        {"events": None, "foreign_processes": None, "violation_thermal_ns": None},
        {"events": [], "foreign_processes": 0, "violation_thermal_ns": 0},
    ):
        assert check_measurement(Measurement.model_validate(gpu_measurement(**gpu))) == []
