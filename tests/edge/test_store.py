"""Receipts in a directory: written once, whole, and found again as they were, whatever happens to the writer."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edge import store as store_module
from edge.store import DirectoryStore, Receipt, StoreAlarm, StoreDown, is_signed, payload_bytes
from shared.canonical import canonical_bytes, sha3_256_hex
from tests.edge.store_writer import (
    FIRST,
    PROCESSES,
    PUTS,
    SECOND,
    THIRD,
    THREADS,
    put,
    signed,
    stored_after,
    unsigned,
)
from tests.shared.build import measured_payload
from tests.shared.test_keyfile import folder_without_writing

ROOT = Path(__file__).parents[2]
ALARM = "the store holds other content under this digest"
DIGEST = str(unsigned(FIRST)["payload_sha3_256"])
LOGGED = f"ALARM receipt store: other content under {DIGEST}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where receipts are to be stored; it is not there yet."""
    return tmp_path / "state" / "receipts"


@pytest.fixture
def store(folder: Path) -> DirectoryStore:
    """An empty store."""
    return DirectoryStore(folder)


def place(folder: Path, suffix: str, digest: str = DIGEST) -> Path:
    """A file of a receipt."""
    return folder / digest[:2] / f"{digest}{suffix}"


def exact(receipt: Receipt | None) -> str:
    """A receipt as JSON, members in their order."""
    return json.dumps(receipt)


def visible(folder: Path) -> list[str]:
    """Names of the files in the store that are not hidden."""
    return sorted(path.name for path in folder.rglob("[!.]*") if path.is_file())


# What is stored


def test_nothing_is_there(store: DirectoryStore, folder: Path) -> None:
    """An empty store has no receipt, and looking for one makes no folder."""
    assert store.get(DIGEST) is None
    assert not folder.parent.exists()


@pytest.mark.parametrize("payload", [FIRST, measured_payload()], ids=["odd", "measured"])
@pytest.mark.parametrize("make", [unsigned, signed])
def test_comes_back_as_it_was(
    store: DirectoryStore, folder: Path, payload: dict[str, Any], make: Callable[[dict[str, Any]], Receipt]
) -> None:
    """A stored receipt comes back member by member, also to another instance."""
    receipt = make(payload)
    assert store.put(receipt) is receipt
    digest = receipt["payload_sha3_256"]
    assert exact(store.get(digest)) == exact(DirectoryStore(folder).get(digest)) == exact(receipt)
    assert visible(folder) == [f"{digest}.payload", f"{digest}.receipt.json"]


