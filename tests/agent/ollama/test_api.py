"""Tests of `agent.ollama.api`, against a real server on loopback that answers well, badly, slowly, endlessly or not."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from agent.ollama import api
from agent.ollama.api import Loaded, Ollama, Running, Shown, Tag, Tags, Unloaded, Version
from tests.agent.ollama.server import OllamaServer, free_port, ollama_server, say
from tests.agent.support import PATIENCE, SHORT

DIGEST = "0123456789abcdef" * 4

QUESTIONS: dict[str, Callable[[Ollama], Any]] = {
    "/api/tags": Ollama.tags,
    "/api/ps": Ollama.ps,
    "/api/version": Ollama.version,
    "/api/show": lambda ollama: ollama.show("llama3.2:1b"),
    "/api/generate": lambda ollama: ollama.unload("llama3.2:1b"),
}


@pytest.fixture
def server() -> Iterator[OllamaServer]:
    """A server with one model, which is in its memory."""
    with ollama_server() as served:
        served.models = {"llama3.2:1b": DIGEST}
        served.loaded = ["llama3.2:1b"]
        yield served


@pytest.fixture
def ollama(server: OllamaServer) -> Iterator[Ollama]:
    """A client of it, with all the time it needs."""
    with Ollama(server.url, total_s=PATIENCE) as client:
        yield client


def test_what_ollama_says(ollama: Ollama) -> None:
    """Each answer is read: versions, names and digests, what a model is, and what is in memory until when."""
    assert ollama.version() == Version("0.30.1")
    assert ollama.tags() == Tags((Tag(name="llama3.2:1b", digest=DIGEST),))
    assert ollama.show("llama3.2:1b") == Shown("llama", "1.2B", "Q8_0", ("completion", "tools"))
    running = ollama.ps()
    assert running.reason is None
    assert [(model.name, model.size_vram) for model in running.models] == [("llama3.2:1b", 8)]
    assert running.models[0].expires_at is not None and running.models[0].expires_at.year == 2318


def test_unloading(server: OllamaServer, ollama: Ollama) -> None:
    """A model is taken out of memory by a request that keeps it alive for no time and asks for no text."""
    assert ollama.unload("llama3.2:1b") == Unloaded(True)
    body = {"model": "llama3.2:1b", "keep_alive": 0, "stream": False}
    assert server.asked == [("POST", "/api/generate", body)]
    assert ollama.ps() == Running()
    assert ollama.unload("gone:1") == Unloaded(reason="Ollama answers with status 404")


@pytest.mark.parametrize("path", QUESTIONS)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Ollama's answer cannot be used"),
        (b"<html>", "Ollama's answer cannot be used"),
        (b"[]", "Ollama's answer cannot be used"),
        (b'{"models": "all", "version": 7, "details": 1, "done": "yes"}', "Ollama's answer cannot be used"),
        (b"\xff" * 10, "Ollama's answer cannot be used"),
        (b"[" * 100_000, "Ollama's answer cannot be used"),
    ],
)
def test_garbage_is_no_answer(
    server: OllamaServer, ollama: Ollama, path: str, content: bytes, reason: str
) -> None:
    """What is not JSON, or not of the right types, is no answer, and the next question gets its own."""
    server.answers[path] = say(content)
    assert QUESTIONS[path](ollama).reason == reason
    server.answers.clear()
    assert QUESTIONS[path](ollama).reason is None


@pytest.mark.parametrize(
    "tag",
    [
        {"name": "m:1"},
        {"name": "m:1", "digest": "sha256:" + DIGEST},
        {"name": "m:1", "digest": DIGEST.upper()},
        {"name": "", "digest": DIGEST},
        {"name": 7, "digest": DIGEST},
        {"name": "m" * 501, "digest": DIGEST},
        {"name": "\ud800", "digest": DIGEST},
        "m:1",
        None,
    ],
)
def test_one_bad_entry_spoils_the_list(server: OllamaServer, ollama: Ollama, tag: Any) -> None:
    """A list with an entry that is none is not half believed."""
    server.answers["/api/tags"] = say(
        json.dumps({"models": [{"name": "a:1", "digest": DIGEST}, tag]}).encode()
    )
    assert ollama.tags() == Tags(reason="Ollama's answer cannot be used")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"name": "m:1"}, Loaded(name="m:1")),
        ({"name": "m:1", "size_vram": -1}, None),
        ({"name": "m:1", "size_vram": 1.5}, None),
        ({"name": "m:1", "expires_at": "soon"}, None),
        ({"name": "m:1", "expires_at": "2026-11-30T12:00:00"}, None),
    ],
)
def test_what_is_in_memory(server: OllamaServer, ollama: Ollama, model: Any, expected: Loaded | None) -> None:
    """Of a model in memory the name is needed; what else is told must be what it should."""
    server.answers["/api/ps"] = say(json.dumps({"models": [model]}).encode())
    assert ollama.ps().models == (() if expected is None else (expected,))


@pytest.mark.parametrize("status", [204, 301, 404, 500])
def test_other_statuses_are_no_answer(server: OllamaServer, ollama: Ollama, status: int) -> None:
    """Only 200 is an answer; a redirection is not followed."""
    server.answers["/api/tags"] = say(b"", status=status, headers={"Location": f"{server.url}/api/version"})
    assert ollama.tags().reason == f"Ollama answers with status {status}"
    assert [path for _, path, _ in server.asked] == ["/api/tags"]


def test_an_answer_without_end(server: OllamaServer, ollama: Ollama, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is read up to a bound, whatever length it says it has."""
    monkeypatch.setattr(api, "MOST_BYTES", 100_000)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * 10_000)

    server.answers["/api/tags"] = endless
    assert ollama.tags().reason == "Ollama's answer is too large"


