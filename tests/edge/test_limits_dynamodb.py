"""Limits in a DynamoDB table: what it is asked, races, tables that cannot be asked; what is counted: `test_limits`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from edge.aws import longest
from edge.deadline import Deadline
from edge.limits import DAY_S, Allowance, LimitsDown, Reservation
from edge.limits_dynamodb import FAILED, DynamoLimits
from tests.edge.limits_bench import TABLE, Clock, Table, charged_in_table
from tests.edge.limits_crowd import FAR, NOON, TODAY
from tests.edge.test_signing import aws_environment, closed_port

ALLOWANCE = Allowance(runs_per_minute=6, burst=2, gpu_seconds_per_day=1000)
NOW_MS = 1000 * NOON
DAY = f"day#{TODAY}"
UPDATE_DAY, UPDATE_RUN, UPDATE_CALLER = f"UpdateItem {DAY}", "UpdateItem run#1", "UpdateItem caller#a"
GRANTED = Reservation(new=True)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """An empty table."""
    aws_environment(monkeypatch)
    with mock_aws():
        yield Table()


def limits_in(table: Table, allowance: Allowance = ALLOWANCE, clock: Clock | None = None) -> DynamoLimits:
    """One instance's limits."""
    return DynamoLimits(TABLE, allowance, client=lambda: table.client, clock=clock or Clock())


def numbers(**values: int) -> dict[str, dict[str, str]]:
    """Attributes of an item."""
    return {name: {"N": str(value)} for name, value in values.items()}


# What is asked and kept


def test_calls_of_a_run(table: Table) -> None:
    """A run costs one call to be admitted, two if its caller has just started one, two to reserve, two to settle."""
    limits = limits_in(table)
    limits.admit("a", FAR)
    assert table.asked() == [UPDATE_CALLER]
    limits.admit("a", FAR)
    assert table.asked() == [UPDATE_CALLER] * 2
    limits.admit("a", FAR)
    assert table.asked() == [UPDATE_CALLER]
    limits.reserve("1", 300, FAR)
    assert table.asked() == [UPDATE_DAY, UPDATE_RUN]
    limits.reserve("1", 300, FAR)
    assert table.asked() == [UPDATE_DAY, UPDATE_RUN, UPDATE_DAY]
    limits.release("1", FAR)
    assert table.asked() == [UPDATE_RUN, UPDATE_DAY]
    limits.reserve("1", 300, FAR)
    table.asked()
    limits.settle("1", 10, FAR)
    assert table.asked() == [UPDATE_RUN, UPDATE_DAY]
    limits.settle("1", 10, FAR)
    assert table.asked() == [UPDATE_RUN]
    limits.close(["1"], FAR)
    assert table.asked() == [UPDATE_DAY]


def test_every_write_has_a_condition(table: Table) -> None:
    """Nothing is overwritten that has not been looked at in the same call; reads are consistent."""
    limits = limits_in(table)
    limits.admit("a", FAR)
    limits.admit("a", FAR)
    for run in ("1", "2", "3", "4"):
        limits.reserve(run, 300, FAR)
    limits.settle("1", 10, FAR)
    limits.release("2", FAR)
    limits.close(["3"], FAR)
    for name, params in table.calls:
        assert params["TableName"] == TABLE
        if name == "GetItem":
            assert params["ConsistentRead"] is True
        else:
            assert name == "UpdateItem" and params["ConditionExpression"]
    assert {name for name, _ in table.calls} == {"GetItem", "UpdateItem"}


def test_items(table: Table) -> None:
    """Items hold numbers and no address; each has a time to live in Unix seconds after it is of no more use."""
    limits = limits_in(table)
    limits.admit("a", FAR)
    limits.admit("a", FAR)
    limits.reserve("1", 300, FAR)
    limits.reserve("2", 300, FAR)
    expires = NOON + 3 * DAY_S
    assert table.item("caller#a") == {
        "key": {"S": "caller#a"},
        **numbers(arrival=NOW_MS + 20_000, expires=NOON + 20 + DAY_S),
    }
    today = table.item(DAY)
    assert set(today.pop("open_runs")["SS"]) == {"1", "2"}
    assert today == {"key": {"S": DAY}, **numbers(used=600_000, expires=expires)}
    limits.settle("1", 12.5, FAR)
    limits.close(["2"], FAR)
    assert table.item(DAY) == {"key": {"S": DAY}, **numbers(used=312_500, expires=expires)}
    assert table.item("run#1") == {
        "key": {"S": "run#1"},
        **numbers(day_number=TODAY, reserved=300_000, settled=NOON, expires=expires),
    }


# Races between instances


