"""Words for failed runs."""

from __future__ import annotations

from typing import Any

import pytest

from edge.reasons import failure_reason, repeats_prompt
from shared.wire import ErrorCode, ResultFrame
from tests.edge.fake_tower import MEASUREMENT, OUTPUT_SHA3
from tests.shared.build import example_energy


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_words(code: ErrorCode) -> None:
    """No failure is told by its code alone."""
    assert len(failure_reason(code, "", None)) > 10


def test_without_the_prompt_there_are_no_words_of_the_tower() -> None:
    """Where the edge does not have the prompt, as when a run is asked after, only its own words are given."""
    assert failure_reason(ErrorCode.LOAD_FAILED, "cannot read: a secret", None) == (
        "the tower could not load the pair"
    )


def test_detail_is_cleaned_and_cut() -> None:
    """The tower's words are one line of printable ASCII of bounded length."""
    reason = failure_reason(ErrorCode.INTERNAL, "a\x00b\nc \u202e d." + "x" * 1000, "another matter")
    assert reason.startswith("the tower failed: a b c d.x")
    assert len(reason) < 250


@pytest.mark.parametrize(
    ("detail", "prompt", "shown"),
    [
        ("no room for 700 tokens", "a prompt on other things", True),
        ("cannot read 'a prompt on o'", "a prompt on other things", False),
        ("cannot read secret", "secret", False),
        ("the context is full", "secret", True),
    ],
)
def test_detail_that_may_repeat_the_prompt_is_left_out(detail: str, prompt: str, shown: bool) -> None:
    """Twelve characters in common, or the whole of a short prompt, are too much."""
    assert (detail in failure_reason(ErrorCode.INTERNAL, detail, prompt)) is shown


@pytest.mark.parametrize(
    ("prompt", "repeated"),
    [
        ("an answer to 700 questions", False),
        ("How do I install llama-cpp-python?", False),
        ("What does MEASURED (lossless) mean?", False),
        ("llama3.2:1b", False),
        ("a", False),
        ("the target's output d" + "iffers now and then", False),
        ("I ask: Does the output differ from the target's own?", True),
        ("a card of the kind A100-SXM4-80GB\n", True),
        ("   which\n\tcard is it   ", True),
        ("private_note_of_mine", True),
    ],
)
def test_repeated_pieces_are_told_from_common_words(prompt: str, repeated: bool) -> None:
    """No name or fact shares a piece with the prompt; a sentence may share a few words."""
    measurement = {
        **MEASUREMENT,
        "verdict": {"valid": False, "reasons": ["the output differ from the target's own"]},
        "engine": {
            **MEASUREMENT["engine"],
            "card": "NVIDIA A100-SXM4-80GB",
            "private_note_of_mine": 1,
            "n": "which card is it",
        },
    }
    assert repeats_prompt(_result(measurement), prompt) is repeated


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", True),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", True),
        ("NVIDIA GeForce GTX 1660 SUPER", True),
        ("NVIDIA RTX 6000 Ada Generation", True),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", True),
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA L40S", True),
        ("NVIDIA TITAN RTX", True),
        ("NVIDIA Tesla V100-PCIE-16GB", True),
        ("NVIDIA 4111 1111 1111 1111", False),
        ("NVIDIA private note of mine", False),
        ("my private note", False),
        ("NVIDIA GeForce RTX 4060 Ti, so he said", False),
    ],
)
@pytest.mark.parametrize("place", ["measurement", "energy"])
def test_a_gpu_may_be_called_what_it_is(name: str, product: bool, place: str) -> None:
    """The name of a product is no piece of a prompt that asks about it; whatever else stands in its place is."""
    measurement, energy = dict(MEASUREMENT), {**example_energy(), "gpu": None}
    if place == "energy":
        energy["gpu"] = {"uuid": "GPU-1", "name": name}
    else:
        measurement["gpu"] = {"uuid": "GPU-1", "name": name}
    assert repeats_prompt(_result(measurement, energy), f"What of this: {name}?") is not product


def _result(measurement: dict[str, Any], energy: dict[str, Any] | None = None) -> ResultFrame:
    """A result."""
    return ResultFrame.model_validate(
        {
            "run_id": ".".join(["A" * 22] * 3),
            "nonce": "0" * 64,
            "measurement": measurement,
            "energy": energy or {"label": "UNAVAILABLE", "code": "NO_NVML", "reason": "no NVML"},
            "output_sha3_256": OUTPUT_SHA3,
            "request": {},
        }
    )
