"""Which build this edge is: the file that `make build` and `sam build` put into the artifact, read back."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from shared.canonical import CanonicalError, strict_loads
from shared.labels import UNAVAILABLE

BUILD_FILE: Final = Path(__file__).with_name("build.json")

_FIELDS: Final = ("content_sha256", "version", "arch")
_DIGEST: Final = re.compile("[0-9a-f]{64}")


def build_identity() -> dict[str, str]:
    """Returns what the artifact says it is.

    That is `content_sha256` (over a list of the SHA-256 and name of every other file in the artifact), `version` and
    `arch`, as they were written when it was built; nothing is hashed anew here. Where there is no such file, or none
    that can be read, `content_sha256` is UNAVAILABLE and `reason` says why.
    """
    return dict(_read(BUILD_FILE))


@cache
def _read(path: Path) -> dict[str, str]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return _unavailable("this edge runs from source, not from a built artifact")
    except OSError:
        return _unavailable("the artifact's build.json cannot be read")
    try:
        value = strict_loads(data)
    except CanonicalError:
        return _unavailable("the artifact's build.json is not JSON")
    fields = value if isinstance(value, dict) else {}
    found = {name: text for name in _FIELDS if isinstance(text := fields.get(name), str) and text}
    if len(found) < len(_FIELDS):
        return _unavailable("the artifact's build.json does not name a build")
    if not _DIGEST.fullmatch(found["content_sha256"]):
        return _unavailable("the artifact's build.json holds no SHA-256")
    return found


def _unavailable(reason: str) -> dict[str, str]:
    return {"content_sha256": UNAVAILABLE, "reason": reason}
