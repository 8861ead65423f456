"""Property-based tests of a running edge against its own OpenAPI document: `python -m tools.fuzz`.

Starts a local edge and sends it what schemathesis makes of the document: its examples, values at and beyond each
limit, random valid and invalid requests, and chains of requests that follow the document's links. All checks are made
of each answer. The tower is down, unless `--agent` asks for a real one with the embedded pair.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import schemathesis
from schemathesis.engine import Status, events, from_schema

from shared.labels import BASE_PATH
from tools.stack import leave_on_sigterm, listening, running

DOWN: Final = "ws://127.0.0.1:9/specdec"
"""Nothing listens on the discard port, so the tower is down at once."""

SHARES: Final = {
    "run": 0.20,
    "curve": 0.24,
    "run_status": 0.08,
    "run_cancel": 0.08,
    "receipt": 0.08,
    "receipt_payload": 0.08,
    "page": 0.07,
    "keys": 0.07,
    "openapi": 0.07,
}
"""Of the random requests: most go where there is most to get wrong. /health takes nothing that could vary."""

CHAINS: Final = 0.04
"""Chains of requests, as a share of the cases; each has a few."""

WORKERS: Final = 1
"""More would not be faster, as making requests takes longer than answering them; and CPython 3.11's parser, which
hypothesis uses on lambdas, now and then fails in threads ("AST constructor recursion depth mismatch")."""

REFUSED: Final = ["400", "404", "405", "413", "415", "422", "429", "431"]
"""What invalid data may be answered with: no 5xx, which schemathesis would let pass."""

ACCEPTED: Final = ["2xx", "304", "404", "410", "429"]
"""What valid data may be answered with: an id or digest of the right form need not be known here."""

KEY_REUSED: Final = "This Idempotency-Key was used with another body; use a new key."


@dataclass
class Tally:
    """What was sent, and what came of it.

    Attributes:
        answered: Cases with an answer, by operation.
        statuses: The same by operation and status.
        checks: Checks made, by name.
        failures: What failed, one text each: checks, requests without an answer, errors of the fuzzer itself.
        excused: Failures that are none, for the reason that `_is_fault` gives.
    """

    answered: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    excused: int = 0

    @property
    def server_errors(self) -> int:
        """Answers with a 5xx."""
        return sum(count for (_, status), count in self.statuses.items() if status >= 500)

    def add(self, event: events.EngineEvent) -> None:
        """Counts what an event tells."""
        if isinstance(event, events.ScenarioFinished):
            self._add_scenario(event.recorder)
        elif isinstance(event, events.NonFatalError):
            self.failures.append(f"{event.label}: {event.value!r}")
        elif isinstance(event, events.FatalError):
            self.failures.append(f"the fuzzer failed: {event.exception!r}")

    def _add_scenario(self, recorder: Any) -> None:
        for case_id, interaction in recorder.interactions.items():
            operation = recorder.cases[case_id].value.operation.label
            if interaction.response is None:
                self.failures.append(f"{operation}: no answer to {interaction.request.uri}")
                continue
            self.answered[operation] += 1
            self.statuses[operation, interaction.response.status_code] += 1
        for checks in recorder.checks.values():
            for check in checks:
                self.checks[check.name] += 1
                if check.status is not Status.SUCCESS:
                    info = check.failure_info
                    told = (
                        f"{info.failure.title}: {info.failure.message}\n{info.code_sample}"
                        if info
                        else "crashed"
                    )
                    self.failures.append(f"{recorder.label}: {check.name}: {told}")
        self.excused += sum(recorder.filtered_failures.values())

    def report(self) -> str:
        """Returns the figures for people."""
        lines = []
        for operation, count in sorted(self.answered.items()):
            by_status = sorted((status, n) for (of, status), n in self.statuses.items() if of == operation)
            lines.append(f"{operation:36}{count:7}  " + " ".join(f"{status}:{n}" for status, n in by_status))
        lines += [f"FAILED {failure}" for failure in self.failures[:20]]
        lines.append(
            f"{self.answered.total()} cases, {self.checks.total()} checks of {len(self.checks)} kinds, "
            f"{len(self.failures)} failures, {self.server_errors} answers with 5xx, {self.excused} excused"
        )
        return "\n".join(lines)


def fuzz(url: str, *, cases: int, seed: int, agent: bool) -> Tally:
    """Sends at least so many cases to an edge and checks each answer.

    Args:
        url: Where the edge listens.
        cases: Requests that must be answered.
        seed: What the random requests follow from.
        agent: Whether there is a tower, which is then to be spared.
    """
    schemathesis.hook("before_call")(_write_whole)
    if agent:
        schemathesis.hook("before_call")(_spare_the_tower)
    tally = Tally()
    # Chains come first, while a tower's queue is empty: they are about runs that it has taken.
    phases: tuple[str, ...] = ("stateful",)
    while True:
        config = _config(cases - tally.answered.total(), seed, phases)
        schema = schemathesis.openapi.from_url(
            f"{url}{BASE_PATH}/openapi.json", config=schemathesis.Config.from_dict(config)
        )
        schema.config.update(base_url=url + BASE_PATH)
        schema.hook("filter_failure")(_is_fault)
        for event in from_schema(schema).execute():
            tally.add(event)
        print(f"fuzz: {', '.join(phases)} done, {tally.answered.total()} cases", file=sys.stderr, flush=True)
        if phases == ("stateful",):
            phases = ("examples", "coverage", "fuzzing")
        elif tally.answered.total() >= cases or tally.failures:
            return tally
        else:  # some operations gave fewer cases than they might; what is missing is made with another seed
            phases, seed = ("fuzzing",), seed + 1


def _config(cases: int, seed: int, phases: Sequence[str]) -> dict[str, Any]:
    """Returns schemathesis' settings: every check, positive and negative data."""
    more: dict[str, dict[str, Any]] = {
        "fuzzing": {"operation-ordering": "none"},  # all at once; chains have their own phase
        "stateful": {"generation": {"max-examples": max(1, round(CHAINS * cases))}},
    }
    return {
        "seed": seed,
        "workers": WORKERS,
        "continue-on-failure": True,
        "request-timeout": 35.0,
        "cache": {"enabled": False},
        "generation": {"mode": "all", "database": "none"},
        "checks": {
            "negative_data_rejection": {"expected-statuses": REFUSED},
            "positive_data_acceptance": {"expected-statuses": ACCEPTED},
        },
        "phases": {
            name: {"enabled": name in phases, **more.get(name, {})}
            for name in ("examples", "coverage", "fuzzing", "stateful")
        },
        "operations": [
            *(
                {
                    "include-operation-id": name,
                    "phases": {"fuzzing": {"generation": {"max-examples": max(1, round(share * cases))}}},
                }
                for name, share in SHARES.items()
            ),
            # A run that was cancelled is not deleted: how it ended can be asked until it expires.
            {"include-operation-id": "run_status", "checks": {"use_after_free": {"enabled": False}}},
        ],
    }


