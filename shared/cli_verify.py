"""`specdec verify`: every check that can be made on a receipt offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from shared.canonical import CanonicalError, strict_loads
from shared.cli_output import add_shapes, for_people, print_shape, say
from shared.cli_parts import MAX_FILE, InputError, add_command, read
from shared.errors import SpecdecError
from shared.keys import BadKey, Role, load_keys
from shared.models import one_line
from shared.verify import verify_receipt


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `verify` to the commands."""
    parser = add_command(
        commands,
        "verify",
        "check a receipt offline",
        (
            "verify receipt.json",
            "verify receipt.json --key keys.json --require-signature",
            "verify - --json < receipt.json",
        ),
    )
    parser.add_argument("receipt", metavar="RECEIPT", help="the receipt's file, or - for standard input")
    parser.add_argument(
        "--key", type=Path, metavar="PEM", help="trusted public keys: PEM or a saved /keys answer"
    )
    parser.add_argument(
        "--tower-key",
        type=Path,
        metavar="PEM",
        help="trusted keys of the tower that measured; a saved /keys answer in --key may hold them too",
    )
    parser.add_argument("--require-signature", action="store_true", help="fail unless a trusted key signed")
    add_shapes(parser, tables=True)
    parser.set_defaults(command=verify)


def verify(args: argparse.Namespace) -> int:
    """Check the receipt and print how each check went; returns the exit code."""
    pem, tower_pem = _keys(args.key, "edge"), _keys(args.tower_key, "tower")
    text = read(args.receipt, MAX_FILE)
    try:
        receipt = strict_loads(text)
    except CanonicalError as error:
        raise _unreadable(args.receipt, error) from None
    if not isinstance(receipt, dict):
        raise InputError("BAD_INPUT", "the receipt is not a JSON object")
    report = verify_receipt(
        receipt, key_pem=pem, tower_pem=tower_pem, require_signature=args.require_signature
    )
    if for_people(args):
        say(*(f"{check.status:8} {check.name:12} {one_line(check.detail)}" for check in report.checks))
        unchecked = sum(check.status == "warning" for check in report.checks)
        say("FAILED" if not report.ok else f"OK, with {unchecked} warning(s)" if unchecked else "OK")
    rows = [(check.status, check.name, one_line(check.detail)) for check in report.checks]
    print_shape(args, report.to_dict(), ("status", "check", "detail"), rows)
    return 0 if report.ok else 1


def _keys(path: Path | None, role: Role) -> bytes | None:
    """The file's keys, which must hold some for this role."""
    if path is None:
        return None
    data = read(str(path), MAX_FILE)
    try:
        load_keys(data, role)
    except BadKey as error:
        raise _unreadable(str(path), error) from None
    return data


def _unreadable(name: str, error: SpecdecError) -> InputError:
    what = "standard input" if name == "-" else one_line(name, 200)
    return InputError("BAD_INPUT", f"{what}: {error.cause}", error.remedy)
