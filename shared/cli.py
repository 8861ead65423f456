"""The `specdec` command: ask the service, check a receipt. Every number is printed with its label.

Exit codes: 0 done (for `verify`: no check failed), 1 the service or a check failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared import cli_sweep, labels
from shared.canonical import CanonicalError, strict_loads
from shared.cli_parts import (
    MAX_FILE,
    InputError,
    add_run_fields,
    energy_rows,
    number,
    read,
    run_fields,
    save_receipt,
)
from shared.client import Specdec
from shared.errors import SpecdecError
from shared.keys import BadKey, load_keys
from shared.models import one_line, printable
from shared.schemas import MAX_PROMPT_BYTES
from shared.sweep import AUTO
from shared.verify import verify_receipt


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; bad options exit with 2 as argparse does."""
    args = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot print a character must not end the run
            stream.reconfigure(errors="backslashreplace")
    try:
        code = int(args.command(args))
        sys.stdout.flush()  # here, where a closed pipe can still be handled
        return code
    except SpecdecError as error:
        print(f"specdec: {error}", file=sys.stderr)
        return 2 if error.code == "BAD_INPUT" else 1
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdec", description="Does speculative decoding pay, and is it so?"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    asking = argparse.ArgumentParser(add_help=False)
    asking.add_argument(
        "--url",
        default=os.environ.get("SPECDEC_URL") or labels.PUBLIC_BASE,
        help=f"the service (default: $SPECDEC_URL or {labels.PUBLIC_BASE})",
    )
    online = argparse.ArgumentParser(add_help=False, parents=[asking])
    online.add_argument(
        "--timeout", type=float, default=120.0, help="seconds for the whole call (default: 120)"
    )
    online.add_argument("--json", action="store_true", help="print the answer as JSON")

    health = commands.add_parser("health", parents=[online], help="what the service can do now")
    health.set_defaults(command=_health)

    curve = commands.add_parser("curve", parents=[online], help="the modeled curve")
    curve.add_argument("--k", type=int, help="draft tokens per step, 0 to 64")
    curve.add_argument("--cost-ratio", type=float, help="draft step / target pass, 0 to 10")
    curve.add_argument("--alpha", type=float, action="append", help="acceptance rate, 0 to 1; may repeat")
    curve.add_argument("--verify-cost", type=float, help="pass over k+1 tokens / over one, 1 to 100")
    curve.set_defaults(command=_curve)

    run = commands.add_parser("run", parents=[online], help="measure on the tower, or say why not")
    run.add_argument("prompt", help="the prompt, or - to read it from standard input as it is")
    add_run_fields(run)
    run.add_argument("--wait", type=float, help="seconds the service should wait before it asks us to poll")
    run.add_argument("--out", type=Path, metavar="FILE", help="save the receipt (without salt and output)")
    run.set_defaults(command=_run)

    cli_sweep.add_command(commands, parents=[asking])

    verify = commands.add_parser("verify", help="check a receipt offline")
    verify.add_argument("receipt", help="the receipt's file, or - for standard input")
    verify.add_argument(
        "--key", type=Path, metavar="PEM", help="trusted public keys: PEM or a saved /keys answer"
    )
    verify.add_argument(
        "--tower-key",
        type=Path,
        metavar="PEM",
        help="trusted keys of the tower that measured; a saved /keys answer in --key may hold them too",
    )
    verify.add_argument("--require-signature", action="store_true", help="fail unless a trusted key signed")
    verify.add_argument("--json", action="store_true", help="print the report as JSON")
    verify.set_defaults(command=_verify)
    return parser


def _health(args: argparse.Namespace) -> int:
    with Specdec(args.url, args.timeout) as service:
        answer = service.health()
    if not args.json:
        pair = answer.get("same_family_pair")
        pair = pair if isinstance(pair, dict) else {}
        names = f"{pair.get('draft')} -> {pair.get('target')}, " if pair.get("found") is True else ""
        _rows(
            ("status", answer.get("status")),
            ("label", answer.get("label")),
            ("same-family pair", f"{names or 'none, '}{pair.get('reason')}"),
            ("measured run possible", "yes" if answer.get("measured_run_possible") is True else "no"),
        )
    return _print_json(args, answer)


def _curve(args: argparse.Namespace) -> int:
    params = {name: getattr(args, name) for name in ("k", "cost_ratio", "alpha", "verify_cost")}
    with Specdec(args.url, args.timeout) as service:
        receipt = service.curve(**{name: value for name, value in params.items() if value is not None})
    if not args.json:
        _rows(("label", receipt["payload"]["label"]), *_modeled_rows(receipt), *_receipt_rows(receipt))
    return _print_json(args, receipt)


