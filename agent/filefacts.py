"""What is known of model files, kept between processes: reading them costs seconds, and may cost the process.

A fact belongs to one version of a file: device, inode, size, and times of change. Known are

* the SHA-256 of its content, before which a digest enters no receipt,
* what reading it with llama.cpp has told (`agent.description`), for the llama.cpp that told it,
* how often a process died while reading it. llama.cpp ends the process over some damaged files, so whoever reads one
  leaves a mark beforehand and takes it away afterwards; a mark whose process is gone counts as a death.

The facts are one JSON file, the marks one small file a process beside it. Several processes may use them: a file is
replaced at once and whole, the last writer wins, and what got lost is found out again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agent.errors import LoadFailed

DEATHS = 2
"""So many processes must have died over a file before it is left alone: one alone may have been killed for another
reason, such as a service that was stopped just then."""

RETRY_S = 600.0
"""After so long a file that processes died over is tried again: what killed them may have been the system."""

SETTLED_NS = 100_000_000
"""A fact is kept only of a file whose last change was so long past, in nanoseconds, when it was read: any later change
then shows in its times, which have the grain of the kernel's clock (at most 10 ms)."""

_FORMAT = 1
_MOST_FILES = 4096
_MOST_BYTES = 32 * 1024 * 1024
_FIELDS = {"sha256": str, "told": dict, "reader": str, "deaths": int, "died_at": int, "kept_at": int}
_BOOT = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a file for reading without ever waiting: a pipe or a device in its place is refused.

    Raises:
        OSError: If it cannot be opened or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def key_of(facts: os.stat_result) -> str:
    """Returns what tells this version of this file from all others."""
    return f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ctime_ns}"


def settled(facts: os.stat_result) -> bool:
    """Tells whether any change of the file from now on would show in its times."""
    return time.time_ns() - facts.st_ctime_ns > SETTLED_NS


