"""Real servers on loopback that play honest and hostile towers."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import http
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from tests.edge.support import TOKEN

Script = Callable[["FakeTower", ServerConnection, dict[str, Any]], None]

CAPABILITY: dict[str, Any] = {
    "type": "capability",
    "agent_version": "0.1.0",
    "same_family_pair": {
        "found": True,
        "reason": "one vocabulary",
        "draft": "llama3.2:1b",
        "target": "llama3.1:8b",
        "family": "llama",
    },
    "models": [{"name": "llama3.2:1b", "family": "llama", "parameters": 1235814432, "loadable": True}],
    "queue": {"running": False, "waiting": 0, "limit": 4},
    "energy": {"label": "UNAVAILABLE", "code": "NO_NVML"},
}

MEASUREMENT: dict[str, Any] = {
    "label": "MEASURED",
    "mode": "linear",
    "k_requested": 4,
    "n_requested": 50,
    "k": 4,
    "stopped": None,
    "n": 50,
    "drafted": 200,
    "accepted": 97,
    "rejections": 37,
    "emitted": 147,
    "acceptance_histogram": [14, 8, 8, 7, 13],
    "accepted_rate": 97 / 134,
    "draft_acceptance_rate": 0.485,
    "mean_accepted_len": 2.94,
    "conditional_acceptance": [36 / 50, 28 / 36, 20 / 28, 13 / 20],
    "accepted_rate_ci95": [0.6539, 0.7839],
    "tokens_per_second": {"speculative": 61.8, "target_only": 41.2},
    "speedup": {"label": "MEASURED", "median": 1.5, "ci95": [1.44, 1.57], "pairs": 8},
    "verdict": {"valid": True, "reasons": []},
    "engine": {
        "name": "llama.cpp",
        "library": "llama-cpp-python 0.3.36",
        "system": "CPU",
        "threads": 2,
        "gpu_layers": 0,
    },
    "draft": {"name": "llama3.2:1b", "sha256": "0" * 64},
    "target": {"name": "llama3.1:8b", "sha256": "1" * 64},
    "quality": {"identical_rate": 1.0, "label": "MEASURED (lossless)", "compared_tokens": 147},
}

OUTPUT = "and it came to pass"
OUTPUT_SHA3 = hashlib.sha3_256(OUTPUT.encode()).hexdigest()


def accepted(frame: dict[str, Any], position: int = 0) -> dict[str, Any]:
    """Return the frame that takes a run."""
    return {"type": "accepted", "run_id": frame["run_id"], "position": position}


def progress(frame: dict[str, Any], done: int = 12) -> dict[str, Any]:
    """Return a progress frame."""
    return {"type": "progress", "run_id": frame["run_id"], "phase": "measuring", "done": done, "total": 50}


def result(frame: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the result of a run frame for k=4, n=50; ``changes`` overwrite fields of the measurement."""
    request = {name: value for name, value in frame["request"].items() if name != "prompt"}
    return {
        "type": "result",
        "run_id": frame["run_id"],
        "nonce": frame["nonce"],
        "measurement": {**copy.deepcopy(MEASUREMENT), **changes},
        "energy": {"label": "UNAVAILABLE", "code": "NO_NVML", "reason": "no NVML library on this tower"},
        "output_sha3_256": OUTPUT_SHA3,
        "attestation": None,
        "output": OUTPUT if request["include_output"] else None,
        "request": {**request, "prompt_commitment": frame["prompt_commitment"]},
    }


def failed(frame: dict[str, Any], code: str, detail: str = "", **more: Any) -> dict[str, Any]:
    """Return a failed frame."""
    return {"type": "failed", "run_id": frame["run_id"], "code": code, "detail": detail, **more}


def say(connection: ServerConnection, *frames: dict[str, Any]) -> None:
    """Send frames as JSON."""
    for frame in frames:
        connection.send(json.dumps(frame))


def honest(tower: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
    """Do what the protocol says, at once; a run ID is run once and kept."""
    if frame["type"] == "probe":
        say(connection, CAPABILITY)
        return
    known = tower.runs.get(frame["run_id"].split(".")[0])
    if frame["type"] == "run" and known is None:
        tower.runs[frame["run_id"].split(".")[0]] = result(frame)
        say(connection, accepted(frame), progress(frame), result(frame))
    elif known is None:
        say(connection, failed(frame, "NOT_FOUND", "no such run"))
    elif known["run_id"] != frame["run_id"]:
        say(connection, failed(frame, "CONFLICT", "another request"))
    else:
        say(connection, known)


def says_nothing(tower: FakeTower, _: ServerConnection, __: dict[str, Any]) -> None:
    """Accept the websocket and never answer."""
    tower.stopped.wait(60)


class FakeTower:
    """A websocket server that answers the first frame of each connection as its script says.

    Attributes:
        script: What to do with a first frame; may be changed between calls.
        frames: Every first frame received.
        runs: Results by ID, for scripts that remember.
        requests: The headers of every handshake.
        wants: Headers that a handshake must have, as behind a gate that asks for them; may be changed.
        stopped: Set when the server goes down, for scripts that wait for ever.
    """

    def __init__(
        self,
        script: Script = honest,
        *,
        token: str = TOKEN,
        speaks: str = "specdec.v1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen on a free port; ``speaks`` is the subprotocol that the tower offers."""
        self.script = script
        self.token = token
        self.requests: list[Headers] = []
        self.wants: dict[str, str] = {}
        self._scheme = "ws" if tls is None else "wss"
        self.frames: list[dict[str, Any]] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self.stopped = threading.Event()
        self._server: Server = serve(
            self._serve,
            "127.0.0.1",
            0,
            ssl=tls,
            subprotocols=[Subprotocol(speaks)],
            select_subprotocol=lambda *_: Subprotocol("specdec.v1") if speaks == "specdec.v1" else None,
            process_request=self._admit,
            compression=None,
            max_size=None,
        )
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        """Where the tower listens."""
        return f"{self._scheme}://127.0.0.1:{self._server.socket.getsockname()[1]}/specdec"

    def __enter__(self) -> FakeTower:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self.stopped.set()
        self._server.shutdown()
        self._thread.join()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request.headers)
        if any(request.headers.get(name) != value for name, value in self.wants.items()):
            return connection.respond(http.HTTPStatus.FORBIDDEN, "no\n")
        if request.headers.get("Authorization") == f"Bearer {self.token}":
            return None
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no\n")

    def _serve(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            frame = json.loads(connection.recv())
            self.frames.append(frame)
            self.script(self, connection, frame)
            # The edge closes; a tower that hung up first would be another fault.
            connection.recv(timeout=60)


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Yield the URL of a server that accepts TCP connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/specdec"


def closed_port() -> str:
    """Return a URL at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"ws://127.0.0.1:{listener.getsockname()[1]}/specdec"
