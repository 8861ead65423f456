"""Limits as a caller of `POST /run` meets them: whole requests through the handler, to a tower on loopback."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from websockets.sync.server import ServerConnection

from edge.deadline import Deadline
from edge.limits import DAY_S, Allowance, LocalLimits
from edge.limits_dynamodb import DynamoLimits
from edge.quota import SPENT
from tests.edge.fake_tower import (
    CAPABILITY,
    FakeTower,
    Script,
    accepted,
    closed_port,
    failed,
    honest,
    progress,
    result,
    say,
    says_nothing,
)
from tests.edge.limits_bench import TABLE, Clock, Table, charged_in_file, charged_in_table
from tests.edge.limits_crowd import NOON, TODAY
from tests.edge.support import PROMPT, WAIT_S, Client, assert_problem, assert_roadmap, client
from tests.edge.test_signing import aws_environment
from tests.edge.test_signing import closed_port as closed_port_number

ASYNC = {"prefer": "respond-async"}
DEADLINE_MS = 300_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all limits."""
    clock = Clock()
    for kind in (LocalLimits, DynamoLimits):
        monkeypatch.setattr(
            kind.__init__, "__kwdefaults__", {**(kind.__init__.__kwdefaults__ or {}), "clock": clock}
        )
    return clock


@pytest.fixture
def file(tmp_path: Path, clock: Clock) -> Path:
    """A database to count in."""
    return tmp_path / "limits.sqlite"


def budget(url: str, file: Path, seconds: str = "1000", **changes: str) -> Client:
    """A client of an edge that has so many GPU seconds a day."""
    return client(url, limits_file=str(file), gpu_seconds_per_day=seconds, **changes)


def charged(file: Path) -> int:
    """The milliseconds that today is charged."""
    return charged_in_file(file, TODAY)


