"""Tests of `bench.peer`: what is built, what is started, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import peer


def test_a_build_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has been built is not built again; one that has not is, for the installed release."""
    built: list[tuple[Path, str]] = []

    def build(folder: Path, release: str) -> None:
        built.append((folder, release))
        binary = folder / "build" / "bin" / "llama-server"
        binary.parent.mkdir(parents=True)
        binary.touch()

    monkeypatch.setattr(peer, "version", lambda name: "1.2.3")
    monkeypatch.setattr(peer, "_build", build)
    first, again = peer.server_binary(tmp_path), peer.server_binary(tmp_path)
    assert first == again == tmp_path / "1.2.3" / "build" / "bin" / "llama-server"
    assert built == [(tmp_path / "1.2.3", "1.2.3")]


def test_a_failed_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the sources cannot be had the error is one of the benchmark's own."""

    def build(folder: Path, release: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr(peer, "_build", build)
    with pytest.raises(peer.PeerError, match="could not be built: no network"):
        peer.server_binary(tmp_path)


def test_command_lines() -> None:
    """CMake gets the options that make the build like ours; both servers get equal threads and context."""
    configure = peer.configure_command(Path("src"), Path("out"))
    assert configure[:5] == ["cmake", "-S", "src", "-B", "out"]
    assert {"-DGGML_NATIVE=ON", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON"} <= set(configure)
    assert "-DLLAMA_CURL=OFF" in configure and "-DLLAMA_OPENSSL=OFF" in configure
    download = " ".join(peer.download_command(Path("cache"), "1.2.3")[1:])
    assert download == (
        "-m pip download --disable-pip-version-check --no-deps --no-binary llama-cpp-python -d cache "
        "llama-cpp-python==1.2.3"
    )
    assert peer.build_command(Path("out"))[:5] == ["cmake", "--build", "out", "--target", "llama-server"]
    plain = peer.server_command(Path("server"), 9, Path("t.gguf"), 2, 512, None, 0)
    drafting = peer.server_command(Path("server"), 9, Path("t.gguf"), 2, 512, Path("d.gguf"), 6)
    assert plain == drafting[: len(plain)]
    assert " ".join(drafting[len(plain) :]) == (
        "-md d.gguf --spec-type draft-simple --spec-draft-n-max 6 -td 2 -tbd 2"
    )


def _map(*files: str) -> str:
    return (
        "".join(f"7f00-7f01 r-xp 00000000 fe:00 123    {file}\n" for file in files)
        + "7fff-8000 rw-p 0 00:00 0\n"
    )


def test_only_our_libraries_may_decode(tmp_path: Path) -> None:
    """Another copy of libggml or libllama in the process is named; libraries of the server itself may be its own."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    good = [f"{ours}/libggml-cpu.so.0.25", f"{ours}/libllama.so.0.5", f"{theirs}/libllama-common.so.0"]
    assert peer.foreign_libraries(_map(*good), ours) == []
    assert peer.foreign_libraries(_map(*good, f"{theirs}/libggml-base.so.0"), ours) == [
        f"{theirs}/libggml-base.so.0"
    ]
    assert peer.foreign_libraries(_map("/usr/lib/libc.so.6"), ours) == ["no library at all"]


def test_a_server_on_other_libraries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that executes other library files than ours is stopped, and no ratio comes of it."""
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o755)
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(peer, "_wait", lambda url, process, log: started.append(process))
    with (
        pytest.raises(peer.PeerError, match="does not run on our libraries"),
        peer.running(binary, tmp_path / "t.gguf", threads=1, context=64),
    ):
        pytest.fail("it was let through")
    assert started[0].poll() is not None


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    """What the server said last is in the error."""
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\necho no such model\nexit 1\n")
    binary.chmod(0o755)
    with (
        pytest.raises(peer.PeerError, match="no such model"),
        peer.running(binary, tmp_path / "t.gguf", threads=1, context=64),
    ):
        pytest.fail("it was let through")


def test_sigterm_leaves_no_server(tmp_path: Path) -> None:
    """A benchmark that is told to end ends its server too."""
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o755)
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom bench import peer\n"
        "def waited(url, process, log):\n"
        "    print(process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "peer._wait = waited\nsignal.signal(signal.SIGTERM, peer.leave)\n"
        "with peer.running(Path(sys.argv[1]), Path('t.gguf'), threads=1, context=64):\n    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(binary)], capture_output=True, text=True)
    assert done.returncode == 143
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    until = time.monotonic() + 10
    while stat.exists() and stat.read_text().split()[2] != "Z" and time.monotonic() < until:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_memory_peak_of_this_process() -> None:
    """The peak of a process is read in megabytes."""
    assert 10 < peer.peak_memory_mb(os.getpid()) < 1_000_000