def _run(args: argparse.Namespace) -> int:
    if args.out is not None and (args.out.is_dir() or not args.out.parent.is_dir()):
        raise InputError(
            "BAD_INPUT", "--out must name a file in a folder that exists"
        )  # before the run, not after
    prompt = _text(read("-", MAX_PROMPT_BYTES + 1)) if args.prompt == "-" else args.prompt
    with Specdec(args.url, args.timeout) as service:
        receipt = service.run(prompt, wait=args.wait, **run_fields(args))
    if args.out is not None:
        try:
            save_receipt(receipt, args.out)
        except OSError as error:
            raise InputError("BAD_INPUT", f"--out cannot be written: {error.strerror}") from None
    if not args.json:
        payload = receipt["payload"]
        rows = _measured_rows(payload) if "measurement" in payload else _roadmap_rows(payload)
        _rows(("label", payload["label"]), *rows, *_modeled_rows(receipt), *_receipt_rows(receipt))
        if "prompt_salt" in receipt:
            _rows(
                ("prompt salt", f"{receipt['prompt_salt']} (yours alone: proves, and can betray, the prompt)")
            )
        if isinstance(receipt.get("output"), str):
            print("\n" + "\n".join(map(printable, receipt["output"].splitlines())))
    return _print_json(args, receipt)


def _verify(args: argparse.Namespace) -> int:
    pem, tower_pem = (
        None if path is None else read(str(path), MAX_FILE) for path in (args.key, args.tower_key)
    )
    try:
        if pem is not None:
            load_keys(pem, "edge")
        if tower_pem is not None:
            load_keys(tower_pem, "tower")
        receipt = strict_loads(read(args.receipt, MAX_FILE))
    except (BadKey, CanonicalError) as error:
        raise InputError("BAD_INPUT", error.cause, error.remedy) from None
    if not isinstance(receipt, dict):
        raise InputError("BAD_INPUT", "the receipt is not a JSON object")
    report = verify_receipt(
        receipt, key_pem=pem, tower_pem=tower_pem, require_signature=args.require_signature
    )
    if not args.json:
        for check in report.checks:
            print(f"{check.status:8} {check.name:12} {one_line(check.detail)}")
        unchecked = sum(check.status == "warning" for check in report.checks)
        print("FAILED" if not report.ok else f"OK, with {unchecked} warning(s)" if unchecked else "OK")
    _print_json(args, report.to_dict())
    return 0 if report.ok else 1


def _measured_rows(payload: dict[str, Any]) -> list[tuple[str, Any]]:
    m = payload["measurement"]
    rate, interval = payload["accepted_rate"], m["accepted_rate_ci95"]
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
    rows.append(("speedup, modeled", number(payload["speedup_modeled"], labels.MODELED)))
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
        rows.append(("recommended", f"{advice} ({labels.MODELED})"))
    return rows


def _roadmap_rows(payload: dict[str, Any]) -> list[tuple[str, Any]]:
    roadmap = payload.get("roadmap")
    roadmap = roadmap if isinstance(roadmap, dict) else {}
    runbook = roadmap.get("runbook")
    steps = runbook if isinstance(runbook, list) else [] if runbook is None else [runbook]
    rows = [("measured", payload.get("measured")), ("why", roadmap.get("reason"))]
    return rows + [("what to do" if not i else "", step) for i, step in enumerate(steps)]


def _modeled_rows(receipt: dict[str, Any]) -> list[tuple[str, Any]]:
    block = receipt["payload"]["accounting_modeled"]
    tokens = block.get("expected_tokens_per_step_at_alpha", {})
    rows = [("curve", f"k={block['k']}, cost_ratio={block.get('cost_ratio')}, v={block.get('verify_cost')}")]
    for alpha, speedup in block["expected_speedup_at_alpha"].items():
        count = number(tokens.get(alpha), labels.MODELED)
        rows.append((f"at alpha {alpha}", f"speedup {speedup} ({labels.MODELED}), tokens per step {count}"))
    return rows


def _receipt_rows(receipt: dict[str, Any]) -> list[tuple[str, Any]]:
    signed = (
        "signed, not checked here: specdec verify --key" if receipt["signature"]["signed"] else "unsigned"
    )
    return [("receipt", f"sha3-256 {receipt['payload_sha3_256']} (verified)"), ("signature", signed)]


def _rows(*rows: tuple[str, Any]) -> None:
    for name, value in rows:
        print(f"{name:22} {one_line(str(value))}")


def _print_json(args: argparse.Namespace, answer: dict[str, Any]) -> int:
    if args.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    return 0


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("BAD_INPUT", "the prompt is not UTF-8") from None


if __name__ == "__main__":
    sys.exit(main())
