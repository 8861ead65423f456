"""A server on loopback that answers as Ollama does, or as a test says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


class OllamaServer:
    """The server: `asked` are (method, path, body) of all requests, `answers` what to do instead of answering well."""

    def __init__(self, url: str) -> None:
        """Listens at a URL; `models` are what it has, as name and digest, `loaded` names in its memory."""
        self.url = url
        self.version = "0.30.1"
        self.models: dict[str, str] = {}
        self.loaded: list[str] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[str, Answer] = {}

    def reply(self, path: str, body: Any) -> Any:
        """Returns what Ollama answers, as JSON; None for what it has not."""
        details = {
            "format": "gguf",
            "family": "llama",
            "parameter_size": "1.2B",
            "quantization_level": "Q8_0",
        }
        if path == "/api/version":
            return {"version": self.version}
        if path == "/api/tags":
            when = "2026-11-30T12:00:00.123456789+01:00"
            return {
                "models": [
                    {
                        "name": name,
                        "model": name,
                        "modified_at": when,
                        "size": 7,
                        "digest": digest,
                        "details": details,
                    }
                    for name, digest in self.models.items()
                ]
            }
        if path == "/api/ps":
            until = "2318-03-11T12:00:00.123456789Z"
            return {
                "models": [
                    {
                        "name": name,
                        "model": name,
                        "size": 9,
                        "size_vram": 8,
                        "digest": "ab" * 32,
                        "expires_at": until,
                    }
                    for name in self.loaded
                ]
            }
        if path == "/api/show" and body["model"] in self.models:
            return {"license": "x" * 1000, "details": details, "capabilities": ["completion", "tools"]}
        if path == "/api/generate" and body["model"] in self.models and body["keep_alive"] == 0:
            self.loaded = [name for name in self.loaded if name != body["model"]]
            return {"model": body["model"], "response": "", "done": True, "done_reason": "unload"}
        return None


def say(content: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """Returns what answers with these bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


@contextmanager
def ollama_server() -> Iterator[OllamaServer]:
    """Runs a server until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            served.asked.append((self.command, self.path, body))
            try:
                if self.path in served.answers:
                    served.answers[self.path](self)
                    return
                reply = served.reply(self.path, body)
                status, content = (404, {"error": "not found"}) if reply is None else (200, reply)
                say(json.dumps(content).encode(), status=status)(self)
            except OSError:
                self.close_connection = True  # the client has gone

        do_POST = do_GET  # noqa: N815 - the name that http.server asks for

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = OllamaServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """Returns a port of loopback at which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
