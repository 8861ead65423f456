"""Processes that put receipts into a directory: one that is killed at any system call, and a crowd at once.

    python -m tests.edge.store_writer kill FOLDER     # FOLDER/N/store and FOLDER/N/acknowledged, for N = 1, 2, ...
    python -m tests.edge.store_writer crowd FOLDER    # prints what each of the writers got back

The children are forked from one process that has everything imported, so that there can be many of them.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.store import DirectoryStore, Receipt, is_signed
from shared.receipts import build_receipt, unsigned_signature

NOW = "2026-11-30T00:00:00Z"
CALLS = ("open", "write", "fsync", "close", "replace", "mkdir")
AT_ONCE = 2
PROCESSES, THREADS = 10, 10


def unsigned(payload: dict[str, Any], note: str = "nobody signs") -> Receipt:
    """A receipt without a signature."""
    return build_receipt(payload, unsigned_signature(note), NOW)


def signed(payload: dict[str, Any], who: str = "key") -> Receipt:
    """A receipt that says it is signed; a store does not check signatures."""
    envelope = {"payloadType": "t", "payload": "", "signatures": [{"keyid": who, "sig": ""}]}
    block = {"signed": True, "status": "DSSE", "keyid": who, "alg": "ECDSA_SHA_256", "envelope": envelope}
    return build_receipt(payload, block, NOW)


def _beside(payload: dict[str, Any]) -> dict[str, Any]:
    """Another payload whose receipt lies in the same folder."""
    folder = unsigned(payload)["payload_sha3_256"][:2]
    others = ({**payload, "n": number} for number in range(2, 10_000))
    return next(other for other in others if unsigned(other)["payload_sha3_256"].startswith(folder))


FIRST: dict[str, Any] = {"n": 0, "text": "Käse \U0001f9c0 " * 40, "numbers": [1.0, -0.0, 1e-07, 5e-324]}
SECOND: dict[str, Any] = {"n": 1, "text": "x" * 2000}
THIRD = _beside(FIRST)

PUTS = [
    unsigned(FIRST),
    unsigned(FIRST, "another note"),
    signed(SECOND),
    signed(FIRST),
    unsigned(FIRST),
    unsigned(THIRD),
    signed(SECOND, "another key"),
    signed(THIRD),
]


def stored_after(puts: int) -> dict[str, Receipt]:
    """What is stored, by digest, after so many of the puts."""
    there: dict[str, Receipt] = {}
    for receipt in PUTS[:puts]:
        before = there.get(receipt["payload_sha3_256"])
        if before is None or (is_signed(receipt) and not is_signed(before)):
            there[receipt["payload_sha3_256"]] = receipt
    return there


def put(store: DirectoryStore, number: int) -> bool:
    """Put one of the receipts; whether the right one came back."""
    back = store.put(PUTS[number])
    return back == stored_after(number + 1)[back["payload_sha3_256"]]


def die_at(step: int) -> None:
    """Kill this process before the given one of its system calls, or in the middle of it if it is a write."""
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **more: Any) -> Any:
            count()
            return call(*args, **more)

        return wrapper

    def cut_in_half(call: Callable[..., int]) -> Callable[..., int]:
        def wrapper(descriptor: int, data: memoryview) -> int:
            half = len(data) // 2
            done = call(descriptor, data[:half])
            count()
            return done + call(descriptor, data[half:])

        return wrapper

    os.write = cut_in_half(os.write)
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    fcntl.flock = counted(fcntl.flock)


def _child(work: Callable[[], bool]) -> int:
    """Fork a process that does something and leaves without a trace of this one's; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 2
    try:
        status = 0 if work() else 3
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
        sys.stderr.flush()
    finally:
        os._exit(status)


def _write_and_die(folder: Path, step: int) -> bool:
    acknowledge = os.write
    lines = os.open(folder / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(lines, 1)
    die_at(step)
    store = DirectoryStore(folder / "store")
    for number in range(len(PUTS)):
        if not put(store, number):
            return False
        acknowledge(1, b"%d\n" % number)
    return True


def kill(root: Path) -> dict[int, int]:
    """Run the writer again and again, killed one call later each time, until it lives.

    Returns:
        How each of them ended: minus the signal's number, or the exit status.
    """
    ended: dict[int, int] = {}
    running: dict[int, int] = {}
    step = 0
    while running or 0 not in ended.values():
        while len(running) < AT_ONCE and 0 not in ended.values():
            step += 1
            folder = root / str(step)
            folder.mkdir()
            running[_child(lambda folder=folder, step=step: _write_and_die(folder, step))] = step  # type: ignore[misc]
        child, status = os.wait()
        ended[running.pop(child)] = os.waitstatus_to_exitcode(status)
    return ended


def _crowd(folder: Path, process: int, gun: int) -> bool:
    """Put receipts of one payload from many threads at once, half of them signed."""
    store, gate = DirectoryStore(folder), threading.Barrier(THREADS)

    def work(thread: int) -> None:
        gate.wait()
        receipt = signed(FIRST, f"{process}.{thread}")
        back = store.put(receipt)
        os.write(1, (json.dumps(back) + "\n").encode())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    os.read(gun, 1)  # ends when all processes are there
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return True


def crowd(folder: Path) -> list[int]:
    """Let all of them write at once; returns how the processes ended."""
    gun, trigger = os.pipe()
    children = []
    for process in range(PROCESSES):

        def work(process: int = process) -> bool:
            os.close(trigger)
            return _crowd(folder, process, gun)

        children.append(_child(work))
    os.close(trigger)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        print(json.dumps(kill(Path(sys.argv[2]))))
    else:
        sys.exit(any(crowd(Path(sys.argv[2]))))