def _write_whole(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Writes integers without a fraction, just before a case is sent.

    To JSON Schema 4.0 is the integer 4 (2020-12 core, section 4.2.3); this API takes the latter alone, as the document
    says in words. One is sent for the other, which is as valid or invalid as it was.
    """
    if isinstance(case.body, dict):
        case.body = _whole(case.body, ("k", "n", "top_k", "seed"))
    if case.query:
        case.query = _whole(case.query, ("k", "store"))


def _spare_the_tower(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Asks for short runs, and does not wait for them."""
    if case.operation.label != "POST /run":
        return
    case.headers["Prefer"] = "respond-async"
    if isinstance(case.body, dict):
        n = case.body.get("n", 50)
        if type(n) is int and 1 <= n <= 500:
            case.body = {**case.body, "n": min(n, 2)}


def _whole(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {
        name: int(value) if name in names and isinstance(value, float) and value.is_integer() else value
        for name, value in values.items()
    }


def _is_fault(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Whether a failed check is one: valid data may be refused with 422 if its key was used with another body."""
    return not (response.status_code == 422 and response.json().get("detail") == KEY_REUSED)


def fuzz_local(*, cases: int, seed: int, agent: bool) -> Tally:
    """Starts an edge, and with `agent` a tower, and fuzzes it."""
    with _edge(agent) as url:
        return fuzz(url, cases=cases, seed=seed, agent=agent)


@contextmanager
def _edge(agent: bool) -> Iterator[str]:
    """Runs an edge that signs and stores, without limits on its callers; yields its address."""
    environ = {**os.environ, "SPECDEC_RUNS_PER_MINUTE": "0", "SPECDEC_GPU_SECONDS_PER_DAY": "0"}
    with tempfile.TemporaryDirectory(prefix="specdec-fuzz-") as folder:
        state = Path(folder)
        if agent:
            with running(state, environ=environ) as stack:
                yield stack.edge_url
            return
        arguments = ["--port", "0", "--tower-url", DOWN]
        arguments += [
            "--signing-key-file",
            str(state / "edge-key.pem"),
            "--receipts-dir",
            str(state / "receipts"),
        ]
        with listening("edge", arguments, state, environ) as (_, url):
            yield url


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzzes, prints the figures; returns 0 if nothing failed and no answer was a 5xx."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description="Fuzz a local edge.")
    parser.add_argument("--cases", type=int, default=20_000, help="requests to be answered (default 20000)")
    parser.add_argument("--agent", action="store_true", help="with a real agent and the embedded pair")
    parser.add_argument("--seed", type=int, default=1, help="of the random requests (default 1)")
    arguments = parser.parse_args(argv)
    leave_on_sigterm()
    began = time.monotonic()
    tally = fuzz_local(cases=arguments.cases, seed=arguments.seed, agent=arguments.agent)
    print(tally.report())
    print(f"seed {arguments.seed}, {time.monotonic() - began:.0f} s")
    return 1 if tally.failures or tally.server_errors else 0


if __name__ == "__main__":
    sys.exit(main())
