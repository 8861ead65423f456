"""What the service endures, as figures.

The edge: a fuzzer's requests (`tools.fuzz`), and many clients at once (`tools.storm`). The agent: a thousand runs with
all that happens in months (`tools.soak`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tools.fuzz import Tally, fuzz_local
from tools.soak import soak_local
from tools.storm import storm_local

SEED = 1


def fuzzed(down: int, up: int) -> dict[str, Any]:
    """Fuzzes a local edge with the tower down, then one with an agent and the embedded pair.

    Args:
        down: Requests to be answered with the tower down.
        up: Requests to be answered with the agent up.
    """
    # In this order: hooks of the fuzzer that spare a tower stay once they are set.
    return {name: _fuzz(cases, agent) for name, cases, agent in (("down", down, False), ("up", up, True))}


def _fuzz(cases: int, agent: bool) -> dict[str, Any]:
    began = time.monotonic()
    tally: Tally = fuzz_local(cases=cases, seed=SEED, agent=agent)
    by_operation: dict[str, dict[str, int]] = {}
    for (operation, status), count in sorted(tally.statuses.items()):
        by_operation.setdefault(operation, {})[str(status)] = count
    return {
        "cases": tally.answered.total(),
        "checks": tally.checks.total(),
        "kinds_of_checks": len(tally.checks),
        "failures": tally.failures,
        "answers_with_5xx": tally.server_errors,
        "excused": tally.excused,
        "statuses": by_operation,
        "seconds": round(time.monotonic() - began),
    }


def fuzzed_markdown(result: Mapping[str, Any]) -> str:
    """Renders what `fuzzed` returned."""
    lines = [
        "Requests made by schemathesis from the OpenAPI document, valid and invalid, really sent and answered. With "
        "the agent up, runs are of at most two steps and not waited for. Excused is a 422 for an Idempotency-Key that "
        "was used with another body, which a description of the API cannot foresee.",
        "",
        "| tower | cases | checks | kinds of checks | failures | 5xx | excused | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in result.items():
        lines.append(
            f"| {name} | {one['cases']} | {one['checks']} | {one['kinds_of_checks']} | {len(one['failures'])} "
            f"| {one['answers_with_5xx']} | {one['excused']} | {one['seconds']} |"
        )
    for name, one in result.items():
        lines += ["", f"| tower {name} | cases | by status |", "|---|---|---|"]
        for operation, statuses in one["statuses"].items():
            told = ", ".join(f"{status}: {count}" for status, count in statuses.items())
            lines.append(f"| {operation} | {sum(statuses.values())} | {told} |")
    return "\n".join(lines)


def stormed(clients: int, seconds: float) -> dict[str, Any]:
    """Lets many clients ask a local edge at once, while its agent and a worker are killed."""
    return storm_local(clients, seconds, SEED)


def stormed_markdown(result: Mapping[str, Any]) -> str:
    """Renders what `stormed` returned."""
    growth = ", ".join(f"{name} {by}" for name, by in result["memory_growth"].items())
    lines = [
        f"{result['clients']} clients for {result['seconds']} s: {result['answers']} answers, "
        f"{len(result['faults'])} faults; {result['receipts_stored']} receipts stored, each fetched again at the end; "
        f"the agent was killed {len(result['agent_down_s'])} times, workers {result['workers_killed']}.",
        "",
        f"Memory at the end over what it was: {growth or 'too short to tell'}.",
        "",
        "| asked | answers by status | median s | longest s |",
        "|---|---|---|---|",
    ]
    for kind, one in result["by_kind"].items():
        told = ", ".join(f"{status}: {count}" for status, count in one["statuses"].items())
        lines.append(f"| {kind} | {told} | {one['median_s']} | {one['longest_s']} |")
    return "\n".join([*lines, *(f"FAULT {fault}" for fault in result["faults"])])


def soaked(runs: int) -> dict[str, Any]:
    """Makes many short runs through an agent that is disturbed all along."""
    return soak_local(runs, SEED)


def soaked_markdown(result: Mapping[str, Any]) -> str:
    """Renders what `soaked` returned."""
    ended, done = (
        ", ".join(f"{name}: {count}" for name, count in result[part].items()) for part in ("ended", "done")
    )
    lines = [
        "| runs | ended | what was done | memory of the agent | of the worker that grew most | descriptors | faults |",
        "|---|---|---|---|---|---|---|",
        f"| {result['runs']} | {ended} | {done} | {result['resident_growth']} | {result['worker_growth']} "
        f"| {result['descriptor_growth']} | {len(result['faults'])} |",
        "",
        "Memory and descriptors: the last third over the middle one, by medians.",
    ]
    return "\n".join([*lines, *(f"FAULT {fault}" for fault in result["faults"])])
