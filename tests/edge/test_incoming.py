"""Events that are refused, and what powertools gets of the others."""

from __future__ import annotations

from typing import Any

import pytest

from edge.incoming import OTHER, normalised, refusal
from shared.labels import BASE_PATH
from tests.edge.support import make_event


def _changed(**fields: Any) -> dict[str, Any]:
    return {**make_event("GET", "/health"), **fields}


def _http(**fields: Any) -> dict[str, Any]:
    event = make_event("GET", "/health")
    context = event["requestContext"]
    return {**event, "requestContext": {**context, "http": {**context["http"], **fields}}}


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        "GET /",
        {},
        {"requestContext": None},
        {"requestContext": {"http": "GET"}},
        _changed(rawPath=None),
        _changed(rawPath=b"/"),
        _changed(headers=["a"]),
        _changed(body={}),
        _changed(body=0),
        _changed(rawQueryString=[]),
        _http(method=None),
        _http(method=["GET"]),
        _http(sourceIp=1),
        _http(sourceIp="\ud800"),
    ],
)
def test_event_of_another_kind_is_refused(event: object) -> None:
    """What is read must have the right type, and the answer does not say what was there."""
    wrong = refusal(event)
    assert wrong is not None
    assert wrong.status == 400
    assert "payload format 2.0" in wrong.detail


@pytest.mark.parametrize(
    "event",
    [
        make_event("GET", "/health"),
        make_event("BREW", "/\0\ud800"),
        _changed(headers=None, body=None, rawQueryString=None),
        _http(sourceIp=None),
        _http(sourceIp="2001:db8::1"),
    ],
)
def test_event_of_the_gateway_is_taken(event: dict[str, Any]) -> None:
    """What may be absent may be null; texts may hold anything."""
    assert refusal(event) is None
    assert normalised(event)["requestContext"]["http"]["sourceIp"] in ("", "192.0.2.1", "2001:db8::1")


@pytest.mark.parametrize(
    ("path", "becomes"),
    [
        (f"{BASE_PATH}/health", f"{BASE_PATH}/health"),
        (f"{BASE_PATH}/health//", f"{BASE_PATH}/health"),
        (f"{BASE_PATH}/", BASE_PATH),
        (f"{BASE_PATH}/runs/x", f"{BASE_PATH}/runs/x"),
        (f"{BASE_PATH}/health\n", "/"),
        (f"{BASE_PATH}/runs/x\n", "/"),
        (f"{BASE_PATH}/nothing", "/"),
        ("", "/"),
    ],
)
def test_path_that_is_no_route_is_none_to_powertools(path: str, becomes: str) -> None:
    """Its patterns let a path end in a line feed, so it gets none that is not a route of ours."""
    assert normalised(_changed(rawPath=path))["rawPath"] == becomes


@pytest.mark.parametrize(
    ("method", "becomes"),
    [("GET", "GET"), ("HEAD", "GET"), ("POST", "POST"), ("get", OTHER), ("head", OTHER), ("BREW", OTHER)],
)
def test_methods_have_a_case(method: str, becomes: str) -> None:
    """Powertools knows none, so it gets no method that the edge does not know."""
    assert normalised(_http(method=method))["requestContext"]["http"]["method"] == becomes


def test_headers_are_texts_under_lower_case_names() -> None:
    """Whatever an invoker sends as a name or value is text from here on."""
    assert normalised(_changed(headers={"X-A": 1, None: None}))["headers"] == {"x-a": "1", "none": "None"}
