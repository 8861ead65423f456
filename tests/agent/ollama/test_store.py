"""Tests of `agent.ollama.store`, on stores laid out as Ollama lays them out."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.filefacts import open_regular
from agent.ollama import store as module
from agent.ollama.names import parse
from agent.ollama.store import (
    MOST_MANIFEST,
    Store,
    StoredModel,
    blob_digest,
    find_store,
    read_store,
    snapshot,
    usual_stores,
)
from tests.agent.ollama.support import as_nobody
from tools.ollama_store import IMAGE, MANIFEST, add_blob, add_model, build_store, remove_model, write_manifest

LIBRARY = "registry.ollama.ai/library"
HEX = "ab" * 32


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A file to store; the store does not look into it."""
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path


@pytest.fixture
def root(tmp_path: Path, gguf: Path) -> Path:
    """A store with one model."""
    return build_store(tmp_path / "models", {"llama3.2:1b": gguf})


def only(found: Store) -> StoredModel:
    """The one model of a store."""
    assert len(found.models) == 1
    return found.models[0]


def rewrite(root: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Changes what the one model's manifest says."""
    path = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    return path


def test_a_model_as_ollama_stores_it(root: Path, gguf: Path) -> None:
    """The name is Ollama's, the file is the blob of the model's layer, the digest is the manifest's own."""
    model = only(read_store(root))
    manifest = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    content = gguf.read_bytes()
    assert str(model.name) == "llama3.2:1b"
    assert model.manifest == manifest
    assert model.blob == root / "blobs" / f"sha256-{hashlib.sha256(content).hexdigest()}"
    assert (model.size, model.fault) == (len(content), None)
    assert model.digest == hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert blob_digest(model.blob) == hashlib.sha256(content).hexdigest()
    assert blob_digest(manifest) is None


def test_names_with_hosts_ports_and_namespaces(tmp_path: Path, gguf: Path) -> None:
    """All models are found and listed by name, whatever their host and namespace, and hidden files are not."""
    names = [
        "hf.co/someone/Some-GGUF:Q4_K_M",
        "localhost:5000/library/m:v1.0",
        "llama3.1:8b",
        "someone/m:latest",
    ]
    root = build_store(tmp_path / "models", dict.fromkeys(names, gguf))
    for hidden in (".DS_Store", f"{LIBRARY}/.DS_Store", f"{LIBRARY}/llama3.1/.DS_Store"):
        (root / "manifests" / hidden).write_bytes(b"\0")
    (root / "manifests" / LIBRARY / "empty").mkdir()
    (root / "manifests" / LIBRARY / "skill" / "one" / "deeper").mkdir(parents=True)
    found = read_store(root)
    assert [str(model.name) for model in found.models] == sorted(names)
    assert {model.fault for model in found.models} == {None}
    assert len({model.blob for model in found.models}) == 1


def test_newer_manifests_come_first(tmp_path: Path, gguf: Path) -> None:
    """Manifests that are links to blobs are followed, and of a name that is there both ways the newer one counts."""
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF" + bytes(7))
    root = build_store(tmp_path / "models", {"llama3.2:1b": gguf, "old:1": gguf})
    manifest = add_model(root, "llama3.2:1b", other, v2=True)
    assert manifest.is_symlink()
    found = read_store(root)
    assert [str(model.name) for model in found.models] == ["llama3.2:1b", "old:1"]
    assert (found.models[0].size, found.models[0].manifest, found.models[0].fault) == (11, manifest, None)
    assert found.models[0].digest == hashlib.sha256(manifest.read_bytes()).hexdigest()


@pytest.mark.parametrize("inline", [True, False])
def test_lists_of_manifests(root: Path, inline: bool) -> None:
    """Of a list the manifest for a program that runs GGUF files is taken, in the list or in a blob of its own."""
    path = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    plain = json.loads(path.read_text())
    mlx = {"mediaType": MANIFEST, "runner": "mlx", "digest": f"sha256:{HEX}"}
    child: dict[str, Any] = {"mediaType": MANIFEST, "runner": "llamacpp"}
    child |= plain if inline else {"digest": add_blob(root, MANIFEST, json.dumps(plain).encode())["digest"]}
    whole = {"schemaVersion": 2, "mediaType": "application/vnd.ollama.manifest.list.v2+json"}
    path.write_text(json.dumps(whole | {"manifests": [mlx, child]}))
    model = only(read_store(root))
    assert (model.fault, model.size) == (None, 1004)
    assert model.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(json.dumps(whole | {"manifests": [mlx]}))
    assert only(read_store(root)).fault == "it is stored for other programs than llama.cpp (mlx)"
    path.write_text(
        json.dumps(whole | {"manifests": [{**child, "runner": "ollama", "layers": [], "digest": "x"}]})
    )
    assert only(read_store(root)).fault == "its manifest is damaged"


def test_a_list_does_not_refer_to_lists(root: Path) -> None:
    """A list of manifests that names another list, or a blob that is gone, is a fault and no endless way."""
    path = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    kind = {"schemaVersion": 2, "mediaType": "application/vnd.ollama.manifest.list.v2+json"}
    gone = kind | {"manifests": [{"runner": "ollama", "digest": f"sha256:{HEX}"}]}
    path.write_text(json.dumps(gone))
    assert only(read_store(root)).fault == "its manifest is missing from the store"
    (root / "blobs" / f"sha256-{HEX}").write_text(json.dumps(gone))
    assert only(read_store(root)).fault == "its manifest is damaged"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "its manifest is damaged"),
        (b"{", "its manifest is damaged"),
        (b"[]", "its manifest is damaged"),
        (b"null", "its manifest is damaged"),
        (b'{"layers": [1]}', "its manifest is damaged"),
        (b'{"layers": 7}', "its manifest is damaged"),
        (b"\xff\xfe", "its manifest is damaged"),
        (b"[" * 100_000, "its manifest is damaged"),
        (b'{"layers": []}', "it has no GGUF file (nothing)"),
        (b" " * (MOST_MANIFEST + 1), "its manifest is too large"),
    ],
)
def test_damaged_manifests(root: Path, content: bytes, fault: str) -> None:
    """Whatever stands in a manifest's place, the model is listed with a fault, and the others are found."""
    (root / "manifests" / LIBRARY / "llama3.2" / "1b").write_bytes(content)
    assert only(read_store(root)).fault == fault


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../etc/passwd",
        "../../etc/passwd",
        f"sha256:{HEX}/../x",
        f"sha256:{HEX}0",
        f"md5:{HEX}",
        "",
        None,
        7,
    ],
)
def test_digests_that_would_leave_the_store(root: Path, digest: Any) -> None:
    """A digest that is none names no file: nothing outside the store's blobs is ever looked at."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["layers"][0]["digest"] = digest

    rewrite(root, change)
    model = only(read_store(root))
    assert (model.fault, model.blob) == ("its manifest is damaged", None)


@pytest.mark.parametrize("size", ["1004", None, -1, 1.5, True, [1]])
def test_sizes_that_are_none(root: Path, size: Any) -> None:
    """A size that is no number of bytes is a damaged manifest, not a missing or complete download."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["layers"][0]["size"] = size

    rewrite(root, change)
    assert only(read_store(root)).fault == "its manifest is damaged"


