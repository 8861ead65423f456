"""Strict models of what crosses a boundary: requests, measurements, what a tower says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from shared import labels
from shared.models import Described, Model, Trimmed, must, one_line
from shared.models import explain as explain

MAX_PROMPT_BYTES: Final = 16_384
MAX_SEED: Final = 2**53 - 1
_INTEGER: Final = re.compile(r"-?[0-9]{1,4}", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", re.ASCII)


def _prompt(text: str) -> str:
    if not 1 <= len(text.encode("utf-8")) <= MAX_PROMPT_BYTES or "\0" in text:
        raise ValueError
    return text


def _no_minus_zero(number: float) -> float:
    return number + 0.0  # -0.0 and 0.0 are one request and must have one digest


Count = Annotated[int, Field(ge=0, le=10**9)]
K = Annotated[int, Field(ge=1, le=16)]
N = Annotated[int, Field(ge=1, le=500)]
Rate = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]
Cost = Annotated[float, Field(ge=0, lt=1e6)]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
Bytes = Annotated[int, Field(ge=0, le=2**53 - 1)]
Nanoseconds = Bytes
Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_line)]
Line = Annotated[str, AfterValidator(one_line)]  # free text from the tower: one printable line, cut at 500


def _utc_time(text: str) -> str:
    datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")  # there is no 30 February
    return text


UtcTime = Annotated[
    str,
    Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"),
    AfterValidator(_utc_time),
    must("be a UTC time like 2026-11-30T00:00:00Z"),
]


class RunRequest(Model):
    """Body of `POST /run`; `model_dump()` is the request with its defaults filled in."""

    prompt: Annotated[
        str,
        AfterValidator(_prompt),
        must(f"be a string of 1 to {MAX_PROMPT_BYTES} UTF-8 bytes without NUL or lone surrogates"),
    ]
    k: Annotated[
        K | Literal["auto"],
        Field(description="Draft tokens per step; `auto`: the tower chooses for each step"),
        must('be an integer from 1 to 16, or "auto"'),
    ] = labels.DEFAULT_K
    n: Annotated[
        N, Field(description="Draft-then-verify steps to measure"), must("be an integer from 1 to 500")
    ] = 50
    temperature: Annotated[
        float,
        Field(ge=0, le=2, description="0 is greedy"),
        AfterValidator(_no_minus_zero),
        must("be a number from 0 to 2"),
    ] = 0.0
    top_p: Annotated[
        float,
        Field(gt=0, le=1, description="Share of the probability that is sampled from; 1 is all of it"),
        must("be a number above 0, at most 1"),
    ] = 1.0
    top_k: Annotated[
        int,
        Field(
            ge=0, le=1000, description="Number of likeliest tokens that are sampled from; 0 is all of them"
        ),
        must("be an integer from 0 to 1000"),
    ] = 0
    seed: Annotated[
        int,
        Field(ge=0, le=MAX_SEED, description="Of the random numbers, when sampling"),
        must(f"be an integer from 0 to {MAX_SEED}"),
    ] = 0
    chat: Annotated[bool, Field(description="Apply the target's chat template"), must("be true or false")] = (
        False
    )
    ignore_eos: Annotated[bool, Field(description="Go on past end-of-text"), must("be true or false")] = False
    include_output: Annotated[
        bool, Field(description="Return the text beside the receipt"), must("be true or false")
    ] = False


def _from_text(pattern: re.Pattern[str], convert: type[int] | type[float]) -> BeforeValidator:
    def parse(value: Any) -> Any:
        return convert(value) if isinstance(value, str) and pattern.fullmatch(value) else value

    return BeforeValidator(parse)


_int_text = _from_text(_INTEGER, int)
_float_text = _from_text(_NUMBER, float)
Alpha = Annotated[Rate, AfterValidator(_no_minus_zero), _float_text]


class CurveQuery(Model):
    """Query of `GET /curve`. Text is read as a number; `alpha` may repeat."""

    k: Annotated[int, Field(ge=0, le=64), _int_text, must("be an integer from 0 to 64")] = labels.DEFAULT_K
    cost_ratio: Annotated[
        float,
        Field(ge=0, le=10),
        AfterValidator(_no_minus_zero),
        _float_text,
        must("be a number from 0 to 10"),
    ] = labels.DEFAULT_COST_RATIO
    alpha: Annotated[
        list[Alpha], Field(min_length=1, max_length=64), must("be 1 to 64 numbers, each from 0 to 1")
    ] = list(labels.DEFAULT_ALPHAS)
    verify_cost: Annotated[float, Field(ge=1, le=100), _float_text, must("be a number from 1 to 100")] = 1.0

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]], **defaults: Any) -> Self:
        """Read decoded query parameters.

        Args:
            pairs: Name and value of each, in order, as `urllib.parse.parse_qsl(..., keep_blank_values=True)`.
            **defaults: Values for parameters that do not appear, for example the configured `k`.

        Raises:
            pydantic.ValidationError: On an unknown, repeated (other than `alpha`) or bad parameter.
        """
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name == "alpha":
                values.setdefault(name, []).append(value)
            else:
                values[name] = [value] if name in values else value  # a list is refused as no number
        return cls.model_validate({**defaults, **values})


class SpeedupMeasured(Trimmed):
    """Target-only time / speculative time for the same tokens: median over pairs and its 95 % interval."""

    label: Literal["MEASURED"]
    median: Positive
    ci95: Interval
    pairs: Annotated[int, Field(ge=6, le=10**6)]


class SpeedupPredicted(Trimmed):
    """What the formula gives at the measured costs."""

    label: Literal["MODELED"]
    value: Positive


class DraftCosts(Trimmed):
    """The parts of the draft's cost in target passes, and the k and step pattern that `cost_ratio` is for."""

    first: Cost
    warming: Annotated[list[Cost], Field(max_length=16)] = []
    following: Cost
    catch_up: Cost
    width_change: Cost | None = None
    k: K
    after_full_acceptance: Rate


