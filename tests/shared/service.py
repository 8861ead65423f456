"""A scripted HTTP service on a loopback port."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One answer: status, JSON body (or bytes as they are), headers, and what happens before it is given."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], object] = lambda: None


@dataclass
class Service:
    """The service: its URL, the answers still to give and the requests seen so far."""

    url: str
    answers: list[Answer]
    requests: list[tuple[str, str, Any, dict[str, str]]] = field(default_factory=list)


@contextmanager
def serve(*answers: Answer) -> Iterator[Service]:
    """Serve the answers in order, one per request; a request too many gets 500."""
    service = Service("", list(answers))

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            service.requests.append((self.command, self.path, json.loads(body) if body else None, headers))
            answer = service.answers.pop(0) if service.answers else Answer(500, {})
            answer.before()
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            with suppress(ConnectionError):  # the client may have left
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
