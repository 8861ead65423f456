"""Further headers for the tower's door, and secrets that hold some."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge.headers import Credentials, parse_headers, parse_secret

GATE = {"CF-Access-Client-Id": "0123.access", "CF-Access-Client-Secret": "some secret"}


def test_headers() -> None:
    """A JSON object of names and values is taken as it is."""
    assert parse_headers(json.dumps(GATE)) == GATE
    assert parse_headers("{}") == {}


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ([], "must be a JSON object"),
        ("x", "must be a JSON object"),
        ({"X": 1}, "must have visible ASCII for X"),
        ({"X": ""}, "must have visible ASCII for X"),
        ({"X": " padded "}, "must have visible ASCII for X"),
        ({"X": "a\r\nY: b"}, "must have visible ASCII for X"),
        ({"X": "\u00fc"}, "must have visible ASCII for X"),
        ({"X": "x" * 5000}, "must have visible ASCII for X"),
        ({"": "x"}, "must have names of headers for names"),
        ({"X Y": "x"}, "must have names of headers for names"),
        ({"X:": "x"}, "must have names of headers for names"),
        ({"X\n": "x"}, "must have names of headers for names"),
        ({f"X-{n}": "x" for n in range(17)}, "must name at most 16 headers"),
    ],
)
def test_what_is_no_header(value: Any, rule: str) -> None:
    """Whatever could not be sent as a header, or could end one, is refused."""
    with pytest.raises(ValueError) as caught:
        parse_headers(json.dumps(value))
    assert str(caught.value) == rule


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "HOST",
        "upgrade",
        "Connection",
        "Sec-WebSocket-Key",
        "sec-websocket-protocol",
        "Origin",
        "Content-Length",
        "Transfer-Encoding",
    ],
)
def test_the_handshake_is_ours(name: str) -> None:
    """No header of the handshake can be overridden."""
    with pytest.raises(ValueError, match=f"^must leave {name} alone$"):
        parse_headers(json.dumps({name: "x"}))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must be JSON"),
        ("{", "must be JSON"),
        ("[" * 100_000, "must be a JSON object"),
        ('{"X": "a", "x": "b"}', "must name nothing twice"),
        ('{"X": "a", "X": "a"}', "must name nothing twice"),
    ],
)
def test_what_is_no_object(text: str, rule: str) -> None:
    """Text that is no JSON object, or one that is ambiguous, is refused."""
    with pytest.raises(ValueError) as caught:
        parse_headers(text)
    assert str(caught.value) == rule


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("plain-token", Credentials("plain-token")),
        (" plain-token\n", Credentials("plain-token")),
        ('{"token": "t"}', Credentials("t")),
        (json.dumps({"token": "t", "headers": GATE}, indent=2), Credentials("t", GATE)),
    ],
)
def test_secret(text: str, held: Credentials) -> None:
    """A secret is a token alone, or an object of token and headers."""
    assert parse_secret(text) == held


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must be visible ASCII without spaces"),
        ("two words", "must be visible ASCII without spaces"),
        ("{", "must be JSON"),
        ("{}", "must have a token of visible ASCII without spaces"),
        ('{"token": 7}', "must have a token of visible ASCII without spaces"),
        ('{"token": "two words"}', "must have a token of visible ASCII without spaces"),
        ('{"token": "t", "header": {}}', "must have no fields but token and headers"),
        ('{"token": "t", "headers": []}', "must have headers that are a JSON object"),
        ('{"token": "t", "headers": {"Host": "x"}}', "must leave Host alone"),
        ('{"token": "t", "headers": {"A": "1", "a": "2"}}', "must name nothing twice"),
    ],
)
def test_what_is_no_secret(text: str, rule: str) -> None:
    """Anything else is refused, without its content in the message."""
    with pytest.raises(ValueError) as caught:
        parse_secret(text)
    assert str(caught.value) == rule


def test_headers_do_not_show() -> None:
    """Printing credentials prints no header."""
    assert "some secret" not in repr(Credentials("t", GATE))
