"""Checks a built artifact, as a zip or unpacked, against its own build.json and against its provenance.

Prints one sentence; ends with 0 (it is what they say), 1 (it is not) or 2 (something cannot be read). Needs nothing
but the standard library, unless a signature is to be checked.
"""

from __future__ import annotations

import argparse
import io
import json
import stat
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.canonical import CanonicalError, sha3_256_hex, sha256_hex, strict_loads
from shared.errors import SpecdecError
from tools.build import (
    BUILD_FILE,
    LIMIT,
    PROVENANCE_TYPE,
    STATEMENT_TYPE,
    BuildError,
    content_sha256,
    walk,
    zip_bytes,
)


class Mismatch(SpecdecError):
    """The artifact is not what it, or its provenance, says."""


class Unreadable(SpecdecError):
    """Something that the check needs cannot be read."""


def check(artifact: Path, provenance: Path | None = None, keys: Path | None = None) -> str:
    """Returns the sentence that tells what holds.

    Args:
        artifact: The zip, or a folder into which it was unpacked.
        provenance: Its statement, or the envelope around that; None if there is none to compare with.
        keys: Public keys in PEM, one of which must have signed the envelope.

    Raises:
        Mismatch: If something does not hold.
        Unreadable: If something cannot be read.
    """
    statement = None if provenance is None else _statement(provenance, keys)
    archive = zip_bytes(_folder(artifact)) if artifact.is_dir() else artifact.read_bytes()
    files = _entries(archive, artifact.name)
    digest = _check_content(artifact.name, files)
    said = f"{artifact.name}: {len(files)} files whose digest {digest} is the one in build.json"
    if statement is None:
        return f"{said}; there was no provenance to compare with"
    _check_statement(statement, files[BUILD_FILE], archive)
    signature = "no signature was checked" if keys is None else f"signed by a key in {keys.name}"
    return f"{said} and in the provenance ({signature}), which names this very zip"


def _check_content(name: str, files: dict[str, bytes]) -> str:
    if BUILD_FILE not in files:
        raise Unreadable("NO_IDENTITY", f"{name} holds no {BUILD_FILE}")
    identity = _object(files[BUILD_FILE], BUILD_FILE)
    digest = content_sha256(files)
    if identity.get("content_sha256") != digest:
        cache = any("__pycache__" in one for one in files)
        raise Mismatch(
            "CONTENT",
            f"{name}: the files' digest is {digest}, but build.json says {identity.get('content_sha256')}",
            "delete the __pycache__ folders, which Python makes, and try again" if cache else "",
        )
    return digest


def _check_statement(statement: dict[str, Any], identity: bytes, archive: bytes) -> None:
    try:
        kind = (statement["_type"], statement["predicateType"])
        (named,) = [one["digest"] for one in statement["subject"]]
        arch = statement["predicate"]["buildDefinition"]["externalParameters"]["arch"]
        made = statement["predicate"]["runDetails"]["byproducts"]
        (built,) = [one["annotations"] for one in made if one["name"] == BUILD_FILE]
    except (KeyError, TypeError, ValueError):
        kind = None
    if kind != (STATEMENT_TYPE, PROVENANCE_TYPE):
        raise Unreadable(
            "BAD_PROVENANCE", "the provenance is no SLSA v1 statement about one artifact of ours"
        )
    if built != json.loads(identity) or built.get("arch") != arch:
        raise Mismatch("PROVENANCE", "the provenance is of another build than the one that build.json names")
    digest = {"sha256": sha256_hex(archive), "sha3_256": sha3_256_hex(archive)}
    if named != digest:
        raise Mismatch(
            "PROVENANCE",
            f"the zip's SHA-256 is {digest['sha256']}, but the provenance names another",
            "if it was only packed anew on its way, its unpacked folder is right",
        )


def _statement(path: Path, keys: Path | None) -> dict[str, Any]:
    """Reads a statement, from its envelope where there is one; the signature is checked if keys are given."""
    value = _object(path.read_bytes(), path.name)
    if "payloadType" not in value:
        if keys is not None:
            raise Unreadable(
                "NOT_SIGNED", f"{path.name} is not signed", "give the .dsse.json with --provenance"
            )
        return value
    from shared.dsse import PAYLOAD_TYPE, pae, strict_base64
    from shared.keys import load_keys

    body = strict_base64(value.get("payload"))
    if value["payloadType"] != PAYLOAD_TYPE:
        raise Unreadable("BAD_ENVELOPE", f"{path.name} holds something else than an in-toto statement")
    if keys is not None:
        signatures = value.get("signatures")
        if not isinstance(signatures, list) or not all(isinstance(one, dict) for one in signatures):
            raise Unreadable("BAD_ENVELOPE", f"{path.name} holds no list of signatures")
        trusted = load_keys(keys.read_bytes())
        message = pae(PAYLOAD_TYPE, body)
        made = [strict_base64(one.get("sig")) for one in signatures]
        if not any(key.verifies(signature, message) for key in trusted for signature in made):
            raise Mismatch("SIGNATURE", f"no key in {keys.name} made a signature in {path.name}")
    return _object(body, path.name)


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = strict_loads(data)
    except CanonicalError as error:
        raise Unreadable("BAD_JSON", f"{name} cannot be read: {error.cause}") from None
    if not isinstance(value, dict):
        raise Unreadable("BAD_JSON", f"{name} is not a JSON object")
    return value


def _folder(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder, of which `zip_bytes` makes the zip again that was unpacked there."""
    found = list(walk(folder))
    if sum(path.stat().st_size for _, path in found) > LIMIT:
        raise Unreadable("TOO_LARGE", f"{folder.name} holds more than Lambda takes")
    return {name: path.read_bytes() for name, path in found}


def _entries(data: bytes, name: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len({entry.filename for entry in entries}) != len(entries):
                raise Mismatch("TWICE", f"{name} holds two files of the same name")
            if sum(entry.file_size for entry in entries) > LIMIT:
                raise Unreadable("TOO_LARGE", f"{name} holds more than Lambda takes")
            if any(stat.S_ISLNK(entry.external_attr >> 16) for entry in entries):
                raise Mismatch("LINK", f"{name} holds a link, which no build makes")
            broken = archive.testzip()
            if broken is not None:
                raise Mismatch("DAMAGED", f"{name}: the zip's own checksum shows that {broken} was changed")
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError):
        raise Unreadable("BAD_ZIP", f"{name} is not a zip that can be read") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Checks; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.verify_build",
        description="Check a built artifact; 0 it holds, 1 it does not, 2 unreadable.",
    )
    parser.add_argument("artifact", type=Path, help="the zip, or a folder into which it was unpacked")
    parser.add_argument(
        "--provenance",
        type=Path,
        metavar="FILE",
        help="its statement or envelope (default: the one beside the zip)",
    )
    parser.add_argument(
        "--key",
        type=Path,
        metavar="PEM",
        help="public key that must have signed it (default: no signature is checked)",
    )
    args = parser.parse_args(argv)
    provenance: Path | None = args.provenance
    if provenance is None and args.artifact.suffix == ".zip":
        beside = args.artifact.with_suffix(".provenance.dsse.json" if args.key else ".provenance.json")
        provenance = beside if args.key or beside.exists() else None
    if provenance is None and args.key:
        parser.error("--key needs --provenance")
    try:
        print(check(args.artifact, provenance, args.key))
    except Mismatch as error:
        print(f"verify_build: {error}", file=sys.stderr)
        return 1
    except (SpecdecError, BuildError) as error:
        print(f"verify_build: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"verify_build: {error.filename} cannot be read ({error.strerror})", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
