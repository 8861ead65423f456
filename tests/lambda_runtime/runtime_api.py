"""Lambda's Runtime API on loopback: hands events to a runtime and takes its answers.

Source: AWS Lambda developer guide, "Using the Lambda runtime API for custom runtimes", version 2018-06-01.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PREFIX = "/2018-06-01/runtime"
FUNCTION_TIMEOUT_S = 29
ARN = "arn:aws:lambda:us-east-1:123456789012:function:specdec-edge"


@dataclass(frozen=True)
class Outcome:
    """What became of an invocation, or of the start-up.

    Attributes:
        about: `response`, `error`, `init/error`, or `exit` if the process ended without a word.
        request_id: The invocation's; empty for the start-up.
        value: What was posted, as JSON.
    """

    about: str
    request_id: str = ""
    value: Any = None


class RuntimeApi:
    """The server. One runtime asks it for one invocation at a time."""

    def __init__(self) -> None:
        """Listens on a free port."""
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # noqa: N802, RUF100 - the base class's name
                api._next(self)

            def do_POST(self) -> None:  # noqa: N802, RUF100 - the base class's name
                api._take(self)

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def address(self) -> str:
        """Value of `AWS_LAMBDA_RUNTIME_API`."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RuntimeApi:
        """Starts serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops serving; whoever waits for an event gets none."""
        self._events.put(None)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def push(self, event: Any) -> str:
        """Hands an event to whoever asks next; returns the invocation's id."""
        request_id = str(uuid.uuid4())
        self._events.put((request_id, json.dumps(event).encode("utf-8")))
        return request_id

    def _next(self, asked: BaseHTTPRequestHandler) -> None:
        assert asked.path == f"{PREFIX}/invocation/next", asked.path
        taken = self._events.get()
        if taken is None:
            asked.close_connection = True
            return
        request_id, body = taken
        deadline_ms = round(1000 * (time.time() + FUNCTION_TIMEOUT_S))
        headers = {
            "Lambda-Runtime-Aws-Request-Id": request_id,
            "Lambda-Runtime-Deadline-Ms": str(deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": ARN,
            "Lambda-Runtime-Trace-Id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=0",
            "Content-Type": "application/json",
        }
        _answer(asked, 200, body, headers)

    def _take(self, asked: BaseHTTPRequestHandler) -> None:
        value = json.loads(_body(asked))
        _answer(asked, 202, b'{"status":"OK"}\n')
        path = asked.path.removeprefix(f"{PREFIX}/")
        if path == "init/error":
            self.outcomes.put(Outcome(path, value=value))
            return
        _, request_id, about = path.split("/")
        assert path.startswith("invocation/") and about in ("response", "error"), path
        self.outcomes.put(Outcome(about, request_id, value))


def _body(asked: BaseHTTPRequestHandler) -> bytes:
    """Reads a body with a length, or one in chunks (RFC 9112 section 7.1)."""
    if asked.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return asked.rfile.read(int(asked.headers["Content-Length"]))
    body = b""
    while size := int(asked.rfile.readline().partition(b";")[0], 16):
        body += asked.rfile.read(size)
        asked.rfile.readline()
    while asked.rfile.readline().strip():
        pass
    return body


def _answer(
    asked: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    asked.send_response(status)
    for name, value in (headers or {}).items():
        asked.send_header(name, value)
    asked.send_header("Content-Length", str(len(body)))
    asked.end_headers()
    asked.wfile.write(body)
