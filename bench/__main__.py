"""`make bench`: what is measured goes to bench/results/ as JSON and as a Markdown table, with command and machine.

* `curve`: measured runs of the embedded pair over k, on prose and code (embedded.json, embedded.md)
* `lengths`: every k and "auto" against plain decoding, and whether the calibration knew it (lengths-PAIR.*)
* `crosscheck`: our tokens and counts against llama.cpp's server's, prompt by prompt (crosscheck.*)
* `receipts`: making, signing and storing receipts, and what that adds to a run (receipts.*)
* `notice`: how soon a pair that comes or goes is told (notice.*)
* `edge`: cold starts and warm answers against a minimal resolver, memory, size, and the hop to the tower (edge.*)
* `page`: what the web page transfers, and how soon a moved slider is on the screen (page.*)
* `fuzz`: the edge's answers to a fuzzer, with the tower down and up (fuzz.*)
* `storm`: many clients at once while the agent is killed (storm.*)
* `soak`: a thousand runs through an agent to which everything happens (soak.*)
* `peer`: our loop against llama.cpp's own server, built and run like ours, and every format alone (peer-PAIR.*)
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.loaded import LoadedPair, load_pair
from agent.pairs import choose_pair
from bench import (
    coldstart,
    crosscheck,
    curve,
    endurance,
    formats,
    hop,
    lengths,
    notice,
    peer,
    receipts,
    report,
    tables,
    versus,
    web_page,
)
from bench.models import BenchPair, embedded, embedded_files, smollm2, smollm2_files, tokens

PARTS = (
    "curve",
    "lengths",
    "crosscheck",
    "receipts",
    "notice",
    "edge",
    "page",
    "fuzz",
    "storm",
    "soak",
    "peer",
)
KS = (4, 6)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the parts that are asked for."""
    options = parse(argv)
    signal.signal(signal.SIGTERM, peer.leave)  # no server is left behind
    for part in PARTS if options.part == "all" else (options.part,):
        load = report.load()
        name, result, table = _MEASURES[part](options)
        report.write(name, report.about(command(part, options), load), result, table, options.out)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line; `--quick` lowers what is not given otherwise."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks, to bench/results/.")
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--threads", type=int, default=1, help="threads for every model (default: 1)")
    parser.add_argument("--prompts", type=int, help="prompts per domain (default: 3; quick: 1)")
    parser.add_argument("--rounds", type=int, help="rounds of `lengths` and `peer` (default: 6; quick: 3)")
    parser.add_argument("--steps", type=int, help="steps of each run of `curve` (default: 40; quick: 20)")
    parser.add_argument("--pair", choices=("embedded", "smollm2", "both"), default="both")
    parser.add_argument("--quick", action="store_true", help="less of everything: to see that it works")
    parser.add_argument(
        "--peer-dir", type=Path, help="where builds of the server are kept (default: the cache)"
    )
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder for the results")
    options = parser.parse_args(argv)
    for name, full, quick in (("prompts", 3, 1), ("rounds", 6, 3), ("steps", 40, 20)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    return options


def command(part: str, options: argparse.Namespace) -> str:
    """Returns the command line that gives the same results of one part; folders are left out of it."""
    chosen = [
        f"--{name} {getattr(options, name)}" for name in ("threads", "prompts", "rounds", "steps", "pair")
    ]
    return " ".join(["python -m bench", part, *chosen, *(["--quick"] if options.quick else [])])


def _curve(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    table = curve.rows(options.threads, options.prompts, options.steps)
    return "embedded", {"rows": table}, curve.markdown(table)


def _lengths(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    results = {}
    for pair in _pairs(options, options.prompts):
        print(pair.name, flush=True)
        choice = choose_pair(draft=pair.draft, target=pair.target)
        loaded: LoadedPair = load_pair(choice, n_ctx=1024, threads=options.threads)
        count = 120 if pair.name == "embedded" else 48
        prompts = tokens(loaded.target_weights, pair)
        results[pair.name] = lengths.measure(loaded, prompts, count, options.rounds)
        loaded.close()
    return f"lengths-{options.pair}", results, tables.lengths(results)


def _crosscheck(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    binary = peer.server_binary(options.peer_dir)
    pair = embedded(5 if options.quick else 30)
    checked = [crosscheck.crosscheck(pair, binary, k=k, threads=options.threads, count=64) for k in KS]
    return "crosscheck", {"checked": checked}, tables.crosscheck(checked)


def _receipts(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    result = receipts.measure(options.rounds)
    return "receipts", result, receipts.markdown(result)


def _notice(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    result = notice.measure(options.rounds)
    return "notice", result, notice.markdown(result)


def _edge(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    # Single starts and connections are short and vary: three times as many rounds as elsewhere, 18 by default.
    instance, way = coldstart.measure(3 * options.rounds), hop.measure(3 * options.rounds)
    table = f"{coldstart.markdown(instance)}\n\n{hop.markdown(way)}"
    return "edge", {"instance": instance, "hop": hop.summary(way)}, table


def _page(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    result = web_page.measure(40 if options.quick else 400)
    return "page", result, web_page.markdown(result)


def _fuzz(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    result = endurance.fuzzed(2_000, 200) if options.quick else endurance.fuzzed(20_000, 2_000)
    return "fuzz", result, endurance.fuzzed_markdown(result)


def _storm(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    result = endurance.stormed(50, 15.0) if options.quick else endurance.stormed(200, 60.0)
    return "storm", result, endurance.stormed_markdown(result)


def _soak(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    result = endurance.soaked(100 if options.quick else 1_000)
    return "soak", result, endurance.soaked_markdown(result)


def _peer(options: argparse.Namespace) -> tuple[str, dict[str, Any], str]:
    binary = peer.server_binary(options.peer_dir)
    compared: dict[str, list[dict[str, Any]]] = {}
    alone = {}
    for pair in _pairs(options, min(2, options.prompts)):  # SmolLM2 takes its time
        model = pair.name.partition(" ")[0]
        print(pair.name, flush=True)
        count = (256 if model == "embedded" else 128) // (2 if options.quick else 1)
        rounds = options.rounds * (2 if model == "embedded" else 1)  # its blocks are short, so more of them
        results = versus.compare(pair, binary, ks=KS, threads=options.threads, count=count, rounds=rounds)
        compared.setdefault(model, []).extend(results)
        if model not in alone:
            files = embedded_files() if model == "embedded" else smollm2_files()
            alone[model] = formats.measure(
                files, pair.prompts[0][1], threads=options.threads, count=count // 4, rounds=options.rounds
            )
    result = {"compared": compared, "formats": alone}
    return f"peer-{options.pair}", result, tables.peer(compared, alone)


def _pairs(options: argparse.Namespace, of_smollm2: int) -> list[BenchPair]:
    pairs = [] if options.pair == "smollm2" else [embedded(options.prompts)]
    if options.pair != "embedded":
        pairs += [smollm2(draft, of_smollm2) for draft in ("q8_0", "q4_1")]
    return pairs


_MEASURES = {
    "curve": _curve,
    "lengths": _lengths,
    "crosscheck": _crosscheck,
    "receipts": _receipts,
    "notice": _notice,
    "edge": _edge,
    "page": _page,
    "fuzz": _fuzz,
    "storm": _storm,
    "soak": _soak,
    "peer": _peer,
}

if __name__ == "__main__":
    main()
