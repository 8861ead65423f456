"""One measured run: what the draft got accepted, what that saved in time, and whether the output stayed the same.

A run is one generation of n draft-then-verify steps, which gives the counts. Then the same generation is decoded again
and again, in turn with the draft (A) and by the target alone (B), in the order A B B A A B ..., each time from the same
prompt state in the same caches. Every repeat must give the same tokens; repeats give timings and never more counts.

The speed-up is the median over pairs of B's time / A's time for the same tokens, with its distribution-free interval.
Order and pairing cancel slow drift of the machine; the median ignores a pair that something else disturbed.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent.adaptive import Stopping, longest_draft
from agent.calibration import STALE_RATIO, Calibration, calibrate
from agent.decode import CacheError, Ends, Generation, begin, prefill, speculative_step, target_only
from agent.energy import OutOfTime, measure_energy, unavailable
from agent.errors import Cancelled, DeadlineExceeded, RequestRefused
from agent.gpu import Gpu, GpuWatch
from agent.loaded import LoadedPair as LoadedPair
from agent.loaded import load_pair as load_pair
from agent.modeled import alpha_block, iid_block, prediction, sum_min_block
from agent.room import gpu_of
from agent.sampling import Sampled, rule_for
from agent.timing import Timed
from shared import labels
from shared.estimators import (
    MIN_STEPS,
    WIDEST_INTERVAL,
    Counts,
    accepted_rate,
    accepted_rate_ci95,
    draft_acceptance_rate,
    mean_accepted_len,
    summarise,
    unconditional_acceptance,
)
from shared.schemas import RunRequest

MIN_PAIRS = 6
"""Fewest pairs whose order-statistic interval for the median covers 95 % (six give 96.9 %)."""

MAX_PAIRS = 24
TIMING_S = 6.0
"""Pairs go on until they have taken this long (seconds), within MIN_PAIRS and MAX_PAIRS."""

ALPHA_K, ALPHA_STEPS = 4, 24
"""Length and number of the fixed steps beside an adaptive run, which estimate alpha."""

LEAST_PROCESSOR_SHARE = 0.8
"""A run whose decoding threads were on a processor for less of the time is not valid: other work had it."""


@dataclass(frozen=True)
class RunOutcome:
    """What a run gave: measurement and energy as JSON (`shared.schemas`), its text, and the digest of its bytes."""

    measurement: dict[str, Any]
    energy: dict[str, Any]
    output_text: str
    output_sha3_256: str


def run(
    pair: LoadedPair,
    request: dict[str, Any],
    *,
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
    should_stop: Callable[[], str | None] = lambda: None,
    deadline: float = float("inf"),
    idle: tuple[float, float] | None = None,
) -> RunOutcome:
    """Runs and measures one request.

    Args:
        pair: The loaded pair.
        request: A run request with its defaults filled in (`shared.schemas.RunRequest`), k a number.
        on_progress: Told (phase, done, total): steps while "measuring", pairs while "timing".
        should_stop: Asked between steps; an answer other than None cancels the run.
        deadline: `time.monotonic()` value at which to end with what there is.
        idle: Watts of the GPU while idle before the run, and the seconds they were metered for, if that was done.

    Raises:
        RequestRefused: If the prompt leaves no room in the context for one step.
        Cancelled: If asked to stop.
        DeadlineExceeded: If the deadline passed before one step was done.
    """
    return _Run(pair, request, on_progress, should_stop, deadline).outcome(idle)


@dataclass(frozen=True)
class _Decoded:
    """A generation, its timings, and what its modeled figures rest on.

    Attributes:
        first: The generation that gives the counts.
        timed: Repeats of it.
        calibration: What a step costs, if that could be measured.
        fixed: Counts of fixed steps beside an adaptive generation.
        betas: Chance of acceptance of each position examined, by step, when sampling.
        quality: Whether the output was unchanged (`shared.schemas.Quality` as JSON).
    """

    first: Generation
    timed: Timed
    calibration: Calibration | None
    fixed: Counts | None
    betas: list[list[float]]
    quality: dict[str, Any]


def prove(pair: LoadedPair) -> None:
    """Makes one draft-then-verify step, to show that the pair decodes."""
    request = RunRequest(prompt="The", k=1, n=1, ignore_eos=True).model_dump()
    proof = _Run(pair, request, lambda phase, done, total: None, lambda: None, float("inf"))
    proof._prefill()
    proof._speculative(lambda generation: None, None)


class _Run:
    """The state of one run; `outcome` carries it out."""

    def __init__(
        self,
        pair: LoadedPair,
        request: dict[str, Any],
        on_progress: Callable[[str, int, int], None],
        should_stop: Callable[[], str | None],
        deadline: float,
    ) -> None:
        self.pair, self.request = pair, request
        self.adaptive, self.n = request["k"] == "auto", int(request["n"])
        self.k = ALPHA_K if self.adaptive else int(request["k"])
        self.alpha: float | None = None
        self.on_progress, self.should_stop, self.deadline = on_progress, should_stop, deadline
        self.greedy = request["temperature"] == 0
        self.ends: Ends = (lambda token: False) if request["ignore_eos"] else pair.target_weights.vocab.ends
        self.prompt = pair.target_weights.prompt_tokens(request["prompt"], chat=request["chat"])
        if len(self.prompt) + self.k > pair.target.capacity:
            raise RequestRefused(
                f"the prompt has {len(self.prompt)} tokens, too many for a context of {pair.target.capacity}",
                "shorten the prompt",
            )

    def outcome(self, idle: tuple[float, float] | None) -> RunOutcome:
        """Decodes, times, meters, and puts the measurement together."""
        gpu = gpu_of(self.pair.device)
        self.watch = GpuWatch(gpu, {os.getpid()}) if gpu else None
        with self.watch or nullcontext():
            decoded = self._decode()
            energy = self._energy(gpu, decoded, idle)
        text = b"".join(
            self.pair.target_weights.vocab.piece(token) for token in _text_tokens(decoded.first, self.ends)
        )
        return RunOutcome(
            measurement=self._measurement(decoded),
            energy=energy,
            output_text=text.decode("utf-8", "replace"),
            output_sha3_256=hashlib.sha3_256(text).hexdigest(),
        )

    def _decode(self) -> _Decoded:
        """Decodes once for the counts and again and again for the timings."""
        self._prefill()
        calibration = self._calibration()
        fixed = None
        if self.adaptive:
            if calibration is None:
                raise RequestRefused(
                    "there is no room or no time to measure costs, on which k rests", "name a k"
                )
            fixed = self._fixed_steps()
            self.alpha = accepted_rate(fixed.accepted, fixed.rejections) if fixed else None
            self.k = longest_draft(calibration.costs)
        betas: list[list[float]] = []
        first = self._speculative(self._report_steps, calibration, betas)
        timed = self._time_pairs(first, calibration)
        return _Decoded(first, timed, calibration, fixed, betas, self._quality(first, timed))

    def _energy(self, gpu: Gpu | None, decoded: _Decoded, idle: tuple[float, float] | None) -> dict[str, Any]:
        """Meters the generation with and without the draft (`shared.schemas.Energy` as JSON)."""
        first, timed = decoded.first, decoded.timed
        if self.pair.device.kind == "cpu":
            return unavailable("ON_CPU", "the pair was decoded on the processor, and the meter is a GPU's")
        if not timed.repeatable:
            return unavailable(
                "NOT_REPEATABLE", "repeats of the generation differ, so that no two windows compare"
            )

        def going_on() -> None:
            self.on_progress("metering", 0, self.n)
            try:
                self._check_stop()
            except _OutOfTime:
                raise OutOfTime from None

        def speculative() -> int:
            return len(self._speculative(lambda generation: going_on(), decoded.calibration).tokens)

        def alone() -> int:
            rule = rule_for(self.request)
            along = first.tokens if timed.forced else None
            tokens = target_only(self.prompt, self.pair.target, rule, len(first.tokens), along, going_on)
            return len(tokens)

        try:
            return measure_energy(gpu, speculative, alone, own_pids={os.getpid()}, idle=idle)
        except CacheError as exc:
            # What was measured before stands; if the model is past use, the next run says so.
            return unavailable("DECODE_FAILED", f"decoding failed while it was metered: {exc.cause}")

    def _calibration(self) -> Calibration | None:
        """Returns what a step costs here: remembered, or measured now."""
        rule = {name: self.request[name] for name in ("temperature", "top_p", "top_k")}
        context = len(self.prompt) + self.n  # about the middle of the run
        self.calibration_key = self.pair.calibrations.key(self.pair.identity(), context, rule)
        found = self.pair.calibrations.get(self.calibration_key)
        if found is None:
            try:
                found = calibrate(
                    self.pair.draft,
                    self.pair.target,
                    self.prompt,
                    context,
                    rule_for(self.request),
                    threads=self.pair.threads,
                    between=lambda: self._between("calibrating"),
                )
            except _OutOfTime:
                return None
            if found is not None:
                self.pair.calibrations.put(self.calibration_key, found)
        return found

    def _between(self, phase: str) -> None:
        self.on_progress(phase, 0, self.n)
        self._check_stop()

    def _fixed_steps(self) -> Counts | None:
        """Makes some steps of a fixed length, untimed: only those estimate alpha."""
        rule = rule_for(self.request)
        generation = begin(self.prompt, self.pair.draft, self.pair.target)
        try:
            while len(generation.steps) < min(self.n, ALPHA_STEPS) and generation.stopped is None:
                speculative_step(generation, self.pair.draft, self.pair.target, rule, ALPHA_K, self.ends)
                self._check_stop()
        except _OutOfTime:
            return None
        return summarise(generation.steps, ALPHA_K) if generation.steps else None

    def _prefill(self) -> None:
        total = 2 * (len(self.prompt) - 1)
        before = 0
        for model in (self.pair.draft, self.pair.target):

            def between(done: int, before: int = before) -> None:
                self.on_progress("prefill", before + done, total)
                try:
                    self._check_stop()
                except _OutOfTime:
                    raise DeadlineExceeded("the deadline passed before one step was done") from None

            prefill(self.prompt, model, between)
            before += model.length

    def _speculative(
        self,
        between: Callable[[Generation], None],
        calibration: Calibration | None,
        betas: list[list[float]] | None = None,
    ) -> Generation:
        """Decodes the whole generation with the draft, from the prompt; equal at every call."""
        rule = rule_for(self.request)
        if isinstance(rule, Sampled):
            rule.betas = betas
        length = None
        if self.adaptive and calibration is not None:
            length = Stopping(calibration.costs, self.request["temperature"], self.k, self.alpha)
        draft, target = self.pair.draft, self.pair.target
        generation = begin(self.prompt, draft, target)
        while len(generation.steps) < self.n and generation.stopped is None:
            speculative_step(generation, draft, target, rule, self.k, self.ends, length)
            between(generation)
        return generation

    def _target_only(self, tokens: Sequence[int], *, forced: bool) -> list[int]:
        """Decodes as many tokens as `tokens` by the target alone, freely or along them; returns what it chose."""
        rule = rule_for(self.request)
        along = tokens if forced else None
        return target_only(self.prompt, self.pair.target, rule, len(tokens), along, self._check_stop)

    def _time_pairs(self, first: Generation, calibration: Calibration | None) -> Timed:
        """Times the generation with and without the draft in turn: A B, B A, A B, ...

        Greedy target-only blocks run freely and are compared, until one differs: from then on, as when sampling, the
        target is led along the speculative tokens, so that both sides are always timed over the same ones.
        """
        timed = Timed(forced=not self.greedy)
        began = time.monotonic()
        try:
            self._alone(first, timed)  # warm-up, and the first comparison
            while len(timed.target_only_s) < MAX_PAIRS and (
                len(timed.target_only_s) < MIN_PAIRS or time.monotonic() - began < TIMING_S
            ):
                done = len(timed.target_only_s)
                self.on_progress("timing", done, max(MIN_PAIRS, done + 1))
                forced = timed.forced
                if done % 2 == 0:
                    speculative_s = self._again(first, timed, calibration)
                    alone_s = self._alone(first, timed)
                else:
                    alone_s = self._alone(first, timed)
                    speculative_s = self._again(first, timed, calibration)
                if not timed.repeatable:
                    break
                if timed.forced == forced:  # else the target went its own way in this very block
                    timed.speculative_s.append(speculative_s)
                    timed.target_only_s.append(alone_s)
        except _OutOfTime:
            pass  # the pairs timed so far count
        if not timed.repeatable:
            timed.speculative_s, timed.target_only_s = [], []
        return timed

    def _again(self, first: Generation, timed: Timed, calibration: Calibration | None) -> float:
        """Decodes speculatively once more; returns its seconds."""
        with timed.block() as seconds:
            again = self._speculative(lambda generation: self._check_stop(), calibration)
        timed.repeatable &= again.tokens == first.tokens and again.steps == first.steps
        return seconds()

    def _alone(self, first: Generation, timed: Timed) -> float:
        """Decodes by the target alone; returns its seconds."""
        with timed.block(self.pair.threads) as seconds:
            alone = self._target_only(first.tokens, forced=timed.forced)
        if self.greedy:
            timed.compared += 1
            if alone != first.tokens:
                timed.different.append(alone)
                timed.forced = True
        return seconds()

    def _report_steps(self, generation: Generation) -> None:
        self.on_progress("measuring", len(generation.steps), self.n)
        if self.should_stop():
            raise Cancelled("the run was cancelled")
        if time.monotonic() > self.deadline and generation.stopped is None and len(generation.steps) < self.n:
            generation.stopped = "deadline"

    def _check_stop(self) -> None:
        if self.should_stop():
            raise Cancelled("the run was cancelled")
        if time.monotonic() > self.deadline:
            raise _OutOfTime

    def _measurement(self, decoded: _Decoded) -> dict[str, Any]:
        first, timed, calibration, fixed = decoded.first, decoded.timed, decoded.calibration, decoded.fixed
        counts = summarise(first.steps, self.k)
        speedup = timed.speedup()
        quality = decoded.quality
        rate = interval = alpha = None
        if self.adaptive:
            alpha = self.alpha
        else:
            alpha = rate = accepted_rate(counts.accepted, counts.rejections)
            interval = accepted_rate_ci95(counts.accepted, counts.rejections)
        # What was judged after the end of the text does not count as examined.
        examined = [
            step[: s.accepted + s.rejected] for step, s in zip(decoded.betas, first.steps, strict=False)
        ]
        predicted = prediction(calibration, counts, first.steps, timed, alpha, adaptive=self.adaptive)
        self._doubt(predicted["residuals"])
        return {
            "label": labels.MEASURED,
            "mode": "adaptive" if self.adaptive else "linear",
            "k_requested": self.request["k"],
            "n_requested": self.n,
            "k": self.k,
            "stopped": first.stopped,
            "n": counts.n,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            "rejections": counts.rejections,
            "emitted": counts.emitted,
            "acceptance_histogram": list(counts.acceptance_histogram),
            "accepted_rate": rate,
            "draft_acceptance_rate": draft_acceptance_rate(counts.accepted, counts.drafted),
            "mean_accepted_len": mean_accepted_len(counts.emitted, counts.n),
            "conditional_acceptance": list(counts.conditional),
            "unconditional_acceptance": unconditional_acceptance(counts.acceptance_histogram),
            "accepted_rate_ci95": None if interval is None else list(interval),
            "per_step": {
                "drafted": [step.drafted for step in first.steps],
                "accepted": [step.accepted for step in first.steps],
            },
            "iid": None if self.adaptive else iid_block(first.steps),
            "sum_min": None if self.greedy else sum_min_block(examined, counts.accepted),
            "alpha": None if fixed is None else alpha_block(fixed),
            **predicted,
            "tokens_per_second": {
                "speculative": _rate(counts.emitted, timed.speculative_s),
                "target_only": _rate(counts.emitted, timed.target_only_s),
            },
            "speedup": speedup,
            "verdict": _verdict(
                counts.n,
                speedup,
                quality,
                timed,
                on_cpu=self.pair.device.kind == "cpu",
                gpu_reasons=self.watch.reasons() if self.watch else [],
            ),
            "gpu": self.watch.measurement() if self.watch else None,
            "engine": self.pair.engine(),
            "draft": {"name": self.pair.draft_file.name, "sha256": self.pair.draft_file.sha256},
            "target": {"name": self.pair.target_file.name, "sha256": self.pair.target_file.sha256},
            "quality": quality,
            "prompt_tokens": len(self.prompt),
            "context": self.pair.target.capacity,
            "blocks": 2 * len(timed.speculative_s),
            "timing": {"speculative_s": timed.speculative_s, "target_only_s": timed.target_only_s},
        }

    def _doubt(self, residuals: dict[str, Any] | None) -> None:
        """Has the costs measured anew next time if this run's steps did not cost what they predict."""
        ratio = residuals and residuals["cost"]["ratio"]
        if ratio and not 1 / STALE_RATIO <= ratio <= STALE_RATIO:
            self.pair.calibrations.forget(self.calibration_key)

    def _quality(self, first: Generation, timed: Timed) -> dict[str, Any]:
        if not self.greedy:
            return {"identical_rate": None, "label": labels.SAMPLED, "compared_tokens": 0}
        if not timed.compared:
            return {"identical_rate": None, "label": labels.UNAVAILABLE, "compared_tokens": 0}
        label = labels.LOSSLESS
        if timed.different:
            label = (
                labels.DIVERGED_TIE
                if self._is_tie(first.tokens, timed.different[0])
                else labels.DIVERGED_FAULT
            )
        return {
            "identical_rate": 1 - len(timed.different) / timed.compared,
            "label": label,
            "compared_tokens": len(first.tokens),
        }

    def _is_tie(self, speculative: Sequence[int], alone: Sequence[int]) -> bool:
        """Tells whether two outputs part where the target itself is undecided within its own rounding.

        Verification reads k + 1 tokens at once and plain decoding one, and kernels for different widths round
        differently. The noise is measured on the spot: the same position's logits from a pass of either width. What
        there is no time left to look into is not called a tie.
        """
        where = next(
            i for i, (ours, theirs) in enumerate(zip(speculative, alone, strict=True)) if ours != theirs
        )
        prefix = [*self.prompt, *speculative[:where]]
        target = self.pair.target
        target.truncate(len(self.prompt) - 1)
        try:
            for token in prefix[len(self.prompt) - 1 :]:
                narrow = target.forward([token], 1)[0].copy()
                self._check_stop()
        except _OutOfTime:
            return False
        width = min(self.k + 1, len(prefix))
        target.truncate(len(prefix) - width)
        wide = target.forward(prefix[-width:], 1)[0]
        gap = float(narrow[alone[where]] - narrow[speculative[where]])
        return abs(gap) <= 2 * float(np.abs(narrow - wide).max())


