"""`specdec health`: what the service can do now."""

from __future__ import annotations

import argparse

from shared.cli_output import add_shapes, for_people, print_shape, say_rows
from shared.cli_parts import add_command, connection
from shared.client import Specdec


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `health` to the commands."""
    parser = add_command(
        commands,
        "health",
        "what the service can do now",
        ("health", "health --url http://127.0.0.1:8080 --json"),
        [connection(120, "the whole call")],
    )
    add_shapes(parser, tables=False)
    parser.set_defaults(command=health)


def health(args: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    with Specdec(args.url, args.timeout) as service:
        answer = service.health()
    if for_people(args):
        pair = answer.get("same_family_pair")
        pair = pair if isinstance(pair, dict) else {}
        names = f"{pair.get('draft')} -> {pair.get('target')}, " if answer.pair_found else "none, "
        say_rows(
            ("status", answer.get("status")),
            ("label", answer.get("label")),
            ("same-family pair", f"{names}{pair.get('reason')}"),
            ("measured run possible", "yes" if answer.measured_run_possible else "no"),
        )
    print_shape(args, answer)
    return 0