@pytest.mark.parametrize(
    ("kinds", "fault"),
    [
        (["tensor", "tensor", "json"], "it is stored as safetensors, not as GGUF"),
        (["projector", "template"], "it has no GGUF file (only projector, template)"),
        (["draft"], "it has no GGUF file (only draft)"),
        (["model", "model"], "it is split into 2 files"),
        (["model", "adapter"], "it is a model with an adapter, which would be left out here"),
        (["model\n\x1b[2J" * 100], "it has no GGUF file (only " + ("model  [2J" * 8) + ")"),
    ],
)
def test_models_in_other_forms(root: Path, kinds: list[str], fault: str) -> None:
    """A model that is no single GGUF file is listed with what it is instead."""

    def change(manifest: dict[str, Any]) -> None:
        weights = manifest["layers"][0]
        manifest["layers"] = [{**weights, "mediaType": IMAGE + kind} for kind in kinds]

    rewrite(root, change)
    assert only(read_store(root)).fault == fault


def test_projectors_and_drafts_are_not_the_model(tmp_path: Path, gguf: Path) -> None:
    """Layers that hold a projector or a draft are left aside, wherever they stand."""
    root = tmp_path / "models"
    manifest = add_model(root, "m:1", gguf, layers=[("projector", b"GGUF a"), ("draft", b"GGUF b")])
    content = json.loads(manifest.read_text())
    content["layers"].reverse()
    manifest.write_text(json.dumps(content))
    model = only(read_store(root))
    assert model.fault is None and model.blob is not None
    assert blob_digest(model.blob) == hashlib.sha256(gguf.read_bytes()).hexdigest()


def test_blobs_that_cannot_be_used(root: Path) -> None:
    """A missing, partial, cut, longer, or strange blob is told as what it is."""
    blob = only(read_store(root)).blob
    assert blob is not None

    def fault() -> str | None:
        return only(read_store(root)).fault

    content = blob.read_bytes()
    blob.write_bytes(content[:600])
    assert fault() == "its download is not complete (600 of 1004 bytes)"
    blob.write_bytes(content + b"!")
    assert fault() == "its file is damaged (1005 bytes, not 1004)"
    blob.unlink()
    assert fault() == "its file is missing from the store"
    blob.with_name(f"{blob.name}-partial").write_bytes(bytes(1004))
    assert fault() == "its download is not complete"
    blob.mkdir()
    assert fault() == "its file is not a regular file"
    blob.rmdir()
    os.mkfifo(blob)
    assert fault() == "its file is not a regular file"
    blob.unlink()
    blob.symlink_to(blob)
    assert fault() == "its file is a symbolic link in a circle"


