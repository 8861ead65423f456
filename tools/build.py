"""`make build`: the Lambda artifact, its bill of materials and a statement of where it comes from.

What goes into the artifact depends on nothing but the files of edge/ and shared/ that git tracks and the wheels that
edge/requirements.lock pins: not on when, where, by which Python or by which pip it is made. The zip's entries are
stored as they are, since compressed bytes differ between builds of zlib; so whoever has the files can make the zip's
very bytes again.

Git, pip and the standard library are enough for the artifact. The bill of materials is cyclonedx-bom's work, and a
signature needs what receipts need.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from shared.canonical import canonical_bytes, sha3_256_hex, sha256_hex
from shared.errors import SpecdecError

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ("edge", "shared")
LOCK: Final = "edge/requirements.lock"
NOT_PACKED: Final = frozenset({"edge/Makefile", "edge/requirements.txt", LOCK})
"""Tracked files below `SOURCES` that only building needs."""

BUILD_FILE: Final = "edge/build.json"
PYTHON: Final = "3.13"
PLATFORMS: Final = {"arm64": "manylinux2014_aarch64", "x86_64": "manylinux2014_x86_64"}
LIMIT: Final = 250 * 2**20  # bytes: what Lambda takes, unpacked

BUILD_TYPE: Final = "https://a-11-oy.com/specdec/build/v1"
BUILDER: Final = "https://a-11-oy.com/specdec/builder/local"
PROVENANCE_TYPE: Final = "https://slsa.dev/provenance/v1"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can name
_NOTES: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""What pip writes into a package's .dist-info about this installation of it."""


class BuildError(SpecdecError):
    """The artifact cannot be built."""


@dataclass(frozen=True)
class Wheel:
    """A wheel that was packed: its package's name and version, and its file's name and digest."""

    name: str
    version: str
    file: str
    sha256: str

    @property
    def purl(self) -> str:
        """The package URL (purl-spec, type pypi)."""
        return f"pkg:pypi/{normalized(self.name)}@{self.version}?file_name={quote(self.file, safe='')}"


@dataclass(frozen=True)
class Artifact:
    """What is packed: files by their names in the zip, and the wheels that those outside `SOURCES` come from."""

    files: Mapping[str, bytes]
    wheels: Sequence[Wheel]


def normalized(name: str) -> str:
    """Returns a package's name as PEP 503 writes it."""
    return re.sub("[-_.]+", "-", name).lower()


def assemble(arch: str, root: Path = ROOT) -> Artifact:
    """Returns everything that goes into the artifact, its identity included.

    Raises:
        BuildError: If it cannot be had, or is more than Lambda takes.
    """
    files, wheels = dependencies(arch, root)
    clash = sorted(name for name in files if name.partition("/")[0] in SOURCES)
    if clash:
        raise BuildError("CLASH", f"a dependency brings a file of the project's own name, {clash[0]}")
    files |= sources(root)
    version = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    identity = {"content_sha256": content_sha256(files), "version": version, "arch": arch}
    files[BUILD_FILE] = canonical_bytes(identity) + b"\n"
    if sum(map(len, files.values())) > LIMIT:
        raise BuildError("TOO_LARGE", f"the artifact exceeds the {LIMIT} bytes that Lambda takes")
    return Artifact(files, wheels)


def sources(root: Path) -> dict[str, bytes]:
    """Returns the project's files that are packed: what git tracks, as it lies in the work tree."""
    files = {}
    for name in tracked(root):
        path = root / name
        if name in NOT_PACKED:
            continue
        if path.is_symlink() or not path.is_file():
            raise BuildError("BAD_SOURCE", f"git tracks {name}, but it is no file here")
        files[name] = path.read_bytes()
    if not files:
        raise BuildError("NO_SOURCE", "git tracks nothing of the edge here")
    return files


def tracked(root: Path, *, others: bool = False) -> list[str]:
    """Returns the files below `SOURCES` that git tracks, or with `others` those that it neither tracks nor ignores."""
    which = ("--others", "--exclude-standard") if others else ("--cached",)
    return sorted(filter(None, _git(root, "ls-files", "-z", *which, "--", *SOURCES).split("\0")))


