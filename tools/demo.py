"""`make demo`: one real run, asked for over HTTP, decoded by llama.cpp, checked offline.

Starts an agent with the embedded pair and a local edge on free loopback ports, then does what a user would, with the
`specdec` command: health, run, verify. Ends with exit code 0 only if the run was measured and its receipt verifies.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent.pairs import EMBEDDED
from shared import labels
from tools.stack import running


def specdec(*arguments: str) -> int:
    """Shows and runs one `specdec` command."""
    print(f"\n$ specdec {shlex.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", "shared.cli", *arguments]).returncode


def prompt() -> str:
    """Returns a prompt from the embedded pair's held-out prose."""
    prompts = json.loads((EMBEDDED / "prompts.json").read_text(encoding="utf-8"))
    return next(str(one["prompt"]) for one in prompts if one["domain"] == "prose")


def main() -> int:
    """Runs the demo; returns its exit code."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="specdec-demo-") as folder:
        state, receipt = Path(folder), Path(folder) / "receipt.json"
        print("starting the agent (embedded pair) and a local edge", flush=True)
        try:
            with running(state) as stack:
                print(f"agent {stack.tower_url}\nedge  {stack.edge_url}{labels.BASE_PATH}")
                asked = specdec("health", "--url", stack.edge_url) or specdec(
                    "run", prompt(), "--url", stack.edge_url, "--out", str(receipt)
                )
        except RuntimeError as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
        print("\nboth stopped; the receipt is checked offline")
        if asked or specdec("verify", str(receipt)):
            return 1
        label = json.loads(receipt.read_text(encoding="utf-8"))["payload"]["label"]
    print(f"\n{label}, in {time.monotonic() - began:.0f} s")
    return 0 if label == labels.RUN_MEASURED else 1


if __name__ == "__main__":
    sys.exit(main())
