"""Tests of `agent.filefacts`, with processes that really die where it matters."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent import filefacts
from agent.errors import LoadFailed
from agent.filefacts import DEATHS, RETRY_S, FileFacts, open_regular, settled
from tests.agent.support import PATIENCE, ROOT

READER = """
import os, sys
from pathlib import Path
from agent import filefacts
filefacts.SETTLED_NS = -10**18
facts = filefacts.FileFacts(Path(sys.argv[1]))

def read():
    if sys.argv[3] == "die":
        os._exit(9)
    if sys.argv[3] == "leave":
        facts.withdraw()
        os._exit(9)
    if sys.argv[3] == "hang":
        print("reading", flush=True)
        sys.stdin.read()
    return {"read by": "a child"}

try:
    print(facts.described(Path(sys.argv[2]), read))
except Exception as exc:
    print(exc)
"""


@pytest.fixture(autouse=True)
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files written just now count as settled: nothing changes them unseen here."""
    monkeypatch.setattr(filefacts, "SETTLED_NS", -(10**18))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file."""
    path = tmp_path / "model"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were hashed."""
    names: list[str] = []
    real = hashlib.file_digest

    def counted(file: Any, kind: str) -> Any:
        names.append(Path(str(file.name)).name if isinstance(file.name, str) else "file")
        return real(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return names


def child(facts: Path, model: Path, what: str) -> str:
    """Reads a model in a process of its own, which may die over it; returns what it says."""
    done = subprocess.run(
        [sys.executable, "-c", READER, str(facts), str(model), what],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == (9 if what in ("die", "leave") and not done.stdout else 0), done.stderr
    return done.stdout.strip()


def never() -> dict[str, Any]:
    """Must not be called."""
    raise AssertionError("read again")


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_is_hashed_once(tmp_path: Path, model: Path, hashed: list[str], kept: bool) -> None:
    """The digest is the content's, and a file that is as it was is not read again, in memory or over processes."""
    facts = FileFacts(tmp_path / "facts.json" if kept else None)
    assert facts.known_sha256(model) is None
    expected = hashlib.sha256(b"weights").hexdigest()
    assert [facts.sha256(model), facts.sha256(model), facts.known_sha256(model)] == [expected] * 3
    assert len(hashed) == 1
    if kept:
        assert FileFacts(tmp_path / "facts.json").sha256(model) == expected
        assert len(hashed) == 1


def test_another_name_is_the_same_file(tmp_path: Path, model: Path, hashed: list[str]) -> None:
    """A file is known by whatever path it is reached."""
    facts = FileFacts()
    facts.sha256(model)
    (tmp_path / "link").symlink_to(model)
    assert facts.sha256(tmp_path / "link") == facts.sha256(model)
    assert len(hashed) == 1


def test_a_changed_file_is_another(tmp_path: Path, model: Path) -> None:
    """Other content is hashed anew, even of the same length and with its time of change set back."""
    facts = FileFacts(tmp_path / "facts.json")
    before = model.stat()
    facts.sha256(model)
    model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert facts.known_sha256(model) is None
    assert facts.sha256(model) == hashlib.sha256(b"WEIGHTS").hexdigest()
    other = tmp_path / "other"
    other.write_bytes(b"Weights")
    os.replace(other, model)
    assert facts.sha256(model) == hashlib.sha256(b"Weights").hexdigest()


def test_a_file_that_changed_just_now_is_read_every_time(
    model: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a change could go unseen by the times of a file, nothing is kept of it; later it is."""
    monkeypatch.setattr(filefacts, "SETTLED_NS", 10**18)
    facts = FileFacts()
    facts.sha256(model)
    facts.sha256(model)
    facts.described(model, lambda: {"read": 1})
    assert facts.described(model, lambda: {"read": 2}) == {"read": 2}
    assert (len(hashed), facts.known_sha256(model)) == (2, None)


def test_when_a_file_is_settled(model: Path) -> None:
    """A file is settled once its last change is 100 ms past, whatever time of change it has been given."""
    os.utime(model, (4e9, 4e9))
    until = time.monotonic() + PATIENCE
    assert filefacts.SETTLED_NS < 0 and settled(model.stat())
    filefacts.SETTLED_NS = 100_000_000
    while not settled(model.stat()):
        assert time.monotonic() < until
    assert time.time_ns() - model.stat().st_ctime_ns > 100_000_000


def test_a_file_that_changes_while_it_is_hashed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest of a file that was written to meanwhile would be of no content at all: it is refused."""
    real = hashlib.file_digest

    def disturbed(file: Any, kind: str) -> Any:
        model.write_bytes(b"something else")
        return real(file, kind)

    facts = FileFacts()
    monkeypatch.setattr(hashlib, "file_digest", disturbed)
    with pytest.raises(LoadFailed, match="changed while it was read"):
        facts.sha256(model)
    assert facts.known_sha256(model) is None


def test_what_is_no_file(tmp_path: Path) -> None:
    """Pipes and folders are refused without waiting, and what is not there is not found."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
        with pytest.raises(OSError, match="not a regular file"):
            FileFacts().sha256(path)
    with pytest.raises(FileNotFoundError):
        FileFacts().sha256(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        FileFacts().described(tmp_path / "gone", never)


@pytest.mark.parametrize("kept", [True, False])
def test_what_reading_tells_is_kept(tmp_path: Path, model: Path, kept: bool) -> None:
    """A file is read once for each version of it, over processes too; a failure to read is not kept."""
    facts = FileFacts(tmp_path / "state" / "facts.json" if kept else None)
    with pytest.raises(ValueError, match="not now"):
        facts.described(model, lambda: int("not now"))  # type: ignore[arg-type,return-value]
    assert facts.described(model, lambda: {"family": "llama"}) == {"family": "llama"}
    assert facts.described(model, never) == {"family": "llama"}
    if kept:
        assert FileFacts(tmp_path / "state" / "facts.json").described(model, never) == {"family": "llama"}
    model.write_bytes(b"other weights")
    assert facts.described(model, lambda: {"family": "qwen2"}) == {"family": "qwen2"}


def test_what_one_process_finds_out_another_knows(tmp_path: Path, model: Path) -> None:
    """Facts that another process has added since are taken over, and both processes' facts stay."""
    path = tmp_path / "facts.json"
    facts = FileFacts(path)
    facts.sha256(model)
    assert child(path, model, "read") == "{'read by': 'a child'}"
    assert facts.described(model, never) == {"read by": "a child"}
    assert facts.known_sha256(model) is not None


def test_another_llama_cpp_reads_again(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one version of llama.cpp told, its death included, says nothing of another; a digest stays one."""
    path = tmp_path / "facts.json"
    facts = FileFacts(path)
    digest = facts.sha256(model)
    facts.described(model, lambda: {"told by": "old"})
    monkeypatch.setattr(filefacts, "version", lambda name: "99")
    newer = FileFacts(path)
    assert newer.known_sha256(model) == digest
    assert newer.described(model, lambda: {"told by": "new"}) == {"told by": "new"}
    assert newer.known_sha256(model) == digest


def test_processes_that_die_over_a_file(tmp_path: Path, model: Path) -> None:
    """Once two processes have died while reading a file it is left alone; others, and its next version, are read."""
    path = tmp_path / "facts.json"
    for _ in range(DEATHS):
        assert child(path, model, "die") == ""
    told = "llama.cpp died while reading it; replace the file"
    assert child(path, model, "die") == told
    facts = FileFacts(path)
    with pytest.raises(LoadFailed, match="llama.cpp died while reading it"):
        facts.described(model, never)
    other = tmp_path / "other"
    other.write_bytes(b"fine")
    assert facts.described(other, lambda: {"fine": True}) == {"fine": True}
    model.write_bytes(b"repaired")
    assert facts.described(model, lambda: {"fine": True}) == {"fine": True}
    assert [entry.name for entry in tmp_path.iterdir() if "reading" in entry.name] == []


def test_one_death_is_forgiven(tmp_path: Path, model: Path) -> None:
    """A single process may have been stopped for another reason: the file is tried again, and then as good as new."""
    path = tmp_path / "facts.json"
    child(path, model, "die")
    assert child(path, model, "read") == "{'read by': 'a child'}"
    (entry,) = json.loads(path.read_text())["files"].values()
    assert entry["deaths"] == 0


def test_a_deadly_file_is_tried_again_one_day(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a day a file that processes died over gets another chance."""
    path = tmp_path / "facts.json"
    for _ in range(DEATHS):
        child(path, model, "die")
    assert child(path, model, "read").startswith("llama.cpp died")
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + RETRY_S - 60)
    with pytest.raises(LoadFailed):
        FileFacts(path).described(model, never)
    monkeypatch.setattr("time.time", lambda: now + RETRY_S + 60)
    assert FileFacts(path).described(model, lambda: {"fine": True}) == {"fine": True}


def test_a_living_reader_is_no_death(tmp_path: Path, model: Path) -> None:
    """The mark of a process that still reads counts for nothing, and stays until it is done or gone."""
    path = tmp_path / "facts.json"
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(path), str(model), "hang"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        mark = path.with_name(f"facts.json.reading-{process.pid}")
        assert mark.exists()
        assert FileFacts(path).described(model, lambda: {"read by": "us"}) == {"read by": "us"}
        assert mark.exists()
        process.kill()
    (entry,) = json.loads(path.read_text())["files"].values()
    assert entry["deaths"] == 0
    other = tmp_path / "other"
    other.write_bytes(b"x")
    FileFacts(path).described(other, lambda: {"x": 1})
    assert not mark.exists()
    assert sorted(entry.get("deaths", 0) for entry in json.loads(path.read_text())["files"].values()) == [
        0,
        1,
    ]


def test_a_reused_process_id_is_another_process(tmp_path: Path, model: Path) -> None:
    """A mark is of one process, not of whoever has its id by now."""
    path = tmp_path / "facts.json"
    key = filefacts.key_of(model.stat())
    mark = path.with_name(f"facts.json.reading-{os.getpid()}")
    mark.write_text(json.dumps({"key": key, "process": f"another-boot {os.getpid()} 1"}))
    FileFacts(path).described(tmp_path, lambda: {})
    assert json.loads(path.read_text())["files"][key]["deaths"] == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"key": 7}', '{"process": "x"}', "\0"])
def test_marks_that_are_none(tmp_path: Path, model: Path, content: str) -> None:
    """A mark that is half written or nobody's keeps nothing from being read."""
    path = tmp_path / "facts.json"
    path.with_name("facts.json.reading-1").write_text(content)
    path.with_name("facts.json.reading-x").write_text(content)
    assert FileFacts(path).described(model, lambda: {"fine": True}) == {"fine": True}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        '{"format": 99, "files": {"a": {}}}',
        '{"format": 1, "files": []}',
        '{"format": 1, "files": {"a": 7}}',
        '{"format": 1}',
        "[" * 100_000,
    ],
)
def test_facts_that_are_damaged(tmp_path: Path, model: Path, content: str) -> None:
    """Whatever stands in the file's place is replaced by what is found out anew."""
    path = tmp_path / "facts.json"
    path.write_text(content)
    facts = FileFacts(path)
    assert facts.sha256(model) == hashlib.sha256(b"weights").hexdigest()
    assert FileFacts(path).known_sha256(model) == hashlib.sha256(b"weights").hexdigest()