class FileFacts:
    """The facts, in a file or in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        """Keeps facts.

        Args:
            path: The JSON file to keep them in; None forgets them with the process. One that cannot be read is
                begun anew, one that cannot be written is done without.
        """
        self._path = path
        self._entries: dict[str, dict[str, Any]] = {}
        self._loaded: tuple[int, ...] | None = None
        self._reader = f"{_FORMAT}/{version('llama-cpp-python')}"

    def sha256(self, path: Path) -> str:
        """Returns the SHA-256 of a file's content, in hex, reading it unless this version of it has been read.

        Raises:
            LoadFailed: If it is changed meanwhile.
            OSError: If it cannot be read.
        """
        with open_regular(path) as file:
            before = os.fstat(file.fileno())
            if known := self._entry(before).get("sha256"):
                return str(known)
            may_be_kept = settled(before)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if key_of(os.fstat(file.fileno())) != key_of(before):
                raise LoadFailed("the file was changed while it was read", "try again")
        if may_be_kept:
            self._put(key_of(before), sha256=digest)
        return digest

    def known_sha256(self, path: Path) -> str | None:
        """Returns the SHA-256 of a file's content if this version of it has been read, else None.

        Raises:
            OSError: If the file cannot be found.
        """
        known: str | None = self._entry(path.stat()).get("sha256")
        return known

    def described(self, path: Path, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns what reading a file tells, reading it unless this version of it has been read by this llama.cpp.

        Args:
            path: The file.
            read: Reads it and returns what it tells, as JSON; may end the process.

        Raises:
            LoadFailed: If `read` has ended processes before.
            OSError: If the file cannot be found.
        """
        facts = path.stat()
        entry = self._entry(facts)
        if "told" in entry:
            return dict(entry["told"])
        self._count_deaths()
        entry = self._entry(facts)
        if entry.get("deaths", 0) >= DEATHS and time.time() - entry.get("died_at", 0) < RETRY_S:
            raise LoadFailed("llama.cpp died while reading it", "replace the file")
        may_be_kept = settled(facts)
        with self._marked(key_of(facts)):
            told = read()
        if may_be_kept and key_of(path.stat()) == key_of(facts):
            self._put(key_of(facts), told=told, deaths=0)
        return told

    def _entry(self, facts: os.stat_result) -> dict[str, Any]:
        """Returns what is known of this version of a file; what another llama.cpp told of it is left out."""
        self._load()
        return self._current(key_of(facts))

    def _current(self, key: str) -> dict[str, Any]:
        entry = self._entries.get(key, {})
        if entry.get("reader") == self._reader:
            return entry
        return {name: item for name, item in entry.items() if name == "sha256"}

    def _put(self, key: str, **news: Any) -> None:
        """Keeps news of one version of a file; what was known of its other versions is of no more use."""
        self._load()
        file = key.split(":")[:2]
        others = {k: e for k, e in self._entries.items() if k != key and k.split(":")[:2] != file}
        entry = {**self._current(key), **news, "reader": self._reader, "kept_at": round(time.time())}
        newest = sorted(others, key=lambda k: others[k].get("kept_at", 0))[-_MOST_FILES + 1 :]
        self._entries = {**{k: others[k] for k in newest}, key: entry}
        self._save()

    def _load(self) -> None:
        """Takes over the file if it is another than the one read or written last."""
        if self._path is None:
            return
        try:
            with open_regular(self._path) as file:
                now = _written(os.fstat(file.fileno()))
                if now == self._loaded:
                    return
                content = json.loads(file.read(_MOST_BYTES))
            files = content["files"] if content["format"] == _FORMAT else {}
            self._entries = {key: _sound(entry) for key, entry in files.items()}
            self._loaded = now
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # There is none, or it is no file of ours: what this process knows is enough, and replaces it.
            self._loaded = None

    def _save(self) -> None:
        if self._path is None:
            return
        content = json.dumps({"format": _FORMAT, "files": self._entries})
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_text(content, encoding="utf-8")
            self._loaded = _written(partial.stat())
            os.replace(partial, self._path)
        except OSError as exc:
            log.warning("facts of model files are not kept", extra={"data": {"error": type(exc).__name__}})
            with contextlib.suppress(OSError):
                partial.unlink()

    # Marks

    @contextlib.contextmanager
    def _marked(self, key: str) -> Iterator[None]:
        """Leaves a mark that this process reads the file, for as long as it does."""
        if self._path is None:
            yield
            return
        mark = self._path.with_name(f"{self._path.name}.reading-{os.getpid()}")
        try:
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.write_text(json.dumps({"key": key, "process": _process(os.getpid())}), encoding="utf-8")
        except OSError as exc:
            log.warning("no mark can be left", extra={"data": {"error": type(exc).__name__}})
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                mark.unlink()

    def withdraw(self) -> None:
        """Takes this process's mark away, as it ends for another reason than what it reads."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.with_name(f"{self._path.name}.reading-{os.getpid()}").unlink()

    def _count_deaths(self) -> None:
        """Turns the marks of processes that are gone into deaths over the files they read."""
        if self._path is None:
            return
        begin = f"{self._path.name}.reading-"
        try:
            found = [
                entry
                for entry in os.scandir(self._path.parent)
                if entry.name.startswith(f"{self._path.name}.")
            ]
        except OSError:
            return
        for entry in found:  # what one was writing when it died
            if _is_of_the_dead(entry.name.removeprefix(f"{self._path.name}.")):
                _remove(entry.path)
        marks = [entry for entry in found if entry.name.startswith(begin)]
        for mark in marks:
            pid = mark.name.removeprefix(begin)
            key = None
            try:
                with open_regular(Path(mark.path)) as file:
                    content = json.loads(file.read(4096))
                if pid.isdecimal() and _process(int(pid)) == content["process"]:
                    continue
                key = str(content["key"])
                os.unlink(mark.path)
            except (OSError, ValueError, KeyError, TypeError):
                # Half written by one that is about to read, or was when it died.
                if _is_of_the_dead(pid):
                    _remove(mark.path)
                continue
            deaths = self._current(key).get("deaths", 0) + 1
            log.warning("a process died while it read a model file", extra={"data": {"deaths": deaths}})
            self._put(key, deaths=deaths, died_at=round(time.time()))


def _is_of_the_dead(pid: str) -> bool:
    return pid.isdecimal() and _process(int(pid)) is None


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _written(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _sound(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns what of an entry is of the type it must have."""
    return {name: entry[name] for name, kind in _FIELDS.items() if isinstance(entry.get(name), kind)}


def _process(pid: int) -> str | None:
    """Returns what tells a process from all others that ever have its id; None if there is none."""
    try:
        # The name of the program, in brackets, may hold anything; the 20th field after it is the time of its start.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return None if fields[0] in ("Z", "X") else f"{_BOOT.read_text().strip()} {pid} {fields[19]}"
    except (OSError, IndexError):
        return None
