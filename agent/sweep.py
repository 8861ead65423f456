"""`python -m agent.sweep`: the measured curve of a pair over draft lengths and prompts, here, without a service.

The same runs as the agent makes for a request, one after the other on one loaded pair, all lengths of one prompt before
the next prompt and every other prompt backwards (`shared.prompts.plan`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agent.errors import AgentError
from agent.measure import load_pair, run
from agent.pairs import choose_pair
from shared import prompts
from shared.cli_sweep import draft_lengths
from shared.errors import SpecdecError
from shared.schemas import RunRequest
from shared.sweep import SweepRun, best, rows
from shared.sweep_text import text


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 when something was measured, 1 when not, 2 for bad input."""
    args = _parser().parse_args(argv)
    try:
        chosen = prompts.own() if args.prompts is None else prompts.parse(args.prompts.read_bytes())
    except (OSError, SpecdecError) as error:
        print(f"agent.sweep: the prompts cannot be used: {error}", file=sys.stderr)
        return 2
    measured: list[SweepRun] = []
    try:
        choice = choose_pair(
            draft=args.draft, target=args.target, embedded=args.embedded, ollama_models=args.ollama_models
        )
        pair = load_pair(choice, n_ctx=args.context, threads=args.threads)
        for prompt, k in prompts.plan(chosen, args.k):
            request = RunRequest(prompt=prompt.text, k=k, n=args.n, ignore_eos=True)
            try:
                outcome = run(pair, request.model_dump())
            except AgentError as error:
                print(f"{prompt.domain} {prompt.index}, k {k}: {error}", file=sys.stderr)
                continue
            measured.append(SweepRun(prompt.domain, prompt.index, outcome.measurement))
            print(f"{prompt.domain} {prompt.index}, k {k}: measured", file=sys.stderr)
        pair.close()
    except KeyboardInterrupt:
        print("interrupted: what was measured so far follows", file=sys.stderr)
    except SpecdecError as error:
        print(f"agent.sweep: {error}", file=sys.stderr)
        return 1
    table = rows(measured)
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in table]}, indent=1))
    else:
        print("\n".join(text(measured, table, best(measured, table))))
    return 0 if measured else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agent.sweep",
        description="Measure a pair over draft lengths and prompts, here and now.",
    )
    pair = parser.add_mutually_exclusive_group()
    pair.add_argument("--embedded", action="store_true", help="the small pair that comes with the agent")
    pair.add_argument("--ollama-models", type=Path, metavar="DIR", help="Ollama's model directory")
    parser.add_argument("--draft", type=Path, metavar="GGUF", help="draft model")
    parser.add_argument("--target", type=Path, metavar="GGUF", help="target model")
    parser.add_argument(
        "--k", type=draft_lengths, default=[1, 2, 4, 8], help="1-8, or a list such as 1,2,4,auto"
    )
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="JSON list or lines with domain and prompt"
    )
    parser.add_argument("--n", type=int, default=40, help="steps of each run (default: 40)")
    parser.add_argument("--threads", type=int, help="threads to decode with (default: what is fastest)")
    parser.add_argument("--context", type=int, default=2048, help="tokens of context (default: 2048)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
