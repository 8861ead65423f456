"""The hostile corpus, as events straight into the handler: each has its status, and no prompt gets out.

Everything runs with logs at DEBUG, metrics on, receipts and limits kept in files, and a tower that says prompts back.
"""

from __future__ import annotations

import base64
import copy
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from edge import observe
from edge.app import Handler, create_handler
from tests.edge.fake_tower import FakeTower, honest
from tests.edge.hostile.bodies import BODIES
from tests.edge.hostile.entry import CALLER, GOOD, MARK, Hostile, post
from tests.edge.hostile.events import EVENTS
from tests.edge.hostile.fields import FIELDS
from tests.edge.hostile.headers import HEADERS
from tests.edge.hostile.leaks import shows, shows_in
from tests.edge.hostile.paths import METHODS, PATHS
from tests.edge.hostile.prompts import PROMPTS
from tests.edge.hostile.queries import QUERIES
from tests.edge.hostile.run_ids import RUN_IDS
from tests.edge.hostile.towers import TOWERS, parrot
from tests.edge.hostile.wire import WIRE
from tests.edge.support import FakeContext, settings

KINDS: Final[dict[str, list[Hostile]]] = {
    "body": BODIES,
    "field": FIELDS,
    "prompt": PROMPTS,
    "path": PATHS,
    "method": METHODS,
    "run id": RUN_IDS,
    "query": QUERIES,
    "header": HEADERS,
    "event": EVENTS,
}

ENTRIES: Final = [
    pytest.param(entry, id=f"{kind}: {entry.name}") for kind, entries in KINDS.items() for entry in entries
]

HEADS: Final = {
    *("Allow", "Cache-Control", "Content-Security-Policy", "Content-Type", "Cross-Origin-Resource-Policy"),
    *("ETag", "Link", "Location", "Preference-Applied", "Referrer-Policy", "Retry-After"),
    *("Strict-Transport-Security", "X-Content-Type-Options"),
}
"""Names of headers that an answer may have, beside those of cross-origin access."""


@dataclass
class Edge:
    """A handler, its tower, and all that it leaves behind.

    Attributes:
        handler: The handler.
        tower: The tower that it asks.
        folder: Where it keeps receipts and limits.
        lines: What the edge's loggers were told, formatted as the root logger would.
        others: The same of the fake tower's own logger, which does log prompts.
    """

    handler: Handler
    tower: FakeTower
    folder: Path
    lines: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def send(self, event: Any) -> dict[str, Any]:
        """Send an event, which must stay as it is."""
        before = copy.deepcopy(event)
        result = self.handler(event, FakeContext())
        assert repr(event) == repr(before)
        return result

    def runs(self) -> int:
        """How many runs the tower was asked for."""
        return sum(frame["type"] == "run" for frame in self.tower.frames)


class _Collector(logging.Handler):
    """Keeps every record of every logger, exceptions with their frames and words included."""

    def __init__(self, edge: Edge) -> None:
        super().__init__(logging.DEBUG)
        self._edge = edge

    def emit(self, record: logging.LogRecord) -> None:
        lines = self._edge.others if record.name.startswith("websockets.server") else self._edge.lines
        lines.append(self.format(record) + repr(record.__dict__))


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """One edge for the whole corpus, as a Lambda sandbox is one for many callers."""
    folder = tmp_path_factory.mktemp("hostile")
    kept = {"receipts_dir": str(folder / "receipts"), "limits_file": str(folder / "limits.sqlite")}
    limits = {"runs_per_minute": "6000", "run_burst": "1000", "gpu_seconds_per_day": "1000000"}
    signing = {"signer": "file", "signing_key_file": str(folder / "key.pem")}
    with FakeTower(parrot) as tower:
        handler = create_handler(settings(tower.url, **kept, **limits, **signing, run_deadline_s="10"))
        edge = Edge(handler, tower, folder)
        collector = _Collector(edge)
        root, levels = logging.getLogger(), (logging.getLogger().level, observe.logger.log_level)
        root.addHandler(collector)
        root.setLevel(logging.DEBUG)
        observe.logger.setLevel(logging.DEBUG)
        yield edge
        root.removeHandler(collector)
        root.setLevel(levels[0])
        observe.logger.setLevel(levels[1])


@pytest.fixture(autouse=True)
def metrics_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are printed, whatever the machine's environment says."""
    monkeypatch.delenv("POWERTOOLS_METRICS_DISABLED", raising=False)


