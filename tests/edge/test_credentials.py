"""The tower's token: from the environment, or from Secrets Manager."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from edge.credentials import FixedToken, SecretToken, token_source
from tests.edge.fake_tower import FakeTower
from tests.edge.support import TOKEN, assert_roadmap, client, settings

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


def test_fixed_token_comes_before_a_secret() -> None:
    """With both given, no AWS call is made."""
    assert isinstance(token_source(settings(tower_token_secret=SECRET_ID)), FixedToken)


def test_secret_is_read_when_the_instance_starts(secret: str) -> None:
    """Health and runs use the token that was fetched once."""
    with FakeTower() as tower:
        edge = client(tower.url, tower_token="", tower_token_secret=secret)
        assert edge.get("/health").json["tower_reachable"] is True
        assert edge.run().payload["measured"] == "MEASURED"


def test_rotated_token_is_fetched_once_more_by_a_run(secret: str) -> None:
    """After 401 a run fetches the token again and goes through; health makes no AWS call."""
    with FakeTower() as tower:
        edge = client(tower.url, tower_token="", tower_token_secret=secret)
        tower.token = "rotated"
        _rotate("rotated")
        assert edge.get("/health").json["tower_reachable"] is False
        assert edge.run().payload["measured"] == "MEASURED"


def test_token_that_stays_wrong_is_tried_once(secret: str) -> None:
    """A secret that has not changed is no reason to try again."""
    with FakeTower(token="another") as tower:
        edge = client(tower.url, tower_token="", tower_token_secret=secret)
        assert_roadmap(edge.run(), "TOWER_REFUSED")


def test_missing_secret_does_not_stop_the_edge(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    """An edge that cannot read its secret still serves; the log names the kind of error."""
    source = SecretToken(f"{secret}-which-is-not-there")
    assert source.renew() is False
    assert source.current() is None
    assert "tower token not fetched: GetParameterError" in caplog.text


def test_binary_or_empty_secret_is_no_token(secret: str) -> None:
    """What is not text is not used as a token."""
    source = SecretToken(secret)
    assert source.renew() is True
    boto3.client("secretsmanager").put_secret_value(SecretId=SECRET_ID, SecretBinary=b"\xff")
    assert source.renew() is False
    _rotate("two words")
    assert source.renew() is False
    assert source.current() == TOKEN


def test_edge_outside_aws_says_that_it_has_no_token(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a region there is no Secrets Manager to ask; that is logged, not raised."""
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert SecretToken(SECRET_ID).renew() is False
    assert "NoRegionError" in caplog.text
