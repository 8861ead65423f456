"""`make serve`: an agent with the embedded pair and the local edge on 127.0.0.1:8080, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from shared import labels
from tools.stack import running

STATE = Path(".specdec")


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until interrupted; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.serve", description="Agent and local edge, until Ctrl-C."
    )
    parser.add_argument("--port", type=int, default=8080, help="the edge's port (default 8080)")
    port: int = parser.parse_args(argv).port
    STATE.mkdir(mode=0o700, exist_ok=True)
    try:
        with running(STATE, port=port) as stack:
            print(f"page   {stack.edge_url}{labels.BASE_PATH}")
            print(f"edge   {stack.edge_url}{labels.BASE_PATH}/health")
            print(f"agent  {stack.tower_url}")
            print(f"logs   {STATE}/agent.log {STATE}/edge.log\nCtrl-C stops both", flush=True)
            stopping = {signal.SIGINT, signal.SIGTERM}
            signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
            while stack.agent.poll() is None and stack.edge.poll() is None:
                if signal.sigtimedwait(stopping, 1) is not None:
                    return 0
            print("serve: the agent or the edge has ended; see its log", file=sys.stderr)
            return 1
    except RuntimeError as error:
        taken = "Address already in use" in str(error)
        said = f"port {port} is taken; choose another: python -m tools.serve --port 9000" if taken else error
        print(f"serve: {said}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
