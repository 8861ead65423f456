"""The Lambda artifact: made twice it is the same, and what it and its papers say of it is so."""

from __future__ import annotations

import email
import hashlib
import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from edge import build_info
from shared import dsse
from shared.keyfile import load_or_create
from shared.keys import load_keys
from tests.checkout import ROOT, checkout, run
from tests.lambda_runtime.sandbox import lambda_python
from tools import build, verify_build

SOURCES = ("edge", "shared", "tools", "pyproject.toml")
HEALTH = ROOT / "events" / "health.json"
ZIP, SBOM, STATEMENT, ENVELOPE = (
    f"specdec-edge-x86_64.{ending}"
    for ending in ("zip", "cdx.json", "provenance.json", "provenance.dsse.json")
)

# Runs in the artifact as Lambda would: nothing but the artifact and the standard library can be imported.
INVOKE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from edge.app import lambda_handler
from edge.build_info import build_identity
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

ec.generate_private_key(ec.SECP256R1()).sign(b"receipt", ec.ECDSA(hashes.SHA256()))
ed25519.Ed25519PrivateKey.generate().sign(b"receipt")

class Context:
    def get_remaining_time_in_millis(self):
        return 29000

reply = lambda_handler(json.load(open(sys.argv[2])), Context())
elsewhere = sorted(
    name for name, module in sys.modules.items()
    if getattr(module, "__file__", None) and "site-packages" in module.__file__
)
print(json.dumps({"reply": reply, "identity": build_identity(), "elsewhere": elsewhere}))
"""


@dataclass(frozen=True)
class Built:
    """Two builds of one source in two places, and where they were made."""

    first: Path
    second: Path
    source: Path

    @property
    def files(self) -> dict[str, bytes]:
        """The content of the zip."""
        with zipfile.ZipFile(self.first / ZIP) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    @property
    def statement(self) -> dict[str, Any]:
        """The provenance."""
        value: dict[str, Any] = json.loads((self.first / STATEMENT).read_bytes())
        return value


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Two builds that differ in everything that must not matter: place, time, umask, time zone, order of hashes."""
    first = checkout(tmp_path_factory.mktemp("here"), *SOURCES)
    second = checkout(tmp_path_factory.mktemp("there") / "and" / "deeper", *SOURCES)
    (second / "edge" / "left-behind.txt").write_text("not tracked")
    for path in (second / "edge").iterdir():
        os.utime(path, (10**9, 10**9))
    command = [sys.executable, "-m", "tools.build", "--arch", "x86_64"]
    run(command, first, PYTHONHASHSEED="1", TZ="UTC")
    masked = ["sh", "-c", 'umask 077; exec "$@"', "sh", *command]
    done = run([*masked, "--signing-key", "key.pem"], second, PYTHONHASHSEED="2", TZ="Asia/Kathmandu")
    assert "left out, as git does not track them: edge/left-behind.txt" in done.stderr
    return Built(first / "dist", second / "dist", second)


def _locked() -> dict[str, tuple[str, set[str]]]:
    """Version and digests of each package in the lock."""
    lock = (ROOT / build.LOCK).read_text("utf-8")
    blocks = re.findall(r"^(\S+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", lock, re.MULTILINE)
    assert len(blocks) == len(re.findall(r"^[^#\s]", lock, re.MULTILINE))
    return {name: (version, set(re.findall("[0-9a-f]{64}", hashes))) for name, version, hashes in blocks}


@pytest.mark.slow
def test_two_builds_are_one(built: Built) -> None:
    """Zip, bill of materials and provenance are the same to the byte."""
    for name in (ZIP, SBOM, STATEMENT):
        assert (built.first / name).read_bytes() == (built.second / name).read_bytes(), name
    assert {path.name for path in built.first.iterdir()} == {ZIP, SBOM, STATEMENT}