def _ends(**last: Any) -> Script:
    """A tower that takes runs and ends them so, at once."""

    def script(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        say(connection, accepted(frame), {**result(frame), **last})

    return script


def _fails(code: str, **more: Any) -> Script:
    """A tower that fails whatever it is asked."""
    return lambda _, connection, frame: say(connection, failed(frame, code, **more))


def _ends_later(**last: Any) -> Script:
    """A tower that is at it when a run is asked for, and done when it is asked about."""

    def script(tower: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] == "run":
            tower.runs[frame["run_id"]] = {**result(frame), **last}
            say(connection, accepted(frame), progress(frame))
            return
        say(connection, tower.runs[frame["run_id"]])

    return script


# A caller's runs


def test_callers_are_refused_when_they_have_started_enough(file: Path, clock: Clock) -> None:
    """After its burst a caller gets 429 and when to come back; the tower hears nothing of it, and others are served."""
    with FakeTower() as tower:
        edge = client(tower.url, limits_file=str(file), runs_per_minute="6", run_burst="2")
        assert [edge.run().status for _ in range(2)] == [200, 200]
        clock.now += 0.5
        refused = edge.run()
        assert "prompt_salt" not in refused.text
        assert "wait as long as Retry-After says" in assert_problem(refused, 429)
        assert refused.headers["Retry-After"] == "10"
        assert len(tower.requests) == len(tower.frames) == 2
        assert edge.post({"prompt": PROMPT}, source_ip="2001:db8::1").status == 200
        clock.now += 9.5
        assert edge.run().status == 200
        assert edge.run().status == 429


def test_what_is_no_run_is_not_counted(file: Path) -> None:
    """Requests that are refused for their form, and questions about runs, cost no run."""
    with FakeTower() as tower:
        edge = client(tower.url, limits_file=str(file), runs_per_minute="6", run_burst="1")
        for _ in range(3):
            assert edge.run(k=0).status == 422
            assert edge.get("/curve").status == 200
        run_id = edge.run().payload["run_id"]
        for _ in range(3):
            assert edge.get(f"/runs/{run_id}").status == 200
            assert edge.delete(f"/runs/{run_id}").status == 200
        assert edge.run().status == 429


def test_repeats_count(file: Path) -> None:
    """A run that is asked for again with its key takes a connection of the tower, so it counts."""
    with FakeTower() as tower:
        edge = client(tower.url, limits_file=str(file), runs_per_minute="6", run_burst="2")
        key = {"idempotency-key": "one"}
        assert [edge.run(key).status for _ in range(3)] == [200, 200, 429]


# The day's GPU time


def test_budget_that_is_spent(file: Path, clock: Clock) -> None:
    """It gives an honest receipt with 200 and the time until midnight; the tower gets no run. Then runs go on."""
    clock.now = NOON + 0.5
    with FakeTower() as tower:
        edge = budget(tower.url, file, "599")
        assert edge.run().payload["measured"] == "MEASURED"
        reply = edge.run()
        payload = assert_roadmap(reply, "BUDGET_SPENT")
        assert reply.status == 200
        assert payload["roadmap"]["reason"] == SPENT
        assert reply.headers["Retry-After"] == str(DAY_S // 2)
        assert payload["run_id"] != tower.frames[0]["run_id"]
        assert_roadmap(edge.run(), "BUDGET_SPENT")
        # It is asked once after the first, and has not told how long that took.
        assert [frame["type"] for frame in tower.frames[:2]] == ["run", "status"]
        assert len(tower.frames) == 2
        clock.now = NOON + DAY_S // 2
        assert edge.run().payload["measured"] == "MEASURED"


def test_repeat_costs_nothing(file: Path) -> None:
    """A run that is asked for again is answered with its result, though the budget is spent meanwhile."""
    with FakeTower() as tower:
        edge = budget(tower.url, file, "300")
        key = {"idempotency-key": "one"}
        first = edge.run(key).payload
        assert_roadmap(edge.run(), "BUDGET_SPENT")
        again = edge.run(key).payload
    assert (again["measured"], again["run_id"]) == ("MEASURED", first["run_id"])
    assert charged(file) == DEADLINE_MS


def test_repeat_is_not_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is asked for again with its key is waited for a moment only, whatever the caller would wait."""
    monkeypatch.setattr("edge.conversation.REPEAT_S", 0.2)
    with FakeTower(lambda _, connection, frame: say(connection, accepted(frame))) as tower:
        edge = budget(tower.url, file)
        key = {"idempotency-key": "one"}
        first = edge.run({**key, **ASYNC})
        again = edge.run(key)
    assert [first.status, again.status] == [202, 202]
    assert again.payload["run_id"] == first.payload["run_id"]
    assert 0.2 <= again.seconds < WAIT_S / 2


@pytest.mark.parametrize("busy_s", [12.3456, 0.0, 0])
def test_result_gives_back_what_was_not_used(file: Path, busy_s: float) -> None:
    """A run is charged what its worker was busy, once the tower has said so."""
    with FakeTower(_ends(busy_s=busy_s)) as tower:
        assert budget(tower.url, file).run().payload["measured"] == "MEASURED"
    assert charged(file) == round(1000 * busy_s)


@pytest.mark.parametrize("last", [{}, {"busy_s": 300.5}, {"busy_s": 999_999.0}])
def test_tower_that_tells_too_much_or_nothing(file: Path, last: dict[str, Any]) -> None:
    """Without `busy_s`, or with more than a run can take, it is charged its deadline; its result stands."""
    with FakeTower(_ends(**last)) as tower:
        assert budget(tower.url, file).run().payload["measured"] == "MEASURED"
    assert charged(file) == DEADLINE_MS


@pytest.mark.parametrize("busy_s", [-1.0, 1e6, "12", True])
def test_tower_that_tells_nonsense(file: Path, busy_s: Any) -> None:
    """A `busy_s` that is none breaks the protocol, and gives nothing back."""
    with FakeTower(_ends(busy_s=busy_s)) as tower:
        assert_roadmap(budget(tower.url, file).run(), "REPLY_REFUSED")
    assert charged(file) == DEADLINE_MS


def test_busy_seconds_are_in_no_receipt(file: Path) -> None:
    """What is charged is the operator's affair: nobody has signed it, and no check has seen it."""
    with FakeTower(_ends(busy_s=12.3456)) as tower:
        assert "busy_s" not in budget(tower.url, file).run().text


@pytest.mark.parametrize("ask", [Client.get, Client.delete])
def test_later_answer_settles(file: Path, ask: Callable[[Client, str], Any]) -> None:
    """A run that was under way is charged its deadline until somebody learns of its end; that counts once."""
    with FakeTower(_ends_later(busy_s=20.0)) as tower:
        edge = budget(tower.url, file)
        reply = edge.run(ASYNC)
        assert reply.status == 202
        assert charged(file) == DEADLINE_MS
        for _ in range(2):
            assert ask(edge, f"/runs/{reply.payload['run_id']}").status == 200
            assert charged(file) == 20_000


@pytest.mark.parametrize(
    ("busy_s", "left"), [({}, DEADLINE_MS), ({"busy_s": 0.0}, 0), ({"busy_s": 4.5}, 4_500)]
)
def test_cancelled_run(file: Path, busy_s: dict[str, Any], left: int) -> None:
    """A run that is cancelled is charged what it took, nothing if it was still waiting."""

    def script(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] == "run":
            say(connection, accepted(frame, position=1))
        else:
            say(connection, failed(frame, "CANCELLED", **busy_s))

    with FakeTower(script) as tower:
        edge = budget(tower.url, file)
        reply = edge.run(ASYNC)
        assert_roadmap(edge.delete(f"/runs/{reply.payload['run_id']}"), "CANCELLED")
    assert charged(file) == left


@pytest.mark.parametrize("code", ["BUSY", "NO_PAIR", "GPU_BUSY", "BAD_MESSAGE", "EXPIRED"])
def test_run_that_was_not_taken(file: Path, code: str) -> None:
    """It costs nothing, and with its key it can be asked for again."""
    key = {"idempotency-key": "one"}
    with FakeTower(_fails(code)) as tower:
        edge = budget(tower.url, file, "300")
        for _ in range(2):
            assert_roadmap(edge.run(key), code)
            assert charged(file) == 0
        tower.script = _ends()
        assert edge.run(key).payload["measured"] == "MEASURED"
    assert charged(file) == DEADLINE_MS


@pytest.mark.parametrize("code", ["CONFLICT", "BAD_REQUEST"])
def test_request_at_fault(file: Path, code: str) -> None:
    """A request that the tower refuses costs nothing."""
    with FakeTower(_fails(code)) as tower:
        assert budget(tower.url, file).run().status == 422
    assert charged(file) == 0


@pytest.mark.parametrize("code", ["WORKER_DIED", "DEADLINE", "INTERNAL"])
def test_run_that_failed(file: Path, code: str) -> None:
    """It is charged what the tower says that it took, else its deadline."""
    with FakeTower(_fails(code)) as tower:
        edge = budget(tower.url, file)
        assert_roadmap(edge.run(), code)
        assert charged(file) == DEADLINE_MS
        tower.script = _fails(code, busy_s=7.0)
        assert_roadmap(edge.run(), code)
        assert charged(file) == DEADLINE_MS + 7_000


def test_run_that_expired_unasked_stays_charged(file: Path) -> None:
    """Nobody gets GPU time for nothing by asking for a run again after the tower has forgotten its result."""
    key = {"idempotency-key": "one"}
    with FakeTower(_ends_later(busy_s=250.0)) as tower:
        edge = budget(tower.url, file)
        assert edge.run({**ASYNC, **key}).status == 202
        tower.script = _fails("EXPIRED")
        assert_roadmap(edge.run(key), "EXPIRED")
    assert charged(file) == DEADLINE_MS


def test_tower_that_is_down_costs_nothing(file: Path) -> None:
    """Nothing is reserved before there is a connection, and what an earlier request has reserved is not given back."""
    key = {"idempotency-key": "one"}
    assert_roadmap(budget(closed_port(), file).run(key), "TOWER_UNREACHABLE")
    assert not file.exists()
    with FakeTower(_ends_later(busy_s=1.0)) as tower:
        assert budget(tower.url, file).run({**ASYNC, **key}).status == 202
    assert_roadmap(budget(closed_port(), file).run(key), "TOWER_UNREACHABLE")
    assert charged(file) == DEADLINE_MS


def _hangs_up(_: FakeTower, connection: ServerConnection, __: dict[str, Any]) -> None:
    connection.close()


def test_tower_that_hangs_up_may_have_the_run(file: Path) -> None:
    """A run that was sent is charged, whatever became of the answer; its repeat settles it."""
    key = {"idempotency-key": "one"}
    with FakeTower(_hangs_up) as tower:
        edge = budget(tower.url, file)
        assert_roadmap(edge.run(key), "TOWER_CLOSED")
        assert charged(file) == DEADLINE_MS
        tower.script = _ends(busy_s=3.0)
        assert edge.run(key).payload["measured"] == "MEASURED"
    assert charged(file) == 3_000


@pytest.mark.parametrize("again", [False, True])
def test_connection_that_is_lost_before_the_run_is_sent(
    file: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """What was reserved for a run that was not sent is given back, unless an earlier request has sent it."""
    from edge.faults import FaultKind, TowerFault
    from edge.session import TowerSession

    key = {"idempotency-key": "one"}

    def send(*_: Any) -> None:
        assert charged(file) == DEADLINE_MS
        raise TowerFault(FaultKind.CLOSED, "the tower closed the connection")

    with FakeTower(_ends_later()) as tower:
        edge = budget(tower.url, file)
        if again:
            assert edge.run({**ASYNC, **key}).status == 202
        with monkeypatch.context() as patch:
            patch.setattr(TowerSession, "send", send)
            assert_roadmap(edge.run(key), "TOWER_CLOSED")
    assert charged(file) == (DEADLINE_MS if again else 0)


def test_deadline_is_what_is_reserved_and_sent(file: Path) -> None:
    """The tower ends a run after the time that the budget was charged for it."""
    with FakeTower(_ends()) as tower:
        budget(tower.url, file, run_deadline_s="45.5").run()
    assert tower.frames[0]["deadline_s"] == 45.5
    assert charged(file) == 45_500


# Runs that nobody asks after


class Ends:
    """A tower that is at it when a run is asked for, and says how it ended when asked after it, on any connection.

    Attributes:
        told: What it tells of a run, by the order in which they came; None while it is under way.
        runs: The ids of the runs it was sent.
        asked: The ids of the runs it was asked after.
    """

    def __init__(self, *told: dict[str, Any] | None) -> None:
        """Say what to tell; of further runs that they are under way."""
        self.told = list(told)
        self.runs: list[str] = []
        self.asked: list[str] = []

    def __call__(self, _: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        """Answer every frame of a connection."""
        while True:
            if frame["type"] == "run":
                self.runs.append(frame["run_id"])
                say(connection, accepted(frame), progress(frame))
            else:
                self.asked.append(frame["run_id"])
                say(connection, self.end(frame) or progress(frame))
            frame = json.loads(connection.recv())

    def end(self, frame: dict[str, Any]) -> dict[str, Any] | None:
        """What it tells of a run."""
        number = self.runs.index(frame["run_id"])
        last = self.told[number] if number < len(self.told) else None
        return None if last is None else {**failed(frame, "CANCELLED"), **last}


@dataclass
class Place:
    """Where runs are counted: settings that say so, and what today is charged."""

    settings: dict[str, str]
    charged: Callable[[], int]


@pytest.fixture(params=["file", "table"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A database, and a table."""
    if request.param == "file":
        file = tmp_path / "limits.sqlite"
        yield Place({"limits_file": str(file)}, lambda: charged(file))
        return
    aws_environment(monkeypatch)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with mock_aws():
        table = Table()
        yield Place({"limits_table": TABLE}, lambda: charged_in_table(table, TODAY))


def leave_alone(edge: Client, count: int) -> None:
    """Start runs and never ask after them."""
    assert [edge.run(ASYNC).status for _ in range(count)] == [202] * count


def test_runs_left_alone_do_not_drain_the_day(place: Place) -> None:
    """A budget that tiny runs have reserved is there for the next one, less what they used, whoever counted them."""
    tower = Ends({"busy_s": 0.25}, {"busy_s": 0.0}, {"busy_s": 12.3456})
    with FakeTower(tower) as server:
        one, other = (client(server.url, gpu_seconds_per_day="900", **place.settings) for _ in range(2))
        leave_alone(one, 3)
        assert place.charged() == 3 * DEADLINE_MS
        assert other.run(ASYNC).status == 202
        assert len(server.requests) == 4  # on the connection that is open already
    assert sorted(tower.asked) == sorted(tower.runs[:3])
    assert place.charged() == DEADLINE_MS + 250 + 12_346


def test_flood(place: Place) -> None:
    """Far more runs than the day has room for go on, as long as what they use is within it."""
    tower = Ends(*[{"busy_s": 0.5}] * 40)
    with FakeTower(tower) as server:
        edge = client(server.url, gpu_seconds_per_day="120", run_deadline_s="10", **place.settings)
        leave_alone(edge, 30)
        assert 30 * 500 < place.charged() <= 120_000
    # Eight at a time, and none twice: each time the budget was spent there were eight that had ended.
    assert (len(tower.asked), len(set(tower.asked))) == (24, 24)


def test_runs_that_are_under_way_keep_what_they_have(place: Place) -> None:
    """While the tower is at them, or does not tell what they took, there is nothing for another."""
    tower = Ends(None, {"code": "EXPIRED"}, {"code": "CONFLICT"})
    with FakeTower(tower) as server:
        edge = client(server.url, gpu_seconds_per_day="901", **place.settings)
        leave_alone(edge, 3)
        for _ in range(2):
            reply = edge.run(ASYNC)
            assert assert_roadmap(reply, "BUDGET_SPENT")["roadmap"]["reason"] == SPENT
            assert reply.headers["Retry-After"] == str(DAY_S // 2)
        assert place.charged() == 3 * DEADLINE_MS
        first, *others = tower.runs
        assert sorted(tower.asked) == sorted([first, first, *others])  # those only once
        tower.told[0] = {"busy_s": 1.0}
        assert edge.run(ASYNC).status == 202
    assert place.charged() == 3 * DEADLINE_MS + 1_000


def test_run_is_settled_once_though_its_caller_asks_meanwhile(file: Path, clock: Clock) -> None:
    """What its caller's question has given back is not given back again."""

    class Meanwhile(Ends):
        def end(self, frame: dict[str, Any]) -> dict[str, Any] | None:
            limits = LocalLimits(Allowance(gpu_seconds_per_day=900), file, clock=clock)
            assert limits.settle(self.runs[0], 50.0, Deadline.after(60))
            return super().end(frame)

    with FakeTower(Meanwhile({"busy_s": 0.0})) as tower:
        edge = budget(tower.url, file, "300")
        leave_alone(edge, 1)
        assert_roadmap(edge.run(ASYNC), "BUDGET_SPENT")
    assert charged(file) == 50_000


def _says_of_another(tower: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
    other = {**frame, "run_id": tower.frames[0]["run_id"][::-1]}
    say(connection, failed(other, "CANCELLED", busy_s=0.0))


def _says(text: str) -> Script:
    return lambda _, connection, __: connection.send(text)


@pytest.mark.parametrize(
    "script",
    [
        says_nothing,
        _hangs_up,
        _says_of_another,
        _says("not JSON"),
        _says('{"type": "capability"}'),
        _says(json.dumps(CAPABILITY)),
        _says("x" * 300_000),
        lambda _, connection, __: connection.send(b"binary"),
        _fails("CANCELLED", busy_s=-1.0),
        _fails("CANCELLED", busy_s="0"),
        _fails("CANCELLED", busy_s=1e9),
        _fails("NONSENSE", busy_s=0.0),
        _fails("INTERNAL"),
    ],
)
def test_tower_that_does_not_tell(file: Path, monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    """A silent, lying or broken tower gives nothing back, and the caller gets the same receipt."""
    monkeypatch.setattr("edge.reclaim.TOWER_S", 0.3)
    with FakeTower(Ends()) as tower:
        edge = budget(tower.url, file, "300")
        leave_alone(edge, 1)
        tower.script = script
        for _ in range(2):
            reply = edge.run(ASYNC)
            assert reply.status == 200
            assert assert_roadmap(reply, "BUDGET_SPENT")["roadmap"]["reason"] == SPENT
    assert charged(file) == DEADLINE_MS


# A table


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Table]:
    """A table of limits, as the handler's own client finds it."""
    aws_environment(monkeypatch)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with mock_aws():
        yield Table()


def test_limits_in_a_table(table: Table) -> None:
    """Two instances of the edge count together in a table, and both limits hold."""
    allowed = {"runs_per_minute": "6", "run_burst": "3", "gpu_seconds_per_day": "320"}
    with FakeTower(_ends(busy_s=15.0)) as tower:
        one, other = (client(tower.url, limits_table=TABLE, **allowed) for _ in range(2))
        assert [edge.run().payload["measured"] for edge in (one, other)] == ["MEASURED"] * 2
        assert charged_in_table(table, TODAY) == 30_000
        assert_roadmap(one.run(), "BUDGET_SPENT")
        assert other.run().status == 429
        assert [frame["type"] for frame in tower.frames] == ["run", "run"]
    keys = [item["key"]["S"] for item in table.outside.scan(TableName=TABLE)["Items"]]
    assert "192.0.2.1" not in str(keys)
    assert sorted(key.partition("#")[0] for key in keys) == ["caller", "day", "run", "run"]


# Nothing can be counted


@pytest.mark.parametrize("spoilt", ["locked", "damaged", "folder missing", "folder instead", "table"])
def test_runs_go_on_when_nothing_can_be_counted(
    spoilt: str, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of the counts, runs are answered, and this process alone holds to the limits."""
    aws_environment(monkeypatch, AWS_ENDPOINT_URL_DYNAMODB=f"http://127.0.0.1:{closed_port_number()}")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    file = tmp_path / "limits.sqlite"
    place = {"limits_table": TABLE} if spoilt == "table" else {"limits_file": str(file)}
    monkeypatch.setattr("edge.limits.LOCK_S", 0.01)
    other: sqlite3.Connection | None = None
    with FakeTower(_ends(busy_s=350.0)) as tower:
        allowed = {"runs_per_minute": "6", "run_burst": "4", "gpu_seconds_per_day": "600"}
        match spoilt:
            case "damaged":
                file.write_bytes(b"no database" * 1000)
            case "folder missing":
                place = {"limits_file": str(tmp_path / "missing" / "limits.sqlite")}
            case "locked":
                other = sqlite3.connect(file, isolation_level=None)
                other.execute("BEGIN EXCLUSIVE")
            case "folder instead":
                file.mkdir()
        edge = client(tower.url, **place, **allowed)
        replies = [edge.run() for _ in range(5)]
    if other is not None:
        with closing(other):
            other.execute("ROLLBACK")
    assert [reply.status for reply in replies] == [200, 200, 200, 200, 429]
    codes = [reply.payload.get("roadmap", {}).get("code") for reply in replies[:4]]
    assert codes == [None, None, "BUDGET_SPENT", "BUDGET_SPENT"]


def test_no_limits_no_database(tmp_path: Path) -> None:
    """An edge without limits counts nothing."""
    file = tmp_path / "limits.sqlite"
    with FakeTower(honest) as tower:
        edge = client(tower.url, limits_file=str(file))
        assert [edge.run().status for _ in range(30)] == [200] * 30
    assert not file.exists()