def test_links_are_followed(root: Path, tmp_path: Path) -> None:
    """A store, a folder, a manifest and a blob that are links elsewhere are as good as in place."""
    blob = only(read_store(root)).blob
    assert blob is not None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(blob, elsewhere / "weights")
    blob.symlink_to(elsewhere / "weights")
    manifest = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    shutil.move(manifest, elsewhere / "manifest")
    manifest.symlink_to(elsewhere / "manifest")
    shutil.move(root / "manifests" / "registry.ollama.ai", elsewhere / "host")
    (root / "manifests" / "registry.ollama.ai").symlink_to(elsewhere / "host")
    (tmp_path / "link").symlink_to(root)
    model = only(read_store(tmp_path / "link"))
    assert (str(model.name), model.fault) == ("llama3.2:1b", None)


def test_links_in_a_circle(root: Path) -> None:
    """Links that lead in a circle are a fault of one model, or are passed over, and end nothing."""
    manifest = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    manifest.unlink()
    manifest.symlink_to(manifest)
    (root / "manifests" / "host").symlink_to(root / "manifests")
    (root / "manifests" / LIBRARY / "round").symlink_to(".")
    found = {str(model.name): model.fault for model in read_store(root).models}
    assert found["llama3.2:1b"] == "its manifest is a symbolic link in a circle"
    manifest.unlink()
    manifest.symlink_to("nowhere")
    assert only(read_store(root)).fault == "its manifest is missing from the store"


def test_a_pipe_in_a_manifests_place_is_not_waited_for(root: Path) -> None:
    """A named pipe among the manifests is a fault, at once."""
    manifest = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    manifest.unlink()
    os.mkfifo(manifest)
    assert only(read_store(root)).fault == "its manifest cannot be read"


READ_AS_NOBODY = """
    from pathlib import Path
    from agent.ollama.store import read_store, snapshot
    # as nobody
    found = read_store(Path("models"))
    snapshot(Path("models"))
    print(found.fault, *(f"{model.name}: {model.fault}" for model in found.models), sep="|")
"""


@pytest.mark.parametrize(
    ("closed", "told"),
    [
        ("", "the agent's user may not read the Ollama store"),
        ("manifests", "the agent's user may not read the Ollama store"),
        (
            "manifests/registry.ollama.ai",
            "the agent's user may not read all of the Ollama store|hf.co/a/b:c: None",
        ),
        (
            "blobs",
            "None|hf.co/a/b:c: the agent's user may not read its file|m:1: the agent's user may not read its file",
        ),
    ],
)
def test_what_another_user_may_not_read(tmp_path: Path, gguf: Path, closed: str, told: str) -> None:
    """Folders closed to the agent's user are told as such, and what is open is found."""
    tmp_path.chmod(0o755)
    root = build_store(tmp_path / "models", {"m:1": gguf, "hf.co/a/b:c": gguf})
    (root / closed).chmod(0o700 if os.getuid() == 0 else 0)
    try:
        assert as_nobody(READ_AS_NOBODY, tmp_path) == told
    finally:
        (root / closed).chmod(0o755)


def test_files_another_user_may_not_read(tmp_path: Path, gguf: Path) -> None:
    """A manifest and a blob closed to the agent's user are told apart."""
    tmp_path.chmod(0o755)
    root = build_store(tmp_path / "models", {"m:1": gguf})
    blob = only(read_store(root)).blob
    assert blob is not None
    blob.chmod(0)
    assert as_nobody(READ_AS_NOBODY, tmp_path) == "None|m:1: the agent's user may not read its file"
    (root / "manifests" / LIBRARY / "m" / "1").chmod(0)
    assert as_nobody(READ_AS_NOBODY, tmp_path) == "None|m:1: the agent's user may not read its manifest"


def test_every_change_shows_in_the_snapshot(root: Path, gguf: Path) -> None:
    """The picture of a store is equal as long as nothing changes, and another after whatever may change the choice."""
    seen = [snapshot(root)]

    def changed() -> None:
        assert snapshot(root) == snapshot(root)
        assert snapshot(root) not in seen
        seen.append(snapshot(root))

    assert seen == [snapshot(root)]
    manifest = add_model(root, "llama3.1:8b", gguf)
    changed()
    manifest.write_bytes(manifest.read_bytes() + b" ")
    changed()
    blob = read_store(root).models[0].blob
    assert blob is not None
    content = blob.read_bytes()
    os.utime(blob, ns=(1, 1))
    changed()
    blob.unlink()
    changed()
    blob.with_name(f"{blob.name}-partial").touch()
    changed()
    blob.write_bytes(content)
    changed()
    remove_model(root, "llama3.1:8b")
    changed()
    shutil.rmtree(root)
    changed()


