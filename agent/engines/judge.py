"""What may be said of pairs of completions, by a server with a draft and by the same target without one.

The speed-up is the median over pairs of plain time ÷ speculative time, for pairs whose texts are equal: only they are
the same work. Times are the servers' own, prefill left out, if both tell them, else wall clock. Its interval speaks of
prompts like these while each is used once; further pairs of the same prompts narrow it for these alone.

A server can be told to accept drafts at random, to benchmark other things (llama.cpp: `--spec-synth-len`, vLLM:
`rejection_sample_method: synthetic`), and does not say so when asked. What it cannot do then is be greedy: chance puts
in tokens that the target would not have chosen, and changes with the seed, or from one repeat to the next. So:

* CONTRADICTED: a greedy repeat with another seed gave another text or other counts. Nothing is relied on.
* UNVERIFIABLE: repeats agree, but some texts differ from the plain server's. Passes of different width round
  differently, which alone can do that (https://github.com/ggml-org/llama.cpp/issues/23335). Figures are of the pairs
  whose texts are equal, unless these are fewer than half. Nor can a server be told from one that refuses every draft
  on purpose if it never accepted any: then there are no figures.
* EXCLUDED: every text equals the plain server's, so whatever was accepted is what the target would have said.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from agent.engines.engine import Completion
from shared import labels
from shared.estimators import WIDEST_INTERVAL, draft_acceptance_rate, median_interval

MIN_PAIRS: Final = 6
"""Fewest pairs from which a speed-up is told: see `shared.estimators.median_interval`."""

LEAST_IDENTICAL: Final = 0.5
"""With a smaller share of equal texts, those say little about the rest."""

CONTRADICTED: Final = "CONTRADICTED"
UNVERIFIABLE: Final = "UNVERIFIABLE"
EXCLUDED: Final = "EXCLUDED"

DECODE: Final = "the servers' decode time, prefill left out"
WALL: Final = "wall clock, prefill and network included"


@dataclass(frozen=True)
class Pair:
    """The completions of one prompt, known by its number, by both servers."""

    prompt: int
    speculative: Completion
    plain: Completion

    @property
    def identical(self) -> bool:
        """Whether both said the same: token ids where both tell them, else text and number of tokens."""
        one, other = self.speculative, self.plain
        if one.token_ids is not None and other.token_ids is not None:
            return one.token_ids == other.token_ids
        return (one.text, one.tokens) == (other.text, other.tokens)


@dataclass(frozen=True)
class Comparison:
    """What a comparison gave; `as_json` is what it looks like outside.

    Attributes:
        label: MEASURED if there is a speed-up, else UNAVAILABLE.
        speedup: Plain time ÷ speculative time: label, median, ci95, pairs, basis; or UNAVAILABLE.
        draft_acceptance: Label, rate (accepted ÷ drafted), drafted, accepted, drafts, mean_accepted_len (1 + accepted ÷
            drafts, the target's own token included), accepted_per_position; or UNAVAILABLE.
        quality: Label, identical_rate, and how many pairs were compared.
        tokens_per_second: Label, basis, and the medians of both sides; or UNAVAILABLE.
        synthetic_acceptance: Status and reason, see the module.
        server_figures: What the speculative server itself says of its speculation.
        counts: Pairs, pairs with equal text, prompts, and the most tokens that a completion may have.
        reasons: Why something is UNAVAILABLE or not to be relied on.
        notes: What else to know.
        engines: What both servers tell of themselves.
    """

    label: str
    speedup: dict[str, Any] | str
    draft_acceptance: dict[str, Any] | str
    quality: dict[str, Any]
    tokens_per_second: dict[str, Any] | str
    synthetic_acceptance: dict[str, str]
    server_figures: dict[str, Any]
    counts: dict[str, int]
    reasons: list[str]
    notes: list[str]
    engines: dict[str, dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Returns it as a JSON object."""
        return asdict(self)


def judge(
    warm_up: Pair, pairs: Sequence[Pair], *, counts: dict[str, int], engines: dict[str, dict[str, Any]]
) -> Comparison:
    """Judges pairs, at least one; `warm_up` has the prompt of the first and another seed, and its times do not count.

    `counts` and `engines` go into the result, see `Comparison`.
    """
    equal = [pair for pair in pairs if pair.identical]
    sides = [side for pair in [warm_up, *pairs] for side in (pair.speculative, pair.plain)]
    identical_rate = len(equal) / len(pairs)
    status, reason = _synthetic([warm_up, *pairs], len(pairs) - len(equal))
    faults = [side.disturbed for side in sides if side.disturbed]
    if status == CONTRADICTED:
        faults.append(f"acceptance may be synthetic: {reason}")
    if not _repeat([(pair.prompt, pair.plain) for pair in [warm_up, *pairs]]):
        faults.append("the plain server does not repeat itself, although greedy")
    if any(pair.plain.drafted for pair in pairs):
        faults.append("the plain server speculates too")
    if _accepts_nothing(pairs):
        faults.append(
            "not one draft token was accepted: a draft of no use, or acceptance that is switched off"
        )
    if identical_rate < LEAST_IDENTICAL:
        faults.append(f"only {len(equal)} of {len(pairs)} texts are equal, so the work was not the same")
    reasons = faults if identical_rate == 1 else [*faults, labels.OUTPUT_DIFFERS]
    speedup: dict[str, Any] | str = labels.UNAVAILABLE
    rates: dict[str, Any] | str = labels.UNAVAILABLE
    acceptance: dict[str, Any] | str = labels.UNAVAILABLE
    if not faults:
        speedup, rates, slow = _timing(equal)
        acceptance, unknown = _acceptance([pair.speculative for pair in equal])
        reasons = [*reasons, *slow, *unknown]
    return Comparison(
        label=labels.UNAVAILABLE if isinstance(speedup, str) else labels.MEASURED,
        speedup=speedup,
        draft_acceptance=acceptance,
        quality={
            "label": labels.LOSSLESS if identical_rate == 1 else labels.MEASURED,
            "identical_rate": identical_rate,
            "compared": len(pairs),
        },
        tokens_per_second=rates,
        synthetic_acceptance={"status": status, "reason": reason},
        server_figures=dict(pairs[-1].speculative.server_figures),
        counts={**counts, "pairs_with_equal_text": len(equal)},
        reasons=_once(reasons),
        notes=_once(note for side in sides for note in side.notes),
        engines=engines,
    )


def _synthetic(pairs: Sequence[Pair], different: int) -> tuple[str, str]:
    """Returns status and reason: whether acceptance may be synthetic."""
    if not _repeat([(pair.prompt, pair.speculative) for pair in pairs]):
        return CONTRADICTED, "a greedy repeat with another seed gave another text or other counts"
    if different:
        return UNVERIFIABLE, (
            f"{different} of {len(pairs) - 1} texts differ from the plain server's: rounding can do that, and so does "
            "synthetic acceptance"
        )
    if _accepts_nothing(pairs):
        return UNVERIFIABLE, "not one draft token was accepted"
    return EXCLUDED, "every text equals the plain server's, and repeats with other seeds agree"


def _repeat(sides: Sequence[tuple[int, Completion]]) -> bool:
    """Tells whether completions of the same prompt agree in text and, where they are known, in counts."""
    texts: dict[int, set[tuple[str, int]]] = {}
    counts: dict[int, set[tuple[int | None, int | None]]] = {}
    for prompt, side in sides:
        if side.disturbed is None:
            texts.setdefault(prompt, set()).add((side.text, side.tokens))
            if side.no_counts is None:
                counts.setdefault(prompt, set()).add((side.drafted, side.accepted))
    return all(len(seen) == 1 for seen in texts.values()) and all(len(seen) == 1 for seen in counts.values())


def _accepts_nothing(pairs: Sequence[Pair]) -> bool:
    drafted, accepted = _counted([pair.speculative for pair in pairs])
    return bool(drafted) and accepted == 0


def _acceptance(sides: Sequence[Completion]) -> tuple[dict[str, Any] | str, list[str]]:
    """Returns the speculative completions' acceptance, and why there is none."""
    drafted, accepted = _counted(sides)
    if drafted is None or accepted is None:
        return labels.UNAVAILABLE, [side.no_counts for side in sides if side.no_counts]
    if not drafted:
        return labels.UNAVAILABLE, ["the speculative server drafted nothing"]
    drafts = _total(side.drafts for side in sides)
    known = [side.accepted_per_position for side in sides if side.accepted_per_position is not None]
    length = max((len(one) for one in known), default=0)
    return {
        "label": labels.MEASURED,
        "rate": draft_acceptance_rate(accepted, drafted),
        "drafted": drafted,
        "accepted": accepted,
        "drafts": drafts,
        "mean_accepted_len": 1 + accepted / drafts if drafts else None,
        "accepted_per_position": [sum(one[at] for one in known if at < len(one)) for at in range(length)]
        if length and len(known) == len(sides)
        else None,
    }, []


def _timing(equal: Sequence[Pair]) -> tuple[dict[str, Any] | str, dict[str, Any] | str, list[str]]:
    """Returns speed-up and tokens per second of pairs with equal texts, and why not or why not to rely on them."""
    timed = [pair for pair in equal if pair.plain.tokens >= 2]
    times = [(pair.speculative.decode_s, pair.plain.decode_s) for pair in timed]
    seconds = [(ours, alone) for ours, alone in times if ours and alone]
    basis, tokens = DECODE, [pair.plain.tokens - 1 for pair in timed]
    if len(seconds) < len(timed):
        basis, tokens = WALL, [pair.plain.tokens for pair in timed]
        seconds = [(pair.speculative.wall_s, pair.plain.wall_s) for pair in timed]
    if not seconds:
        return labels.UNAVAILABLE, labels.UNAVAILABLE, ["no two completions could be timed"]
    rates = {
        "label": labels.MEASURED,
        "basis": basis,
        "speculative": statistics.median(n / s for n, (s, _) in zip(tokens, seconds, strict=True)),
        "plain": statistics.median(n / s for n, (_, s) in zip(tokens, seconds, strict=True)),
    }
    interval = median_interval([alone / ours for ours, alone in seconds])
    if interval is None:
        return labels.UNAVAILABLE, rates, [f"fewer than {MIN_PAIRS} timed pairs"]
    median, low, high = interval
    wide = high - low > WIDEST_INTERVAL * median
    return (
        {
            "label": labels.MEASURED,
            "median": median,
            "ci95": [low, high],
            "pairs": len(seconds),
            "basis": basis,
        },
        rates,
        ["the interval of the speed-up is wider than half its median"] if wide else [],
    )


def _counted(sides: Iterable[Completion]) -> tuple[int | None, int | None]:
    found = list(sides)
    return _total(side.drafted for side in found), _total(side.accepted for side in found)


def _total(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
