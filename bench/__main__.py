"""`make bench`: what is measured goes to bench/results/ as JSON and as a Markdown table, with command and machine.

* `curve`: measured runs of the embedded pair over k, on prose and code (embedded.json, embedded.md)
* `lengths`: every k and "auto" against plain decoding, and whether the calibration knew it (lengths-PAIR.*)
* `crosscheck`: our tokens and counts against llama.cpp's server's, prompt by prompt (crosscheck.*)
* `peer`: our loop against llama.cpp's own server, built and run like ours (peer-PAIR.*)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.llama import Context, Weights, system_info
from agent.loaded import LoadedPair, best_threads, load_pair
from agent.pairs import choose_pair
from bench import crosscheck, curve, lengths, peer, tables, versus
from bench.models import BenchPair, embedded, smollm2, smollm2_files, tokens

RESULTS = Path(__file__).parent / "results"


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the parts that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks, to bench/results/.")
    parser.add_argument(
        "part", nargs="?", choices=("curve", "lengths", "crosscheck", "peer", "all"), default="all"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads for every model (default: 1)")
    parser.add_argument("--prompts", type=int, default=3, help="prompts per domain")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of `lengths` and `peer`")
    parser.add_argument("--steps", type=int, default=40, help="steps of each run of `curve`")
    parser.add_argument("--pair", choices=("embedded", "smollm2", "both"), default="both")
    options = parser.parse_args(argv)
    RESULTS.mkdir(exist_ok=True)
    if options.part in ("curve", "all"):
        table = curve.rows(options.threads, options.prompts, options.steps)
        _write("embedded", options, {"rows": table}, curve.markdown(table))
    if options.part in ("lengths", "all"):
        results = {pair.name: _lengths(pair, options) for pair in _pairs(options)}
        _write(f"lengths-{options.pair}", options, results, tables.lengths(results))
    if options.part in ("crosscheck", "all"):
        checked = [
            crosscheck.crosscheck(embedded(30), peer.server_binary(), k=k, threads=options.threads, count=64)
            for k in (4, 6)
        ]
        _write("crosscheck", options, {"checked": checked}, tables.crosscheck(checked))
    if options.part in ("peer", "all"):
        binary = peer.server_binary()
        compared = [
            versus.compare(
                pair,
                binary,
                k=k,
                threads=options.threads,
                count=256 if pair.name == "embedded" else 64,
                rounds=options.rounds,
            )
            for pair in _pairs(options)
            for k in (4, 6)
        ]
        plain = _plain_rates(options.threads) if options.pair != "embedded" else {}
        result = {"compared": compared, "plain_smollm2": plain}
        _write(f"peer-{options.pair}", options, result, tables.peer(compared, plain))


def _pairs(options: argparse.Namespace) -> list[BenchPair]:
    pairs = [] if options.pair == "smollm2" else [embedded(options.prompts)]
    if options.pair != "embedded":
        pairs += [smollm2("q8_0", min(2, options.prompts)), smollm2("q4_1", min(2, options.prompts))]
    return pairs


def _lengths(pair: BenchPair, options: argparse.Namespace) -> dict[str, Any]:
    print(pair.name, flush=True)
    choice = choose_pair(draft=pair.draft, target=pair.target)
    loaded: LoadedPair = load_pair(choice, n_ctx=1024, threads=options.threads)
    count = 120 if pair.name == "embedded" else 48
    result = lengths.measure(loaded, tokens(loaded.target_weights, pair), count, options.rounds)
    loaded.close()
    return result


def _plain_rates(threads: int) -> dict[str, float]:
    """Returns the tokens per second of SmolLM2 alone in each format."""
    rates = {}
    for name, path in sorted(smollm2_files().items()):
        weights = Weights(path, name)
        context = Context(weights, capacity=256, threads=threads)
        rates[name] = best_threads(context, [threads])[threads]
        context.close()
        weights.close()
    return rates


def _write(name: str, options: argparse.Namespace, result: dict[str, Any], table: str) -> None:
    chosen = (
        f"--{name} {getattr(options, name)}" for name in ("threads", "prompts", "rounds", "steps", "pair")
    )
    command = " ".join(["python -m bench", options.part, *chosen])
    about = {
        "command": command,
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"{_processor()}, {os.cpu_count()} processors, {platform.system()} {platform.machine()}",
        "load average": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "llama.cpp": system_info(),
        "spin count": os.environ.get("GOMP_SPINCOUNT", "OpenMP's own"),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps({**about, **result}, indent=1) + "\n", encoding="utf-8")
    lines = [f"{what}: {value}  " for what, value in about.items()]
    text = "\n".join([f"# {name.capitalize()}", "", *lines, "", table, ""])
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    print(table)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


if __name__ == "__main__":
    main()
