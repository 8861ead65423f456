"""`python -m tools.fuzz`: requests made from the OpenAPI document find nothing, and would find what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from edge.openapi import document
from edge.settings import EdgeSettings
from tests.edge.support import SCALE

PATIENCE_S = 900 * SCALE
SUMMARY = re.compile(
    r"(\d+) cases, (\d+) checks of (\d+) kinds, (\d+) failures, (\d+) answers with 5xx, \d+ excused"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(PATIENCE_S) + 60)]


def run(*arguments: str) -> tuple[int, list[int], str]:
    """Run Python; return the exit code, the figures of the summary and all that was printed."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    figures = SUMMARY.search(done.stdout)
    assert figures, done.stdout + done.stderr
    return done.returncode, [int(figure) for figure in figures.groups()], done.stdout


def counts(said: str) -> dict[str, dict[int, int]]:
    """Return the answers by operation and status."""
    lines = re.findall(r"^((?:GET|POST|DELETE) \S+) +\d+ +(.*)$", said, re.MULTILINE)
    pairs = {name: [pair.split(":") for pair in by_status.split()] for name, by_status in lines}
    return {name: {int(status): int(count) for status, count in each} for name, each in pairs.items()}


def test_two_thousand_cases_with_the_tower_down_find_nothing() -> None:
    """Every operation is asked, with data good and bad; all checks of each answer hold, and none is a 5xx."""
    code, (cases, checks, kinds, failures, server_errors), said = run("-m", "tools.fuzz", "--cases", "2000")
    assert (code, failures, server_errors) == (0, 0, 0), said
    assert cases >= 2000 and checks > 10 * cases and kinds >= 14
    seen = counts(said)
    told = document(EdgeSettings())["paths"]
    assert set(seen) == {f"{method.upper()} {path}" for path, methods in told.items() for method in methods}
    assert sum(sum(each.values()) for each in seen.values()) == cases
    assert {200, 400, 405, 415, 422} <= set(seen["POST /run"])
    assert {200, 304, 405, 422} <= set(seen["GET /curve"])
    assert {200, 404} <= set(seen["GET /receipts/{digest}"])


def test_with_an_agent_nothing_is_found() -> None:
    """Runs are taken, asked for and cancelled; still every answer is as documented."""
    code, (cases, _, _, failures, server_errors), said = run("-m", "tools.fuzz", "--agent", "--cases", "400")
    assert (code, failures, server_errors) == (0, 0, 0), said
    seen = counts(said)
    assert cases >= 400 and 202 in seen["POST /run"]
    assert {200, 202} & set(seen["GET /runs/{run_id}"])


class _Liar(BaseHTTPRequestHandler):
    """Gives out the document, and keeps to it nowhere."""

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        document_asked = self.path.endswith("openapi.json")
        status = 500 if self.path.endswith("/keys") else 200
        body = json.dumps(document(EdgeSettings()) if document_asked else {"status": "LIVE"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do_OPTIONS = do_TRACE = do_QUERY = _answer


def test_a_server_that_keeps_to_nothing_is_found_out() -> None:
    """The checks can fail: wrong bodies, missing headers, invalid data taken and a 5xx are all reported."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Liar) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            program = (
                "from tools.fuzz import fuzz; "
                f"tally = fuzz({url!r}, cases=20, seed=1, agent=False); print(tally.report()); "
                "print('FOUND', *sorted({failure.split(': ')[1] for failure in tally.failures}))"
            )
            _, (_, _, _, failures, server_errors), said = run("-c", program)
        finally:
            server.shutdown()
            thread.join()
    found = set(said.splitlines()[-1].split())
    assert failures > 20 and server_errors > 0
    assert found >= {
        "not_a_server_error",
        "response_schema_conformance",
        "response_headers_conformance",
        "content_type_conformance",
        "negative_data_rejection",
        "unsupported_method",
    }
