"""`make serve`: an agent with the embedded pair and the local edge on 127.0.0.1:8080, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from shared import labels
from tools.stack import running

STATE = Path(".specdec")
PORT = 8080


def main() -> int:
    """Serves until interrupted; returns the exit code."""
    STATE.mkdir(mode=0o700, exist_ok=True)
    try:
        with running(STATE, port=PORT) as stack:
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
        print(f"serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
