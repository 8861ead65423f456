"""A sweep's rows as text, for tables and as JSON values; every figure stands under its label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any, Final

from shared import labels
from shared.models import one_line
from shared.sweep import ALL, Best, K, Row, SweepRun

_NONE: Final = "-"
_MEASURED: Final = ("k", "runs", "valid", "lossless", "tokens", "drafts", "accepted rate", "speed-up")
_MODELED: Final = ("Th. 3.8", "predicted")

COLUMNS: Final = (
    "domain",
    *_MEASURED[:4],
    *(f"{name} ({labels.MEASURED})" for name in _MEASURED[4:]),
    *(f"{name} ({labels.MODELED})" for name in _MODELED),
)
"""The columns of a table for people; each figure's label stands over it."""
FIELDS: Final = tuple(field.name for field in fields(Row))
"""The columns of a table for programs."""


def pairs(runs: Iterable[SweepRun]) -> list[str]:
    """The pairs that made the runs, each once; more than one means that rows pool what should not be pooled."""
    found = {
        tuple(
            run.measurement[side][part] for side in ("draft", "target") for part in ("name", "sha256")
        ): None
        for run in runs
    }
    return [one_line(f"{draft} -> {target}") for draft, _, target, _ in found]


def text(runs: Sequence[SweepRun], table: Sequence[Row], choice: Sequence[Best]) -> list[str]:
    """Lines for people: the models, a table per domain, what the figures mean, the best k of each domain."""
    lines = []
    names = pairs(runs)
    if names:
        mixed = "" if len(names) == 1 else " (MIXED: the rows pool runs of several pairs)"
        lines += [f"models: {'; '.join(names)}{mixed}", ""]
    cells = [_cells(row) for row in table]
    heads = (*_MEASURED, *_MODELED)
    widths = [max(map(len, column)) for column in zip(heads, *(c for c in cells if len(c) > 3), strict=True)]
    left = sum(widths[: len(_MEASURED)]) + 2 * (len(_MEASURED) - 1)
    for domain, group in groupby(zip(table, cells, strict=True), key=lambda one: one[0].domain):
        members = list(group)
        measured = any(row.runs for row, _ in members)
        label = labels.MEASURED if measured else labels.UNAVAILABLE
        title = f"{_title(domain)}: {label}"
        lines.append(f"{title:{left}}  {labels.MODELED}" if measured else title)
        lines += [_line(heads, widths), *(_line(row, widths) for _, row in members), ""]
    if runs:
        ratios = ", ".join(f"{ratio:g}" for ratio in sorted({run.cost_ratio for run in runs}))
        lines += [
            "tokens, drafts: per step. accepted rate: pooled over prompts, with its 95 % interval from five on.",
            "speed-up: median over prompts, with its 95 % interval from six on; for fewer the range.",
            f"Th. 3.8: at the pooled rate and cost ratio {ratios}. predicted: at measured costs, if receipts hold any.",
            "",
        ]
    return lines + choices(choice)


def flat(row: Row) -> dict[str, Any]:
    """The row's fields by name; None where there is no figure."""
    return asdict(row)


def table_rows(table: Iterable[Row]) -> list[tuple[str | None, ...]]:
    """The values of `COLUMNS` for each row; None from where nothing was measured on."""
    filled = [(_title(row.domain), *_cells(row)) for row in table]
    return [
        cells if len(cells) == len(COLUMNS) else (*cells[:3], *[None] * (len(COLUMNS) - 3))
        for cells in filled
    ]


def choices(choice: Iterable[Best]) -> list[str]:
    """What each domain's rows come to, in a sentence each."""
    return [_choice(one) for one in choice]


def best_values(choice: Best) -> dict[str, Any]:
    """The choice as a JSON value."""
    row = choice.row
    return {
        "domain": choice.domain,
        "k": None if row is None else row.k,
        "speedup_measured": labels.UNAVAILABLE if row is None else row.speedup_measured,
        "speculate": choice.speculate,
        "recommended_k": choice.recommended_k,
        "recommended_least": choice.recommended_least,
        "recommended_most": choice.recommended_most,
        "recommending": choice.recommending,
    }


def _cells(row: Row) -> tuple[str, ...]:
    runs = f"{row.runs}/{row.asked}"
    if not row.runs:
        return str(row.k), runs, labels.UNAVAILABLE
    return (
        str(row.k),
        runs,
        f"{row.valid}/{row.runs}",
        f"{row.lossless}/{row.compared}" if row.compared else _NONE,
        _number(row.tokens_per_step, 2),
        _number(row.drafted_per_step, 2),
        _number(row.accepted_rate, 3) + _between(row.accepted_rate_low, row.accepted_rate_high, 3, ""),
        _speedup(row),
        _number(row.speedup_modeled, 2),
        _number(row.speedup_predicted, 2),
    )


def _speedup(row: Row) -> str:
    if row.speedup_measured is None:
        return labels.UNAVAILABLE
    if row.timed == 1:
        return f"{row.speedup_measured:.2f} (one prompt)"
    kind = "range " if row.speedup_spread == "range" else ""
    return f"{row.speedup_measured:.2f}" + _between(row.speedup_low, row.speedup_high, 2, kind)


def _between(low: float | None, high: float | None, digits: int, kind: str) -> str:
    return "" if low is None or high is None else f" ({kind}{low:.{digits}f} to {high:.{digits}f})"


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=False))


def _choice(best: Best) -> str:
    row = best.row
    if row is None:
        said = f"no speed-up was measured ({labels.UNAVAILABLE})"
    else:
        figure = f"{_k(row.k)}, speed-up {row.speedup_measured:.4f} ({labels.MEASURED})"
        said = f"best {figure}" if best.speculate else f"do not speculate: the best is {figure}"
        if row.valid < row.runs:
            said += f", but only {row.valid} of its {row.runs} verdicts are valid"
    if best.recommended_k is not None:
        advice = _k(best.recommended_k) if best.recommended_k else "not to speculate"
        spread = (
            f"median of {best.recommending} receipts, {best.recommended_least} to {best.recommended_most}"
        )
        said += f"; calibration recommends {advice} ({labels.MODELED}, {spread})"
    return f"{_title(best.domain)}: {said}"


def _title(domain: str) -> str:
    return "all domains" if domain == ALL else domain


def _k(k: K) -> str:
    return f"k={k}"
