"""What the engines' tests share: a real llama.cpp server, and a scripted OpenAI-compatible one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.agent.support import PATIENCE, ROOT

MODEL = 'org/target "8B", {v1}'
"""A name that the exposition format must escape."""


@contextmanager
def llama_server(*flags: str) -> Iterator[str]:
    """Run llama.cpp's server with the embedded target; yields its URL."""
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.agent.engines.llama_child", *flags],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with child:
            assert child.stdin is not None and child.stdout is not None
            try:
                url = child.stdout.readline().strip()
                log.seek(0)
                assert url.startswith("http://127.0.0.1:"), log.read()
                yield url
            finally:
                child.stdin.close()
                try:
                    child.wait(PATIENCE)
                finally:
                    child.kill()


@dataclass
class Scripted:
    """An OpenAI-compatible server that talks like `kind`, three draft tokens a step if it speculates.

    Its clock is made up: a token takes 20 ms, or 10 ms with the draft.

    Attributes:
        kind: "vllm", "sglang", "trtllm", or "bare" (no metrics at all).
        speculates: Whether it drafts.
        models: Names of the models it serves; only the last one works.
        gauges: What SGLang or TensorRT-LLM show besides counters.
        lag: For how many readings after an answer the counters do not know of it.
        after: Called after each completion, to let something happen to the counters.
        text: What the prompts' answers begin with.
    """

    kind: str
    speculates: bool = True
    models: tuple[str, ...] = (MODEL,)
    gauges: dict[str, float] = field(default_factory=dict)
    lag: int = 0
    after: Callable[[Scripted], None] = lambda server: None
    text: str = "the same"
    url: str = ""
    counters: dict[str, float] = field(default_factory=dict)
    positions: list[int] = field(default_factory=lambda: [0, 0, 0])
    seen: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    _shown: str = ""
    _left: int = 0

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Complete a prompt and count it."""
        before, tokens, steps = self.exposition(), int(body["max_tokens"]), 0
        emitted = 1
        while emitted < tokens and self.speculates:
            accepted = min((steps + len(body["prompt"])) % 4, tokens - emitted - 1)
            steps, emitted = steps + 1, emitted + accepted + 1
            for position in range(accepted):
                self.positions[position] += 1
            self.count(drafts=1, drafted=3, accepted=accepted)
        self.count(tokens=tokens, requests=1, seconds=(tokens - 1) * (0.01 if self.speculates else 0.02))
        self.after(self)
        self._shown, self._left = before, self.lag
        ids = {"token_ids": list(range(tokens))} if body.get("return_token_ids") else {}
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": body["model"],
            "choices": [
                {"index": 0, "text": f"{self.text} {body['prompt'][::-1]}", "finish_reason": "length", **ids}
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": tokens + 3},
        }

    def count(self, **numbers: float) -> None:
        """Add to counters."""
        for name, number in numbers.items():
            self.counters[name] = self.counters.get(name, 0) + number

    def metrics(self) -> str:
        """Return what `/metrics` shows now."""
        if self._left:
            self._left -= 1
            return self._shown
        return self.exposition()

    def exposition(self) -> str:
        """Return the counters in Prometheus' text format, as that server names them."""
        prefix = {"vllm": "vllm:", "sglang": "sglang:", "trtllm": "trtllm_"}.get(self.kind, "")
        lines = ["# HELP process_start_time_seconds Start time", "# TYPE process_start_time_seconds gauge"]
        lines.append("process_start_time_seconds 1.7e9")
        first = self.first()
        for name, number in self._named(first).items():
            own = self._labels(finished_reason="length") if "request_success" in name else self._labels()
            if name.endswith("_seconds"):
                lines += [f"# HELP {prefix}{name} Some words", f"# TYPE {prefix}{name} histogram"]
                lines.append(f"{prefix}{name}_bucket{self._labels(le='+Inf')} {first['requests']}")
                lines += [
                    f"{prefix}{name}_count{own} {first['requests']}",
                    f"{prefix}{name}_sum{own} {number}",
                ]
                continue
            lines += [f"# HELP {prefix}{name} Some words", f"# TYPE {prefix}{name} counter"]
            lines.append(f"{prefix}{name}{own} {float(number)}")
            lines.append(f"{prefix}{name.removesuffix('_total')}_created{own} 1.7e+09")
        if self.kind == "vllm" and self.speculates:
            for position, number in enumerate(self.positions):
                own = self._labels(position=str(position))
                lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{own} {float(number)}")
            other = 'engine="0",model_name="another"'
            lines.append(f"vllm:spec_decode_num_draft_tokens_total{{{other}}} 1000000.0")
        if self.kind == "trtllm" and self.speculates:
            own = self._labels(
                spec_method="DraftTarget", spec_num_tokens="3", spec_draft_model="/models/small"
            )
            lines.append(f"trtllm_speculative_config_info{own} 1.0")
        lines += [f"{prefix}{name}{self._labels()} {number}" for name, number in self.gauges.items()]
        return "\n".join(lines) + "\n"

    def first(self) -> dict[str, float]:
        """Return the counters: some are there from the start, the others appear with their first event."""
        return {"tokens": 0.0, "requests": 0.0, **self.counters}

    def _named(self, counters: dict[str, float]) -> dict[str, float]:
        names = {
            "vllm": {
                "drafts": "spec_decode_num_drafts_total",
                "drafted": "spec_decode_num_draft_tokens_total",
                "accepted": "spec_decode_num_accepted_tokens_total",
                "tokens": "generation_tokens_total",
                "requests": "request_success_total",
                "seconds": "request_decode_time_seconds",
            },
            "sglang": {"tokens": "generation_tokens_total", "requests": "num_requests_total"},
            "trtllm": {
                "drafted": "spec_decode_num_draft_tokens_total",
                "accepted": "spec_decode_num_accepted_tokens_total",
                "tokens": "generation_tokens_total",
                "requests": "request_success_total",
                "seconds": "request_decode_time_seconds",
            },
        }.get(self.kind, {})
        return {name: counters[key] for key, name in names.items() if key in counters}

    def _labels(self, **more: str) -> str:
        own = {"engine": "0", "model_name": self.models[-1], **more}
        return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in own.items()) + "}"

    def answer(self, path: str, body: Any) -> tuple[int, str]:
        """Return status and text for a request."""
        if path == "/v1/models":
            return 200, json.dumps({"object": "list", "data": [{"id": name} for name in self.models]})
        if path == "/v1/completions":
            return 200, json.dumps(self.complete(body))
        if path == "/version" and self.kind != "sglang":
            return 200, json.dumps({"version": "1.2.3"})
        if path == "/get_server_info" and self.kind == "sglang":
            about = {"version": "0.5", "api_key": "sk-secret", "speculative_num_draft_tokens": 4}
            return 200, json.dumps(about)
        if path == "/metrics" and self.kind == "trtllm":
            return 200, json.dumps([{"iter": 1, "specDecodingStats": {"numDraftTokens": 3}}])
        if path == ("/prometheus/metrics" if self.kind == "trtllm" else "/metrics") and self.kind != "bare":
            return 200, self.metrics()
        return 404, json.dumps({"error": f"no such route, and your prompt was {body!r}"})


@contextmanager
def serving(server: Scripted) -> Iterator[Scripted]:
    """Serve it on a loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(data) if data else None
            server.seen.append((self.path, body, {k.lower(): v for k, v in self.headers.items()}))
            status, text = server.answer(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
