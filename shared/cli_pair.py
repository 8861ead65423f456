"""`specdec pair`: which draft and target the tower would run, or why there are none."""

from __future__ import annotations

import argparse
from typing import Any, Final

from shared.cli_output import add_shapes, for_people, print_shape, say_rows
from shared.cli_parts import add_command, connection
from shared.client import Specdec

COLUMNS: Final = ("name", "family", "parameters", "loadable")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pair` to the commands."""
    parser = add_command(
        commands,
        "pair",
        "which draft and target the tower would run, and what else it holds",
        ("pair", "pair --url http://127.0.0.1:8080 --json"),
        [connection(120, "the whole call")],
    )
    add_shapes(parser, tables=True)
    parser.set_defaults(command=pair)


def pair(args: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    with Specdec(args.url, args.timeout) as service:
        answer = service.health()
    found, models = answer.get("same_family_pair"), answer.get("models")
    found = found if isinstance(found, dict) else {}
    models = [one for one in models if isinstance(one, dict)] if isinstance(models, list) else []
    if for_people(args):
        rows: list[tuple[str, Any]] = [("found", "yes" if answer.pair_found else "no")]
        rows += [(name, found[name]) for name in ("draft", "target", "family", "reason") if name in found]
        rows += [("model" if not i else "", _said(model)) for i, model in enumerate(models)]
        say_rows(*rows)
    rows_of_models = [[model.get(name) for name in COLUMNS] for model in models]
    print_shape(args, {"same_family_pair": found, "models": models}, COLUMNS, rows_of_models)
    return 0


def _said(model: dict[str, Any]) -> str:
    reason = model.get("reason")
    why = f": {reason}" if isinstance(reason, str) else ""
    return f"{model.get('name')}, {'can' if model.get('loadable') is True else 'cannot'} be used{why}"
