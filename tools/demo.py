"""`make demo`: one real run, asked for over HTTP, decoded by llama.cpp, checked offline.

Starts an agent with the embedded pair and a local edge on free loopback ports, then does what a user would, with the
`specdec` command: health, run, verify. Ends with exit code 0 only if the run was measured, more than half of the
examined drafts were accepted, the output was unchanged, a speed-up (whatever it is) was measured, and the receipt
verifies: signed by the edge, and the measurement in it by the tower.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from agent.pairs import EMBEDDED
from shared import labels
from tools.stack import leave_on_sigterm, running

RECEIPT = Path(".specdec") / "demo-receipt.json"
KEYS = "demo-keys.json"
"""Name of the file, beside the receipt, with the public keys that it is checked by."""


def specdec(*arguments: str) -> int:
    """Shows and runs one `specdec` command."""
    print(f"\n$ specdec {shlex.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", "shared.cli", *arguments]).returncode


def prompt() -> str:
    """Returns a prompt from the embedded pair's held-out prose."""
    prompts = json.loads((EMBEDDED / "prompts.json").read_text(encoding="utf-8"))
    return next(str(one["prompt"]) for one in prompts if one["domain"] == "prose")


def failures(payload: dict[str, Any]) -> list[str]:
    """Returns what a demo of the embedded pair must show and this payload does not."""
    if payload["label"] != labels.RUN_MEASURED:
        return [f"the run was not measured: {payload['roadmap']['reason']}"]
    wanted = {
        "an accepted rate above one half": (payload["accepted_rate"] or 0) > 0.5,
        "an unchanged output": payload["quality_delta"] == {"identical_rate": 1.0, "label": labels.LOSSLESS},
        "a measured speed-up": isinstance(payload["speedup_measured"], dict),
    }
    return [f"the receipt does not show {what}" for what, shown in wanted.items() if not shown]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo", description="One real run, verified offline."
    )
    parser.add_argument("--receipt", type=Path, default=RECEIPT, help=f"where to keep it (default {RECEIPT})")
    receipt: Path = parser.parse_args(argv).receipt
    leave_on_sigterm()
    receipt.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="specdec-demo-") as folder:
        state = Path(folder)
        print("starting the agent (embedded pair) and a local edge", flush=True)
        try:
            with running(state) as stack:
                print(f"agent {stack.tower_url}\nedge  {stack.edge_url}{labels.BASE_PATH}")
                failed = specdec("health", "--url", stack.edge_url) or specdec(
                    "run", prompt(), "--url", stack.edge_url, "--out", str(receipt)
                )
                keys = receipt.with_name(KEYS)
                print(f"\n$ curl -s {stack.edge_url}{labels.BASE_PATH}/keys -o {keys}")
                keys.write_text(httpx.get(f"{stack.edge_url}{labels.BASE_PATH}/keys").raise_for_status().text)
        except (RuntimeError, httpx.HTTPError) as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
        print("\nboth stopped; the receipt is checked offline")
        if failed or specdec("verify", str(receipt), "--key", str(keys), "--require-signature"):
            return 1
        payload = json.loads(receipt.read_text(encoding="utf-8"))["payload"]
    for failure in failures(payload):
        print(f"demo: {failure}", file=sys.stderr)
    if failures(payload):
        return 1
    print(f"\n{payload['label']}, in {time.monotonic() - began:.0f} s; the receipt is {receipt}")
    if not payload["measurement"]["verdict"]["valid"]:
        print(
            "The receipt is sound, but its verdict says that the timing is not to be relied on: the machine was busy"
        )
        print("or the run short. Close other programs and try again.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
