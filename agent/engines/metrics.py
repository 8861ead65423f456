"""Speculation counters in a server's Prometheus metrics: whose they are, and what they grew by.

| server | counters | definition |
|---|---|---|
| vLLM, llama.cpp | drafts, draft tokens, accepted tokens, accepted per position | accepted ÷ drafted is the draft acceptance rate; 1 + accepted ÷ drafts the mean accepted length; a position's count ÷ drafts is unconditional |
| TensorRT-LLM | draft tokens, accepted tokens | the same; no count of drafts |
| SGLang | none, only gauges of its last batches | `spec_accept_rate` has been defined in two ways, see `sglang_readings` |

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4), read by prometheus-client.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from shared import labels

REPORTED: Final = f"{labels.UNAVAILABLE} (the server's own figure, not measured here)"


@dataclass(frozen=True)
class Family:
    """Under which names one kind of server keeps its numbers; None for what it does not keep.

    Attributes:
        name: The server's name.
        prefix: What its metrics' names start with.
        drafts: Counter of draft-then-verify steps.
        drafted: Counter of draft tokens.
        accepted: Counter of accepted draft tokens.
        per_position: Counter of accepted draft tokens with the label `position`.
        tokens: Counter of emitted tokens.
        requests: Counter of finished requests.
        decode_s: Counter of seconds between first and last tokens.
        gauges: Gauges that speak of speculation.
        exact_below: Values from here on are printed without all of their digits.
    """

    name: str
    prefix: str
    drafts: str | None = None
    drafted: str | None = None
    accepted: str | None = None
    per_position: str | None = None
    tokens: str | None = None
    requests: str | None = None
    decode_s: str | None = None
    gauges: tuple[str, ...] = ()
    exact_below: float = 2.0**53


VLLM: Final = Family(
    "vLLM",
    "vllm:",
    drafts="vllm:spec_decode_num_drafts_total",
    drafted="vllm:spec_decode_num_draft_tokens_total",
    accepted="vllm:spec_decode_num_accepted_tokens_total",
    per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    tokens="vllm:generation_tokens_total",
    requests="vllm:request_success_total",
    decode_s="vllm:request_decode_time_seconds_sum",
)
SGLANG: Final = Family(
    "SGLang",
    "sglang:",
    tokens="sglang:generation_tokens_total",
    requests="sglang:num_requests_total",
    gauges=("sglang:spec_accept_length", "sglang:spec_accept_rate"),
)
TENSORRT: Final = Family(
    "TensorRT-LLM",
    "trtllm_",
    drafted="trtllm_spec_decode_num_draft_tokens_total",
    accepted="trtllm_spec_decode_num_accepted_tokens_total",
    tokens="trtllm_generation_tokens_total",
    requests="trtllm_request_success_total",
    decode_s="trtllm_request_decode_time_seconds_sum",
    gauges=("trtllm_spec_decode_acceptance_length", "trtllm_spec_decode_draft_overhead"),
)
LLAMA: Final = Family(
    "llama.cpp server",
    "llamacpp:",
    drafts="llamacpp:spec_decode_num_drafts_total",
    drafted="llamacpp:spec_decode_num_draft_tokens_total",
    accepted="llamacpp:spec_decode_num_accepted_tokens_total",
    per_position="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    tokens="llamacpp:tokens_predicted_total",
    exact_below=1e6,  # it prints six digits
)
FAMILIES: Final = (VLLM, SGLANG, TENSORRT, LLAMA)


class Exposition:
    """One reading of a server's metrics, for one model."""

    def __init__(self, text: str, model: str | None = None) -> None:
        """Parses the text.

        Args:
            text: Prometheus' text format.
            model: Only series of this `model_name` count, and those without that label.

        Raises:
            ValueError: If it is not that format.
        """
        self.samples: list[Sample] = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if model is None or sample.labels.get("model_name", model) == model
        ]

    def family(self) -> Family | None:
        """Returns whose metrics these are, if anyone's that is known."""
        names = {sample.name for sample in self.samples}
        return next((one for one in FAMILIES if any(name.startswith(one.prefix) for name in names)), None)

    def total(self, name: str | None) -> float | None:
        """Returns a metric's sum over its series; None if there are none, or one is not finite."""
        return _sum(sample.value for sample in self.samples if sample.name == name)

    def by_label(self, name: str | None, label: str) -> dict[str, float]:
        """Returns a metric's sums by the value of one label."""
        values = {
            sample.labels[label] for sample in self.samples if sample.name == name and label in sample.labels
        }
        sums = {
            value: _sum(s.value for s in self.samples if s.name == name and s.labels.get(label) == value)
            for value in values
        }
        return {value: total for value, total in sums.items() if total is not None}


