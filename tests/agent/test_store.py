"""Tests of agent.store."""

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import StoreError
from agent.store import FILE_NAME, TOMBSTONE_S, Record, State, Store

RECORD = Record(
    id="a", digest="b", run_id="a.b.c", nonce="n", request="{}", state=State.QUEUED, created_at=100.0
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with closing(Store(tmp_path / "state")) as store:
        yield store


def test_unknown_id(store: Store) -> None:
    """An ID that was never added has no row."""
    assert store.get("a") is None


def test_life_of_a_row(store: Store) -> None:
    """A row is found again in every state it goes through."""
    store.add(RECORD)
    assert store.get("a") == RECORD
    store.start("a")
    assert store.get("a") == replace(RECORD, state=State.RUNNING)
    store.finish("a", State.FINISHED, "{1}", 110.0, 200.0)
    assert store.get("a") == replace(
        RECORD, state=State.FINISHED, frame="{1}", ended_at=110.0, expires_at=200.0
    )


def test_check_writes(store: Store, tmp_path: Path) -> None:
    """Seeing that it can be written takes a real write, and changes nothing."""
    store.add(RECORD)
    log = next(tmp_path.rglob("*-wal"))
    before = log.stat().st_size
    store.check()
    assert log.stat().st_size > before
    assert store.get(RECORD.id) == RECORD


def test_same_id_twice(store: Store) -> None:
    """An ID cannot be added a second time."""
    store.add(RECORD)
    with pytest.raises(StoreError, match="cannot take a run"):
        store.add(replace(RECORD, digest="other"))


def test_errors_name_no_path(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong while the agent serves may reach anyone: path and SQLite's own words are in the log only."""
    store.close()
    calls = (
        lambda: store.add(RECORD),
        lambda: store.get("a"),
        lambda: store.start("a"),
        lambda: store.finish("a", State.FAILED, "{}", 1.0, 2.0),
        lambda: store.mark_lost(1.0, 2.0),
        lambda: store.purge(1.0),
    )
    for call in calls:
        with pytest.raises(StoreError) as caught:
            call()
        assert str(tmp_path) not in str(caught.value) and "closed database" not in str(caught.value)
    logged = [getattr(record, "data", {}) for record in caplog.records]
    assert [str(tmp_path) in str(data["path"]) for data in logged] == [True] * len(calls)
    assert all("closed database" in data["error"] for data in logged)


def test_purge(store: Store) -> None:
    """An expired row loses its content at once and its ID a good while later, others lose nothing."""
    store.add(RECORD)
    store.add(replace(RECORD, id="later"))
    store.finish("a", State.FINISHED, "{1}", 110.0, 200.0)
    store.finish("later", State.FINISHED, "{2}", 110.0, 1e9)
    store.purge(199.0)
    assert (row := store.get("a")) is not None and row.frame == "{1}"
    store.purge(200.0)
    assert (row := store.get("a")) is not None
    assert (row.state, row.frame, row.request, row.nonce) == (State.EXPIRED, None, "", "")
    store.purge(200.0 + TOMBSTONE_S)
    assert store.get("a") is None
    assert (row := store.get("later")) is not None and row.frame == "{2}"


@pytest.mark.parametrize(
    ("frame", "kept"),
    [
        ('{"busy_s": 12.346, "detail": "x"}', "12.346"),
        ('{"busy_s": 0.0}', "0.0"),
        ('{"busy_s": null}', None),
        ('{"detail": "of an agent that did not tell"}', None),
        ("damaged", None),
    ],
)
def test_purge_keeps_how_long_a_run_was_busy(store: Store, frame: str, kept: str | None) -> None:
    """Of the last frame that number alone is left, however often rows are purged, until the ID is forgotten."""
    store.add(RECORD)
    store.finish("a", State.FINISHED, frame, 110.0, 200.0)
    for now in (200.0, 201.0):
        store.purge(now)
        assert (row := store.get("a")) is not None
        assert (row.state, row.frame, row.request, row.nonce) == (State.EXPIRED, kept, "", "")
    store.purge(200.0 + TOMBSTONE_S)
    assert store.get("a") is None


def test_mark_lost(store: Store) -> None:
    """Runs that had not ended become lost, those that had do not."""
    for run_key in ("waiting", "going", "done"):
        store.add(replace(RECORD, id=run_key))
    store.start("going")
    store.finish("done", State.FAILED, "{}", 110.0, 200.0)
    assert store.mark_lost(120.0, 220.0) == 2
    states = {run_key: row.state for run_key in ("waiting", "going", "done") if (row := store.get(run_key))}
    assert states == {"waiting": State.LOST, "going": State.LOST, "done": State.FAILED}


def test_survives_without_close(tmp_path: Path) -> None:
    """What was added is on disk before the store is closed."""
    with closing(Store(tmp_path)) as store:
        store.add(RECORD)
        copy = tmp_path / "copy"
        copy.mkdir()
        for file in tmp_path.glob(f"{FILE_NAME}*"):
            (copy / file.name).write_bytes(file.read_bytes())
        with closing(Store(copy)) as other:
            assert other.get("a") == RECORD


def test_private(store: Store, tmp_path: Path) -> None:
    """The state directory is for its owner only."""
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_second_agent(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that another agent has open is refused with one clear line."""
    monkeypatch.setattr("agent.store.LOCK_TIMEOUT_S", 0.05)
    with pytest.raises(StoreError, match=r"cannot be used \(database is locked\); .*--state"):
        Store(tmp_path / "state")


def test_not_a_database(tmp_path: Path) -> None:
    """A damaged file is refused with one clear line."""
    (tmp_path / FILE_NAME).write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store(tmp_path)


def test_not_a_directory(tmp_path: Path) -> None:
    """A state directory that cannot be made is refused with one clear line."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path / "file" / "state")


def test_newer_version(tmp_path: Path) -> None:
    """A file of a later version of the agent is left alone."""
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.execute("PRAGMA user_version = 2")
    with pytest.raises(StoreError, match="has version 2"):
        Store(tmp_path)
