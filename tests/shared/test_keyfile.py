"""The file of a private key: made once, for its owner alone, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from shared.keyfile import KeyFileError, Kind, SigningKey, load, load_or_create
from shared.keys import key_id, load_keys

ROOT = Path(__file__).parents[2]
ALGS: dict[Kind, str] = {"P-256": "ECDSA_SHA_256", "Ed25519": "ED25519"}
NOBODY = 65534
CROWD = 20

P256 = ec.generate_private_key(ec.SECP256R1())


@contextlib.contextmanager
def folder_without_writing() -> Iterator[Path]:
    """An empty folder that this process may enter and read, but not write; the superuser gives up being one."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o555)
        if (was := os.geteuid()) == 0:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(was)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def mode(path: Path) -> int:
    """The permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def private(key: Any, password: bytes | None = None, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    """A private key in PEM."""
    lock = NoEncryption() if password is None else BestAvailableEncryption(password)
    return bytes(key.private_bytes(Encoding.PEM, form, lock))


def public(key: Any) -> bytes:
    """The public half in PEM."""
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def refused(path: Path) -> KeyFileError:
    """The error that a file's use ends in."""
    with pytest.raises(KeyFileError) as caught:
        load_or_create(path, "P-256")
    assert caught.value.code == "BAD_KEY_FILE"
    return caught.value


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A process that would let everyone read its new files."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("kind", ALGS)
@pytest.mark.usefixtures("open_umask")
def test_made_at_first_use(tmp_path: Path, kind: Kind) -> None:
    """The first use makes folder and file, for the owner alone whatever the umask; what it signs verifies."""
    path = tmp_path / "new" / "folder" / "key.pem"
    key = load_or_create(path, kind)
    assert mode(path) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["key.pem"]
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----\n")
    (trusted,) = load_keys(key.pem.encode())
    assert (key.alg, key.keyid) == (ALGS[kind], key_id(key.pem.encode())) == (trusted.alg, trusted.keyid)
    assert trusted.verifies(key.sign(b"message"), b"message")
    assert not trusted.verifies(key.sign(b"message"), b"massage")


@pytest.mark.parametrize("kind", ALGS)
def test_stays_the_same(tmp_path: Path, kind: Kind) -> None:
    """Later uses read the key that is there, of whichever kind, and leave the file alone."""
    path = tmp_path / "key.pem"
    first = load_or_create(path, kind)
    before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
    for asked in ALGS:
        again = load_or_create(path, asked)
        assert (again.keyid, again.pem, again.alg) == (first.keyid, first.pem, first.alg)
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_read_only_file_will_do(tmp_path: Path) -> None:
    """A key that its owner may only read, as a mounted secret is, is used."""
    path = tmp_path / "key.pem"
    path.write_bytes(private(P256))
    path.chmod(0o400)
    assert load_or_create(path, "P-256").pem == public(P256).decode()


def test_name_is_there_only_after_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole key is on the disk before it gets its name, and the name is too before the key is used."""
    events: list[tuple[str, str]] = []
    names: dict[int, str] = {}
    open_, fsync, link = os.open, os.fsync, os.link

    def opened(path: Any, *args: Any, **more: Any) -> int:
        descriptor = open_(path, *args, **more)
        names[descriptor] = "folder" if Path(path) == tmp_path else "partial"
        return descriptor

    def synced(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        events.append(("sync", names[descriptor]))
        assert names[descriptor] == "folder" or size == len(private(P256))
        fsync(descriptor)

    def linked(source: Any, target: Any) -> None:
        events.append(("link", Path(target).name))
        link(source, target)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    load_or_create(tmp_path / "key.pem", "P-256")
    assert events == [("sync", "partial"), ("link", "key.pem"), ("sync", "folder")]


def test_threads_that_make_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of threads that have all found no key and made one, one wins, and all use that one's."""
    gate, link = threading.Barrier(CROWD), os.link
    made: list[Path] = []

    def linked(source: Path, target: Path) -> None:
        made.append(source)
        gate.wait(60)
        link(source, target)

    monkeypatch.setattr(os, "link", linked)
    with ThreadPoolExecutor(CROWD) as pool:
        keys = list(pool.map(lambda _: load_or_create(tmp_path / "key.pem", "P-256").keyid, range(CROWD)))
    assert len(set(made)) == len(keys) == CROWD
    assert set(keys) == {load_or_create(tmp_path / "key.pem", "P-256").keyid}
    assert [entry.name for entry in tmp_path.iterdir()] == ["key.pem"]