class Calibration(Trimmed):
    """Measured c = draft step / target one-token time, and v(m) = target pass over m tokens / over one."""

    cost_ratio: Cost
    verify_cost: Annotated[list[Positive], Field(min_length=1, max_length=65)]
    measured_at: Name
    draft: DraftCosts | None = None
    width_change: Cost | None = None
    target_pass_s: Positive | None = None
    context: Count | None = None
    rounds: Count | None = None
    undisturbed: bool | None = None


class PredictedCurve(Trimmed):
    """Speedup that calibration and alpha predict for k = 0, 1, ...; plain decoding is 1."""

    label: Literal["MODELED"]
    speedup: Annotated[list[Positive], Field(min_length=1, max_length=65)]


class CostResidual(Trimmed):
    """Cost of a step in target passes, predicted and measured, and predicted / measured."""

    predicted: Positive
    measured: Positive | None
    ratio: Positive | None


class TokensResidual(Trimmed):
    """Tokens per step, E[tokens] at the measured alpha and as seen, and expected / seen."""

    expected: Positive
    seen: Positive
    ratio: Positive


class Residuals(Trimmed):
    """Where prediction and measurement part: in what a step costs, or in what it yields."""

    cost: CostResidual
    tokens: TokensResidual


class PerStep(Trimmed):
    """Tokens drafted and accepted in each step, in order."""

    drafted: Annotated[list[Annotated[int, Field(ge=0, le=16)]], Field(max_length=500)]
    accepted: Annotated[list[Annotated[int, Field(ge=0, le=16)]], Field(max_length=500)]


class Iid(Trimmed):
    """Tests of the assumption behind every modeled number: one chance of acceptance for all tokens."""

    position_statistic: float | None
    position_df: Count | None
    position_p: Rate | None
    serial_statistic: float | None
    serial_p: Rate | None
    p_value: Rate | None
    conclusion: Literal["not rejected", "rejected", "too few steps"]


class SumMin(Trimmed):
    """Mean of sum(min(p, q)) over the examined positions; z compares it with what was accepted."""

    label: Literal["MEASURED"]
    value: Rate
    ci95: Interval | None
    examined: Count
    z: float | None


class FixedAlpha(Trimmed):
    """Alpha from steps of a fixed length, made beside an adaptive run."""

    label: Literal["MEASURED"]
    value: Rate | None
    ci95: Interval | None
    source: Line
    k: K
    accepted: Count
    rejections: Count


