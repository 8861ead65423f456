"""What the agent remembers of its runs: one SQLite file, never a prompt and never an output.

A row goes through these states::

    queued ── running ──┬── finished ──┐
       │         │      └── failed ────┼── expired ── (deleted)
       └─────────┴──────── lost ───────┘

``lost`` is what a queued or running row becomes when an agent starts and finds it: its run died with the last
agent. ``expired`` is a row whose content is gone and whose ID is still known, so that it is not run again; of its
last frame only ``busy_s`` is left, as its caller's edge may not have asked yet how long the run was decoded.

Calls block until the disk has made a change durable (milliseconds): there are three small ones a run.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agent.errors import StoreError

log = logging.getLogger(__name__)

FILE_NAME = "runs.sqlite3"

TOMBSTONE_S = 7 * 24 * 3600.0
"""How long the ID of an expired run stays known."""

LOCK_TIMEOUT_S = 1.0
"""How long to wait for another process that holds the file."""

_VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    run_id TEXT NOT NULL,
    nonce TEXT NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL,
    frame TEXT,
    created_at REAL NOT NULL,
    ended_at REAL,
    expires_at REAL
) STRICT
"""


class State(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Record:
    """One row: `request` and `frame` are JSON texts, the latter of an expired run a number; times are Unix seconds."""

    id: str
    digest: str
    run_id: str
    nonce: str
    request: str
    state: State
    created_at: float
    frame: str | None = None
    ended_at: float | None = None
    expires_at: float | None = None


class Store:
    """The run table, open for one agent alone until `close`."""

    def __init__(self, directory: Path) -> None:
        """Open or create the table.

        Args:
            directory: The state directory; created, readable by its owner only, if it does not exist.

        Raises:
            StoreError: The file cannot be used: no permission, damaged, or held by another agent.
        """
        self._path = directory / FILE_NAME
        # Only here, where no caller but a person at the terminal is told, may an error name the path.
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as exc:
            raise StoreError(f"the run store {self._path} cannot be opened ({exc})") from exc
        self._db.row_factory = sqlite3.Row
        try:
            self._prepare()
        except sqlite3.Error as exc:
            self._db.close()
            remedy = "stop the agent that uses it, or name another --state" if "locked" in str(exc) else None
            raise StoreError(f"the run store {self._path} cannot be used ({exc})", remedy) from exc
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        # Exclusive from the first write to `close`: a second agent would declare our runs lost.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        # A finished run must survive the loss of the process and of the power.
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN EXCLUSIVE")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise StoreError(f"the run store {self._path} has version {version}, this agent knows {_VERSION}")
        self._db.execute(_SCHEMA)
        self._db.execute(f"PRAGMA user_version = {_VERSION}")
        self._db.execute("COMMIT")

    def add(self, record: Record) -> None:
        """Keep a new row; it is durable when this returns."""
        with self._errors("cannot take a run"):
            self._db.execute(
                "INSERT INTO runs (id, digest, run_id, nonce, request, state, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    record.id,
                    record.digest,
                    record.run_id,
                    record.nonce,
                    record.request,
                    record.state,
                    record.created_at,
                ),
            )

    def get(self, run_key: str) -> Record | None:
        """Return the row of an ID, or None."""
        with self._errors("cannot be read"):
            row = self._db.execute("SELECT * FROM runs WHERE id = ?", (run_key,)).fetchone()
        return None if row is None else Record(**{**dict(row), "state": State(row["state"])})

    def start(self, run_key: str) -> None:
        """Note that a queued run is now being decoded."""
        with self._errors("cannot take a change"):
            self._db.execute("UPDATE runs SET state = ? WHERE id = ?", (State.RUNNING, run_key))

    def finish(self, run_key: str, state: State, frame: str, ended_at: float, expires_at: float) -> None:
        """Keep the last frame of a run; it is durable when this returns."""
        with self._errors("cannot take a result"):
            self._db.execute(
                "UPDATE runs SET state = ?, frame = ?, ended_at = ?, expires_at = ? WHERE id = ?",
                (state, frame, ended_at, expires_at, run_key),
            )

    def mark_lost(self, now: float, expires_at: float) -> int:
        """Turn the runs that died with an earlier agent into lost ones; return how many there were."""
        with self._errors("cannot take a change"):
            return self._db.execute(
                "UPDATE runs SET state = ?, ended_at = ?, expires_at = ? WHERE state IN (?, ?)",
                (State.LOST, now, expires_at, State.QUEUED, State.RUNNING),
            ).rowcount

    def purge(self, now: float) -> None:
        """Empty the rows that have expired, and forget the IDs of those that did so long ago."""
        with self._errors("cannot take a change"):
            self._db.execute(
                "UPDATE runs SET state = ?, request = '', nonce = '',"
                " frame = CASE WHEN json_valid(frame) THEN json_extract(frame, '$.busy_s') END"
                " WHERE expires_at <= ? AND state <> ?",
                (State.EXPIRED, now, State.EXPIRED),
            )
            self._db.execute("DELETE FROM runs WHERE expires_at <= ?", (now - TOMBSTONE_S,))

    def check(self) -> None:
        """Write something that changes nothing, to see that it can be written."""
        with self._errors("cannot take a change"):
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            log.error("run store", extra={"data": {"path": self._path, "what": what, "error": str(exc)}})
            raise StoreError(f"the run store {what}", "look at the agent's log") from exc
