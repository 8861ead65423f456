"""Where receipts are kept: by the digest of their payload, written once.

The same payload again changes nothing: the first receipt stays, except that a signed one takes the place of an
unsigned one. Another payload under a digest cannot be had by honest means (it would be a collision of SHA3-256), so it
means that the store is damaged or tampered with: an alarm. What `put` has returned survives the death of process and
machine.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from edge.deadline import NEVER, Deadline
from shared.canonical import CanonicalError, canonical_bytes, sha3_256_hex, strict_loads
from shared.dsse import DsseError, strict_base64

logger = logging.getLogger(__name__)

LOCK_S = 2.0
"""Longest wait for other writers."""

Receipt = dict[str, Any]


class StoreDown(Exception):
    """The store cannot be read or written now."""


class StoreAlarm(Exception):
    """The store holds under a digest what does not belong there."""


class ReceiptStore(Protocol):
    """A store of receipts.

    Attributes:
        worst_s: How long reading may take at worst, and each step of writing, in seconds. Steps that there is not the
            time for are not begun.
    """

    worst_s: float

    def put(self, receipt: Receipt, by: Deadline = NEVER) -> Receipt:
        """Stores a receipt and returns the one that is now stored: this one, or the one that was there before.

        Args:
            receipt: The receipt.
            by: When this must be done.

        Raises:
            StoreDown: If it cannot be written now.
            StoreAlarm: If something else is there under its digest.
        """
        ...

    def get(self, digest: str, by: Deadline = NEVER) -> Receipt | None:
        """Returns the receipt of a payload, None if there is none.

        Args:
            digest: The payload's.
            by: When this must be done.

        Raises:
            StoreDown: If it cannot be read now.
            StoreAlarm: If what is there is not of this digest.
        """
        ...


def payload_bytes(receipt: Receipt) -> bytes:
    """Returns the exact bytes of a receipt's payload.

    Raises:
        StoreAlarm: If they do not have the receipt's digest.
    """
    try:
        data = strict_base64(receipt.get("payload_canonical_base64"))
    except DsseError:
        data = b""
    if sha3_256_hex(data) != receipt.get("payload_sha3_256"):
        raise StoreAlarm("a receipt does not hold the payload that its digest names")
    return data


def is_signed(receipt: Receipt) -> bool:
    """Whether a receipt carries a signature."""
    return bool(receipt["signature"]["signed"])


class DirectoryStore:
    """Receipts in files: `DIGEST.payload` (the exact bytes) and `DIGEST.receipt.json` beside it.

    A receipt counts from the moment its second file has its name. Each file is written under another name, synced and
    then renamed; the directory is synced before `put` returns. Writers take turns by a lock that dies with them.
    """

    worst_s = LOCK_S

    def __init__(self, folder: Path) -> None:
        """Names the folder; it is made at the first writing."""
        self._folder = folder

    def check(self) -> None:
        """Makes the folder if need be, and sees whether it can be written.

        Raises:
            StoreDown: If it cannot.
        """
        try:
            with self._locked():
                pass
        except OSError as error:
            raise StoreDown(f"the receipts' directory cannot be written ({error.strerror})") from None

    def put(self, receipt: Receipt, by: Deadline = NEVER) -> Receipt:
        """Stores a receipt and returns the one that is now stored."""
        data, digest = payload_bytes(receipt), str(receipt["payload_sha3_256"])
        try:
            with self._locked(by):
                place = self._place(digest, ".payload")
                place.parent.mkdir(exist_ok=True)
                _sync(self._folder)
                there = _read(place)
                if there is None:
                    _write(place, data)
                elif there != data:
                    raise self._alarm(digest)
                before = self._receipt(digest)
                if before is not None and (is_signed(before) or not is_signed(receipt)):
                    _sync(place.parent)  # who wrote it may have died before doing so
                    return before
                _write(
                    self._place(digest, ".receipt.json"),
                    json.dumps(receipt, ensure_ascii=False).encode("utf-8"),
                )
                return receipt
        except OSError as error:
            raise StoreDown(f"the receipts' directory cannot be written ({error.strerror})") from None

    def get(self, digest: str, by: Deadline = NEVER) -> Receipt | None:
        """Returns the receipt of a payload, None if there is none."""
        try:
            return self._receipt(digest)
        except OSError as error:
            raise StoreDown(f"the receipts' directory cannot be read ({error.strerror})") from None

    def _place(self, digest: str, suffix: str) -> Path:
        return self._folder / digest[:2] / f"{digest}{suffix}"

    def _receipt(self, digest: str) -> Receipt | None:
        """Returns the receipt that is there, if its digest, both its copies of the payload and the file agree."""
        data = _read(self._place(digest, ".receipt.json"))
        if data is None:
            return None
        try:
            receipt = strict_loads(data)
            payload = payload_bytes(receipt)
            right = (
                receipt["payload_sha3_256"] == digest
                and canonical_bytes(receipt["payload"]) == payload
                and payload == _read(self._place(digest, ".payload"))
                and isinstance(receipt["signature"]["signed"], bool)
            )
        except (AttributeError, CanonicalError, KeyError, StoreAlarm, TypeError):
            right = False
        if not right:
            raise self._alarm(digest)
        return dict(receipt)

    def _alarm(self, digest: str) -> StoreAlarm:
        logger.critical("ALARM receipt store: other content under %s", digest)
        return StoreAlarm("the store holds other content under this digest")

    @contextmanager
    def _locked(self, by: Deadline = NEVER) -> Iterator[None]:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            _sync(self._folder.parent)
        lock = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _take_turns(lock, by)
            yield
        finally:
            os.close(lock)


def _take_turns(lock: int, by: Deadline) -> None:
    """Waits for the lock, but not for ever: another writer may hang on its disk."""
    until = by.sooner(LOCK_S).at
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise StoreDown("the receipts' directory is held by another writer") from None
            time.sleep(0.01)


def _read(path: Path) -> bytes | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe, for example, would be waited for
            raise OSError(errno.EINVAL, "not a file")
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and makes sure of it. Called under the lock, so one name for parts will do."""
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(partial, path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
