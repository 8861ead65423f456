"""`specdec sweep`: one measured run per prompt and draft length, and the curve that they make.

Runs are made in the order of `shared.prompts.plan`: all ks of one prompt before the next prompt, every other prompt
backwards, so that a tower's slow drift meets all ks alike. A run without a measurement is counted and its reason
told once; it never becomes a figure.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from shared import cli_interrupt, labels, plots, prompts
from shared.cli_output import add_shapes, for_people, note, print_shape, say
from shared.cli_parts import (
    MAX_FILE,
    InputError,
    add_command,
    add_run_fields,
    connection,
    read,
    run_fields,
    save_receipt,
)
from shared.cli_plot import add_plot, check_plot, plot
from shared.cli_progress import Bars
from shared.client import ClientError, Specdec
from shared.models import one_line
from shared.prompts import Prompt, PromptsError, plan
from shared.sweep import AUTO, LABELS, Best, K, Row, SweepRun, best, rows
from shared.sweep_text import COLUMNS, FIELDS, best_values, choices, flat, pairs, table_rows, text

DEFAULT_KS: Final = "1,2,4,8"
LOST_PROMPTS: Final = 2
"""So many prompts in a row not measured at any k, and the rest is not asked for: it would go the same way."""

_KS: Final = re.compile(r"([0-9]{1,2})(?:-([0-9]{1,2}))?", re.ASCII)
_NOT_SENT: Final = ("k", "include_output")


@dataclass
class Outcome:
    """What has come back so far.

    Attributes:
        runs: Those that were measured.
        receipts: Of each receipt its domain, prompt, k, label and digest.
        missed: Runs without a measurement, by the reason.
        notes: What else the user should know.
        sound: Whether every receipt verified and, if to be saved, was.
        interrupted: Whether Ctrl-C ended it.
    """

    runs: list[SweepRun] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    sound: bool = True
    interrupted: bool = False

    @property
    def done(self) -> int:
        """Number of runs that have come to an end, measured or not."""
        return len(self.runs) + self.missed.total()

    @property
    def code(self) -> int:
        """The exit code."""
        return 130 if self.interrupted else 0 if self.runs and self.sound else 1


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `sweep` to the commands."""
    parser = add_command(
        commands,
        "sweep",
        "measure over several draft lengths and prompts",
        (
            "sweep --domain prose --k 1,2,4,auto --n 30 --out receipts",
            "sweep --prompts mine.jsonl --k 1-8 --csv > sweep.csv",
            "sweep --k 1-8 --plot sweep.png --md",
        ),
        [connection(300, "each run")],
    )
    parser.add_argument(
        "--k",
        type=draft_lengths,
        default=DEFAULT_KS,
        help=f"draft lengths: 1-8, or a list such as 1,2,4,auto (default: {DEFAULT_KS})",
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="JSON list or lines of objects with domain and prompt; - for standard input (default: six each of "
        "prose and code)",
    )
    parser.add_argument("--domain", action="append", metavar="NAME", help="only this domain; may repeat")
    add_run_fields(parser, *_NOT_SENT)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="save each receipt in this new or empty folder"
    )
    add_plot(parser)
    add_shapes(parser, tables=True)
    parser.set_defaults(command=sweep)


def draft_lengths(value: str) -> list[K]:
    """Draft lengths as a command line names them, in rising order, `auto` last, each once.

    Raises:
        argparse.ArgumentTypeError: If they are none.
    """
    ks: set[int] = set()
    parts = [part.strip() for part in value.split(",")]
    for part in parts:
        match = _KS.fullmatch(part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            ks.update(range(first, last + 1) if first <= last else [0])
    if not all(part == AUTO or _KS.fullmatch(part) for part in parts) or not ks <= set(range(1, 17)):
        raise argparse.ArgumentTypeError(
            "must be numbers from 1 to 16, ranges such as 1-8, or auto, with commas"
        )
    chosen: list[K] = [*sorted(ks)]
    return [*chosen, AUTO] if AUTO in parts else chosen


def sweep(args: argparse.Namespace) -> int:
    """Make the runs and print what they come to; returns the exit code."""
    check_plot(args)
    chosen = _prompts(args.prompts, args.domain)
    order = plan(chosen, args.k)
    outcome = Outcome()
    with Specdec(args.url, args.timeout) as service, Bars(len(order)) as bars:
        if args.out is not None:
            _new_folder(args.out)
        try:
            _measure(service, order, args, outcome, bars)
        except KeyboardInterrupt:
            outcome.interrupted = True
            outcome.notes.append(f"interrupted: {outcome.done} of {len(order)} runs were made")
    table = rows(outcome.runs, [(prompt.domain, k) for prompt, k in order])
    _print(args, outcome, table, best(outcome.runs, table))
    plot(args, plots.of_sweep(table) if outcome.runs else [])
    return outcome.code


def _prompts(name: str | None, domains: list[str] | None) -> list[Prompt]:
    try:
        loaded = prompts.own() if name is None else prompts.parse(read(name, MAX_FILE))
    except PromptsError as error:
        what = "standard input" if name == "-" else one_line(str(name), 200)
        raise InputError("BAD_INPUT", f"{what}: {error.cause}") from None
    known = {prompt.domain for prompt in loaded}
    if domains and not known.issuperset(domains):
        raise InputError("BAD_INPUT", one_line(f"--domain must be one of: {', '.join(sorted(known))}"))
    return [prompt for prompt in loaded if not domains or prompt.domain in domains]


def _new_folder(folder: Path) -> None:
    """Make the folder; receipts of two sweeps in one would pass for one sweep's."""
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.iterdir()):
            raise InputError("BAD_INPUT", "--out must name a new or empty folder")
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        reason = error.strerror if isinstance(error, OSError) else "it is no file name"
        raise InputError("BAD_INPUT", f"--out cannot be made: {reason}") from None


