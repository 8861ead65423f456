"""What the tests of limits share: one bench for each way of counting, with a clock that the test moves."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from edge.limits import Allowance, Limits, LocalLimits
from edge.limits_dynamodb import DynamoLimits
from tests.edge.limits_crowd import NOON
from tests.edge.test_signing import aws_client, aws_environment

TABLE = "limits"


class Clock:
    """Unix time, as the test sets it."""

    def __init__(self, now: float = NOON) -> None:
        """Begin at noon."""
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Table:
    """A table in moto, and everything that it was asked through its client.

    Attributes:
        client: For what is tested.
        outside: Another client, for looking and meddling.
        calls: Operation and parameters of each call.
        before: Called before the call of that number, counted from 1.
    """

    def __init__(self) -> None:
        """Make the table."""
        self.client: Any = aws_client("dynamodb")
        self.outside: Any = aws_client("dynamodb", "another")
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.before: dict[int, Callable[[], object]] = {}
        self.client.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        self.client.meta.events.register("provide-client-params.dynamodb.*", self._asked)

    def _asked(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append((model.name, dict(params)))
        self.before.pop(len(self.calls), lambda: None)()

    def asked(self) -> list[str]:
        """The operations and keys asked for since the last time."""
        calls = [f"{name} {params['Key']['key']['S']}" for name, params in self.calls]
        self.calls.clear()
        return calls

    def item(self, key: str) -> dict[str, Any]:
        """An item as it is; empty if there is none."""
        found: dict[str, Any] = self.outside.get_item(TableName=TABLE, Key={"key": {"S": key}}).get(
            "Item", {}
        )
        return found

    def put(self, key: str, **attributes: dict[str, Any]) -> None:
        """Put an item behind the limits' back."""
        self.outside.put_item(TableName=TABLE, Item={"key": {"S": key}, **attributes})

    def delete(self, key: str) -> None:
        """Delete an item behind the limits' back."""
        self.outside.delete_item(TableName=TABLE, Key={"key": {"S": key}})

    def one_call_at_a_time(self, patch: pytest.MonkeyPatch) -> None:
        """Let the table take one call after the other, as DynamoDB does for one item; moto promises nothing."""
        lock = threading.Lock()
        call = self.client._endpoint.make_request

        def make_request(*args: Any) -> Any:
            with lock:
                return call(*args)

        patch.setattr(self.client._endpoint, "make_request", make_request)


@dataclass
class Bench:
    """Limits of one kind, and what they have counted.

    Attributes:
        make: Makes limits that count in the same place.
        charged: The milliseconds that a day is charged.
        clock: Their clock.
    """

    make: Callable[[Allowance], Limits]
    charged: Callable[[int], int]
    clock: Clock = field(default_factory=Clock)


def charged_in(base: sqlite3.Connection, day: int) -> int:
    """The milliseconds that a day is charged in a database."""
    row = base.execute("SELECT used FROM days WHERE day = ?", (day,)).fetchone()
    return row[0] if row else 0


def charged_in_file(file: Path, day: int) -> int:
    """The same, in a file; nothing where there is none."""
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file)) as base:
        return charged_in(base, day)


def charged_in_table(table: Table, day: int) -> int:
    """The same, in a table."""
    return int(table.item(f"day#{day}").get("used", {"N": "0"})["N"])


@contextmanager
def bench(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench for `memory`, `file` or `table`."""
    clock = Clock()
    if kind == "memory":
        made: list[LocalLimits] = []

        def make(allowance: Allowance) -> Limits:
            made.append(LocalLimits(allowance, clock=clock))
            return made[-1]

        def charged(day: int) -> int:
            base = made[-1]._base
            return charged_in(base, day) if base else 0

        yield Bench(make, charged, clock)
    elif kind == "file":
        file = folder / "limits.sqlite"
        yield Bench(
            lambda allowance: LocalLimits(allowance, file, clock=clock),
            lambda day: charged_in_file(file, day),
            clock,
        )
    else:
        aws_environment(patch)
        with mock_aws():
            table = Table()
            yield Bench(
                lambda allowance: DynamoLimits(TABLE, allowance, client=lambda: table.client, clock=clock),
                lambda day: charged_in_table(table, day),
                clock,
            )
