"""Log lines of allowed fields alone, and metrics, neither with anything that a caller sent."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge import observe
from tests.edge.fake_tower import FakeTower
from tests.edge.support import PROMPT, client, make_event

ID = "JKJaXmPLvHcESHA="


@dataclass(frozen=True)
class Context:
    """A Lambda context with an id."""

    aws_request_id: str = "8f5a5b9e-7b0c-4b1e-9a53-2b6e1c2d3e4f"

    def get_remaining_time_in_millis(self) -> int:
        """Return the time left."""
        return 29_000


@pytest.fixture(autouse=True)
def metrics_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are printed, whatever the machine's environment says."""
    monkeypatch.delenv("POWERTOOLS_METRICS_DISABLED", raising=False)


def _lines(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what was printed since the last call: log lines, and metrics."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if "_aws" not in line], [line for line in lines if "_aws" in line]


def _event(path: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    event = make_event(method, path, **more)
    event["requestContext"]["requestId"] = ID
    return event


def _values(blobs: list[dict[str, Any]]) -> dict[tuple[str, ...], set[str]]:
    """Return the names of metrics by the dimensions that they have besides the service."""
    found: dict[tuple[str, ...], set[str]] = {}
    for blob in blobs:
        (about,) = blob["_aws"]["CloudWatchMetrics"]
        assert about["Namespace"] == "specdec"
        assert blob["service"] == "edge"
        (names,) = about["Dimensions"]
        key = tuple(blob[name] for name in names if name != "service")
        found.setdefault(key, set()).update(metric["Name"] for metric in about["Metrics"])
    return found


def test_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Who asked for what by which id, and how it ended; the path is the route's, not the caller's."""
    client().handler(_event("/receipts/" + "a" * 64), Context())
    (line,), blobs = _lines(capsys)
    assert line["level"] == "INFO"
    assert line["message"] == "answered"
    assert line["logger"] == "edge"
    assert (line["method"], line["route"], line["status"]) == ("GET", "/receipts/{digest}", 503)
    assert (line["correlation_id"], line["request_id"]) == (ID, Context().aws_request_id)
    assert set(line) <= set(observe.FIELDS)
    assert _values(blobs) == {("HTTP 503",): {"Refusals"}}


def test_measured_run_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A run has a label, and each phase its time; nothing says what was asked."""
    with FakeTower() as tower:
        body = json.dumps({"prompt": PROMPT})
        sent = _event("/run", "POST", body=body, headers={"content-type": "application/json"})
        client(tower.url).handler(sent, Context())
        text = capsys.readouterr().out
        assert tower.requests[-1]["X-Correlation-Id"] == ID
    lines = [json.loads(line) for line in text.splitlines()]
    answered = [line for line in lines if line.get("message") == "answered"]
    assert [(line["label"], line["status"]) for line in answered] == [("SPEC-DECODE MEASURED", 200)]
    assert set(answered[0]["phases_ms"]) == {"TowerConnect", "TowerRoundTrip", "TowerWait", "Sign"}
    assert _values([line for line in lines if "_aws" in line]) == {
        ("SPEC-DECODE MEASURED",): {"Runs"},
        (): {"TowerConnect", "TowerRoundTrip", "TowerWait", "Sign"},
    }
    assert "zeppelins" not in text


def test_refused_run_is_counted_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """A run without a measurement counts under its label, and under its code."""
    body = json.dumps({"prompt": PROMPT})
    sent = _event("/run", "POST", body=body, headers={"content-type": "application/json"})
    client().handler(sent, Context())
    lines, blobs = _lines(capsys)
    assert [line["message"] for line in lines] == ["tower fault: TOWER_UNREACHABLE", "answered"]
    assert {line["correlation_id"] for line in lines} == {ID}
    assert _values(blobs) == {
        ("SPEC-DECODE ROADMAP",): {"Runs"},
        (): {"TowerConnect", "Sign"},
        ("TOWER_UNREACHABLE",): {"Refusals"},
    }


def test_invocation_that_could_not_count_is_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Once, however often it tried in vain; one that need not count, and one that could, do not count."""
    body = json.dumps({"prompt": PROMPT})
    sent = _event("/run", "POST", body=body, headers={"content-type": "application/json"})
    with FakeTower() as tower:
        limits = {"runs_per_minute": "6", "gpu_seconds_per_day": "900"}
        client(tower.url, limits_file=str(tmp_path / "missing" / "file"), **limits).handler(sent, Context())
        _, blobs = _lines(capsys)
        found = [(blob["Uncounted"], blob) for blob in blobs if "Uncounted" in blob]
        assert [value for value, _ in found] == [[1.0]]
        (about,) = found[0][1]["_aws"]["CloudWatchMetrics"]
        assert about["Dimensions"] == [["service"]]
        assert about["Metrics"] == [{"Name": "Uncounted", "Unit": "Count"}]
        client(tower.url, limits_file=str(tmp_path / "file"), **limits).handler(sent, Context())
        client(tower.url).handler(sent, Context())
    _, blobs = _lines(capsys)
    assert blobs
    assert [blob for blob in blobs if "Uncounted" in blob] == []


def test_what_is_asked_most_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Health and curve cost a log line each, and no metric: the gateway counts them already."""
    edge = client()
    edge.handler(_event("/health"), Context())
    edge.handler(_event("/curve"), Context())
    lines, blobs = _lines(capsys)
    assert [line["route"] for line in lines] == ["/health", "/curve"]
    assert blobs == []


def test_metrics_may_be_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The local edge, whose metrics nobody collects, prints none."""
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    client().handler(_event("/nothing"), Context())
    lines, blobs = _lines(capsys)
    assert len(lines) == 1
    assert blobs == []


@pytest.mark.parametrize("given", ["", "two words", "x" * 65, "id\r\nx: y", PROMPT, 5, None])
def test_strange_ids_are_left_out(capsys: pytest.CaptureFixture[str], given: object) -> None:
    """Only what looks like a gateway's id is repeated, in the log and to the tower."""
    event = make_event("GET", "/health")
    event["requestContext"]["requestId"] = given
    with FakeTower() as tower:
        client(tower.url).handler(event, Context())
        assert "X-Correlation-Id" not in tower.requests[-1]
    (line,), _ = _lines(capsys)
    assert "correlation_id" not in line


def test_ids_end_with_their_invocation(capsys: pytest.CaptureFixture[str]) -> None:
    """A line between two invocations belongs to neither."""
    client().handler(_event("/nothing"), Context())
    logging.getLogger("edge.anything").warning("between")
    lines, _ = _lines(capsys)
    assert "correlation_id" in lines[0]
    assert set(lines[1]) == {"level", "message", "timestamp", "service", "logger"}
    assert observe.correlation_id() is None


def test_whatever_is_logged_only_allowed_fields_get_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A field of another name, a frame and an exception's words stay inside."""
    try:
        raise RuntimeError(PROMPT)
    except RuntimeError:
        logging.getLogger("edge.runs").error("it failed", exc_info=True, extra={"prompt": PROMPT})
    text = capsys.readouterr().out
    assert "zeppelins" not in text
    line = json.loads(text)
    assert line["exception_name"] == "RuntimeError"
    assert set(line) == {"level", "message", "timestamp", "service", "logger", "exception_name"}