class TokensPerSecond(Trimmed):
    """Decode throughput, prefill excluded; null where that way was not run."""

    speculative: Positive | None
    target_only: Positive | None


class Timing(Trimmed):
    """Decode seconds of each interleaved pair of blocks, in order."""

    speculative_s: Annotated[list[Positive], Field(max_length=500)]
    target_only_s: Annotated[list[Positive], Field(max_length=500)]


class Verdict(Trimmed):
    """Whether the measurement may be relied on, and why not."""

    valid: bool
    reasons: Annotated[list[Line], Field(max_length=32)]


class Quality(Trimmed):
    """Whether the output was unchanged: share of compared blocks identical to the target alone."""

    identical_rate: Rate | None
    label: Name
    compared_tokens: Count


class Engine(Described):
    """What ran the models."""

    name: Name
    library: Line
    system: Line
    threads: Count
    gpu_layers: int


class MeasuredModel(Described):
    """One model file; `sha256` is null when the file was not hashed."""

    name: Name
    sha256: Hex64 | None


ClockEvent = Literal[
    "idle",
    "application_clocks",
    "power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "power_brake",
    "display_clock",
    "board_limit",
    "reliability",
    "other",
]
ComputeMode = Literal["default", "exclusive_thread", "prohibited", "exclusive_process"]
ClockEvents = Annotated[list[ClockEvent], Field(max_length=12)]
Mhz = Annotated[int, Field(ge=0, le=100_000)]
Uuid = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,80}$")]


class GpuReadings(Trimmed):
    """What a GPU was doing at one moment; null where it did not say."""

    sm_clock_mhz: Mhz | None = None
    memory_clock_mhz: Mhz | None = None
    p_state: Annotated[int, Field(ge=0, le=15)] | None = None
    temperature_c: Annotated[int, Field(ge=0, le=1000)] | None = None
    power_watts: Positive | None = None
    power_limit_watts: Positive | None = None
    memory_used: Bytes | None = None
    memory_free: Bytes | None = None
    events: ClockEvents | None = None
    compute_processes: Count | None = None
    graphics_processes: Count | None = None


class GpuWatched(Trimmed):
    """The GPU that decoded, before and after, and what was seen of it meanwhile; null where it did not say.

    `events` are all that were seen to hold its clocks down, the two violations the time for which power and heat did.
    `foreign_processes` counts programs of others that computed on it; `trouble` is why the watch ended early.
    """

    uuid: Uuid
    name: Name
    index: Count | None = None
    driver: Name | None = None
    nvml: Name | None = None
    vbios: Name | None = None
    architecture: Name | None = None
    memory_total: Bytes | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    persistence: bool | None = None
    compute_mode: ComputeMode | None = None
    ecc: bool | None = None
    mig: bool | None = None
    power_limit_default_watts: Positive | None = None
    before: GpuReadings | None = None
    after: GpuReadings | None = None
    events: ClockEvents | None = None
    violation_power_ns: Nanoseconds | None = None
    violation_thermal_ns: Nanoseconds | None = None
    own_process_seen: bool | None = None
    foreign_processes: Count | None = None
    samples: Count | None = None
    trouble: Name | None = None


class Measurement(Trimmed):
    """What the agent measured in one run; units and definitions are in docs/reference/numbers.md."""

    label: Literal["MEASURED"]
    mode: Literal["linear", "adaptive"]
    k_requested: K | Literal["auto"]
    n_requested: N
    k: Annotated[int, Field(ge=0, le=16)]
    stopped: Literal["end_of_text", "context", "deadline"] | None
    n: N
    drafted: Count
    accepted: Count
    rejections: Count
    emitted: Count
    acceptance_histogram: Annotated[list[Count], Field(min_length=1, max_length=17)]
    accepted_rate: Rate | None
    draft_acceptance_rate: Rate | None
    mean_accepted_len: Annotated[float, Field(ge=0, le=17)]
    conditional_acceptance: Annotated[list[Rate | None], Field(max_length=16)]
    unconditional_acceptance: Annotated[list[Rate | None], Field(max_length=16)] | None = None
    accepted_rate_ci95: Interval | None
    per_step: PerStep | None = None
    iid: Iid | None = None
    sum_min: SumMin | None = None
    alpha: FixedAlpha | None = None
    tokens_per_second: TokensPerSecond
    speedup: SpeedupMeasured | Literal["UNAVAILABLE"]
    calibration: Calibration | None = None
    speedup_predicted: SpeedupPredicted | None = None
    predicted_curve: PredictedCurve | None = None
    recommended_k: Annotated[int, Field(ge=0, le=64)] | None = None
    residuals: Residuals | None = None
    verdict: Verdict
    engine: Engine
    draft: MeasuredModel
    target: MeasuredModel
    quality: Quality
    prompt_tokens: Count | None = None
    context: Count | None = None
    blocks: Count | None = None
    timing: Timing | None = None
    gpu: GpuWatched | None = None