def dependencies(arch: str, root: Path) -> tuple[dict[str, bytes], list[Wheel]]:
    """Returns the files of the locked wheels for an architecture, less what tells of their installation here."""
    with tempfile.TemporaryDirectory(prefix="specdec-build-") as folder:
        target, report = Path(folder, "target"), Path(folder, "report.json")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--no-compile",
            "--no-deps",
        ]
        command += [
            "--target",
            str(target),
            "--report",
            str(report),
            "--only-binary=:all:",
            "--require-hashes",
        ]
        command += ["--implementation", "cp", "--python-version", PYTHON, "--platform", PLATFORMS[arch]]
        _run([*command, "--requirement", str(root / LOCK)], "pip could not install the locked packages")
        installed = json.loads(report.read_text("utf-8"))["install"]
        files = {name: path.read_bytes() for name, path in walk(target) if _is_packed(name)}
    wheels = [
        Wheel(
            name=one["metadata"]["name"],
            version=one["metadata"]["version"],
            file=unquote(urlsplit(one["download_info"]["url"]).path.rpartition("/")[2]),
            sha256=one["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for one in installed
    ]
    return files, sorted(wheels, key=lambda wheel: normalized(wheel.name))


def _is_packed(name: str) -> bool:
    """Whether an installed file is the same wherever it is installed, and of use in Lambda."""
    folders = name.split("/")
    if folders[0] == "bin" or "__pycache__" in folders:  # scripts name the Python that installed them
        return False
    return not (len(folders) == 2 and folders[0].endswith(".dist-info") and folders[1] in _NOTES)


def walk(folder: Path) -> Iterable[tuple[str, Path]]:
    """Yields all files below a folder with their names as a zip has them.

    Raises:
        BuildError: At anything that is neither file nor folder.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BuildError("BAD_FILE", f"{path.name} is neither a file nor a folder")
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def content_sha256(files: Mapping[str, bytes]) -> str:
    """Returns the digest that names a build: SHA-256 over what `sha256sum` prints for its files, ordered by name.

    `edge/build.json` is left out, as the digest stands in it.
    """
    lines = [f"{sha256_hex(files[name])}  {name}\n" for name in sorted(files) if name != BUILD_FILE]
    return sha256_hex("".join(lines).encode("utf-8"))


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """Returns the zip of these files; the same files give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3  # Unix, whose permissions follow
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def bill_of_materials(wheels: Sequence[Wheel], root: Path = ROOT) -> bytes:
    """Returns the CycloneDX document of the project and these wheels."""
    lines = [f"{normalized(wheel.name)}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels]
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "-", "--output-reproducible"]
    command += ["--pyproject", str(root / "pyproject.toml"), "--output-format", "JSON", "--output-file", "-"]
    return _run(command, "cyclonedx-bom could not write the bill of materials", "".join(lines).encode())


def provenance(
    arch: str, archive: bytes, artifact: Artifact, sbom: bytes, root: Path = ROOT
) -> dict[str, Any]:
    """Returns the in-toto Statement v1 about a zip, with a SLSA v1 provenance.

    Args:
        arch: Architecture that it is for.
        archive: The zip.
        artifact: What is in it.
        sbom: Its bill of materials.
        root: The checkout that it was built from.
    """
    source: dict[str, Any] = {
        "name": "source",
        "digest": {"gitCommit": _git(root, "rev-parse", "HEAD").strip()},
        "annotations": {"dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))},
    }
    packed: list[dict[str, Any]] = [
        {
            "name": normalized(wheel.name),
            "uri": wheel.purl,
            "digest": {"sha256": wheel.sha256},
            "annotations": {"version": wheel.version},
        }
        for wheel in artifact.wheels
    ]
    identity = artifact.files[BUILD_FILE]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {
                "name": file_name(arch, "zip"),
                "digest": {"sha256": sha256_hex(archive), "sha3_256": sha3_256_hex(archive)},
            }
        ],
        "predicateType": PROVENANCE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"arch": arch},
                "resolvedDependencies": [source, *packed],
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "metadata": _metadata(),
                "byproducts": [
                    {"name": file_name(arch, "cdx.json"), "digest": {"sha256": sha256_hex(sbom)}},
                    {
                        "name": BUILD_FILE,
                        "digest": {"sha256": sha256_hex(identity)},
                        "annotations": json.loads(identity),
                    },
                ],
            },
        },
    }