def test_stored_bytes_have_the_digest(store: DirectoryStore, folder: Path) -> None:
    """The payload's file holds the exact bytes; OpenSSL finds their digest to be the file's name."""
    receipt = store.put(unsigned(FIRST))
    file = place(folder, ".payload")
    data = file.read_bytes()
    assert data == canonical_bytes(FIRST) == base64.b64decode(receipt["payload_canonical_base64"])
    assert sha3_256_hex(data) == DIGEST
    done = subprocess.run(
        ["openssl", "dgst", "-sha3-256", "-r", file], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split()[0] == DIGEST
    for path in (file, place(folder, ".receipt.json")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o133 == 0


def test_same_payload_again(store: DirectoryStore, folder: Path) -> None:
    """The first receipt of a payload stays, whatever the next one says."""
    first = store.put(unsigned(FIRST))
    before = [path.stat().st_ino for path in sorted(folder.rglob("*")) if path.is_file()]
    assert exact(store.put(unsigned(FIRST, "another note"))) == exact(first)
    assert exact(store.get(DIGEST)) == exact(first)
    assert [path.stat().st_ino for path in sorted(folder.rglob("*")) if path.is_file()] == before


def test_signed_takes_the_place_of_unsigned_once(store: DirectoryStore) -> None:
    """A signed receipt takes an unsigned one's place; then it stays, against unsigned and signed ones alike."""
    store.put(unsigned(FIRST))
    first = signed(FIRST, "first")
    assert store.put(first) is first
    for later in (unsigned(FIRST), signed(FIRST, "second"), unsigned(FIRST, "another note")):
        assert exact(store.put(later)) == exact(first)
        assert exact(store.get(DIGEST)) == exact(first)


def test_receipts_beside_each_other(store: DirectoryStore, folder: Path) -> None:
    """Receipts of several payloads do not touch each other, in one folder or in several."""
    for number in range(len(PUTS)):
        assert put(store, number)
    there = stored_after(len(PUTS))
    assert {digest: exact(store.get(digest)) for digest in there} == {
        digest: exact(receipt) for digest, receipt in there.items()
    }
    assert len(there) == 3
    assert (
        len({digest[:2] for digest in there})
        == len([path for path in folder.iterdir() if path.is_dir()])
        == 2
    )


def test_receipt_that_is_not_of_its_payload(store: DirectoryStore, folder: Path) -> None:
    """A receipt whose digest is not its payload's is refused before anything is written."""
    for change in (
        {"payload_sha3_256": "0" * 64},
        {"payload_canonical_base64": base64.b64encode(canonical_bytes(SECOND)).decode()},
        {"payload_canonical_base64": "!"},
        {"payload_canonical_base64": None},
    ):
        with pytest.raises(StoreAlarm, match="^a receipt does not hold the payload that its digest names$"):
            store.put({**unsigned(FIRST), **change})
    assert not folder.exists()
    assert payload_bytes(unsigned(FIRST)) == canonical_bytes(FIRST)
    assert (is_signed(unsigned(FIRST)), is_signed(signed(FIRST))) == (False, True)


# Tampering


def changed(**members: Any) -> Callable[[bytes], bytes]:
    """Replaces members of a receipt's file."""
    return lambda data: json.dumps({**json.loads(data), **members}, ensure_ascii=False).encode()


def without(name: str) -> Callable[[bytes], bytes]:
    """Takes a member out of a receipt's file."""
    return lambda data: json.dumps(
        {key: value for key, value in json.loads(data).items() if key != name}
    ).encode()


OTHER_COPY = base64.b64encode(canonical_bytes(SECOND)).decode()
TAMPERED_RECEIPTS: dict[str, Callable[[bytes], bytes]] = {
    "payload": changed(payload=SECOND),
    "one number of the payload": changed(payload={**FIRST, "n": 0.0}),
    "no payload": without("payload"),
    "exact bytes": changed(payload_canonical_base64=OTHER_COPY),
    "exact bytes and payload": changed(payload_canonical_base64=OTHER_COPY, payload=SECOND),
    "no exact bytes": without("payload_canonical_base64"),
    "digest": changed(payload_sha3_256="0" * 64),
    "no digest": without("payload_sha3_256"),
    "another receipt": lambda _: json.dumps(unsigned(SECOND)).encode(),
    "no signature": without("signature"),
    "empty signature": changed(signature={}),
    "signature of another type": changed(signature=[]),
    "signed is no boolean": changed(signature={"signed": "yes"}),
    "half a file": lambda data: data[: len(data) // 2],
    "all but the last byte": lambda data: data[:-1],
    "empty file": lambda _: b"",
    "zeros": lambda data: bytes(len(data)),
    "not JSON": lambda _: b"hello",
    "not UTF-8": lambda _: b"\xff\xfe",
    "a list": lambda _: b"[]",
    "a number": lambda _: b"5",
    "text": lambda _: b'"receipt"',
    "null": lambda _: b"null",
    "deep": lambda _: b"[" * 100_000,
    "twice the same name": lambda data: b'{"schema":1,' + data[1:],
    "not finite": lambda data: b'{"more":NaN,' + data[1:],
}
TAMPERED_PAYLOADS: dict[str, Callable[[bytes], bytes]] = {
    "other bytes": lambda _: canonical_bytes(SECOND),
    "one bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "one byte more": lambda data: data + b"\n",
    "half a file": lambda data: data[: len(data) // 2],
    "empty file": lambda _: b"",
}


def assert_alarm(store: DirectoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """Check that nothing is given out under the digest, to readers or writers, and that the log cries."""
    calls: list[Callable[[], Any]] = [
        lambda: store.get(DIGEST),
        lambda: store.put(unsigned(FIRST)),
        lambda: store.put(signed(FIRST)),
    ]
    for call in calls:
        caplog.clear()
        with pytest.raises(StoreAlarm) as caught:
            call()
        assert str(caught.value) == ALARM
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("CRITICAL", LOGGED)
        ]


@pytest.mark.parametrize("make", [unsigned, signed])
@pytest.mark.parametrize("how", TAMPERED_RECEIPTS)
def test_tampered_receipt(
    store: DirectoryStore,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    how: str,
    make: Callable[[dict[str, Any]], Receipt],
) -> None:
    """A receipt's file that is damaged or says something else is an alarm, is not given out and is left as it is."""
    store.put(make(FIRST))
    file = place(folder, ".receipt.json")
    file.write_bytes(TAMPERED_RECEIPTS[how](file.read_bytes()))
    before = file.read_bytes()
    assert_alarm(store, caplog)
    assert file.read_bytes() == before


@pytest.mark.parametrize("how", TAMPERED_PAYLOADS)
@pytest.mark.parametrize("whole", [True, False], ids=["with receipt", "alone"])
def test_tampered_payload(
    store: DirectoryStore, folder: Path, caplog: pytest.LogCaptureFixture, how: str, whole: bool
) -> None:
    """Other bytes in a payload's file are an alarm, also before its receipt is there, and are left as they are."""
    store.put(unsigned(FIRST))
    file = place(folder, ".payload")
    file.write_bytes(TAMPERED_PAYLOADS[how](file.read_bytes()))
    before = file.read_bytes()
    if whole:
        assert_alarm(store, caplog)
    else:
        place(folder, ".receipt.json").unlink()
        assert store.get(DIGEST) is None
        with pytest.raises(StoreAlarm, match=f"^{ALARM}$"):
            store.put(signed(FIRST))
        assert caplog.messages == [LOGGED]
        assert not place(folder, ".receipt.json").exists()
    assert file.read_bytes() == before


def test_files_of_another_receipt(
    store: DirectoryStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that are in order, but lie under another's digest, are an alarm."""
    store.put(unsigned(FIRST))
    other = store.put(signed(SECOND))["payload_sha3_256"]
    for suffix in (".payload", ".receipt.json"):
        place(folder, suffix).write_bytes(place(folder, suffix, other).read_bytes())
    assert_alarm(store, caplog)
    assert store.get(other) == signed(SECOND)


def test_lost_payload(store: DirectoryStore, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A receipt without its payload's file is not given out; the next one with the payload brings the file back."""
    first = store.put(signed(FIRST))
    place(folder, ".payload").unlink()
    with pytest.raises(StoreAlarm, match=f"^{ALARM}$"):
        store.get(DIGEST)
    assert caplog.messages == [LOGGED]
    assert exact(store.put(unsigned(FIRST))) == exact(first)
    assert exact(store.get(DIGEST)) == exact(first)


def test_one_alarm_is_no_other_receipts_matter(store: DirectoryStore, folder: Path) -> None:
    """Receipts beside a damaged one are given out and taken as ever."""
    store.put(unsigned(FIRST))
    place(folder, ".receipt.json").write_bytes(b"")
    receipt = store.put(unsigned(THIRD))
    assert exact(store.get(receipt["payload_sha3_256"])) == exact(receipt)


# Many writers


def test_crowd_of_processes_and_threads(folder: Path) -> None:
    """Of a hundred writers of one payload, each with its own signature, one is stored and all get that one back."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.edge.store_writer", "crowd", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == PROCESSES * THREADS == 100
    assert set(lines) == {exact(DirectoryStore(folder).get(DIGEST))}
    assert visible(folder) == [f"{DIGEST}.payload", f"{DIGEST}.receipt.json"]


def test_signed_and_unsigned_at_once(store: DirectoryStore) -> None:
    """Of writers with and without signature one signed receipt wins, and every signed writer gets that one."""
    gate = threading.Barrier(20)

    def work(number: int) -> Receipt:
        gate.wait(60)
        return store.put(signed(FIRST, str(number)) if number % 2 else unsigned(FIRST, str(number)))

    with ThreadPoolExecutor(20) as pool:
        back = list(pool.map(work, range(20)))
    winner = store.get(DIGEST)
    assert winner is not None and is_signed(winner)
    assert {exact(receipt) for receipt in back[1::2]} == {exact(winner)}
    assert len({exact(receipt) for receipt in back[::2]} - {exact(winner)}) <= 1


# Failures


def test_folder_that_cannot_be_written() -> None:
    """A store that may not write is down; what it may read it still gives out."""
    with folder_without_writing() as folder:
        with pytest.raises(StoreDown) as caught:
            DirectoryStore(folder).put(unsigned(FIRST))
        assert str(caught.value) == "the receipts' directory cannot be written (Permission denied)"
        assert DirectoryStore(folder).get(DIGEST) is None
        with pytest.raises(StoreDown, match=r"cannot be written \(Permission denied\)$"):
            DirectoryStore(folder / "new" / "one").put(unsigned(FIRST))
        assert list(folder.iterdir()) == []


def test_file_in_the_folders_place(tmp_path: Path) -> None:
    """A store whose folder is a file is down for writers and readers."""
    (tmp_path / "file").write_text("")
    store = DirectoryStore(tmp_path / "file")
    with pytest.raises(StoreDown, match=r"^the receipts' directory cannot be written \(File exists\)$"):
        store.put(unsigned(FIRST))
    with pytest.raises(StoreDown, match=r"^the receipts' directory cannot be read \(Not a directory\)$"):
        store.get(DIGEST)


def test_folder_in_a_files_place(store: DirectoryStore, folder: Path) -> None:
    """A folder where a receipt's file should be puts the store down, for that receipt alone."""
    place(folder, ".receipt.json").mkdir(parents=True)
    with pytest.raises(StoreDown, match=r"^the receipts' directory cannot be read \(not a file\)$"):
        store.get(DIGEST)
    with pytest.raises(StoreDown, match=r"^the receipts' directory cannot be written \(not a file\)$"):
        store.put(unsigned(FIRST))
    assert store.put(unsigned(SECOND)) == unsigned(SECOND)


FAILURES = {
    errno.ENOSPC: "No space left on device",
    errno.EIO: "Input/output error",
    errno.EDQUOT: "Disk quota exceeded",
}


@pytest.mark.parametrize("number", FAILURES, ids=FAILURES.values())
@pytest.mark.parametrize(
    ("before", "which"),
    [(None, ".payload"), (None, ".receipt.json"), (unsigned(FIRST), ".receipt.json")],
    ids=["payload", "receipt", "upgrade"],
)
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_disk_that_fails(
    store: DirectoryStore,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Receipt | None,
    call: str,
    which: str,
    number: int,
) -> None:
    """A disk that is full or broken leaves what was stored as it was, half of nothing, and no harm for later."""
    if before is not None:
        store.put(before)
    names, write, fsync, open_ = {-1: ""}, os.write, os.fsync, os.open
    failed: list[str] = []

    def opened(path: Any, *args: Any, **more: Any) -> int:
        descriptor = open_(path, *args, **more)
        names[descriptor] = os.fspath(path)
        return descriptor

    def strike(descriptor: int) -> None:
        if which in names[descriptor]:
            failed.append(names[descriptor])
            raise OSError(number, FAILURES[number])

    def written(descriptor: int, data: memoryview) -> int:
        if len(data) > 100:
            return write(descriptor, data[: len(data) // 2])
        strike(descriptor)
        return write(descriptor, data)

    def synced(descriptor: int) -> None:
        strike(descriptor)
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        patch.setattr(os, call, {"write": written, "fsync": synced}[call])
        with pytest.raises(StoreDown) as caught:
            store.put(signed(FIRST))
    assert str(caught.value) == f"the receipts' directory cannot be written ({FAILURES[number]})"
    assert len(failed) == 1
    assert exact(store.get(DIGEST)) == exact(before)
    there = [f"{DIGEST}.payload"] if which == ".receipt.json" else []
    assert visible(folder) == there + ([f"{DIGEST}.receipt.json"] if before else [])
    assert exact(store.put(signed(FIRST))) == exact(store.get(DIGEST)) == exact(signed(FIRST))


def test_real_limit_on_file_size(folder: Path) -> None:
    """A system that really writes no more than a part of a file leaves nothing half behind."""
    code = """
import resource, signal, sys
from pathlib import Path
from edge.store import DirectoryStore, StoreDown
from tests.edge.store_writer import SECOND, signed

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    DirectoryStore(Path(sys.argv[1])).put(signed(SECOND))
except StoreDown as error:
    print(error)
"""
    for limit, there in ((1000, []), (2100, [".payload"])):
        done = subprocess.run(
            [sys.executable, "-c", code, folder, str(limit)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout, done.stderr) == (
            "the receipts' directory cannot be written (File too large)\n",
            "",
        )
        digest = signed(SECOND)["payload_sha3_256"]
        assert visible(folder) == [digest + suffix for suffix in there]
        assert DirectoryStore(folder).get(digest) is None
    assert DirectoryStore(folder).put(signed(SECOND)) == signed(SECOND)


def test_short_writes(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that takes a few bytes at a time gets all of them."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    store.put(unsigned(FIRST))
    assert exact(store.get(DIGEST)) == exact(unsigned(FIRST))


def test_remains_of_a_longer_file(store: DirectoryStore, folder: Path) -> None:
    """What a writer that died has left of another length does no harm."""
    for suffix in (".payload", ".receipt.json"):
        file = place(folder, suffix)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(f".{file.name}.partial").write_bytes(b"x" * 100_000)
    store.put(unsigned(FIRST))
    assert exact(store.get(DIGEST)) == exact(unsigned(FIRST))


# The order in which things reach the disk


class Trace:
    """The calls by which a store changes the disk, with the names of what they changed."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        """Begin to record."""
        self.events: list[tuple[str, ...]] = []
        self._root = root
        self._names: dict[int, str] = {}
        self._real = {
            name: getattr(os, name) for name in ("open", "write", "fsync", "close", "replace", "mkdir")
        }
        for name in self._real:
            patch.setattr(os, name, getattr(self, f"_{name}"))
        patch.setattr(fcntl, "flock", self._flock)

    def _name(self, path: Any) -> str:
        name = os.path.relpath(os.fspath(path), self._root)
        return name.replace(DIGEST, "DIGEST").replace(DIGEST[:2], "DI")

    def _open(self, path: Any, *args: Any, **more: Any) -> int:
        descriptor: int = self._real["open"](path, *args, **more)
        self._names[descriptor] = self._name(path)
        return descriptor

    def _write(self, descriptor: int, data: Any) -> int:
        self.events.append(("write", self._names[descriptor]))
        done: int = self._real["write"](descriptor, data)
        return done

    def _fsync(self, descriptor: int) -> None:
        self.events.append(("sync", self._names[descriptor]))
        self._real["fsync"](descriptor)

    def _close(self, descriptor: int) -> None:
        if self._names.pop(descriptor, "") == "receipts/.lock":
            self.events.append(("unlock",))
        self._real["close"](descriptor)

    def _replace(self, source: Any, target: Any) -> None:
        self.events.append(("rename", self._name(source), self._name(target)))
        self._real["replace"](source, target)

    def _mkdir(self, path: Any, *args: Any, **more: Any) -> None:
        if not Path(path).exists():
            self.events.append(("mkdir", self._name(path)))
        self._real["mkdir"](path, *args, **more)

    def _flock(self, descriptor: int, operation: int) -> None:
        assert operation == fcntl.LOCK_EX | fcntl.LOCK_NB
        self.events.append(("lock",))


PAYLOAD = [
    ("write", "receipts/DI/.DIGEST.payload.partial"),
    ("sync", "receipts/DI/.DIGEST.payload.partial"),
    ("rename", "receipts/DI/.DIGEST.payload.partial", "receipts/DI/DIGEST.payload"),
    ("sync", "receipts/DI"),
]
RECEIPT = [
    ("write", "receipts/DI/.DIGEST.receipt.json.partial"),
    ("sync", "receipts/DI/.DIGEST.receipt.json.partial"),
    ("rename", "receipts/DI/.DIGEST.receipt.json.partial", "receipts/DI/DIGEST.receipt.json"),
    ("sync", "receipts/DI"),
]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe in place of a stored file is no receipt, and holds nobody up."""
    receipts = DirectoryStore(tmp_path)
    digest = receipts.put(unsigned(FIRST))["payload_sha3_256"]
    for suffix in (".payload", ".receipt.json"):
        file = tmp_path / digest[:2] / f"{digest}{suffix}"
        whole = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(StoreDown, match="not a file"):
            receipts.get(digest)
        file.unlink()
        file.write_bytes(whole)
    assert receipts.get(digest) == unsigned(FIRST)


@pytest.mark.parametrize("folder", ["a file", "a file/below"])
def test_a_folder_that_cannot_be_used_is_found_out(tmp_path: Path, folder: str) -> None:
    """Whether receipts can be kept is seen before the first of them."""
    (tmp_path / "a file").write_text("x")
    DirectoryStore(tmp_path / "new" / "deep").check()
    with pytest.raises(StoreDown, match="^the receipts' directory cannot be written"):
        DirectoryStore(tmp_path / folder).check()


def test_a_writer_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another writer keeps the lock, the store is down for this receipt, and up again once the lock is free."""
    monkeypatch.setattr(store_module, "LOCK_S", 0.05)
    receipts = DirectoryStore(tmp_path)
    receipts.put(unsigned(FIRST))
    with (tmp_path / ".lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreDown, match="^the receipts' directory is held by another writer$"):
            receipts.put(unsigned(SECOND))
        assert receipts.get(unsigned(FIRST)["payload_sha3_256"]) is not None
    assert exact(receipts.put(unsigned(SECOND))) == exact(unsigned(SECOND))


def test_order_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is synced before it gets its name and its folder after, payload first, all of it under the lock.

    So whatever a power cut leaves of it, what `put` has returned is whole. That holds too for a receipt which another
    writer stored and may not have lived to sync.
    """
    trace = Trace(tmp_path, monkeypatch)
    store = DirectoryStore(tmp_path / "receipts")

    def traced(receipt: Receipt) -> list[tuple[str, ...]]:
        trace.events.clear()
        store.put(receipt)
        return list(trace.events)

    made = [("mkdir", "receipts"), ("sync", ".")]
    assert traced(unsigned(FIRST)) == [
        *made,
        ("lock",),
        ("mkdir", "receipts/DI"),
        ("sync", "receipts"),
        *PAYLOAD,
        *RECEIPT,
        ("unlock",),
    ]
    assert traced(unsigned(FIRST)) == [("lock",), ("sync", "receipts"), ("sync", "receipts/DI"), ("unlock",)]
    assert traced(signed(FIRST)) == [("lock",), ("sync", "receipts"), *RECEIPT, ("unlock",)]
    trace.events.clear()
    assert store.get(DIGEST) == signed(FIRST)
    assert trace.events == []


def test_lock_is_given_back_after_a_failure(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that fails or finds something damaged does not keep others waiting."""

    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(StoreDown):
            store.put(unsigned(FIRST))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(store.put, unsigned(FIRST)).result(60) == unsigned(FIRST)


def test_writers_wait_for_the_lock(store: DirectoryStore, folder: Path) -> None:
    """While another process writes, a writer waits, and a reader does not."""
    first = store.put(unsigned(FIRST))
    lock = os.open(folder / ".lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.put, signed(FIRST))
            assert exact(store.get(DIGEST)) == exact(first)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waiting.result(60) == signed(FIRST)
    finally:
        os.close(lock)


# Death of the writer


def assert_survived(folder: Path) -> None:
    """Check what a killed writer left: all that it acknowledged, and nothing half; then finish its work."""
    lines = (folder / "acknowledged").read_text().splitlines()
    assert lines == [str(number) for number in range(len(lines))]
    for path in (folder / "store").rglob("[!.]*"):
        if path.suffix == ".payload":
            assert f"{sha3_256_hex(path.read_bytes())}.payload" == path.name
        elif path.suffix == ".json":
            assert json.loads(path.read_bytes())["payload_sha3_256"] + ".receipt.json" == path.name
        else:
            assert path.is_dir() and len(path.name) == 2
    store = DirectoryStore(folder / "store")
    digests = stored_after(len(PUTS))
    there = {digest: receipt for digest in digests if (receipt := store.get(digest)) is not None}
    done = len(lines)
    assert exact(there) in (exact_all(digests, done), exact_all(digests, done + 1))
    for number in range(done, len(PUTS)):
        assert put(store, number)
    assert {digest: store.get(digest) for digest in digests} == digests


def exact_all(order: dict[str, Receipt], puts: int) -> str:
    """What is to be stored after so many puts, as JSON."""
    there = stored_after(puts)
    return exact({digest: there[digest] for digest in order if digest in there})


@pytest.mark.slow
def test_killed_at_every_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A writer killed before any of its system calls, or half-way through a write, loses nothing it acknowledged."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.edge.store_writer", "kill", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ended = {int(step): status for step, status in json.loads(done.stdout).items()}
    killed = [step for step, status in ended.items() if status == -signal.SIGKILL]
    assert sorted(killed) == list(range(1, len(killed) + 1))
    assert {status for step, status in ended.items() if step > len(killed)} == {0}
    assert len(killed) >= 50
    acknowledged = set()
    for step in ended:
        assert_survived(tmp_path / str(step))
        lines = tmp_path / str(step) / "acknowledged"
        acknowledged.add(len(lines.read_text().splitlines()))
    assert acknowledged == set(range(len(PUTS) + 1))
    assert caplog.records == []
