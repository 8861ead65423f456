"""`specdec run`: one run, measured on the tower, or why it cannot be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from shared import cli_interrupt, labels, plots
from shared.cli_output import add_shapes, for_people, note, print_shape, say, say_rows
from shared.cli_parts import (
    InputError,
    add_command,
    add_run_fields,
    connection,
    energy_rows,
    is_new_or_file,
    modeled_rows,
    number,
    read,
    receipt_rows,
    run_fields,
    save_receipt,
)
from shared.cli_plot import add_plot, check_plot, plot
from shared.cli_progress import Bars
from shared.client import Receipt, Specdec
from shared.models import printable
from shared.schemas import MAX_PROMPT_BYTES
from shared.sweep import AUTO

COLUMNS: Final = (
    "run_id",
    "label",
    "draft_model",
    "target_model",
    "k",
    "n",
    "accepted_rate_measured",
    "accepted_rate_low",
    "accepted_rate_high",
    "tokens_per_step_measured",
    "speedup_measured",
    "speedup_low",
    "speedup_high",
    "speedup_pairs",
    "speedup_modeled",
    "speedup_predicted_modeled",
    "recommended_k_modeled",
    "joules_per_token_measured",
    "joules_per_token_target_only_measured",
    "output_unchanged",
    "valid",
    "payload_sha3_256",
)
"""The columns of --csv and --md: each figure's label is in its name."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `run` to the commands."""
    parser = add_command(
        commands,
        "run",
        "measure on the tower, or say why not",
        (
            'run "And it came to pass"',
            'run "def fibonacci(n):" --k auto --n 100 --out receipt.json',
            "run - --temperature 0.7 --seed 1 --json < prompt.txt",
            'run "And it came to pass" --plot',
        ),
        [connection(120, "the whole call")],
    )
    parser.add_argument("prompt", help="the prompt, or - to read it from standard input as it is")
    add_run_fields(parser)
    parser.add_argument(
        "--wait",
        type=float,
        metavar="S",
        help="seconds the service should wait before it asks us to poll "
        f"(default: {cli_interrupt.WAIT_S:g}; progress is shown from then on)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the receipt (without salt and output)")
    add_plot(parser)
    add_shapes(parser, tables=True)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Make the run and print what it says; returns the exit code."""
    if args.out is not None and not is_new_or_file(args.out):  # before the run, not after
        raise InputError("BAD_INPUT", "--out must name a file in a folder that exists")
    check_plot(args)
    prompt = _text(read("-", MAX_PROMPT_BYTES + 1)) if args.prompt == "-" else args.prompt
    with Specdec(args.url, args.timeout) as service, Bars() as bars:
        receipt = cli_interrupt.run(service, args.url, prompt, run_fields(args), bars, "run", wait=args.wait)
    if for_people(args):
        _say(receipt)
    print_shape(args, receipt, COLUMNS, [_cells(receipt)])
    saved = True
    if args.out is not None:
        try:
            save_receipt(receipt, args.out)
        except OSError as error:  # what was measured has been printed
            note(f"--out cannot be written: {error.strerror}")
            saved = False
    plot(args, plots.of_run(receipt))
    return 0 if saved else 1


def _say(receipt: Receipt) -> None:
    payload = receipt.payload
    rows = _measured_rows(payload) if "measurement" in payload else _roadmap_rows(receipt)
    say_rows(("label", payload["label"]), *rows, *modeled_rows(receipt), *receipt_rows(receipt))
    if receipt.prompt_salt is not None:
        say_rows(("prompt salt", f"{receipt.prompt_salt} (yours alone: proves, and can betray, the prompt)"))
    if receipt.output is not None:
        say("", *map(printable, receipt.output.splitlines()))


def _cells(receipt: Receipt) -> Sequence[Any]:
    """The values of `COLUMNS`, None where there is none."""
    m, speedup, energy = receipt.measurement, receipt.speedup_measured, receipt.energy
    none: list[float | None] = [None, None]
    rate: Sequence[float | None] = (m and m.accepted_rate_ci95) or none
    interval: Sequence[float | None] = speedup.ci95 if speedup else none
    predicted = None if m is None or m.speedup_predicted is None else m.speedup_predicted.value
    joules = None if energy is None else energy.joules_per_token
    return (
        receipt.run_id,
        receipt.label,
        m and m.draft.name,
        m and m.target.name,
        m and m.k_requested,
        m and m.n,
        receipt.accepted_rate,
        *rate,
        m and m.mean_accepted_len,
        speedup and speedup.median,
        *interval,
        speedup and speedup.pairs,
        receipt.speedup_modeled,
        predicted,
        m and m.recommended_k,
        joules and joules.speculative,
        joules and joules.target_only,
        m and m.quality.label,
        m and m.verdict.valid,
        receipt.digest,
    )


def _measured_rows(payload: dict[str, Any]) -> list[tuple[str, Any]]:
    m = payload["measurement"]
    rate, interval = payload.get("accepted_rate"), m["accepted_rate_ci95"]
    speedup, energy, verdict = payload["speedup_measured"], payload["energy"], m["verdict"]
    adaptive = m["k_requested"] == AUTO
    length = f"k adaptive, up to {payload['k']}" if adaptive else f"k={payload['k']}"
    rows: list[tuple[str, Any]] = [
        ("run", payload.get("run_id")),
        ("models", f"{payload['draft_model']} -> {payload['target_model']}"),
        ("steps", f"n={payload['n']} of {m['n_requested']}, {length} ({labels.MEASURED})"),
    ]
    if rate is None:
        why = "drafts stop where a refusal is expected" if adaptive else "no draft token was examined"
        rows.append(("accepted rate", f"{labels.UNAVAILABLE} ({why})"))
    else:
        low, high = interval
        rows.append(("accepted rate", f"{rate} ({labels.MEASURED}, 95 % interval {low:.4f} to {high:.4f})"))
    rows.append(("tokens per step", f"{payload['mean_accepted_len']} ({labels.MEASURED})"))
    rows.append(("speedup, modeled", number(payload.get("speedup_modeled"), labels.MODELED)))
    rows += _predicted_rows(m)
    if isinstance(speedup, dict):
        low, high = speedup["ci95"]
        detail = f"{labels.MEASURED}, 95 % interval {low:.4f} to {high:.4f}, {speedup['pairs']} pairs"
        rows.append(("speedup, measured", f"{speedup['median']:.4f} ({detail})"))
    else:
        rows.append(("speedup, measured", labels.UNAVAILABLE))
    rows += energy_rows(energy)
    rows.append(("output unchanged", payload["quality_delta"]["label"]))
    rows.append(("verdict", "valid" if verdict["valid"] else "not valid: " + ", ".join(verdict["reasons"])))
    tower = payload.get("tower")
    if isinstance(tower, dict):
        rows.append(("tower", f"{tower.get('id')} (its signature: {tower.get('attested')}, says the edge)"))
    return rows


def _predicted_rows(m: dict[str, Any]) -> list[tuple[str, Any]]:
    """What measured costs predict; the receipt of an older tower has none."""
    rows: list[tuple[str, Any]] = []
    if m.get("speedup_predicted"):
        rows.append(
            (
                "speedup, predicted",
                f"{m['speedup_predicted']['value']:.4f} ({labels.MODELED}, measured costs)",
            )
        )
    if m.get("recommended_k") is not None:
        advice = "do not speculate" if m["recommended_k"] == 0 else f"k={m['recommended_k']}"
        contradicted = m["recommended_k"] == m["k"] and _does_not_pay(m["speedup"])
        but = ", yet as measured it does not pay" if contradicted else ""
        rows.append(("recommended", f"{advice} ({labels.MODELED}{but})"))
    return rows


def _does_not_pay(speedup: Any) -> bool:
    """Whether a measured speed-up lies below 1 with its whole interval."""
    return isinstance(speedup, dict) and bool(speedup["ci95"][1] < 1)


def _roadmap_rows(receipt: Receipt) -> list[tuple[str, Any]]:
    rows = [("measured", receipt.payload.get("measured")), ("why", receipt.roadmap_reason)]
    return rows + [("what to do" if not i else "", step) for i, step in enumerate(receipt.runbook)]


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("BAD_INPUT", "the prompt is not UTF-8") from None