class JoulesPerToken(Trimmed):
    """Energy per emitted token, joules; null where that way was not metered."""

    speculative: Positive | None
    target_only: Positive | None


class EnergyWindow(Trimmed):
    """Whole blocks of one way of decoding, repeated: how long, how much energy, and the tokens emitted."""

    mode: Literal["speculative", "target_only"]
    seconds: Positive
    joules: Positive
    tokens: Annotated[int, Field(ge=1, le=10**9)]


class EnergyRatio(Trimmed):
    """Joules per token of the target alone / with the draft, over pairs of windows; null with too few for an interval.

    Above 1 the draft saves energy.
    """

    median: Positive
    ci95: Interval | None
    pairs: Annotated[int, Field(ge=1, le=10**6)]


class EnergyGpu(Trimmed):
    """Whose meter it was."""

    uuid: Uuid
    name: Name
    driver: Name | None = None


class EnergyMeasured(Described):
    """Read from a meter, over windows of time in which nothing but decoding went on.

    `refresh_s` is how often the meter says something new, `edge_error` the share by which a window's joules may be
    wrong for that. `averaged` says whether sampled power was the mean of a second. `idle_watts` is what the GPU took
    while idle before the run: not subtracted.
    """

    label: Literal["MEASURED"]
    joules_per_token: JoulesPerToken
    method: Literal["total_energy_counter", "sampled_power"] | None = None
    ratio: EnergyRatio | None = None
    windows: Annotated[list[EnergyWindow], Field(max_length=64)] | None = None
    refresh_s: Positive | None = None
    edge_error: Rate | None = None
    averaged: bool | None = None
    power_limit_watts: Positive | None = None
    idle_watts: Positive | None = None
    idle_seconds: Positive | None = None
    gpu: EnergyGpu | None = None
    scope: Line | None = None


class EnergyUnavailable(Described):
    """No meter, and which one is missing."""

    label: Literal["UNAVAILABLE"]
    code: Name
    reason: Line | None = None


Energy = Annotated[EnergyMeasured | EnergyUnavailable, Field(discriminator="label")]


class EnvelopeSignature(Trimmed):
    """A signature in an envelope, and a hint to its key."""

    keyid: Hex64
    sig: Annotated[str, Field(max_length=120)]


class Envelope(Trimmed):
    """A tower's DSSE envelope (`shared.attestation`): one signature, and no room for anything else."""

    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815 - DSSE's name
    payload: Annotated[str, Field(max_length=8192)]
    signatures: Annotated[list[EnvelopeSignature], Field(min_length=1, max_length=1)]


class Pair(Trimmed):
    """The same-family pair a tower holds, or why it holds none."""

    found: bool
    reason: Line
    draft: Name | None = None
    target: Name | None = None
    family: Name | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.found and not (self.draft and self.target):
            raise PydanticCustomError("rule", "must name draft and target when a pair is found")
        return self


class ModelListing(Described):
    """One model in a tower's store."""

    name: Name
    family: Name | None = None
    parameters: Annotated[int, Field(ge=0)] | None = None
    loadable: bool


class QueueState(Trimmed):
    """How busy a tower is."""

    running: bool
    waiting: Count
    limit: Count


class Capability(Model):
    """What a tower can do now."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    agent_version: Name
    same_family_pair: Pair
    models: Annotated[list[ModelListing], Field(max_length=500)]
    queue: QueueState
    energy: Energy
