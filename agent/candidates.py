"""The models a pair could be made of: named files, or all of an Ollama store, each with what is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from agent.description import Description, describe
from agent.errors import AgentError, LoadFailed
from agent.filefacts import FileFacts
from agent.ollama.names import ModelName, parse
from agent.ollama.store import Store, StoredModel, blob_digest
from shared.models import one_line

FORBIDDEN = "forbidden by the operator"
DAMAGED = "its content is not what its name says: it is damaged"


@dataclass(frozen=True)
class ModelFile:
    """A model by the name people know it by.

    `version` (size and time of change, nanoseconds) tells one file from the next at the same path; `sha256` is of the
    whole file, None until somebody hashed it. `manifest` is what gives it its name in an Ollama store, if it is from
    one.
    """

    name: str
    path: Path
    sha256: str | None = None
    version: tuple[int, int] | None = None
    manifest: Path | None = None

    def hashed(self, facts: FileFacts) -> Self:
        """Returns it with its content's SHA-256, which in a store must be the one its blob is named by.

        Raises:
            LoadFailed: If it is not, or the file is changed meanwhile.
            OSError: If the file cannot be read.
        """
        digest = facts.sha256(self.path)
        if self.manifest is not None and digest != blob_digest(self.path):
            raise LoadFailed(f"{self.name} cannot be used: {DAMAGED}", f"pull {self.name} again")
        return replace(self, sha256=digest)

    def intact(self) -> bool:
        """Tells whether nothing else stands at the path by now; of a file that is gone, what is in memory stays."""
        try:
            return self.version in (None, version_of(self.path))
        except FileNotFoundError:
            return True
        except OSError:
            return False


def version_of(path: Path) -> tuple[int, int]:
    """Returns a file's size and time of change (nanoseconds)."""
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns


@dataclass(frozen=True)
class Candidate:
    """One name of a model file.

    Attributes:
        file: The file.
        known: What it says of itself.
        fault: Why it cannot be used, as a clause; None if it can.
        id: What tells the file from all others, by whatever names they go; None if it cannot be found.
        name: Its name, if that is one of Ollama's.
        note: What else there is to say of it.
    """

    file: ModelFile
    known: Description = Description()
    fault: str | None = None
    id: tuple[int, int] | None = None
    name: ModelName | None = None
    note: str | None = None

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.file.version[0] if self.file.version else 0

    @property
    def folded(self) -> str:
        """Its name as names are compared."""
        return folded(self.file.name)

    def need(self, context: int) -> int:
        """Returns the bytes of memory that it takes with so many tokens of context."""
        return self.known.need(context).total

    def listing(self) -> dict[str, Any]:
        """Returns it as the capability frame shows it (`shared.schemas.ModelListing`)."""
        listed: dict[str, Any] = {
            "name": self.file.name,
            "family": self.known.family,
            "loadable": self.fault is None,
            "parameters": self.known.parameters,
        }
        listed |= {"reason": self.fault} if self.fault else {}
        return listed | ({"note": self.note} if self.note else {})


def folded(name: str) -> str:
    """Returns what is equal for names that Ollama takes for one."""
    parsed = parse(name)
    return parsed.folded if parsed else name.lower()


def look(file: ModelFile, facts: FileFacts) -> Candidate:
    """Returns what is known of a file; never raises, but says why it cannot be used."""
    seen = Candidate(file)
    try:
        stat = file.path.stat()
        version = (stat.st_size, stat.st_mtime_ns)
        seen = replace(seen, file=replace(file, version=version), id=(stat.st_dev, stat.st_ino))
        hashed = facts.known_sha256(file.path)
        if file.manifest is not None and hashed not in (None, blob_digest(file.path)):
            return replace(seen, fault=DAMAGED)
        known = describe(file.path, facts)
    except FileNotFoundError:
        return replace(seen, fault="the file does not exist")
    except AgentError as exc:
        return replace(seen, fault=exc.cause)
    except (OSError, ValueError):
        return replace(seen, fault="the file cannot be read")
    return replace(seen, known=known, fault=known.fault)


def look_at_store(store: Store, facts: FileFacts) -> list[Candidate]:
    """Returns all models of a store, by name; a file that goes by several names is looked at once."""
    looked: dict[Path, Candidate] = {}
    seen = []
    for model in store.models:
        file = ModelFile(
            str(model.name),
            model.blob or model.manifest,
            manifest=model.manifest,
        )
        if model.fault is not None or model.blob is None:
            seen.append(Candidate(file, fault=model.fault, name=model.name))
            continue
        one = looked.get(model.blob)
        if one is None:
            one = looked[model.blob] = look(file, facts)
        seen.append(replace(one, file=replace(file, version=one.file.version), name=model.name))
    return seen


def permitted(seen: list[Candidate], forbid: Iterable[str]) -> list[Candidate]:
    """Returns the models, those forbidden marked: to forbid a name forbids the file, whatever else it is called."""
    names = {folded(name) for name in forbid}
    ids = {one.id for one in seen if one.folded in names} - {None}
    return [replace(one, fault=FORBIDDEN) if one.id in ids or one.folded in names else one for one in seen]


def compare_with_server(
    seen: list[Candidate], stored: Sequence[StoredModel], url: str
) -> tuple[list[Candidate], list[str], dict[str, Any]]:
    """Compares a store with what Ollama's server lists.

    Args:
        seen: The models of the store.
        stored: The same as the store has them.
        url: The server's address.

    Returns:
        The models, with notes; the names that the server alone has; and what is to be said of the whole: the server's
        version, whether both have the same (`tags_match`, None without an answer), and why there is no answer.
    """
    from agent.ollama.api import Ollama

    with Ollama(url) as ollama:
        tags = ollama.tags()
        if tags.reason is not None:
            return seen, [], {"version": None, "tags_match": None, "reason": tags.reason}
        version = ollama.version().version
    served = {folded(tag.name): tag for tag in tags.models}
    digests = {model.name.folded: model.digest for model in stored}
    noted = []
    for one in seen:
        tag = served.get(one.folded)
        if tag is None:
            one = replace(one, note="Ollama's server does not list it")
        elif tag.digest != digests.get(one.folded):
            one = replace(one, note="Ollama's server lists another version of it")
        noted.append(one)
    alone = sorted(one_line(tag.name, 200) for name, tag in served.items() if name not in digests)
    match = not alone and all(one.note is None for one in noted)
    return noted, alone, {"version": version, "tags_match": match, "reason": None}
