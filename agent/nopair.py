"""Why there is no pair, in words that an operator can act on."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from agent.candidates import FORBIDDEN, Candidate, folded
from agent.ollama.advice import Family, family_of, pull
from agent.ollama.names import parse
from agent.vocabulary import Fingerprint, differences

_MOST_CLAUSES = 4
_GIB, _MIB = 1024**3, 1024**2


def apart(draft: Candidate, target: Candidate) -> str:
    """Returns in what two models differ that are no pair."""
    return f"{draft.file.name} and {target.file.name} differ in {differing(draft, target)}"


def differing(one: Candidate, other: Candidate) -> str:
    """Returns what two models' tokenizers differ in."""
    if one.known.tokenizer is None or other.known.tokenizer is None:
        return "their tokenizer"
    return _differing(one.known.tokenizer, other.known.tokenizer, (one.file.path, other.file.path))


@lru_cache(maxsize=64)
def _differing(one: Fingerprint, other: Fingerprint, files: tuple[Path, Path]) -> str:
    clauses = differences(one, other, files)
    more = ["…"] if len(clauses) > _MOST_CLAUSES else []
    return ", ".join(clauses[:_MOST_CLAUSES] + more)


def too_large(draft: Candidate, target: Candidate, *, needed: int, context: int, memory: int) -> str:
    """Returns why not even the smallest pair fits.

    Args:
        draft: Its draft.
        target: Its target.
        needed: Bytes that both need.
        context: Tokens of context, for each.
        memory: Bytes that there are.
    """
    return (
        f"no pair fits in memory: {draft.file.name} and {target.file.name} need {_size(needed)} for {context} tokens "
        f"of context, and there are {_size(memory)}: take smaller models or a shorter context"
    )


def unusable_pin(pin: str, role: str, seen: list[Candidate]) -> str:
    """Returns why the model that the operator has pinned as "draft" or "target" is not used."""
    found = next((one for one in seen if one.folded == folded(pin)), None)
    if found is not None and found.fault is not None:
        return f"{found.file.name}, pinned as the {role}, cannot be used: {found.fault}"
    if parse(pin) is None:
        return f"what is pinned as the {role} is no model's name"
    return f"{pin}, pinned as the {role}, is not in the Ollama store: {pull(pin)}, or pin another model"


def unmatched_draft(draft: Candidate) -> str:
    """Returns why a pinned draft has no target."""
    return f"{draft.file.name} has no larger model with its vocabulary: {_larger(draft, _family(draft))}"


def unmatched_target(target: Candidate, usable: list[Candidate], seen: list[Candidate]) -> str:
    """Returns why a target has no draft.

    Args:
        target: The model.
        usable: All models that can be used.
        seen: All models.
    """
    family = _family(target)
    if family is not None and target.folded == folded(family.small):
        return unmatched_draft(target)
    near = _closest(target, usable)
    but = f" ({near.file.name} differs in {differing(target, near)})" if near else ""
    return f"{target.file.name} has no smaller model with its vocabulary{but}: {_smaller(family, seen)}"


def nothing_usable(seen: list[Candidate], fault: str | None) -> str:
    """Returns why a store has no model that can be used; `fault` is what is wrong with the store as a whole."""
    if seen and all(one.fault == FORBIDDEN for one in seen):
        return f"every model of the Ollama store is {FORBIDDEN}"
    if seen:
        more = f", and {len(seen) - 1} more" if len(seen) > 1 else ""
        first = f"{seen[0].file.name}: {seen[0].fault}"
        return f"the Ollama store holds no model that can be used ({first}{more}): " + _usual()
    if fault is not None and "may not" in fault:
        return f"{fault}: let it into the group ollama, or name a store with --ollama-models"
    return f"{fault or 'the Ollama store holds no model'}: " + _usual()


def _usual() -> str:
    return pull("llama3.1:8b", "llama3.2:1b")


def _family(one: Candidate) -> Family | None:
    return family_of(one.name, one.known.family, one.known.tokenizer)


def _closest(target: Candidate, usable: list[Candidate]) -> Candidate | None:
    """Returns the smaller model of the same architecture whose tokenizer differs in least."""
    smaller = [one for one in usable if one.bytes < target.bytes and one.known.family == target.known.family]
    wanted = target.known.tokenizer

    def distance(one: Candidate) -> int:
        theirs = one.known.tokenizer
        return len(differences(wanted, theirs)) if wanted and theirs else 0

    return min(smaller, key=distance, default=None)


def _smaller(family: Family | None, seen: list[Candidate]) -> str:
    if family is None:
        return (
            "pull a smaller model of its family with `ollama pull`, or name a pair with --draft and --target"
        )
    there = next((one for one in seen if one.folded == folded(family.small)), None)
    if there is not None and there.fault == FORBIDDEN:
        return f"{family.small} is {FORBIDDEN}"
    if there is not None and there.fault is not None:
        return f"{pull(family.small)} again, as {there.fault}"
    return pull(family.small)


def _larger(draft: Candidate, family: Family | None) -> str:
    if family is None or draft.folded == folded(family.large):
        return (
            "pull a larger model of its family with `ollama pull`, or name a pair with --draft and --target"
        )
    return pull(family.large)


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.1f} MiB"
