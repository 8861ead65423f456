"""Finds a draft and a target of one family: the embedded pair, two named files, or the best pair of an Ollama store.

Same family means one tokenizer, field by field (design: "Same family"): a shared family name is not enough. llama.cpp's
own check lets 128 missing tokens, other merges and another pre-tokeniser pass; this one names whatever differs.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent.errors import LoadFailed
from agent.gguf import Array, read_metadata

EMBEDDED = Path(__file__).parent / "embedded"
_MODEL_LAYER = "application/vnd.ollama.image.model"

# What must be equal, and what to call it in the reason.
_TOKENIZER_FIELDS = {
    "tokenizer.ggml.model": "tokenizer type",
    "tokenizer.ggml.tokens": "token texts",
    "tokenizer.ggml.token_type": "token attributes",
    "tokenizer.ggml.scores": "token scores",
    "tokenizer.ggml.merges": "merges",
    "tokenizer.ggml.pre": "pre-tokeniser",
    "tokenizer.ggml.bos_token_id": "BOS token",
    "tokenizer.ggml.eos_token_id": "EOS token",
    "tokenizer.ggml.eot_token_id": "EOT token",
    "tokenizer.ggml.eom_token_id": "EOM token",
    "tokenizer.ggml.fim_pad_token_id": "FIM pad token",  # llama.cpp ends a text at these three as well
    "tokenizer.ggml.fim_rep_token_id": "FIM repository token",
    "tokenizer.ggml.fim_sep_token_id": "FIM file separator",
    "tokenizer.ggml.add_bos_token": "add-BOS rule",
    "tokenizer.ggml.add_eos_token": "add-EOS rule",
}


@dataclass(frozen=True)
class ModelFile:
    """A model by the name people know it by.

    `version` (size and time of change, nanoseconds) tells one file from the next at the same path; `sha256` is of the
    whole file, None until somebody hashed it.
    """

    name: str
    path: Path
    sha256: str | None = None
    version: tuple[int, int] | None = None

    def unchanged(self) -> bool:
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
class PairChoice:
    """The pair to run, or why there is none; `models` lists every model seen, as the capability frame shows them."""

    found: bool
    reason: str
    draft: ModelFile | None = None
    target: ModelFile | None = None
    family: str | None = None
    models: list[dict[str, Any]] = field(default_factory=list)

    def unchanged(self) -> bool:
        """Tells whether both files are what was chosen."""
        return all(file.unchanged() for file in (self.draft, self.target) if file is not None)


@dataclass(frozen=True)
class _Seen:
    """One model file and what its metadata says; `fault` is why it cannot be used."""

    file: ModelFile
    bytes: int = 0
    family: str | None = None
    parameters: int | None = None
    tokenizer: tuple[tuple[str, Any], ...] = ()
    fault: str | None = None

    def listing(self) -> dict[str, Any]:
        listed: dict[str, Any] = {
            "name": self.file.name,
            "family": self.family,
            "loadable": self.fault is None,
        }
        listed["parameters"] = self.parameters
        return listed | ({"reason": self.fault} if self.fault else {})


def choose_pair(
    *,
    draft: Path | None = None,
    target: Path | None = None,
    embedded: bool = False,
    ollama_models: Path | None = None,
) -> PairChoice:
    """Chooses what to run.

    Args:
        draft: A GGUF file, together with `target`.
        target: A GGUF file.
        embedded: Whether to use the pair that comes with this package.
        ollama_models: An Ollama models folder; None looks where Ollama keeps it.

    Returns:
        The choice; never raises for a missing, damaged or foreign model, but says why.
    """
    if embedded:
        draft, target = EMBEDDED / "draft.gguf", EMBEDDED / "target.gguf"
    if draft is not None and target is not None:
        prefix = "embedded:" if embedded else ""
        return _named_pair(*(_see(ModelFile(f"{prefix}{path.stem}", path)) for path in (draft, target)))
    if draft is not None or target is not None:
        return PairChoice(False, "a draft and a target must be named together")
    return _store_pair([_see(file) for file in _ollama_files(ollama_models)])


def differences(draft: _Seen, target: _Seen) -> list[str]:
    """Returns the names of the tokenizer fields in which two models differ."""
    ours, theirs = dict(draft.tokenizer), dict(target.tokenizer)
    return [name for key, name in _TOKENIZER_FIELDS.items() if ours.get(key) != theirs.get(key)]


def _named_pair(draft: _Seen, target: _Seen) -> PairChoice:
    models = [draft.listing(), target.listing()]
    for seen in (draft, target):
        if seen.fault:
            return PairChoice(False, f"{seen.file.name} cannot be used: {seen.fault}", models=models)
    if draft.file.path.samefile(target.file.path):
        return PairChoice(False, "draft and target are the same file", models=models)
    differing = differences(draft, target)
    if differing:
        reason = f"{draft.file.name} and {target.file.name} differ in their {', '.join(differing)}"
        return PairChoice(False, reason, models=models)
    return _pair(draft, target, models)


def _store_pair(seen: list[_Seen]) -> PairChoice:
    """Picks, among the models of one tokenizer, the largest as target and the smallest as draft."""
    models = [one.listing() for one in seen]
    usable = sorted((one for one in seen if one.fault is None), key=lambda one: (one.bytes, one.file.name))
    for target in reversed(usable):
        for draft in usable:
            if draft.bytes < target.bytes and not differences(draft, target):
                return _pair(draft, target, models)
    if not usable:
        return PairChoice(False, "the Ollama store holds no model that can be used", models=models)
    target = usable[-1]
    return PairChoice(False, f"{target.file.name} has no smaller model with its vocabulary", models=models)


def _pair(draft: _Seen, target: _Seen, models: list[dict[str, Any]]) -> PairChoice:
    return PairChoice(True, "one vocabulary", draft.file, target.file, target.family, models)


def _see(file: ModelFile) -> _Seen:
    try:
        return _read(replace(file, version=version_of(file.path)))
    except FileNotFoundError:
        return _Seen(file, fault="the file does not exist")
    except LoadFailed as exc:
        return _Seen(file, fault=exc.cause)
    except (OSError, ValueError):
        return _Seen(file, fault="the file cannot be read")


@lru_cache(maxsize=256)
def _read(file: ModelFile) -> _Seen:
    """Reads one file's metadata, once per version of it."""
    size = file.version[0] if file.version else 0
    metadata = read_metadata(file.path)
    tokenizer = tuple((key, metadata.get(key)) for key in _TOKENIZER_FIELDS)
    family = metadata.get("general.architecture")
    if not isinstance(family, str) or not isinstance(metadata.get("tokenizer.ggml.tokens"), Array):
        return _Seen(file, size, fault="it has no tokenizer")
    parameters = metadata.get("general.parameter_count")
    return _Seen(file, size, family, parameters if isinstance(parameters, int) else None, tokenizer)


def _ollama_files(folder: Path | None) -> Iterator[ModelFile]:
    """Yields the models of an Ollama store: manifests/HOST/NAMESPACE/MODEL/TAG name blobs by digest."""
    candidates = [folder] if folder else _usual_stores()
    root = next((path for path in candidates if (path / "manifests").is_dir()), None)
    if root is None:
        return
    for manifest in sorted((root / "manifests").glob("*/*/*/*")):
        try:
            layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
            digests = [layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        host, namespace, model, tag = manifest.parts[-4:]
        # Ollama leaves out its own host and the namespace "library".
        named = [
            part for part, usual in ((host, "registry.ollama.ai"), (namespace, "library")) if part != usual
        ]
        for digest in itertools.islice(digests, 1):
            yield ModelFile(
                f"{'/'.join([*named, model])}:{tag}", root / "blobs" / str(digest).replace(":", "-")
            )


def _usual_stores() -> list[Path]:
    stores = [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    configured = os.environ.get("OLLAMA_MODELS")
    return [Path(configured), *stores] if configured else stores
