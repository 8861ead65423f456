"""Tests of `agent.candidates`: model files by name, and what remains true of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.candidates import FORBIDDEN, Candidate, ModelFile, folded, look, permitted, version_of
from agent.errors import LoadFailed
from agent.filefacts import FileFacts
from tests.agent.ollama.support import DRAFT


def candidate(name: str, number: int | None) -> Candidate:
    """A model by name and file."""
    return Candidate(ModelFile(name, Path("/none")), id=None if number is None else (1, number))


def test_a_file_that_stays() -> None:
    """A file looked at is intact as long as nothing else stands in its place."""
    seen = look(ModelFile("draft", DRAFT), FileFacts())
    assert seen.file.version == version_of(DRAFT)
    assert seen.file.intact()
    assert (seen.bytes, seen.fault) == (DRAFT.stat().st_size, None)
    assert seen.listing() == {"name": "draft", "family": "llama", "loadable": True, "parameters": 1_278_912}
    assert seen.need(2048) == seen.known.need(2048).total > seen.bytes - 100_000


def test_what_may_change(tmp_path: Path) -> None:
    """Of a file that is gone what is in memory stays; another file, or a place that may not be read, is a change."""
    path = tmp_path / "model"
    path.write_bytes(b"abc")
    file = ModelFile("m", path, version=version_of(path))
    assert file.intact()
    path.write_bytes(b"abcd")
    assert not file.intact()
    path.unlink()
    assert file.intact()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert not ModelFile("m", tmp_path / "loop", version=(3, 0)).intact()
    assert ModelFile("m", tmp_path / "loop").intact() is False


def test_a_digest_is_of_the_content(tmp_path: Path) -> None:
    """A file gets the digest of its content; a blob's must be the one in its name."""
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path, manifest = tmp_path / f"sha256-{digest}", tmp_path / "manifest"
    path.write_bytes(b"abc")
    blob = ModelFile("m:1", path, version=version_of(path), manifest=manifest)
    assert blob.hashed(FileFacts()) == replace(blob, sha256=digest)
    path.write_bytes(b"abd")
    with pytest.raises(LoadFailed) as error:
        blob.hashed(FileFacts())
    assert str(error.value) == (
        "m:1 cannot be used: its content is not what its name says: it is damaged; pull m:1 again"
    )
    assert ModelFile("named", path).hashed(FileFacts()).sha256 is not None


@pytest.mark.parametrize(
    ("forbid", "left"),
    [
        ((), ["a:1", "b:latest", "c:1"]),
        (("A:1",), ["b:latest", "c:1"]),
        (("b",), ["a:1"]),
        (("c:1",), ["a:1"]),
        (("registry.ollama.ai/library/b:latest",), ["a:1"]),
        (("gone:1", "", "..", "a b"), ["a:1", "b:latest", "c:1"]),
    ],
)
def test_forbidden_models(forbid: tuple[str, ...], left: list[str]) -> None:
    """A name forbids its file under all names, in any spelling; files that cannot be found do not become one."""
    seen = [candidate("a:1", 1), candidate("b:latest", 2), candidate("c:1", 2)]
    marked = permitted(seen, forbid)
    assert [one.file.name for one in marked if one.fault is None] == left
    assert {one.fault for one in marked} <= {None, FORBIDDEN}
    gone = permitted([candidate("x:1", None), candidate("y:1", None)], ["x:1"])
    assert [one.fault for one in gone] == [FORBIDDEN, None]


def test_names_are_compared_as_ollama_compares_them() -> None:
    """Spellings of one name are equal; what is no name is compared as it is."""
    assert folded("Llama3.1:8B") == folded("registry.ollama.ai/library/llama3.1:8b") == "llama3.1:8b"
    assert folded("Embedded Draft") == "embedded draft"