def test_a_download_under_way_does_not_show(root: Path) -> None:
    """Blobs that no manifest names come and grow without a change: looking again would find nothing."""
    before = snapshot(root)
    (root / "blobs" / f"sha256-{HEX}-partial").write_bytes(bytes(10))
    (root / "blobs" / f"sha256-{HEX}").write_bytes(bytes(10))
    assert snapshot(root) == before


def test_unchanged_manifests_are_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look opens no manifest that is as it was, and opens one that was replaced."""
    manifest = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    monkeypatch.setattr(module, "settled", lambda facts: True)
    opened: list[Path] = []

    def counted(path: Path) -> Any:
        opened.append(path)
        return open_regular(path)

    monkeypatch.setattr(module, "open_regular", counted)
    read_store(root)
    assert opened == [manifest]
    snapshot(root)
    read_store(root)
    assert opened == [manifest]
    copy = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(copy + b" ")
    read_store(root)
    assert opened == [manifest, manifest]


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_manifest_just_written_is_read_every_time(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_settled: bool
) -> None:
    """While a change within the grain of the clock could go unseen, nothing is taken to be as it was."""
    monkeypatch.setattr(module, "key_of", lambda facts: f"the same {root}")
    monkeypatch.setattr(module, "settled", lambda facts: is_settled)
    first = only(read_store(root)).digest
    manifest = root / "manifests" / LIBRARY / "llama3.2" / "1b"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    assert (only(read_store(root)).digest == first) is is_settled


def test_thousands_of_models(tmp_path: Path, gguf: Path) -> None:
    """A store of thousands of names is read whole."""
    root = build_store(tmp_path / "models", {"m:0": gguf})
    plain = json.loads((root / "manifests" / LIBRARY / "m" / "0").read_text())
    for i in range(1, 3000):
        name = parse(f"m{i % 50}:{i}")
        assert name is not None
        write_manifest(root, name, plain)
    found = read_store(root)
    assert len(found.models) == 3000
    assert (found.fault, {model.fault for model in found.models}) == (None, {None})


def test_more_models_than_are_looked_at(root: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store without end is cut, and says so."""
    monkeypatch.setattr(module, "MOST_MODELS", 2)
    for name in ("a:1", "b:1", "c:1"):
        add_model(root, name, gguf)
    found = read_store(root)
    assert [str(model.name) for model in found.models] == ["a:1", "b:1"]
    assert found.fault == "the Ollama store holds more than the 2 models that are looked at"


def test_a_store_that_changes_while_it_is_read(root: Path, gguf: Path) -> None:
    """Models that come and go while they are looked at raise nothing."""
    done = threading.Event()

    def churn() -> None:
        for _ in range(150):
            add_model(root, "b:1", gguf)
            remove_model(root, "b:1")
        done.set()

    thread = threading.Thread(target=churn)
    thread.start()
    looks = 0
    while not done.is_set() or looks == 0:
        names = {str(model.name) for model in read_store(root).models}
        snapshot(root)
        assert names in ({"llama3.2:1b"}, {"llama3.2:1b", "b:1"})
        looks += 1
    thread.join()


def test_no_store(tmp_path: Path, root: Path) -> None:
    """A folder that is not there, is a file, or holds no manifests is no store; one without models says that."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "gone", tmp_path / "file", tmp_path):
        assert read_store(place) == Store(fault="there is no Ollama store")
        assert find_store(place) is None
        assert snapshot(place) == snapshot(place) != snapshot(root)
    remove_model(root, "llama3.2:1b")
    assert read_store(root) == Store(root, fault="the Ollama store holds no model")


def test_the_usual_places(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ollama was told to keep models comes first, then the user's folder, then the services'."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    own = tmp_path / "home/.ollama/models"
    services = [Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/.ollama/models")]
    assert usual_stores() == [own, *services]
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "set"))
    assert usual_stores() == [tmp_path / "set", own, *services]

    monkeypatch.setattr(module, "usual_stores", lambda: [tmp_path / "set", own])
    assert find_store() is None
    (tmp_path / "set/manifests").mkdir(parents=True)
    assert find_store() == tmp_path / "set"
    build_store(own, {"m:1": gguf})
    assert find_store() == own
    assert str(only(read_store()).name) == "m:1"
    build_store(tmp_path / "set", {"n:1": gguf})
    assert find_store() == tmp_path / "set"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home folder the services' places are left."""

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    assert len(usual_stores()) == 2