def test_values_of_the_wrong_type_are_left_out(tmp_path: Path, model: Path) -> None:
    """An entry with a value that cannot be is believed in the rest alone."""
    path = tmp_path / "facts.json"
    facts = FileFacts(path)
    facts.sha256(model)
    facts.described(model, lambda: {"fine": True})
    content = json.loads(path.read_text())
    (entry,) = content["files"].values()
    entry |= {"sha256": 7, "deaths": "many", "died_at": [], "kept_at": None}
    path.write_text(json.dumps(content))
    facts = FileFacts(path)
    assert facts.known_sha256(model) is None
    assert facts.described(model, never) == {"fine": True}
    facts.sha256(model)
    assert facts.known_sha256(model) is not None


def test_facts_that_cannot_be_written(tmp_path: Path, model: Path, hashed: list[str]) -> None:
    """Where nothing can be kept the facts last as long as the process, and nothing fails."""
    (tmp_path / "file").touch()
    facts = FileFacts(tmp_path / "file" / "facts.json")
    assert facts.sha256(model) == facts.sha256(model)
    assert len(hashed) == 1
    assert facts.described(model, lambda: {"fine": True}) == {"fine": True}
    assert facts.described(model, never) == {"fine": True}


def test_a_pipe_in_the_facts_place(tmp_path: Path, model: Path) -> None:
    """A named pipe where the facts should be is not waited for, and is replaced."""
    os.mkfifo(tmp_path / "facts.json")
    FileFacts(tmp_path / "facts.json").sha256(model)
    assert json.loads((tmp_path / "facts.json").read_text())["format"] == 1