def test_another_instance_takes_the_last_run(table: Table) -> None:
    """Whoever comes second for the last run of a bucket is told how long to wait."""
    limits, other = limits_in(table), limits_in(table)
    limits.admit("a", FAR)
    table.asked()
    table.before[2] = lambda: other.admit("a", FAR)
    assert limits.admit("a", FAR) == 10
    assert table.item("caller#a")["arrival"] == {"N": str(NOW_MS + 20_000)}


def test_bucket_that_is_deleted_meanwhile(table: Table) -> None:
    """A bucket that is gone between two calls cannot be counted in, and that is said."""
    limits = limits_in(table)
    limits.admit("a", FAR)
    table.asked()
    table.before[2] = lambda: table.delete("caller#a")
    with pytest.raises(LimitsDown, match="an item without a whole number as arrival$"):
        limits.admit("a", FAR)


def test_two_instances_reserve_for_one_run(table: Table) -> None:
    """A run that two ask for at once is charged once, and one alone has reserved it."""
    limits, other = limits_in(table), limits_in(table)
    told: list[Reservation] = []
    table.before[2] = lambda: told.append(other.reserve("1", 300, FAR))
    told.append(limits.reserve("1", 300, FAR))
    assert told == [GRANTED, Reservation()]
    assert charged_in_table(table, TODAY) == 300_000
    assert table.item(DAY)["open_runs"] == {"SS": ["1"]}


def test_run_that_is_settled_while_another_asks_for_it_again(table: Table) -> None:
    """Whichever of the two comes last, the run is not open afterwards."""
    limits, other = limits_in(table), limits_in(table)
    limits.reserve("1", 300, FAR)
    for before in (1, 2, 3):
        limits.release("1", FAR)
        limits.reserve("1", 300, FAR)
        table.asked()
        table.before[before] = lambda: other.settle("1", 5, FAR)
        assert limits.reserve("1", 300, FAR) == Reservation()
        assert "open_runs" not in table.item(DAY)
        assert charged_in_table(table, TODAY) == 5_000 * before
        table.delete("run#1")
        limits.reserve("1", 300, FAR)


def test_instance_that_ends_between_its_two_calls(table: Table) -> None:
    """A run that one has settled, and not closed, is open and charged in full until another closes it."""
    limits, other = limits_in(table), limits_in(table)
    limits.reserve("1", 700, FAR)
    table.asked()

    def end() -> None:
        raise KeyboardInterrupt

    table.before[2] = end
    with pytest.raises(KeyboardInterrupt):
        limits.settle("1", 5, FAR)
    assert other.reserve("2", 700, FAR).open == {"1"}
    assert not other.settle("1", 5, FAR)
    other.close(["1"], FAR)
    assert other.reserve("2", 700, FAR).open == frozenset()
    assert charged_in_table(table, TODAY) == 700_000


@pytest.mark.parametrize(("seconds", "remembered"), [(0.5, True), (0.499, False)])
def test_item_must_hold_the_open_runs(table: Table, seconds: float, remembered: bool) -> None:
    """Where the budget has room for more runs than an item can name, none is remembered, and all else works."""
    limits = limits_in(table)
    assert limits.reserve("1", seconds, FAR) == GRANTED
    assert ("open_runs" in table.item(DAY)) is remembered
    limits.close(["1"], FAR)
    assert limits.settle("1", 0.25, FAR)
    assert charged_in_table(table, TODAY) == 250


def test_two_instances_settle_one_run(table: Table) -> None:
    """What one gives back, the other does not give back again."""
    limits, other = limits_in(table), limits_in(table)
    limits.reserve("1", 300, FAR)
    limits.reserve("2", 300, FAR)
    table.asked()

    def settle_and_release() -> None:
        other.settle("1", 0, FAR)
        other.release("1", FAR)

    table.before[2] = settle_and_release
    limits.settle("1", 100, FAR)
    assert charged_in_table(table, TODAY) == 400_000


def test_day_that_has_expired(table: Table) -> None:
    """What is given back to a day that is gone makes no new item for it."""
    limits = limits_in(table)
    limits.reserve("1", 300, FAR)
    table.delete(DAY)
    limits.settle("1", 0, FAR)
    assert table.item(DAY) == {}


