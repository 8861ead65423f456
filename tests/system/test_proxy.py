"""One host for the agent and Ollama, by path: a real nginx with the example that is shipped. It needs nginx."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.agent.support import PATIENCE, ROOT, TOKEN, agent_process
from tests.edge.support import client
from tests.programs import program

EXAMPLE = ROOT / "agent" / "nginx.conf"
TAGS = {"models": [{"name": "llama3.2:1b"}, {"name": "llama3.1:8b"}]}


@dataclass
class Ollama:
    """A stand-in for Ollama's server, and what it was asked."""

    port: int
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextmanager
def ollama() -> Iterator[Ollama]:
    """Answer as Ollama does, which wants its own name in Host."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.asked.append((self.command, self.path, self.headers["Host"]))
            body = json.dumps(TAGS).encode()
            self.send_response(200 if self.path == "/api/tags" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        seen = Ollama(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def nginx(directory: Path, agent_url: str, ollama_port: int) -> Iterator[str]:
    """Run nginx with the example, its ports filled in; yield where it listens."""
    server = program("nginx", "nginx-light")
    port, agent_port = free_port(), agent_url.split(":")[2].split("/")[0]
    example = EXAMPLE.read_text()
    for shipped, here in [
        ("127.0.0.1:8443", f"127.0.0.1:{port}"),
        ("127.0.0.1:8765", f"127.0.0.1:{agent_port}"),
        ("127.0.0.1:11434", f"127.0.0.1:{ollama_port}"),
    ]:
        assert example.count(shipped) == 1
        example = example.replace(shipped, here)
    (directory / "specdec.conf").write_text(example)
    temporary = "".join(
        f"{name}_temp_path {directory}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = directory / "nginx.conf"
    main.write_text(
        f"daemon off;\nmaster_process off;\npid {directory}/pid;\nerror_log {directory}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}include {directory}/specdec.conf;\n}}\n"
    )
    command = [server, "-p", str(directory), "-e", str(directory / "error.log"), "-c", str(main)]
    with subprocess.Popen(command) as process:
        try:
            until = time.monotonic() + PATIENCE
            while not answers(port):
                assert process.poll() is None and time.monotonic() < until, (
                    directory / "error.log"
                ).read_text()
                time.sleep(0.01)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def answers(port: int) -> bool:
    """Tell whether something listens on a port."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Host:
    """What the outside sees, and Ollama behind it."""

    address: str
    ollama: Ollama

    def ask(self, method: str, path: str) -> httpx.Response:
        """Ask over HTTP."""
        return httpx.request(method, f"http://{self.address}{path}", timeout=PATIENCE)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """An agent and an Ollama behind one nginx."""
    directory = tmp_path_factory.mktemp("proxy")
    with (
        agent_process(directory / "state") as agent,
        ollama() as models,
        nginx(directory, agent.url, models.port) as address,
    ):
        yield Host(address, models)


def test_agent_is_reached(host: Host) -> None:
    """The websocket passes: an edge is told of the pair, and a run is measured."""
    edge = client(f"ws://{host.address}/specdec", tower_token=TOKEN)
    health = edge.get("/health").json
    assert (health["tower_reachable"], health["same_family_pair"]["draft"]) == (True, "llama3.2:1b")
    assert edge.post({"prompt": "finish"}).payload["measured"] == "MEASURED"
    wrong = client(f"ws://{host.address}/specdec", tower_token="wrong").get("/health").json
    assert wrong["same_family_pair"]["reason"] == "the tower refused the edge's token"


def test_ollama_is_reached(host: Host) -> None:
    """Ollama's list of models is where the published walkthrough asks for it, with Host as Ollama wants it."""
    answer = host.ask("GET", "/api/tags")
    assert (answer.status_code, answer.json()) == (200, TAGS)
    assert host.ollama.asked[-1] == ("GET", "/api/tags", f"127.0.0.1:{host.ollama.port}")


@pytest.mark.parametrize("path", ["/api/generate", "/api/pull", "/api/delete", "/api/tags"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_ollama_does_nothing_for_strangers(host: Host, method: str, path: str) -> None:
    """What makes Ollama work, pull or delete is refused before it gets there."""
    asked = len(host.ollama.asked)
    assert host.ask(method, path).status_code == 403
    assert len(host.ollama.asked) == asked


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/specdec/",
        "/specdecx",
        "/api",
        "/apix",
        "/specdec/../metrics",
    ],
)
def test_nothing_else_is_reached(host: Host, path: str) -> None:
    """Other paths lead nowhere, the agent's own health and metrics among them."""
    answer = host.ask("GET", path)
    assert answer.status_code in (301, 404) and "specdec_" not in answer.text
    assert answer.headers["Server"].startswith("nginx")
    if answer.status_code == 301:
        assert path == "/api"