def test_a_packed_answer(server: OllamaServer, ollama: Ollama) -> None:
    """A compressed answer, which could be of any size once unpacked, is refused."""
    packed = gzip.compress(json.dumps({"models": []}).encode())
    server.answers["/api/tags"] = say(packed, headers={"Content-Encoding": "gzip"})
    assert ollama.tags().reason == "Ollama's answer cannot be used"


@pytest.mark.parametrize("where", ["before", "in the head", "in the body"])
def test_an_answer_that_takes_too_long(server: OllamaServer, where: str) -> None:
    """A server that says nothing, or a byte now and then, is given up on, and asked anew the next time."""
    enough = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        head = b"HTTP/1.1 200 OK\r\n"
        handler.wfile.write(b"" if where == "before" else head)
        if where == "in the body":
            handler.wfile.write(b"Content-Length: 100000\r\n\r\n")
        while not enough.wait(SHORT / 4):
            if where != "before":
                handler.wfile.write(b"x")

    server.answers["/api/version"] = drip
    with Ollama(server.url, total_s=SHORT) as ollama:
        assert ollama.version().reason == "Ollama does not answer in time"
        enough.set()
    server.answers.clear()
    with Ollama(server.url, total_s=PATIENCE) as ollama:
        assert ollama.version().version == "0.30.1"


def test_a_connection_that_breaks_off(server: OllamaServer, ollama: Ollama) -> None:
    """An answer that ends before its length is no answer."""

    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b'{"version": "1"}')
        handler.close_connection = True

    server.answers["/api/version"] = cut
    assert ollama.version().reason == "Ollama's answer broke off"


def test_no_server() -> None:
    """Where nobody listens there is no answer, whatever is asked."""
    with Ollama(f"http://127.0.0.1:{free_port()}", total_s=PATIENCE) as ollama:
        assert {ask(ollama).reason for ask in QUESTIONS.values()} == {"no Ollama server answers"}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "no Ollama server is configured"),
        ("127.0.0.1:11434", "the address of the Ollama server is none"),
        ("ftp://127.0.0.1", "the address of the Ollama server is none"),
        ("http://", "the address of the Ollama server is none"),
        ("http://127.0.0.1:99999999", "no Ollama server answers"),
        ("http://name.invalid\0", "the address of the Ollama server is none"),
    ],
)
def test_addresses_that_are_none(url: str, reason: str) -> None:
    """An address that is none gives no answer, and its text is not told on."""
    with Ollama(url, total_s=PATIENCE) as ollama:
        assert {ask(ollama).reason for ask in QUESTIONS.values()} == {reason}


def test_no_proxy_is_used(server: OllamaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's proxies are for others: Ollama is on this machine."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_port()}")
    with Ollama(server.url + "/", total_s=PATIENCE) as ollama:
        assert ollama.version().version == "0.30.1"
    assert server.asked[0][1] == "/api/version"


def test_usable_after_closing(server: OllamaServer, ollama: Ollama) -> None:
    """Closing lets go of the connection; another question opens one anew."""
    assert ollama.version().version == "0.30.1"
    ollama.close()
    ollama.close()
    assert ollama.version().version == "0.30.1"