def _is_clean(edge: Edge, result: dict[str, Any], printed: str) -> None:
    """Check that neither the answer nor what was left behind by it shows the prompt."""
    body = result["body"]
    if result["statusCode"] == 200 and '"output": ' in body:
        # Asked for by include_output, and beside the receipt.
        body = json.dumps({name: value for name, value in json.loads(body).items() if name != "output"})
    assert not shows(body)
    assert not shows(repr(result["headers"]))
    assert not shows(printed)
    assert not any(shows(line) for line in edge.lines)
    edge.lines.clear()


def _is_well_formed(method: object, result: dict[str, Any]) -> None:
    """Check that an answer is a receipt or a problem document under headers that nobody else wrote."""
    status, body = result["statusCode"], result["body"]
    for name, value in result["headers"].items():
        assert name in HEADS or name.startswith("Access-Control-")
        assert re.fullmatch("[ -~]+", value)
    assert not result.get("cookies")
    body.encode("utf-8")
    if method == "HEAD" or status in (204, 304):
        assert body == ""
    elif status >= 400:
        assert result["headers"]["Content-Type"] == "application/problem+json"
        problem = json.loads(body)
        assert set(problem) == {"type", "title", "status", "detail"}
        assert problem["status"] == status
        assert len(problem["detail"]) < 300
        assert re.fullmatch(r"[ -~]+\.", problem["detail"])


@pytest.mark.parametrize("entry", ENTRIES)
def test_entry(edge: Edge, entry: Hostile, capfd: pytest.CaptureFixture[str]) -> None:
    """Each has the status that is written beside it, and shows its prompt to nobody."""
    started = edge.runs()
    for event in entry.before:
        edge.send(event)
    result = edge.send(entry.event)
    assert result["statusCode"] == entry.status, result["body"][:300]
    assert entry.says in result["body"]
    if entry.header:
        name, _, value = entry.header.partition(": ")
        assert result["headers"].get(name) == value
    context = entry.event.get("requestContext") if isinstance(entry.event, dict) else None
    http = context.get("http") if isinstance(context, dict) else None
    _is_well_formed(http.get("method") if isinstance(http, dict) else None, result)
    assert edge.runs() - started == entry.runs
    printed = capfd.readouterr()
    assert '"message":"answered"' in printed.out
    assert f'"status":{entry.status}' in printed.out
    _is_clean(edge, result, printed.out + printed.err)


def test_corpus_is_kept_by_hand() -> None:
    """It is large enough, says why of each entry, and holds none twice."""
    entries = [entry for kind in KINDS.values() for entry in kind]
    assert len(entries) >= 240
    assert len(WIRE) >= 100
    assert all(entry.why for entry in entries)
    assert all(entry.why for entry in WIRE)
    for kind in KINDS.values():
        assert len({entry.name for entry in kind}) == len(kind)
    assert len({entry.name for entry in WIRE}) == len({entry.sends for entry in WIRE}) == len(WIRE)
    assert len({repr((entry.before, entry.event)) for entry in entries}) == len(entries)


