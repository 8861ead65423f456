"""The tower's token: from the environment, or from Secrets Manager."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from edge import health
from edge.credentials import FixedToken, SecretToken, token_source
from edge.deadline import NEVER, Deadline
from edge.tower import Tower
from shared.wire import ProbeFrame
from tests.edge.fake_tower import FakeTower
from tests.edge.support import SCALE, TOKEN, assert_roadmap, client, settings

SECRET_ID = "specdec/tower-token"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A secret that holds the right token."""
    for name, value in {
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        boto3.client("secretsmanager").create_secret(Name=SECRET_ID, SecretString=f"{TOKEN}\n")
        yield SECRET_ID


def _rotate(token: str) -> None:
    boto3.client("secretsmanager").put_secret_value(SecretId=SECRET_ID, SecretString=token)


def test_fixed_token_is_given_as_it_is() -> None:
    """A token in the environment never changes."""
    source = token_source(settings())
    assert isinstance(source, FixedToken)
    assert source.current() == TOKEN
    assert source.renew() is False


def test_no_token_is_none() -> None:
    """A loopback tower may need no token."""
    assert token_source(settings(tower_token="")).current() is None


def test_secret_is_read_by_the_first_run(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Health says that it has no token yet; a run fetches it, and from then on health has it too."""
    monkeypatch.setattr(health, "KEEP_S", 0.0)
    with FakeTower() as tower:
        edge = client(tower.url, tower_token="", tower_token_secret=secret)
        before = edge.get("/health").json
        assert tower.frames == []
        assert edge.run().payload["measured"] == "MEASURED"
        after = edge.get("/health").json
    assert before["tower_reachable"] is False
    assert "has not fetched the tower's token yet" in before["same_family_pair"]["reason"]
    assert after["tower_reachable"] is True


def test_secret_is_read_by_a_run_route(secret: str) -> None:
    """Asking after a run fetches the token as well."""
    with FakeTower() as tower:
        run_id = client(tower.url).run().payload["run_id"]
        edge = client(tower.url, tower_token="", tower_token_secret=secret)
        assert edge.get(f"/runs/{run_id}").payload["measured"] == "MEASURED"


@pytest.mark.parametrize("fetched", [False, True], ids=["given at deployment", "fetched"])
def test_rotated_token_is_fetched_once_more_by_a_run(secret: str, fetched: bool) -> None:
    """After 401 a run fetches the token again and goes through; health makes no AWS call."""
    with FakeTower() as tower:
        edge = client(tower.url, tower_token="" if fetched else TOKEN, tower_token_secret=secret)
        assert edge.run().payload["measured"] == "MEASURED"
        tower.token = "rotated"
        _rotate("rotated")
        assert edge.get("/health").json["same_family_pair"]["reason"] == "the tower refused the edge's token"
        assert edge.run().payload["measured"] == "MEASURED"


def test_token_that_stays_wrong_is_tried_once(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token fetched for this very run, or a secret that has not changed, is no reason to try again."""
    fetches: list[bool] = []
    renew = SecretToken.renew

    def counted(source: SecretToken, by: Deadline = NEVER) -> bool:
        fetches.append(renew(source, by))
        return fetches[-1]

    monkeypatch.setattr(SecretToken, "renew", counted)
    with FakeTower(token="another") as tower:
        edge = client(tower.url, tower_token="", tower_token_secret=secret)
        assert_roadmap(edge.run(), "TOWER_REFUSED")
        assert_roadmap(edge.run(), "TOWER_REFUSED")
    assert fetches == [True, False]


def test_missing_secret_does_not_stop_the_edge(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    """An edge that cannot read its secret still serves; the log names AWS's code."""
    source = SecretToken(f"{secret}-which-is-not-there")
    assert source.renew() is False
    assert source.current() is None
    refused = "the service that keeps secrets refused: ResourceNotFoundException"
    assert caplog.messages == [f"tower token not fetched: {refused}"]


def test_binary_or_empty_secret_is_no_token(secret: str) -> None:
    """What is not text is not used as a token."""
    source = SecretToken(secret)
    assert source.renew() is True
    boto3.client("secretsmanager").put_secret_value(SecretId=SECRET_ID, SecretBinary=b"\xff")
    assert source.renew() is False
    _rotate("two words")
    assert source.renew() is False
    assert source.current() == TOKEN


GATE = {"CF-Access-Client-Id": "id", "CF-Access-Client-Secret": "gate-secret"}


def _with_headers(headers: dict[str, str], token: str = TOKEN) -> str:
    return json.dumps({"token": token, "headers": headers}, indent=1)


def test_secret_with_headers(secret: str) -> None:
    """A secret may hold the headers that the gate before the tower asks for; they arrive with the token."""
    _rotate(_with_headers(GATE))
    with FakeTower() as tower:
        tower.wants = GATE
        edge = client(tower.url, tower_token="", tower_token_secret=secret)
        assert edge.run().payload["measured"] == "MEASURED"
        assert tower.requests[-1]["Authorization"] == f"Bearer {TOKEN}"


def test_headers_that_were_changed_are_fetched(secret: str) -> None:
    """After a refusal by the gate a run fetches the secret again, though the token in it is the same."""
    held = _with_headers(GATE)
    _rotate(held)
    with FakeTower() as tower:
        tower.wants = GATE
        # The secret at deployment is what CloudFormation puts into the variable, whole.
        edge = client(tower.url, tower_token=held, tower_token_secret=secret)
        assert edge.run().payload["measured"] == "MEASURED"
        tower.wants = {**GATE, "CF-Access-Client-Secret": "changed"}
        _rotate(_with_headers(tower.wants))
        assert edge.run().payload["measured"] == "MEASURED"


def test_headers_in_the_secret_outrank_those_given(secret: str) -> None:
    """A header of one name is sent once, whatever its case: the secret's."""
    _rotate(_with_headers({"X-Gate": "secret's"}))
    given = json.dumps({"x-gate": "given", "x-more": "more"})
    source = token_source(settings(tower_token="", tower_token_secret=secret, tower_headers=given))
    assert source.headers() == {"x-gate": "given", "x-more": "more"}
    assert source.renew() is True
    assert source.headers() == {"X-Gate": "secret's", "x-more": "more"}


def test_headers_given(secret: str) -> None:
    """Headers may also come from the environment, beside a token or in one variable with it."""
    source = token_source(settings(tower_headers=json.dumps(GATE)))
    assert (source.current(), source.headers()) == (TOKEN, GATE)
    source = token_source(settings(tower_token=_with_headers(GATE)))
    assert (source.current(), source.headers()) == (TOKEN, GATE)


def test_bad_secret_is_not_quoted(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    """A secret that cannot be used is told without what it holds, and what was held stays."""
    source = SecretToken(secret)
    assert source.renew() is True
    _rotate('{"token": "zeppelin", "headers": {"Host": "marmalade"}}')
    assert source.renew() is False and source.current() == TOKEN
    assert "tower token not fetched: the secret must leave Host alone" in caplog.text
    assert "zeppelin" not in caplog.text and "marmalade" not in caplog.text


def test_edge_outside_aws_says_that_it_has_no_token(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a region there is no Secrets Manager to ask; that is logged, not raised."""
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert SecretToken(SECRET_ID).renew() is False
    assert "NoRegionError" in caplog.text


class Slow:
    """A token that is fetched only after the time to connect has passed."""

    def __init__(self, connect_by: Deadline) -> None:
        """Begin with an old token."""
        self._token = "old"
        self._connect_by = connect_by

    def current(self) -> str:
        """Return the token."""
        return self._token

    def headers(self) -> dict[str, str]:
        """Return no headers."""
        return {}

    def pending(self) -> bool:
        """Return False."""
        return False

    def renew(self, by: Deadline = NEVER) -> bool:
        """Take until the connection's time is over, but not all of the invocation's."""
        while self._connect_by.remaining():
            select.select([], [], [], self._connect_by.remaining())
        assert by.remaining()
        self._token = TOKEN
        return True


def test_who_has_waited_for_a_token_has_time_to_connect() -> None:
    """A run that waits for nothing goes through after a rotation, however long the new token took."""
    connect_by = Deadline.after(0.5)
    with FakeTower() as tower:
        session = Tower(tower.url, Slow(connect_by)).session(connect_by, within=Deadline.after(60 * SCALE))
        with session as connection:
            connection.send(ProbeFrame())
        assert len(tower.requests) == 2


def test_service_that_refuses_is_left_alone_for_a_while() -> None:
    """Runs with a token that stays wrong ask for another one every twenty seconds, not each."""
    asked: list[float] = []
    times = iter((0.0, 1.0, 19.9, 20.0, 25.0, 40.1))
    now = [0.0]

    class Manager:
        """Refuses."""

        def get_secret_value(self, **_: str) -> None:
            """Refuse, and keep when."""
            asked.append(now[0])
            raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetSecretValue")

    source = SecretToken(SECRET_ID, client=Manager, clock=lambda: now[0])
    for now[0] in times:
        assert source.renew() is False
    assert asked == [0.0, 20.0, 40.1]