def test_crowd_of_instances(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forty instances that ask at once exactly those are admitted and reserve for whom there is room."""
    table.one_call_at_a_time(monkeypatch)
    allowance = Allowance(runs_per_minute=7, burst=5, gpu_seconds_per_day=110)
    gate = threading.Barrier(40)

    def ask(number: int) -> tuple[bool, bool]:
        limits = limits_in(table, allowance)
        gate.wait(60)
        return limits.admit("a", FAR) == 0, limits.reserve(f"run-{number}", 10, FAR).new

    with ThreadPoolExecutor(40) as pool:
        admitted, reserved = (sum(column) for column in zip(*pool.map(ask, range(40)), strict=True))
    assert (admitted, reserved) == (5, 11)
    assert charged_in_table(table, TODAY) == 110_000


# Tables that cannot be asked


def ways(limits: DynamoLimits, by: Deadline = FAR) -> list[Callable[[], object]]:
    """All that limits can be asked."""
    return [
        lambda: limits.admit("a", by),
        lambda: limits.reserve("1", 300, by),
        lambda: limits.settle("1", 0, by),
        lambda: limits.release("1", by),
        lambda: limits.close(["1"], by),
    ]


@pytest.mark.parametrize(
    "code",
    [
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "RequestLimitExceeded",
        "AccessDeniedException",
        "ValidationException",
        "InternalServerError",
    ],
)
def test_refusals(table: Table, code: str) -> None:
    """Throttling and every other refusal but a condition's is told by its code alone."""
    for way in range(5):
        with Stubber(table.client) as stub:
            stub.add_client_error("update_item", code, "a message with an account number in it")
            with pytest.raises(LimitsDown, match=f"^the table of limits refused: {code}$"):
                ways(limits_in(table))[way]()
            stub.assert_no_pending_responses()


def test_missing_table(table: Table) -> None:
    """A table that does not exist is told."""
    limits = DynamoLimits("another", ALLOWANCE, client=lambda: table.outside)
    for way in ways(limits):
        with pytest.raises(LimitsDown, match="^the table of limits refused: ResourceNotFoundException$"):
            way()


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that cannot be reached is asked once, and then left alone for a while."""
    aws_environment(monkeypatch, AWS_ENDPOINT_URL_DYNAMODB=f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    first, *others = ways(DynamoLimits(TABLE, ALLOWANCE))
    with pytest.raises(LimitsDown, match="^the table of limits did not answer: EndpointConnectionError$"):
        first()
    for way in others:
        with pytest.raises(LimitsDown, match="failed a moment ago"):
            way()


def test_no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the SDK nothing is counted."""
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    for way in ways(DynamoLimits(TABLE, ALLOWANCE)):
        with pytest.raises(LimitsDown, match="^boto3 is not installed here$"):
            way()


@pytest.mark.parametrize("arrival", [{"S": "soon"}, {"N": "2.5"}, {"BOOL": True}, None])
def test_bucket_that_somebody_else_has_written(table: Table, arrival: dict[str, Any] | None) -> None:
    """A bucket that holds anything else than this edge writes is told."""
    item = {} if arrival is None else {"arrival": arrival}
    with Stubber(table.client) as stub:
        stub.add_client_error("update_item", FAILED, modeled_fields={"Item": item})
        with pytest.raises(LimitsDown, match="an item without a whole number as arrival$"):
            limits_in(table).admit("a", FAR)


def test_run_that_somebody_else_has_written(table: Table) -> None:
    """A reservation without its day gives nothing back."""
    table.put("run#1", reserved={"N": "300000"})
    with pytest.raises(LimitsDown, match="as day_number$"):
        limits_in(table).settle("1", 0, FAR)


def test_what_is_counted_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that fails in between may have counted, and is not made again: a sum would be added twice."""
    requests: list[str] = []

    class Failing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.headers["X-Amz-Target"].partition(".")[2])
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError"}'
            self.send_response(500)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            aws_environment(monkeypatch, AWS_ENDPOINT_URL_DYNAMODB=f"http://127.0.0.1:{server.server_port}")
            monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
            for way in ways(DynamoLimits(TABLE, ALLOWANCE)):
                with pytest.raises(LimitsDown, match="refused: InternalServerError$"):
                    way()
        finally:
            server.shutdown()
            thread.join()
    assert requests == ["UpdateItem"] * 5


@pytest.mark.parametrize(("calls", "asks"), [(0.9, 0), (1.1, 1)])
def test_no_time_left(table: Table, calls: float, asks: int) -> None:
    """A call that might outlast the caller's time is not made, nor is the first of some that belong together."""
    limits = limits_in(table)
    limits.reserve("1", 300, FAR)
    table.asked()
    by = Deadline.after(calls * longest(1))
    for way in ways(limits, by)[1:4]:
        with pytest.raises(LimitsDown, match="^no time was left to ask the table of limits$"):
            way()
    assert table.asked() == []
    if asks:
        assert limits.admit("a", by) == 0
    else:
        with pytest.raises(LimitsDown, match="^no time was left to ask the table of limits$"):
            limits.admit("a", by)
    assert len(table.asked()) == asks
    assert charged_in_table(table, TODAY) == 300_000


def test_time_runs_out_between_two_calls(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reservation that ends half-way leaves the day charged, not the run free of charge."""
    limits = limits_in(table)
    left = iter([3 * longest(1), 0.0])
    monkeypatch.setattr(Deadline, "remaining", lambda _: next(left))
    with pytest.raises(LimitsDown, match="no time was left"):
        limits.reserve("1", 300, FAR)
    assert charged_in_table(table, TODAY) == 300_000
    assert table.item("run#1") == {}