@pytest.mark.slow
def test_nothing_else_is_packed(built: Built) -> None:
    """The zip holds tracked files of edge/ and shared/, what the locked wheels install, and its identity."""
    files = built.files
    own = {name for name in files if name.partition("/")[0] in build.SOURCES} - {build.BUILD_FILE}
    assert own == set(build.tracked(built.source)) - build.NOT_PACKED
    assert all(files[name] == (built.source / name).read_bytes() for name in own)
    tops = {name.partition("/")[0] for name in files} - set(build.SOURCES)
    infos = {top for top in tops if top.endswith(".dist-info")}
    names = {build.normalized(info.removesuffix(".dist-info").rpartition("-")[0]) for info in infos}
    assert names == set(_locked())
    assert tops - infos == {
        "_cffi_backend.cpython-313-x86_64-linux-gnu.so",
        "annotated_types",
        "aws_lambda_powertools",
        "cffi",
        "cryptography",
        "jmespath",
        "pycparser",
        "pydantic",
        "pydantic_core",
        "typing_extensions.py",
        "typing_inspection",
        "websockets",
    }
    for name in files:
        parts = name.split("/")
        assert not {"__pycache__", "tests", "RECORD", "INSTALLER", "direct_url.json"} & set(parts), name
        assert not name.endswith((".pyc", ".lock"))


@pytest.mark.slow
def test_entries_say_nothing_of_the_builder(built: Built) -> None:
    """Entries are sorted and stored, from 1980, readable by all."""
    with zipfile.ZipFile(built.first / ZIP) as archive:
        entries = archive.infolist()
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)
    looks = {
        (one.date_time, one.external_attr >> 16, one.compress_type, one.create_system) for one in entries
    }
    assert looks == {((1980, 1, 1, 0, 0, 0), 0o100644, zipfile.ZIP_STORED, 3)}


@pytest.mark.slow
def test_identity_is_the_digest_of_the_rest(built: Built) -> None:
    """build.json has the digest of all other files, as sha256sum and sort make it too."""
    files = built.files
    names = sorted(set(files) - {"edge/build.json"}, key=lambda name: name.encode("utf-8"))
    manifest = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in names)
    digest = hashlib.sha256(manifest.encode("utf-8")).hexdigest()
    assert json.loads(files["edge/build.json"]) == {
        "content_sha256": digest,
        "version": "0.1.0",
        "arch": "x86_64",
    }


@pytest.mark.slow
def test_provenance_names_the_zip_and_its_materials(built: Built) -> None:
    """The statement has both digests of the zip, the commit, every locked package's wheel, and the by-products."""
    value, data = built.statement, (built.first / ZIP).read_bytes()
    assert (value["_type"], value["predicateType"]) == (dsse.STATEMENT_TYPE, "https://slsa.dev/provenance/v1")
    digest = {"sha256": hashlib.sha256(data).hexdigest(), "sha3_256": hashlib.sha3_256(data).hexdigest()}
    assert value["subject"] == [{"name": ZIP, "digest": digest}]
    definition, details = value["predicate"]["buildDefinition"], value["predicate"]["runDetails"]
    assert definition["buildType"] == "https://a-11-oy.com/specdec/build/v1"
    assert definition["externalParameters"] == {"arch": "x86_64"}
    source, *wheels = definition["resolvedDependencies"]
    commit = run(["git", "rev-parse", "HEAD"], built.source).stdout.strip()
    assert (source["digest"], source["annotations"]) == ({"gitCommit": commit}, {"dirty": False})
    locked = _locked()
    assert [wheel["name"] for wheel in wheels] == sorted(locked)
    for wheel in wheels:
        version, digests = locked[wheel["name"]]
        assert wheel["annotations"]["version"] == version
        assert wheel["digest"]["sha256"] in digests
        assert re.fullmatch(rf"pkg:pypi/{wheel['name']}@{version}\?file_name=[\w.%-]+\.whl", wheel["uri"])
    assert details["builder"] == {"id": "https://a-11-oy.com/specdec/builder/local"}
    assert details["metadata"] == {}
    made = {one["name"]: one["digest"]["sha256"] for one in details["byproducts"]}
    assert made == {
        SBOM: hashlib.sha256((built.first / SBOM).read_bytes()).hexdigest(),
        "edge/build.json": hashlib.sha256(built.files["edge/build.json"]).hexdigest(),
    }


