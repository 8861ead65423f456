"""Calls to AWS: how long one takes at worst, and connections that an instance finds after it was frozen."""

from __future__ import annotations

import pytest

from edge.aws import CALL_S, IDLE_S, TIMEOUT_S, AwsService, longest


class FakeClient:
    """A client that counts."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        self.calls: list[str] = []

    def ask(self) -> dict[str, str]:
        """Answer."""
        self.calls.append("ask")
        return {}

    def close(self) -> None:
        """Drop connections."""
        self.calls.append("close")


def test_longest_call() -> None:
    """Each attempt may time out connecting and reading; between two is a pause of at most a second."""
    assert longest(1) == 2 * TIMEOUT_S
    assert longest(2) == CALL_S == 4 * TIMEOUT_S + 1.0


def test_connections_of_long_ago_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause, or when the clock was set back, calls begin with a new connection; between them they share one."""
    now = 1e9
    monkeypatch.setattr("edge.aws.time.time", lambda: now)
    client = FakeClient()
    service = AwsService("dynamodb", "the table", lambda: client)
    for later in (0.0, IDLE_S - 0.1, IDLE_S, 1.0, -5.0, 0.0):
        now += later
        service.call("ask")
    assert client.calls == ["ask", "ask", "close", "ask", "ask", "close", "ask", "ask"]
