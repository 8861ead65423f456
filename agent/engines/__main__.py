"""The command `python -m agent.engines`: compares two servers of one target, one of them with a draft."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from agent.engines.compare import compare
from agent.engines.engine import Engine
from agent.engines.errors import EngineError, EngineInput
from agent.engines.http import Http
from agent.engines.judge import MIN_PAIRS, Comparison
from agent.engines.llama_server import LlamaServer
from agent.engines.prometheus import PrometheusEngine
from shared.models import one_line

KEYS: Final = {"speculative": "SPECDEC_SPECULATIVE_API_KEY", "plain": "SPECDEC_PLAIN_API_KEY"}
"""Variables that hold the servers' API keys. There is no flag: other users can read a command line."""

PROMPTS: Final = Path(__file__).parents[1] / "embedded" / "prompts.json"
DEFAULT_PROMPTS: Final = 8
MAX_FILE: Final = 16 * 1024 * 1024


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise EngineInput(message, "see python -m agent.engines --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        0 for an answer, though a figure in it may be UNAVAILABLE; 1 when there is none; 2 for bad input.
    """
    try:
        args = _parser().parse_args(argv)
        prompts = read_prompts(args.prompts) if args.prompts else default_prompts()
        with _http(args, "speculative") as one, _http(args, "plain") as other:
            speculative, plain = _engine(args, one), _engine(args, other)
            report = compare(speculative, plain, prompts, pairs=args.pairs, max_tokens=args.max_tokens)
    except EngineInput as exc:
        print(f"engines: {exc}", file=sys.stderr)
        return 2
    except EngineError as exc:
        print(f"engines: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(report.as_json(), indent=2, allow_nan=False) if args.json else table(report))
    return 0


def read_prompts(path: str) -> list[str]:
    """Reads prompts: a JSON list of texts or of objects with a `prompt`, or else one prompt a line.

    Raises:
        EngineInput: If there are none to be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_FILE)
    except (OSError, UnicodeDecodeError) as exc:
        raise EngineInput(f"the file of --prompts cannot be read ({type(exc).__name__})") from None
    prompts: list[Any] = text.splitlines()
    if text.lstrip().startswith("["):
        try:
            prompts = [one["prompt"] if isinstance(one, dict) else one for one in json.loads(text)]
        except (ValueError, KeyError, RecursionError):
            prompts = []
    found = [one for one in prompts if isinstance(one, str) and one.strip()]
    if not found or len(found) < len(prompts) - prompts.count(""):
        raise EngineInput(
            "the file of --prompts holds no prompts", "write one a line, or a JSON list of texts"
        )
    return found


def default_prompts() -> list[str]:
    """Returns some of the embedded pair's held-out prompts, prose and code in turn."""
    held_out = json.loads(PROMPTS.read_text(encoding="utf-8"))
    domains = [[one["prompt"] for one in held_out if one["domain"] == name] for name in ("prose", "code")]
    return [prompt for both in zip(*domains, strict=False) for prompt in both][:DEFAULT_PROMPTS]