@pytest.mark.slow
def test_bill_of_materials_lists_the_lock(built: Built) -> None:
    """The CycloneDX document has the lock's packages, no more, and the wheels that the provenance names."""
    bill = json.loads((built.first / SBOM).read_bytes())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {one["name"]: one["version"] for one in bill["components"]}
    assert listed == {name: version for name, (version, _) in _locked().items()}
    assert len(bill["components"]) == len(listed)
    hashes = {
        one["name"]: [found["content"] for link in one["externalReferences"] for found in link["hashes"]]
        for one in bill["components"]
    }
    wheels = built.statement["predicate"]["buildDefinition"]["resolvedDependencies"][1:]
    assert hashes == {wheel["name"]: [wheel["digest"]["sha256"]] for wheel in wheels}
    assert (bill["metadata"]["component"]["name"], "timestamp" in bill["metadata"]) == (
        "governed-specdec",
        False,
    )


@pytest.mark.slow
def test_signed_provenance_is_the_statement(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The envelope holds the statement to the byte; its signature verifies with the key, and with no other."""
    envelope = json.loads((built.second / ENVELOPE).read_bytes())
    body = dsse.strict_base64(envelope["payload"])
    assert body == (built.second / STATEMENT).read_bytes()
    pem = tmp_path / "pub.pem"
    pem.write_text(load_or_create(built.source / "key.pem", "P-256").pem)
    (key,) = load_keys(pem.read_bytes())
    assert key.verifies(
        dsse.strict_base64(envelope["signatures"][0]["sig"]), dsse.pae(dsse.PAYLOAD_TYPE, body)
    )
    assert verify_build.main([str(built.second / ZIP), "--key", str(pem)]) == 0
    assert "signed by a key in pub.pem" in capsys.readouterr().out
    pem.write_text(load_or_create(tmp_path / "other.pem", "P-256").pem)
    assert verify_build.main([str(built.second / ZIP), "--key", str(pem)]) == 1
    assert "no key in pub.pem made a signature" in capsys.readouterr().err


@pytest.mark.slow
def test_sam_gets_the_same_files(built: Built, tmp_path: Path) -> None:
    """What edge/Makefile puts into SAM's folder is the zip's content, and the provenance holds for it."""
    target = tmp_path / "EdgeFunction"
    target.mkdir()
    make = ["make", "--makefile", str(built.source / "edge" / "Makefile"), "build-EdgeFunction"]
    run(make, built.source, ARTIFACTS_DIR=str(target), ARCH="x86_64", PYTHON=sys.executable)
    assert dict(_contents(target)) == built.files
    assert verify_build.main([str(target), "--provenance", str(built.first / STATEMENT)]) == 0
    (target / "edge" / "app.py").write_text("")
    assert verify_build.main([str(target), "--provenance", str(built.first / STATEMENT)]) == 1


@pytest.mark.slow
def test_arm_gets_arm_libraries(built: Built, tmp_path: Path) -> None:
    """The lock has the wheels of the other architecture too, and every native library is for it."""
    target = tmp_path / "arm64"
    run([sys.executable, "-m", "tools.build", "--arch", "arm64", "--into", str(target)], built.source)
    libraries = [path for path in target.rglob("*") if ".so" in path.suffixes]
    assert len(libraries) >= 4
    for path in libraries:  # the field e_machine of the ELF header: 183 is AArch64
        assert int.from_bytes(path.read_bytes()[18:20], "little") == 183, path.name
    identity = json.loads((target / "edge" / "build.json").read_bytes())
    assert identity["arch"] == "arm64"


@pytest.mark.slow
def test_lock_is_closed(built: Built) -> None:
    """Whatever a packed package needs under Lambda's Python is packed, in a version that it takes."""
    locked = _locked()
    lambda_python = {
        "python_version": build.PYTHON,
        "python_full_version": f"{build.PYTHON}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "os_name": "posix",
        "extra": "",
    }
    checked = 0
    for name, data in built.files.items():
        if re.fullmatch(r"[^/]+\.dist-info/METADATA", name):
            for text in email.message_from_bytes(data).get_all("Requires-Dist", []):
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate(lambda_python):
                    version, _ = locked[build.normalized(needed.name)]
                    assert needed.specifier.contains(version, prereleases=True), text
                    checked += 1
    assert checked > 5


def test_lock_is_of_the_requirements() -> None:
    """Every line of requirements.txt is locked, in a version that it takes; Lambda's own boto3 is not."""
    locked = _locked()
    lines = (ROOT / "edge" / "requirements.txt").read_text("utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            needed = Requirement(line)
            assert needed.specifier.contains(locked[build.normalized(needed.name)][0]), line
    assert not {"boto3", "botocore", "numpy", "httpx", "uvicorn"} & set(locked)


@pytest.mark.slow
def test_artifact_answers_alone(built: Built, tmp_path: Path) -> None:
    """Under Lambda's Python, with nothing but the artifact to import, the edge signs and answers /health."""
    target = tmp_path / "task"
    with zipfile.ZipFile(built.first / ZIP) as archive:
        archive.extractall(target)  # noqa: S202 - made by this test
    # -I and -S: no environment variable, no site-packages and no current folder reach the path.
    done = run(
        [lambda_python(), "-I", "-S", "-B", "-c", INVOKE, str(target), str(HEALTH)],
        tmp_path,
        SPECDEC_TOWER_URL="ws://127.0.0.1:9/specdec",
    )
    said = json.loads(done.stdout.splitlines()[-1])  # the lines before it are the log
    assert said["elsewhere"] == []
    assert said["reply"]["statusCode"] == 200
    assert json.loads(said["reply"]["body"])["endpoints"]["health"].startswith("GET ")
    assert said["identity"] == json.loads(built.files["edge/build.json"])
    assert verify_build.main([str(target), "--provenance", str(built.first / STATEMENT)]) == 0


def _contents(folder: Path) -> list[tuple[str, bytes]]:
    return [(name, path.read_bytes()) for name, path in build.walk(folder)]


# What follows uses a small artifact, so that it needs no package.


def _small(**changes: bytes) -> build.Artifact:
    files = {"edge/app.py": b"pass\n", "shared/labels.py": b"", "Z/upper.py": b"1", "a/\xe9.py": b"2"}
    identity = {"content_sha256": build.content_sha256(files), "version": "1", "arch": "arm64"}
    files["edge/build.json"] = json.dumps(identity).encode()
    wheel = build.Wheel("Some_Thing", "1", "some_thing-1+local-py3-none-any.whl", "0" * 64)
    return build.Artifact({**files, **changes}, [wheel])


def _written(folder: Path, artifact: build.Artifact, **changes: Any) -> Path:
    """Zip and provenance of a small artifact, made from this checkout."""
    archive = build.zip_bytes(artifact.files)
    (folder / "small.zip").write_bytes(archive)
    value = build.provenance("arm64", archive, artifact, b"{}", ROOT)
    (folder / "small.provenance.json").write_text(json.dumps({**value, **changes}))
    return folder / "small.zip"


def _verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = verify_build.main([str(one) for one in arguments])
    said = capsys.readouterr()
    assert (said.out + said.err).count("\n") == 1
    assert (code == 0) == bool(said.out)
    return code, said.out + said.err


def test_verify_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A zip with its provenance, one without, and the folder that it unpacks to all hold, and say what was compared."""
    archive = _written(tmp_path, _small())
    digest = json.loads(_small().files["edge/build.json"])["content_sha256"]
    code, said = _verify(capsys, archive)
    assert code == 0 and digest in said and "which names this very zip" in said
    folder = tmp_path / "folder"
    build.unpack(_small(), folder)
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*.py")} == {0o644}
    code, said = _verify(capsys, folder, "--provenance", tmp_path / "small.provenance.json")
    assert code == 0 and "which names this very zip" in said
    code, said = _verify(capsys, folder)
    assert code == 0 and "no provenance to compare with" in said
    with pytest.raises(build.BuildError, match="not empty"):
        build.unpack(_small(), folder)


def test_verify_sees_every_changed_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No single byte of the zip can be changed without notice, nor one in a folder."""
    archive = _written(tmp_path, _small())
    data = archive.read_bytes()
    for at in range(len(data)):
        archive.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert _verify(capsys, archive)[0] in (1, 2)
    folder = tmp_path / "folder"
    build.unpack(_small(), folder)
    (folder / "Z" / "upper.py").write_bytes(b"2")
    code, said = _verify(capsys, folder)
    assert code == 1 and "build.json says" in said and "__pycache__" not in said
    (folder / "Z" / "upper.py").write_bytes(b"1")
    (folder / "Z" / "__pycache__").mkdir()
    (folder / "Z" / "__pycache__" / "upper.pyc").write_bytes(b"")
    code, said = _verify(capsys, folder)
    assert code == 1 and "delete the __pycache__ folders" in said


def test_verify_sees_content_with_a_right_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that was changed or added by a whole new zip is noticed by build.json; a new build.json, by provenance."""
    for change in ({"edge/app.py": b"evil\n"}, {"edge/more.py": b""}):
        archive = tmp_path / "small.zip"
        archive.write_bytes(build.zip_bytes({**_small().files, **change}))
        code, said = _verify(capsys, archive)
        assert code == 1 and "build.json says" in said
    _written(tmp_path, _small())
    files: dict[str, bytes] = {"edge/app.py": b"evil\n"}
    identity = {"content_sha256": build.content_sha256(files), "version": "1", "arch": "arm64"}
    archive.write_bytes(build.zip_bytes({**files, "edge/build.json": json.dumps(identity).encode()}))
    code, said = _verify(capsys, archive)
    assert code == 1 and "of another build" in said


def test_verify_tells_a_repacked_zip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A zip of the same files that was compressed is not the one in the provenance, and the way out is named."""
    archive = _written(tmp_path, _small())
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in _small().files.items():
            packed.writestr(name, data)
    code, said = _verify(capsys, archive)
    assert code == 1 and "unpacked folder" in said
    (tmp_path / "small.provenance.json").unlink()
    assert _verify(capsys, archive)[0] == 0


def _zip(entries: list[tuple[str | zipfile.ZipInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


def test_verify_refuses_what_no_build_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links fail; what is no zip, no artifact or not there cannot be read."""
    link = zipfile.ZipInfo("edge/app.py")
    link.external_attr = 0o120777 << 16
    archive = tmp_path / "x.zip"
    archive.write_bytes(_zip([(link, b"/etc/passwd")]))
    assert _verify(capsys, archive) == (1, "verify_build: x.zip holds a link, which no build makes\n")
    for data, why in (
        (b"nothing", "not a zip"),
        (_zip([("edge/app.py", b"")]), "holds no edge/build.json"),
        (_zip([("edge/build.json", b"[]")]), "not a JSON object"),
        (_zip([("edge/build.json", b"{")]), "cannot be read"),
    ):
        archive.write_bytes(data)
        code, said = _verify(capsys, archive)
        assert code == 2 and why in said
    code, said = _verify(capsys, tmp_path / "none.zip")
    assert code == 2 and "No such file" in said
    folder = tmp_path / "folder"
    build.unpack(_small(), folder)
    (folder / "edge" / "link.py").symlink_to("app.py")
    assert _verify(capsys, folder)[0] == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"predicateType": "https://slsa.dev/provenance/v0.2"}, 2),
        ({"subject": []}, 2),
        ({"subject": [{"digest": {"sha256": "0" * 64}}]}, 1),
        ({"predicate": {}}, 2),
        ({"predicate": None}, 2),
    ],
)
def test_verify_reads_provenance_strictly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], code: int
) -> None:
    """Another kind of statement cannot be read; another zip in it fails."""
    archive = _written(tmp_path, _small(), **change)
    assert _verify(capsys, archive)[0] == code


def test_verify_needs_an_envelope_for_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bare statement has no signature to check, which is said; so is a missing envelope."""
    archive = _written(tmp_path, _small())
    pem = tmp_path / "pub.pem"
    pem.write_text(load_or_create(tmp_path / "key.pem", "Ed25519").pem)
    code, said = _verify(capsys, archive, "--key", pem, "--provenance", tmp_path / "small.provenance.json")
    assert code == 2 and "is not signed" in said
    assert _verify(capsys, archive, "--key", pem)[0] == 2


def test_provenance_says_when_only_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """SOURCE_DATE_EPOCH is the only source of a time; what is no time is refused."""

    def metadata() -> Mapping[str, str]:
        value: Mapping[str, str] = build.provenance("arm64", b"", _small(), b"", ROOT)["predicate"][
            "runDetails"
        ]["metadata"]
        return value

    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert metadata() == {}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1796083200")
    assert metadata() == {"startedOn": "2026-12-01T00:00:00Z"}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(build.BuildError, match="SOURCE_DATE_EPOCH"):
        metadata()


def test_provenance_says_when_the_tree_is_dirty(tmp_path: Path) -> None:
    """A tracked file that differs from the commit makes the source dirty; one that is not tracked does not."""

    def dirty() -> bool:
        value = build.provenance("arm64", b"", _small(), b"", tmp_path)
        told: bool = value["predicate"]["buildDefinition"]["resolvedDependencies"][0]["annotations"]["dirty"]
        return told

    checkout(tmp_path, *SOURCES)
    assert not dirty()
    (tmp_path / "edge" / "new.py").write_text("")
    assert not dirty()
    assert build.tracked(tmp_path, others=True) == ["edge/new.py"]
    assert "edge/new.py" not in build.sources(tmp_path)
    (tmp_path / "edge" / "app.py").write_text("")
    assert dirty()
    assert build.sources(tmp_path)["edge/app.py"] == b""


def test_sources_must_be_files_under_git(tmp_path: Path) -> None:
    """A tracked file that is gone or a link is refused, and so is a folder that git does not know."""
    with pytest.raises(build.BuildError, match="git does not know this checkout"):
        build.sources(tmp_path)
    checkout(tmp_path, *SOURCES)
    (tmp_path / "shared" / "curve.py").unlink()
    with pytest.raises(build.BuildError, match="git tracks shared/curve.py, but"):
        build.sources(tmp_path)
    (tmp_path / "shared" / "curve.py").symlink_to("wire.py")
    with pytest.raises(build.BuildError, match="git tracks shared/curve.py, but"):
        build.sources(tmp_path)


def test_wheels_are_named_by_package_urls() -> None:
    """Names are normalised and file names escaped, as purl-spec has it."""
    (wheel,) = _small().wheels
    assert wheel.purl == "pkg:pypi/some-thing@1?file_name=some_thing-1%2Blocal-py3-none-any.whl"


def test_wrong_arguments_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown architecture, and a key where nothing would be signed, end with 2."""
    for arguments in (["--arch", "mips"], ["--into", str(tmp_path), "--signing-key", "key.pem"]):
        with pytest.raises(SystemExit) as ended:
            build.main(arguments)
        assert ended.value.code == 2
    capsys.readouterr()


IDENTITY = {"content_sha256": "a" * 64, "version": "0.1.0", "arch": "arm64"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "this edge runs from source, not from a built artifact"),
        (b"{", "the artifact's build.json is not JSON"),
        (b"[]", "the artifact's build.json does not name a build"),
        (b"{}", "the artifact's build.json does not name a build"),
        ({**IDENTITY, "arch": 1}, "the artifact's build.json does not name a build"),
        ({**IDENTITY, "version": ""}, "the artifact's build.json does not name a build"),
        ({**IDENTITY, "content_sha256": "A" * 64}, "the artifact's build.json holds no SHA-256"),
        ({**IDENTITY, "content_sha256": "a" * 64 + "\n"}, "the artifact's build.json holds no SHA-256"),
    ],
)
def test_edge_without_identity_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | dict[str, Any] | None, reason: str
) -> None:
    """An absent or malformed build.json gives UNAVAILABLE and the reason."""
    path = tmp_path / "build.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    monkeypatch.setattr(build_info, "BUILD_FILE", path)
    assert build_info.build_identity() == {"content_sha256": "UNAVAILABLE", "reason": reason}


def test_edge_tells_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read once, other fields in it are left out, and no caller can change what the next one gets."""
    path = tmp_path / "build.json"
    path.write_text(json.dumps({**IDENTITY, "more": 1}))
    monkeypatch.setattr(build_info, "BUILD_FILE", path)
    build_info.build_identity()["arch"] = "changed"
    path.unlink()
    assert build_info.build_identity() == IDENTITY


def test_source_checkout_has_no_identity() -> None:
    """No build.json lies in the source, where it would speak for code that was changed since."""
    assert not (ROOT / "edge" / "build.json").exists()
    assert build_info.build_identity()["content_sha256"] == "UNAVAILABLE"