class _OutOfTime(Exception):  # noqa: N818
    """The deadline passed while pairs were being timed."""


def _rate(tokens: int, seconds: Sequence[float]) -> float | None:
    return tokens / statistics.median(seconds) if seconds else None


def _text_tokens(generation: Generation, ends: Ends) -> list[int]:
    """Returns the emitted tokens without a final end of text."""
    return generation.tokens[:-1] if ends(generation.tokens[-1]) else generation.tokens


def _verdict(
    steps: int,
    speedup: dict[str, Any] | str,
    quality: dict[str, Any],
    timed: Timed,
    *,
    on_cpu: bool,
    gpu_reasons: Sequence[str],
) -> dict[str, Any]:
    reasons = []
    if steps < MIN_STEPS:
        reasons.append(f"fewer than {MIN_STEPS} steps")
    if isinstance(speedup, str):
        reasons.append(f"fewer than {MIN_PAIRS} timed pairs")
    elif speedup["ci95"][1] - speedup["ci95"][0] > WIDEST_INTERVAL * speedup["median"]:
        reasons.append("the interval of the speed-up is wider than half its median")
    if quality["label"] in (labels.DIVERGED_TIE, labels.DIVERGED_FAULT):
        reasons.append(labels.OUTPUT_DIFFERS)
    if not timed.repeatable:
        reasons.append(labels.REPEATS_DIFFER)
    if on_cpu and timed.processor_share < LEAST_PROCESSOR_SHARE:
        reasons.append("other work slowed the machine while it was timed")
    reasons += gpu_reasons
    return {"valid": not reasons, "reasons": reasons}
