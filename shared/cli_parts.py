"""What the `specdec` commands share: their options, how they read files and what they save of a receipt."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from shared import labels
from shared.errors import SpecdecError
from shared.models import one_line
from shared.sweep import AUTO

MAX_FILE: Final = 8 * 1024 * 1024  # bytes of a receipt, key or prompt file


def _draft_length(text: str) -> int | str:
    try:
        return text if text == AUTO else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be an integer, or auto") from None


RUN_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "k": {
        "type": _draft_length,
        "help": "draft tokens per step, 1 to 16, or auto: the tower chooses for each step",
    },
    "n": {"type": int, "help": "draft-then-verify steps to measure, 1 to 500"},
    "temperature": {"type": float, "help": "0 (greedy) to 2"},
    "top_p": {"type": float, "help": "above 0, at most 1 (off)"},
    "top_k": {"type": int, "help": "0 (off) to 1000"},
    "seed": {"type": int, "help": "0 to 2^53-1"},
    "chat": {"action": "store_true", "help": "apply the target's chat template"},
    "ignore_eos": {"action": "store_true", "help": "go on past end-of-text"},
    "include_output": {"action": "store_true", "help": "return the text beside the receipt"},
}


class InputError(SpecdecError):
    """A file or an argument cannot be used."""


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    about: str,
    examples: Sequence[str],
    parents: Sequence[argparse.ArgumentParser] = (),
) -> argparse.ArgumentParser:
    """Add a command whose `--help` ends with examples."""
    return commands.add_parser(
        name,
        parents=list(parents),
        help=about,
        description=f"{about[:1].upper()}{about[1:]}.",
        epilog="\n".join(["examples:", *(f"  specdec {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def connection(timeout: float, covers: str) -> argparse.ArgumentParser:
    """The options of all commands that ask the service; `timeout` seconds are the default for what it covers."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--url",
        default=os.environ.get("SPECDEC_URL") or labels.PUBLIC_BASE,
        help=f"the service (default: $SPECDEC_URL or {labels.PUBLIC_BASE})",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=timeout,
        metavar="S",
        help=f"seconds for {covers} (default: {timeout:g})",
    )
    return parser


def add_run_fields(parser: argparse.ArgumentParser, *left_out: str) -> None:
    """Give the parser an option for each field of a run request but these."""
    for field, options in RUN_FIELDS.items():
        if field not in left_out:
            parser.add_argument(f"--{field.replace('_', '-')}", default=None, **options)


def run_fields(args: argparse.Namespace, *left_out: str) -> dict[str, Any]:
    """The fields that were given on the command line."""
    given = {name: getattr(args, name) for name in RUN_FIELDS if name not in left_out}
    return {name: value for name, value in given.items() if value is not None}


def read(name: str, limit: int) -> bytes:
    """A file's bytes, or standard input's for `-`.

    Raises:
        InputError: If it cannot be read or is larger than `limit`.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(limit + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        reason = error.strerror if isinstance(error, OSError) else "it is no file name"
        what = "standard input" if name == "-" else one_line(name, 200)
        raise InputError("BAD_INPUT", f"{what} cannot be read: {reason}") from None
    if len(data) > limit:
        raise InputError("BAD_INPUT", f"the input is larger than {limit} bytes")
    return data


def is_new_or_file(name: str | Path) -> bool:
    """Whether a file of this name could be written: it is no folder, and lies in one."""
    return not os.path.isdir(name) and os.path.isdir(Path(name).parent)


def save_receipt(receipt: dict[str, Any], path: Path) -> None:
    """Save what may be handed on: the receipt without salt and output.

    Raises:
        OSError: If the file cannot be written.
    """
    shareable = {name: value for name, value in receipt.items() if name not in ("prompt_salt", "output")}
    text = json.dumps(shareable, indent=2, ensure_ascii=False) + "\n"
    if path.exists() and not path.is_file():  # such as /dev/stdout
        path.write_text(text, encoding="utf-8")
        return
    partial = path.with_name(f".{path.name}.partial")
    try:  # a full disk must not cost the receipt that was there before
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def number(value: Any, label: str) -> str:
    """A number with its label, or that there is none."""
    return labels.UNAVAILABLE if value is None else f"{value} ({label})"


def energy_rows(energy: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a run's energy says, one row each: joules with their label, what metered them, what is beside them."""
    if energy["label"] != labels.MEASURED:
        return [("energy", f"{labels.UNAVAILABLE} ({energy.get('reason') or energy['code']})")]
    sampled = energy.get("method") == "sampled_power"
    label = f"{labels.MEASURED}, by sampled power" if sampled else labels.MEASURED
    rows: list[tuple[str, Any]] = []
    for way in ("speculative", "target_only"):
        joules = energy["joules_per_token"].get(way)
        rows.append((f"J/token, {way}", number(None if joules is None else round(joules, 4), label)))
    if (ratio := energy.get("ratio")) is not None:
        interval = "too few for an interval"
        if ratio["ci95"] is not None:
            low, high = ratio["ci95"]
            interval = f"95 % interval {low:.4f} to {high:.4f}"
        detail = f"{label}, {interval}, {ratio['pairs']} pairs; above 1 the draft saves energy"
        rows.append(("energy ratio", f"{ratio['median']:.4f} ({detail})"))
    if (gpu := energy.get("gpu")) is not None:
        rows.append(("energy of", f"{gpu['name']}: {energy.get('scope') or labels.ENERGY_SCOPE}"))
    if energy.get("idle_watts") is not None:
        rows.append(("idle power, W", f"{energy['idle_watts']:.1f} ({labels.MEASURED}, not subtracted)"))
    return rows


def modeled_rows(receipt: dict[str, Any]) -> list[tuple[str, Any]]:
    """The modeled curve of a receipt, one row for each alpha."""
    block = receipt["payload"]["accounting_modeled"]
    tokens = block.get("expected_tokens_per_step_at_alpha") or {}
    rows = [("curve", f"k={block['k']}, cost_ratio={block.get('cost_ratio')}, v={block.get('verify_cost')}")]
    for alpha, speedup in block["expected_speedup_at_alpha"].items():
        count = number(tokens.get(alpha), labels.MODELED)
        rows.append((f"at alpha {alpha}", f"speedup {speedup} ({labels.MODELED}), tokens per step {count}"))
    return rows


def receipt_rows(receipt: dict[str, Any]) -> list[tuple[str, Any]]:
    """Digest and signature of a receipt."""
    signed = (
        "signed, not checked here: specdec verify --key" if receipt["signature"]["signed"] else "unsigned"
    )
    return [("receipt", f"sha3-256 {receipt['payload_sha3_256']} (verified)"), ("signature", signed)]