def _measure(
    service: Specdec, order: list[tuple[Prompt, K]], args: argparse.Namespace, outcome: Outcome, bars: Bars
) -> None:
    lost = 0
    for prompt, group in groupby(order, key=lambda one: one[0]):
        before = len(outcome.runs)
        for _, k in group:
            what = f"{prompt.domain} {prompt.index}, k={k}"
            said = _one(service, prompt, k, args, outcome, bars, what)
            count = f"[{outcome.done:{len(str(len(order)))}}/{len(order)}]"
            bars.end(None if args.json else f"{count} {what}: {said}")
        lost = 0 if len(outcome.runs) > before else lost + 1
        if lost == LOST_PROMPTS and outcome.done < len(order):
            outcome.notes.append(
                f"stopped after {outcome.done} of {len(order)} runs: {lost} prompts in a row were not measured at any k"
            )
            return


def _one(
    service: Specdec, prompt: Prompt, k: K, args: argparse.Namespace, outcome: Outcome, bars: Bars, what: str
) -> str:
    """Make one run, keep what it says, and return that in a clause."""
    fields = {"k": k, **run_fields(args, *_NOT_SENT)}
    try:
        receipt = cli_interrupt.run(
            service, args.url, prompt.text, fields, bars, what, patient=True, leave=False
        )
    except ClientError as error:
        if error.code == "BAD_INPUT":
            raise
        outcome.sound &= error.code != "BAD_RECEIPT"
        outcome.missed[one_line(error.cause)] += 1  # the remedy may name the run, and so differ each time
        return error.cause
    payload = receipt["payload"]
    named = {"domain": prompt.domain, "prompt": prompt.index, "k": k, "label": payload["label"]}
    outcome.receipts.append({**named, "payload_sha3_256": receipt["payload_sha3_256"]})
    _save(receipt, args.out, f"k{k}-{prompt.domain}-{prompt.index}.json", outcome)
    measurement = payload.get("measurement")
    if measurement is None or measurement["k_requested"] != k:
        roadmap = payload.get("roadmap") if measurement is None else {"reason": "it measured another k"}
        reason = one_line(str(roadmap.get("reason") if isinstance(roadmap, dict) else None))
        outcome.missed[reason] += 1
        return f"{payload['label']}: {reason}"
    outcome.runs.append(
        SweepRun(prompt.domain, prompt.index, measurement, payload["accounting_modeled"]["cost_ratio"])
    )
    speedup = measurement["speedup"]
    figure = (
        labels.UNAVAILABLE if isinstance(speedup, str) else f"{speedup['median']:.4f} ({labels.MEASURED})"
    )
    return f"speed-up {figure}"


def _save(receipt: dict[str, Any], folder: Path | None, name: str, outcome: Outcome) -> None:
    try:
        if folder is not None:
            save_receipt(receipt, folder / name)
    except OSError as error:  # what is measured is worth more than its file
        said = f"receipts cannot be saved: {error.strerror}"
        outcome.sound = False
        if said not in outcome.notes:
            outcome.notes.append(said)


def _print(args: argparse.Namespace, outcome: Outcome, table: list[Row], choice: list[Best]) -> None:
    missed = [f"not measured: {count} run(s): {reason}" for reason, count in outcome.missed.items()]
    if for_people(args):
        say(*text(outcome.runs, table, choice), *missed, *outcome.notes)
        return
    answer = {
        "labels": LABELS,
        "models": pairs(outcome.runs),
        "rows": [flat(row) for row in table],
        "best": [best_values(one) for one in choice],
        "not_measured": [{"reason": reason, "runs": n} for reason, n in outcome.missed.items()],
        "notes": outcome.notes,
        "receipts": outcome.receipts,
    }
    if args.csv:
        print_shape(args, answer, FIELDS, [list(flat(row).values()) for row in table])
    else:
        print_shape(args, answer, COLUMNS, table_rows(table))
    if args.md:
        print("\n" + "\n".join(f"- {line}" for line in choices(choice)))
    if not args.json:
        for line in missed + outcome.notes:
            note(line)