def table(report: Comparison) -> str:
    """Renders a comparison for people: every number with the label that says what it is."""
    rows = [*_engine_rows(report), *_figure_rows(report)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {one_line(text)}".rstrip() for name, text in rows)


def _engine_rows(report: Comparison) -> list[tuple[str, str]]:
    rows = []
    for side, about in report.engines.items():
        parts = [about["name"] or "unknown server", about["version"] or "", about["model"] or ""]
        rows.append((side, " ".join(part for part in [*parts, f"at {about['url']}"] if part)))
        settings = {name: value for name, value in about["settings"].items() if value is not None}
        rows += [("", ", ".join(f"{name} {value}" for name, value in settings.items()))] if settings else []
    return rows


def _figure_rows(report: Comparison) -> list[tuple[str, str]]:
    speedup, acceptance, quality = report.speedup, report.draft_acceptance, report.quality
    rates, counts = report.tokens_per_second, report.counts
    rows = []
    if isinstance(speedup, str):
        rows.append(("speed-up", speedup))
    else:
        low, high = speedup["ci95"]
        text = f"{speedup['median']:.3f} (95 % {low:.3f} to {high:.3f}, {speedup['pairs']} pairs)"
        rows.append(("speed-up", f"{text}  {speedup['label']}: {speedup['basis']}"))
    if isinstance(rates, str):
        rows.append(("tokens per second", rates))
    else:
        text = f"{rates['speculative']:.1f} speculative, {rates['plain']:.1f} plain"
        rows.append(("tokens per second", f"{text}  {rates['label']}"))
    if isinstance(acceptance, str):
        rows.append(("draft acceptance rate", acceptance))
    else:
        text = f"{acceptance['rate']:.3f} ({acceptance['accepted']} of {acceptance['drafted']} drafted)"
        rows.append(("draft acceptance rate", f"{text}  {acceptance['label']}"))
        if acceptance["mean_accepted_len"] is not None:
            text = f"{acceptance['mean_accepted_len']:.3f} tokens a step ({acceptance['drafts']} steps)"
            rows.append(("mean accepted length", f"{text}  {acceptance['label']}"))
    text = f"{counts['pairs_with_equal_text']} of {counts['pairs']} pairs"
    rows.append(("same text", f"{text}  {quality['label']}"))
    synthetic = report.synthetic_acceptance
    rows.append(("synthetic acceptance", f"{synthetic['status']}: {synthetic['reason']}"))
    if figures := report.server_figures:
        rows += [(name, f"{value:.3f}  {figures['label']}") for name, value in figures["gauges"].items()]
        rows += [("", _reading(one)) for one in figures.get("readings", ())]
    rows += [("why", reason) for reason in report.reasons]
    return rows + [("note", note) for note in report.notes]


def _reading(reading: dict[str, Any]) -> str:
    rate, length = reading["draft_acceptance_rate"], reading["num_draft_tokens"]
    if rate is None or length is None:
        return f"read as in {reading['definition']}: no rate"
    text = f"read as in {reading['definition']}: acceptance {rate:.3f}"
    return f"{text}, if --speculative-num-draft-tokens is {length:.2f}"


def _http(args: argparse.Namespace, side: str) -> Http:
    return Http(getattr(args, side), api_key=os.environ.get(KEYS[side]) or None, timeout_s=args.timeout)


def _engine(args: argparse.Namespace, http: Http) -> Engine:
    if args.kind == "openai":
        return PrometheusEngine(http, model=args.model)
    if args.model is not None:
        raise EngineInput("--model goes with --kind openai", "llama-server has one model")
    return LlamaServer(http)


def _number(low: int, high: int) -> Any:
    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
        return int(text)

    return convert


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m agent.engines",
        description="Measures what speculative decoding gains on servers that already run: the same target with "
        "and without a draft, greedy, in turn.",
        epilog=f"API keys: variables {KEYS['speculative']} and {KEYS['plain']}.",
        allow_abbrev=False,
    )
    parser.add_argument("--speculative", metavar="URL", required=True, help="the server with the draft")
    parser.add_argument("--plain", metavar="URL", required=True, help="the same target without")
    parser.add_argument(
        "--kind", choices=("llama-server", "openai"), required=True, help="what both servers speak"
    )
    parser.add_argument("--model", metavar="NAME", help="model as served, if an openai server has several")
    parser.add_argument("--prompts", metavar="FILE", help="one prompt a line, or a JSON list")
    parser.add_argument(
        "--max-tokens", metavar="N", type=_number(2, 65536), default=64, help="tokens a completion (64)"
    )
    parser.add_argument(
        "--pairs",
        metavar="N",
        type=_number(1, 1000),
        default=DEFAULT_PROMPTS,
        help=f"pairs ({DEFAULT_PROMPTS}); fewer than {MIN_PAIRS} give no speed-up",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=_number(1, 86400), default=300, help="seconds of silence allowed (300)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
