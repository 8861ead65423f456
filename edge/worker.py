"""One worker process of the local edge: JSON lines in, the Lambda handler, JSON lines out.

Powertools keeps the current event on a class, so a process handles one invocation at a time, as a Lambda
sandbox does. Started by `edge.pool` as ``python -m edge.worker``.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, BinaryIO


@dataclass(frozen=True)
class LocalContext:
    """What handlers use of a Lambda context."""

    deadline: float
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    function_name: str = "specdec-local"
    function_version: str = "$LATEST"
    invoked_function_arn: str = "arn:aws:lambda:local:000000000000:function:specdec-local"
    memory_limit_in_mb: int = 512

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the invocation is cut off."""
        return max(0, round(1000 * (self.deadline - time.monotonic())))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until their stream ends. The first line out says that the worker is ready."""
    from edge.app import lambda_handler

    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in requests:
            lines.put(line)
        # The server is gone, perhaps killed: leave even in the middle of a run, or be an orphan.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    _send(answers, {"ready": True})
    while True:
        request = json.loads(lines.get())
        context = LocalContext(time.monotonic() + request["remaining_s"])
        try:
            result: Any = lambda_handler(request["event"], context)
        except Exception as error:
            # What Lambda does: the invocation fails and the sandbox lives on.
            logging.getLogger("edge").error("handler raised %s", type(error).__name__)
            result = None
        _send(answers, {"result": result})


def _send(stream: BinaryIO, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode("utf-8") + b"\n")
    stream.flush()


def main() -> None:
    """Serve on standard input and output."""
    # Ctrl-C reaches the whole process group; the server decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    # Whatever prints to standard output must not end up among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