def _metadata() -> dict[str, str]:
    """When the build was started, if the caller says when (reproducible-builds.org, SOURCE_DATE_EPOCH)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return {}
    try:
        return {"startedOn": datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    except (ValueError, OverflowError, OSError):
        raise BuildError("BAD_TIME", "SOURCE_DATE_EPOCH is not a number of seconds") from None


def signed(statement: bytes, key_file: Path) -> tuple[dict[str, Any], str]:
    """Returns a DSSE envelope around a statement, signed with the key in a file, and the key's id.

    The key (P-256) is made if the file is not there.
    """
    from shared.dsse import PAYLOAD_TYPE, make_envelope, pae
    from shared.keyfile import load_or_create

    key = load_or_create(key_file, "P-256")
    return make_envelope(statement, key.sign(pae(PAYLOAD_TYPE, statement)), key.keyid), key.keyid


def file_name(arch: str, ending: str) -> str:
    """Returns the name of one of a build's files in dist/."""
    return f"specdec-edge-{arch}.{ending}"


def unpack(artifact: Artifact, folder: Path) -> None:
    """Writes the artifact's files into an empty folder, as Lambda unpacks them.

    Raises:
        BuildError: If something is there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BuildError(
            "NOT_EMPTY", f"{folder.name} is not empty, so that its digest would not be the build's"
        )
    for name, data in artifact.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)


def build(arch: str, out: Path, key_file: Path | None, root: Path = ROOT) -> None:
    """Writes zip, bill of materials, provenance and, with a key, the signed provenance; says what they are."""
    artifact = assemble(arch, root)
    archive = zip_bytes(artifact.files)
    sbom = bill_of_materials(artifact.wheels, root)
    value = provenance(arch, archive, artifact, sbom, root)
    statement = (json.dumps(value, indent=2, sort_keys=True) + "\n").encode("utf-8")
    made = {"zip": archive, "cdx.json": sbom, "provenance.json": statement}
    keyid = None
    if key_file is not None:
        envelope, keyid = signed(statement, key_file)
        made["provenance.dsse.json"] = canonical_bytes(envelope) + b"\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / file_name(arch, "provenance.dsse.json")).unlink(
        missing_ok=True
    )  # an older build's is none of this one's
    for ending, data in made.items():
        (out / file_name(arch, ending)).write_bytes(data)
        print(f"{out / file_name(arch, ending)}")
    size = sum(map(len, artifact.files.values()))
    print(f"{len(artifact.files)} files, {size / 1e6:.1f} MB; the zip's SHA-256 is {sha256_hex(archive)}")
    print(
        f"the content's, which receipts name, is {json.loads(artifact.files[BUILD_FILE])['content_sha256']}"
    )
    if keyid is not None:
        print(f"signed with the key {keyid}")


def main(argv: Sequence[str] | None = None) -> int:
    """Builds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.build", description="The Lambda artifact.")
    parser.add_argument(
        "--arch", choices=sorted(PLATFORMS), default="arm64", help="processor (default arm64)"
    )
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder for the files (default dist)")
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="write the zip's content there, and nothing else"
    )
    parser.add_argument(
        "--signing-key", type=Path, metavar="FILE", help="sign the provenance with this key; made if missing"
    )
    args = parser.parse_args(argv)
    if args.into and args.signing_key:
        parser.error("--into makes no provenance that --signing-key could sign")
    try:
        left_out = tracked(ROOT, others=True)
        if left_out:
            print(f"build: left out, as git does not track them: {', '.join(left_out)}", file=sys.stderr)
        if args.into:
            unpack(assemble(args.arch), args.into)
        else:
            build(args.arch, args.out, args.signing_key)
    except SpecdecError as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"build: {error.filename} cannot be read or written ({error.strerror})", file=sys.stderr)
        return 1
    return 0


def _git(root: Path, *arguments: str) -> str:
    return _run(
        ["git", "--no-optional-locks", "-C", str(root), *arguments], "git does not know this checkout"
    ).decode("utf-8")


def _run(command: Sequence[str], otherwise: str, data: bytes = b"") -> bytes:
    """Runs a command and returns what it prints; its last words are in the error."""
    try:
        done = subprocess.run(command, input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise BuildError("MISSING_TOOL", f"{command[0]} is not installed") from None
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BuildError("FAILED", f"{otherwise}: {words[-1] if words else 'it does not say why'}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