RACE = """
import os, sys
from pathlib import Path
from shared.keyfile import load_or_create

path, crowd = Path(sys.argv[1]), int(sys.argv[2])
ready, gun = os.pipe(), os.pipe()
link = os.link

def linked(source, target):
    os.write(ready[1], b".")
    os.read(gun[0], 1)  # ends when all have come this far
    link(source, target)

os.link = linked
children = []
for _ in range(crowd):
    child = os.fork()
    if not child:
        os.close(gun[1])
        os.write(1, (load_or_create(path, "Ed25519").keyid + "\\n").encode())
        os._exit(0)
    children.append(child)
come = b""
while len(come) < crowd:
    come += os.read(ready[0], crowd)
os.close(gun[1])
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def script(text: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a program with the project on its path."""
    command = [sys.executable, "-c", text, *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_processes_that_make_it_at_once(tmp_path: Path) -> None:
    """Of processes that have all found no key and made one, one wins, and all use that one's."""
    path = tmp_path / "key.pem"
    done = script(RACE, path, CROWD)
    assert (done.returncode, done.stderr) == (0, "")
    keys = done.stdout.split()
    assert len(keys) == CROWD
    assert set(keys) == {load_or_create(path, "P-256").keyid}
    assert mode(path) == 0o600


KILL = """
import os, signal, sys
from pathlib import Path
from shared.keyfile import load_or_create

left = int(sys.argv[2])

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def wrapped(call):
    def counted(*args, **more):
        step()
        return call(*args, **more)
    return counted

class File:
    def __init__(self, file):
        self.file = file
    def __enter__(self):
        return self
    def __exit__(self, *error):
        step()
        self.file.close()
    def write(self, data):
        step()
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        step()
        self.file.write(data[len(data) // 2 :])
    def __getattr__(self, name):
        return getattr(self.file, name)

fdopen = os.fdopen
os.fdopen = lambda *args: File(fdopen(*args))
for name in ("open", "fsync", "link", "unlink", "mkdir", "close"):
    setattr(os, name, wrapped(getattr(os, name)))
load_or_create(Path(sys.argv[1]), "P-256")
"""


def test_killed_while_making_it(tmp_path: Path) -> None:
    """A process killed at any step leaves under the name no key or a whole one, and the next gets a key."""
    kills = 0
    while True:
        path = tmp_path / str(kills) / "key.pem"
        done = script(KILL, path, kills + 1)
        assert done.stderr == ""
        for file in path.parent.glob("*") if path.parent.exists() else ():
            assert mode(file) == 0o600
        if path.exists():
            assert load(path.read_bytes(), "key.pem").keyid == load_or_create(path, "P-256").keyid
        assert load_or_create(path, "P-256").alg == "ECDSA_SHA_256"
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        kills += 1
    assert kills >= 10


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o777], ids=oct)
def test_open_to_others(tmp_path: Path, bits: int) -> None:
    """A key that group or others have any access to is not used; the sentence says what to do."""
    path = tmp_path / "key.pem"
    path.write_bytes(private(P256))
    path.chmod(bits)
    assert str(refused(path)) == "key.pem is open to others than its owner; chmod 600 key.pem"
    assert mode(path) == bits


