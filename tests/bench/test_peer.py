"""Tests of `bench.peer`: what is built, what is started, and what is refused."""

from __future__ import annotations

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


def test_memory_peak_of_this_process() -> None:
    """The peak of a process is read in megabytes."""
    assert 10 < peer.peak_memory_mb(__import__("os").getpid()) < 1_000_000
