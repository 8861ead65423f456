"""`specdec curve`: what speculative decoding would yield if acceptance were i.i.d.; MODELED throughout."""

from __future__ import annotations

import argparse
from typing import Any, Final

from shared import labels, plots
from shared.cli_output import add_shapes, for_people, print_shape, say_rows
from shared.cli_parts import add_command, connection, modeled_rows, receipt_rows
from shared.cli_plot import add_plot, check_plot, plot
from shared.client import Receipt, Specdec

COLUMNS: Final = ("alpha", "k", "cost_ratio", "verify_cost", "speedup", "tokens_per_step", "label")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `curve` to the commands."""
    parser = add_command(
        commands,
        "curve",
        "the modeled curve: speed-up and tokens per step by acceptance rate",
        (
            "curve --k 4 --cost-ratio 0.2",
            "curve --k 8 --alpha 0.6 --alpha 0.8 --md",
            "curve --k 4 --plot",
            "curve --k 4 --plot curve.svg",
        ),
        [connection(120, "the whole call")],
    )
    parser.add_argument("--k", type=int, help="draft tokens per step, 0 to 64")
    parser.add_argument("--cost-ratio", type=float, help="draft step / target pass, 0 to 10")
    parser.add_argument("--alpha", type=float, action="append", help="acceptance rate, 0 to 1; may repeat")
    parser.add_argument("--verify-cost", type=float, help="pass over k+1 tokens / over one, 1 to 100")
    add_plot(parser)
    add_shapes(parser, tables=True)
    parser.set_defaults(command=curve)


def curve(args: argparse.Namespace) -> int:
    """Ask for the curve and print it; returns the exit code."""
    check_plot(args)
    params = {name: getattr(args, name) for name in ("k", "cost_ratio", "alpha", "verify_cost")}
    with Specdec(args.url, args.timeout) as service:
        receipt = service.curve(**{name: value for name, value in params.items() if value is not None})
    if for_people(args):
        say_rows(("label", receipt.label), *modeled_rows(receipt), *receipt_rows(receipt))
    print_shape(args, receipt, COLUMNS, _table(receipt))
    plot(args, plots.of_curve(receipt))
    return 0


def _table(receipt: Receipt) -> list[tuple[Any, ...]]:
    block = receipt.payload["accounting_modeled"]
    tokens = block.get("expected_tokens_per_step_at_alpha") or {}
    same = (block["k"], block.get("cost_ratio"), block.get("verify_cost"))
    return [
        (float(alpha), *same, speedup, tokens.get(alpha), labels.MODELED)
        for alpha, speedup in block["expected_speedup_at_alpha"].items()
    ]