NO_KEY = "key.pem holds no PEM private key without a password"
OTHER = "the key in key.pem is neither P-256 nor Ed25519"
PASSWORD = b"marmalade"
BODY = private(P256).splitlines()[1]
CONTENTS = {
    "empty": (b"", NO_KEY),
    "garbage": (b"\x00\xff" * 50, NO_KEY),
    "half": (private(P256)[:120], NO_KEY),
    "broken": (private(P256).replace(BODY, BODY[::-1]), NO_KEY),
    "der": (P256.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), NO_KEY),
    "encrypted": (private(P256, PASSWORD), NO_KEY),
    "encrypted, old form": (private(P256, PASSWORD, PrivateFormat.TraditionalOpenSSL), NO_KEY),
    "public": (public(P256), NO_KEY),
    "P-384": (private(ec.generate_private_key(ec.SECP384R1())), OTHER),
    "secp256k1": (private(ec.generate_private_key(ec.SECP256K1())), OTHER),
    "RSA": (private(rsa.generate_private_key(public_exponent=65537, key_size=2048)), OTHER),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_key_for_us(tmp_path: Path, name: str) -> None:
    """Anything but a PEM private key of our two kinds without a password is refused, and nothing of it is told."""
    path = tmp_path / "key.pem"
    data, sentence = CONTENTS[name]
    path.write_bytes(data)
    path.chmod(0o600)
    error = refused(path)
    assert str(error) == sentence
    assert path.read_bytes() == data
    told = "".join(traceback.format_exception(error))
    secret = [line.decode() for line in data.splitlines() if line.isascii() and line[:1] not in (b"-", b"")]
    for text in (*secret, PASSWORD.decode()):
        assert text not in told
    assert str(tmp_path) not in str(error)


@pytest.mark.parametrize("key", [P256, ed25519.Ed25519PrivateKey.generate()], ids=ALGS)
def test_key_does_not_show_itself(key: Any) -> None:
    """A signing key prints nothing of its private half."""
    signing = SigningKey(key)
    shown = f"{signing!r} {signing} {vars(signing)!r}"
    raw = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    assert raw.hex() not in shown and private(key).splitlines()[1].decode() not in shown


@pytest.mark.parametrize("bits", [0o700, 0o755], ids=oct)
def test_folder_in_its_place(tmp_path: Path, bits: int) -> None:
    """A folder under the name is no key, whoever may read it."""
    path = tmp_path / "key.pem"
    path.mkdir()
    path.chmod(bits)
    assert str(refused(path)) == "key.pem is not a file"


def test_pipe_in_its_place(tmp_path: Path) -> None:
    """A pipe under the name is refused, not waited for."""
    os.mkfifo(tmp_path / "key.pem", 0o600)
    assert str(refused(tmp_path / "key.pem")) == "key.pem is not a file"


def test_folder_that_cannot_be_written() -> None:
    """Where no file may be made the sentence gives the system's reason, and no path."""
    with folder_without_writing() as folder:
        error = refused(folder / "key.pem")
        assert list(folder.iterdir()) == []
    assert str(error) == "key.pem cannot be read or made (Permission denied)"


def test_file_where_a_folder_should_be(tmp_path: Path) -> None:
    """A path through a file is refused."""
    (tmp_path / "file").write_text("")
    assert str(refused(tmp_path / "file" / "key.pem")) == "key.pem cannot be read or made (File exists)"


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up leaves nothing behind; once there is room the key is made."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert (
            str(refused(tmp_path / "key.pem")) == "key.pem cannot be read or made (No space left on device)"
        )
        assert list(tmp_path.iterdir()) == []
    assert load_or_create(tmp_path / "key.pem", "P-256").alg == "ECDSA_SHA_256"


def test_algorithm_that_the_library_does_not_know() -> None:
    """A private key of an algorithm that nothing here can read is no key either."""
    junk = b"-----BEGIN PRIVATE KEY-----\nMAoCAQAwBQYDKQEBBAA=\n-----END PRIVATE KEY-----\n"
    with pytest.raises(KeyFileError, match="^x holds no PEM private key without a password$"):
        load(junk, "x")