@pytest.mark.parametrize("said", TOWERS)
def test_tower_that_says_prompts_back(edge: Edge, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever a tower does with a prompt, it comes to nobody but, asked for, to the caller."""
    edge.tower.script = TOWERS[said]
    try:
        for entry in PROMPTS[::3]:
            body = {**json.loads(entry.event["body"]), "include_output": True}
            result = edge.send(post(json.dumps(body)))
            assert result["statusCode"] in (200, 202, 422), entry.name
            _is_well_formed("POST", result)
            printed = capfd.readouterr()
            _is_clean(edge, result, printed.out + printed.err)
    finally:
        edge.tower.script = parrot


def test_output_that_was_asked_for_is_the_one_exception(edge: Edge) -> None:
    """The control of that exception: the parrot's output is the prompt, and its caller gets it, beside the receipt."""
    body = json.loads(edge.send(post(json.dumps({"prompt": MARK, "include_output": True})))["body"])
    assert body["payload"]["measured"] == "MEASURED"
    assert body.pop("output") == MARK
    assert not shows(json.dumps(body))
    assert "output" not in json.loads(edge.send(post(GOOD))["body"])


@pytest.mark.parametrize(
    "name",
    ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip", "x-client-ip", "via"],
)
def test_no_header_makes_a_caller_another(edge: Edge, name: str) -> None:
    """An Idempotency-Key belongs to the address that API Gateway saw, whatever a header says."""

    def run_id(address: str, **headers: str) -> str:
        result = edge.send(post(GOOD, {"idempotency-key": "scope", **headers}, address=address))
        said: str = json.loads(result["body"])["payload"]["run_id"]
        return said

    mine = run_id(CALLER)
    assert run_id(CALLER, **{name: "198.51.100.7"}) == mine
    assert run_id("198.51.100.7", **{name: CALLER}) != mine


def test_nothing_that_is_kept_shows_a_prompt(edge: Edge) -> None:
    """Neither receipts nor limits, nor the names of their files; an address is not kept in clear either."""
    edge.send(post(GOOD))
    files = [file for file in edge.folder.rglob("*") if file.is_file()]
    assert any(file.name.endswith(".receipt.json") for file in files)
    assert any(file.name == "limits.sqlite" for file in files)
    for file in files:
        assert not shows_in(file), file.name
        assert CALLER.encode() not in file.read_bytes()


def test_grep_finds_a_prompt_in_a_log(edge: Edge) -> None:
    """The control: a record that holds the prompt, however it got there, would be seen; so would a frame at DEBUG."""
    logging.getLogger("edge.runs").debug("about %s", MARK)
    assert any(shows(line) for line in edge.lines)
    edge.lines.clear()
    try:
        raise ValueError(MARK)
    except ValueError:
        logging.getLogger("anything").debug("it failed", exc_info=True)
    assert any(shows(line) for line in edge.lines)
    edge.lines.clear()
    edge.send(post(GOOD))
    edge.lines.clear()
    assert any(shows(line) for line in edge.others)


def test_grep_finds_a_prompt_in_what_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """The control: a field that is allowed in the log, and a metric's dimension, would be seen."""
    observe.logger.error("it failed", extra={"route": MARK})
    assert shows(capfd.readouterr().out)
    observe._emit({"reason": MARK}, Refusals=1)
    printed = capfd.readouterr().out
    assert "_aws" in printed
    assert shows(printed)


def test_grep_finds_a_prompt_in_an_answer(edge: Edge) -> None:
    """The control: a receipt whose payload holds the prompt in its exact bytes alone would be seen."""
    body = json.loads(edge.send(post(GOOD))["body"])
    payload = {**body["payload"], "x": MARK}
    body["payload_canonical_base64"] = base64.b64encode(json.dumps(payload).encode()).decode()
    assert shows(json.dumps(body))


def test_grep_finds_a_prompt_in_a_file(edge: Edge, tmp_path: Path) -> None:
    """The control: a stored receipt that holds the prompt, or a file named by it, would be seen."""
    stored = next(edge.folder.rglob("*.receipt.json")).read_text()
    (tmp_path / "a.receipt.json").write_text(stored.replace("MEASURED", MARK))
    assert shows_in(tmp_path / "a.receipt.json")
    (tmp_path / MARK).write_text("")
    assert shows_in(tmp_path / MARK)


@pytest.mark.parametrize(
    "text",
    [
        MARK,
        MARK.upper(),
        MARK.replace(" ", "%20"),
        MARK.replace(" ", "+"),
        MARK.replace(" ", "-"),
        MARK.replace(" ", "\\n"),
        MARK.replace(" ", "\\u0020"),
        MARK.encode().hex(),
        base64.b64encode(MARK.encode()).decode(),
        base64.b64encode(f"a{MARK}".encode()).decode(),
        base64.b64encode(f"ab{MARK}".encode()).decode(),
        base64.urlsafe_b64encode(f"???{MARK}".encode()).decode(),
        MARK[:16],
        MARK[-16:],
    ],
)
def test_grep_knows_other_spellings(text: str) -> None:
    """The control: other cases, escapes and codes of the prompt are found, and most of it is as bad as all of it."""
    assert shows(f'{{"a": "b{text}c"}}')
    assert not shows("Capybara")


def test_honest_towers_run_the_same_prompts(edge: Edge) -> None:
    """The control: the prompts are runs like any others, measured where the tower is honest."""
    edge.tower.script = honest
    try:
        for entry in PROMPTS:
            payload = json.loads(edge.send(entry.event)["body"])["payload"]
            assert payload["measured"] == "MEASURED", entry.name
    finally:
        edge.tower.script = parrot