@dataclass(frozen=True)
class Growth:
    """What a server's counters grew by between two readings; None for those it does not keep.

    `backwards` tells that one of them fell, so that none can be trusted.
    """

    drafts: int | None
    drafted: int | None
    accepted: int | None
    per_position: tuple[int, ...] | None
    tokens: int | None
    requests: int | None
    decode_s: float | None
    backwards: bool


def growth(family: Family, before: Exposition, after: Exposition) -> Growth:
    """Returns what the counters of `family` grew by.

    A series appears with its first event in some servers, so one that is only in `after` started at 0.
    """
    fell = False

    def grew(name: str | None) -> float | None:
        nonlocal fell
        start, end = before.total(name), after.total(name)
        if end is None:
            fell |= start is not None
            return None
        fell |= end < (start or 0)
        return None if end >= family.exact_below else end - (start or 0)

    def whole(name: str | None) -> int | None:
        number = grew(name)
        return None if number is None else round(number)

    start, end = (one.by_label(family.per_position, "position") for one in (before, after))
    per_position = [(int(at), end[at] - start.get(at, 0)) for at in end if at.isdigit()]
    fell |= any(number < 0 for _, number in per_position)
    seconds = grew(family.decode_s)
    return Growth(
        drafts=whole(family.drafts),
        drafted=whole(family.drafted),
        accepted=whole(family.accepted),
        per_position=tuple(round(number) for _, number in sorted(per_position)) or None,
        tokens=whole(family.tokens),
        requests=whole(family.requests),
        decode_s=seconds if seconds else None,
        backwards=fell,
    )


def server_figures(family: Family, reading: Exposition) -> dict[str, Any]:
    """Returns the gauges by which the server itself speaks of its speculation, labelled as not measured here."""
    gauges = {name: reading.total(name) for name in family.gauges}
    shown = {name: value for name, value in gauges.items() if value is not None}
    if not shown:
        return {}
    figures: dict[str, Any] = {"label": REPORTED, "gauges": shown}
    if family is SGLANG and len(shown) == 2:
        figures["readings"] = sglang_readings(*(shown[name] for name in family.gauges))
    return figures


def sglang_readings(length: float, rate: float) -> list[dict[str, Any]]:
    """Reads SGLang's two gauges by both of the definitions that its versions have given them.

    `length` L is tokens a verification, the target's own included. With D = `--speculative-num-draft-tokens`, which
    counts that token's place too, so that D - 1 tokens are drafted:

    * older: rate = L ÷ D, so the target's own token counts as accepted, and accepted ÷ drafted is (L - 1) ÷ (D - 1);
    * newer: rate = (L - 1) ÷ (D - 1), which is accepted ÷ drafted.

    From L and the rate follows which D each reading supposes; whoever knows the server's D knows which one holds.
    Example: L 2.78 with rate 0.695 is D = 4 and an acceptance of 0.59 in the older reading.

    Args:
        length: `sglang:spec_accept_length`.
        rate: `sglang:spec_accept_rate`.

    Returns:
        For each reading its definition, D and accepted ÷ drafted; None where that is 0/0, or the gauges say nothing
        yet (every verification gives a token, so L below 1 means that there was none).
    """
    older = length / rate if rate else None
    newer = (length - 1) / rate + 1 if rate else None
    told = length >= 1
    return [
        {
            "definition": "older versions: the target's own token counts as accepted",
            "num_draft_tokens": older,
            "draft_acceptance_rate": (length - 1) / (older - 1) if told and older and older > 1 else None,
        },
        {
            "definition": "newer versions: draft tokens only",
            "num_draft_tokens": newer,
            "draft_acceptance_rate": rate if told else None,
        },
    ]


def _sum(values: Iterable[float]) -> float | None:
    found = [float(value) for value in values]
    return sum(found) if found and all(map(math.isfinite, found)) else None