def test_facts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many files are known at a time, the latest, and of each its last version alone."""
    monkeypatch.setattr(filefacts, "_MOST_FILES", 3)
    clock = iter(range(100))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    facts = FileFacts(tmp_path / "facts.json")
    paths = [tmp_path / f"model{i}" for i in range(5)]
    for path in paths:
        path.write_bytes(path.name.encode())
        facts.sha256(path)
    assert [facts.known_sha256(path) is not None for path in paths] == [False, False, True, True, True]
    for i in range(5):
        paths[4].write_bytes(bytes(i))
        facts.sha256(paths[4])
    assert [facts.known_sha256(path) is not None for path in paths] == [False, False, True, True, True]


def test_many_processes_at_once(tmp_path: Path) -> None:
    """Processes that keep facts in one file at the same time leave it whole, and each gets its own answers."""
    models = [tmp_path / f"model{i}" for i in range(8)]
    for model in models:
        model.write_bytes(model.name.encode())
    code = (
        "import sys\nfrom pathlib import Path\nfrom agent import filefacts\nfilefacts.SETTLED_NS = -10**18\n"
        "facts = filefacts.FileFacts(Path(sys.argv[1]))\n"
        "for _ in range(20):\n    for name in sys.argv[2:]:\n"
        "        assert facts.described(Path(name), lambda: {'name': name}) == {'name': name}\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "facts.json")]
    processes = [subprocess.Popen([*command, *map(str, models)], cwd=ROOT) for _ in range(3)]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0, 0]
    facts = FileFacts(tmp_path / "facts.json")
    told = [facts.described(model, lambda: {"name": "lost"})["name"] for model in models]
    assert all(name in (str(model), "lost") for name, model in zip(told, models, strict=True))
    assert {path.name for path in tmp_path.iterdir()} == {"facts.json", *(model.name for model in models)}


def test_a_mark_is_withdrawn(tmp_path: Path, model: Path) -> None:
    """A process that ends for another reason while it reads takes its mark along; nothing is held against the file."""
    for _ in range(3):
        child(tmp_path / "facts.json", model, "leave")
    assert FileFacts(tmp_path / "facts.json").described(model, lambda: {"read": 1}) == {"read": 1}
    assert [path.name for path in tmp_path.iterdir() if ".reading-" in path.name] == []


def test_what_the_dead_have_left(tmp_path: Path, model: Path) -> None:
    """Half-written facts and marks of processes that are gone are taken away; those of the living stay."""
    path = tmp_path / "facts.json"
    with subprocess.Popen(["true"]) as process:
        pass
    dead, own = process.pid, os.getppid()
    for name in (f"facts.json.{dead}", f"facts.json.reading-{dead}"):
        (tmp_path / name).write_text("{")
    kept = [
        tmp_path / f"facts.json.{own}",
        tmp_path / f"facts.json.reading-{own}",
        tmp_path / "facts.json.old",
    ]
    for file in kept:
        file.write_text("{")
    FileFacts(path).described(model, lambda: {"read": 1})
    assert {file.name for file in tmp_path.iterdir()} >= {file.name for file in kept}
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(str(dead))]
