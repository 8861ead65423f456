"""A program that plays SnapStart: one initialised handler, and as many sandboxes forked from it as it is told.

It prints what it holds after its initialisation and waits for a line on standard input,
`{"before": [...], "after": [...], "clocks": [...]}`. It sends the events of `before` to the handler, forks one sandbox
for each clock, and prints what each answered to its events of `after`, one line each. A clock is what `time.time` says
in the sandbox from then on; null leaves it running.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from typing import Any

import edge.app
from tests.edge.support import FakeContext

START_S = 1000.0
"""What the clock says before the snapshot, where the sandboxes' clocks are given."""


def answers(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the handler answers, and what it logs meanwhile."""
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        replies = [edge.app.lambda_handler(event, FakeContext()) for event in events]
    return {"replies": replies, "log": log.getvalue(), "random": users_of_random()}


def users_of_random() -> list[str]:
    """Return the loaded modules of the project's that have Python's generator, whose state a snapshot would hold."""
    ours = [name for name in sys.modules if name.partition(".")[0] in ("edge", "shared")]
    return [name for name in ours if hasattr(sys.modules[name], "random")]


def holdings() -> dict[str, Any]:
    """Return what this process holds: modules, threads, and sockets that are open."""
    descriptors = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    targets = [os.readlink(path) for path in descriptors if os.path.islink(path)]
    return {
        "modules": sorted(sys.modules),
        "threads": threading.active_count(),
        "sockets": [target for target in targets if target.startswith("socket:")],
    }


def stop_clock(at: float | None) -> None:
    """Let `time.time` say this for ever."""
    if at is not None:
        time.time = lambda: at


def main() -> None:
    """Play it."""
    print(json.dumps(holdings()), flush=True)
    told = json.loads(sys.stdin.readline())
    if any(clock is not None for clock in told["clocks"]):
        stop_clock(START_S)
    answers(told["before"])
    for number, clock in enumerate(told["clocks"]):
        sandbox = os.fork()
        if sandbox == 0:
            stop_clock(clock)
            print(json.dumps(answers(told["after"][number])), flush=True)
            os._exit(0)
        assert os.waitpid(sandbox, 0)[1] == 0


if __name__ == "__main__":
    main()
