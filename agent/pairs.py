"""Finds a draft and a target of one family: the embedded pair, two named files, or the best pair of an Ollama store.

Same family means one tokenizer, field by field (`agent.vocabulary`). Of all pairs the one with the largest target that
fits in memory is taken, and of those the one with the smallest draft; the operator may pin models and forbid others.
Whatever cannot be used is listed with the reason, and where there is no pair the reason says what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent import nopair
from agent.candidates import (
    Candidate,
    compare_with_server,
    folded,
    look,
    look_at_store,
    permitted,
)
from agent.candidates import ModelFile as ModelFile
from agent.candidates import version_of as version_of
from agent.filefacts import FileFacts
from agent.ollama.store import read_store
from agent.vocabulary import Fingerprint

EMBEDDED = Path(__file__).parent / "embedded"

MOST_RANKED = 20
MOST_LISTED = 500
"""Pairs and models that a choice lists; as many models as a capability frame may hold."""

_in_memory = FileFacts()


@dataclass(frozen=True)
class PairPolicy:
    """What the operator wants; names are as Ollama shows them.

    Attributes:
        pin_draft: The draft to use, and no other.
        pin_target: The target to use, and no other.
        forbid: Models never to use, by whatever names they go.
        memory_bytes: Bytes of memory that both models may take; None if that is not known: then all fit.
        context: Tokens of context for each model.
    """

    pin_draft: str | None = None
    pin_target: str | None = None
    forbid: tuple[str, ...] = ()
    memory_bytes: int | None = None
    context: int = 4096


ANY = PairPolicy()


@dataclass(frozen=True)
class PairChoice:
    """The pair to run, or why there is none.

    Attributes:
        found: Whether there is one.
        reason: Why there is none, and what to do about it.
        draft: The draft's file.
        target: The target's.
        family: The target's architecture.
        models: Every model seen, as the capability frame shows them, those that can be used first.
        ranked: The first pairs that could be made, the best first: names, bytes of memory, and whether they fit.
        ollama: What Ollama's server says of the store, if it was asked (`agent.candidates.compare_with_server`).
    """

    found: bool
    reason: str
    draft: ModelFile | None = None
    target: ModelFile | None = None
    family: str | None = None
    models: list[dict[str, Any]] = field(default_factory=list)
    ranked: list[dict[str, Any]] = field(default_factory=list)
    ollama: dict[str, Any] | None = None

    def intact(self) -> bool:
        """Tells whether both files are what was chosen, whatever became of their names."""
        return all(file.intact() for file in (self.draft, self.target) if file is not None)


def choose_pair(
    *,
    draft: Path | None = None,
    target: Path | None = None,
    embedded: bool = False,
    ollama_models: Path | None = None,
    policy: PairPolicy = ANY,
    facts: FileFacts | None = None,
    ollama_url: str = "",
) -> PairChoice:
    """Chooses what to run.

    Args:
        draft: A GGUF file, together with `target`.
        target: A GGUF file.
        embedded: Whether to use the pair that comes with this package.
        ollama_models: An Ollama models folder; None looks where Ollama keeps it.
        policy: What the operator wants.
        facts: What is known of model files; None keeps it for this process alone.
        ollama_url: An Ollama server to compare the store with; empty asks nobody.

    Returns:
        The choice; never raises for a missing, damaged or foreign model, but says why.
    """
    facts = facts or _in_memory
    if embedded:
        draft, target = EMBEDDED / "draft.gguf", EMBEDDED / "target.gguf"
    if draft is not None and target is not None:
        prefix = "embedded:" if embedded else ""
        files = [ModelFile(f"{prefix}{path.stem}", path) for path in (draft, target)]
        one, other = permitted([look(file, facts) for file in files], policy.forbid)
        return _named_pair(one, other, policy)
    if draft is not None or target is not None:
        return PairChoice(False, "a draft and a target must be named together")
    store = read_store(ollama_models)
    seen = permitted(look_at_store(store, facts), policy.forbid)
    alone: list[str] = []
    ollama = None
    if ollama_url:
        seen, alone, ollama = compare_with_server(seen, store.models, ollama_url)
    models = sorted((one.listing() for one in seen), key=lambda listed: not listed["loadable"])
    models += [
        {"name": name, "loadable": False, "reason": "Ollama's server has it, this store has not"}
        for name in alone
    ]
    choice = _store_pair(seen, policy, store.fault)
    return replace(choice, models=models[:MOST_LISTED], ollama=ollama)


def _named_pair(draft: Candidate, target: Candidate, policy: PairPolicy) -> PairChoice:
    models = [draft.listing(), target.listing()]
    for one in (draft, target):
        if one.fault:
            return PairChoice(False, f"{one.file.name} cannot be used: {one.fault}", models=models)
    if draft.id == target.id:
        return PairChoice(False, "draft and target are the same file", models=models)
    if draft.known.tokenizer != target.known.tokenizer:
        return PairChoice(False, nopair.apart(draft, target), models=models)
    return replace(_best([(draft, target)], policy), models=models)


def _store_pair(seen: list[Candidate], policy: PairPolicy, fault: str | None) -> PairChoice:
    """Returns the best pair of a store, or why it has none; `fault` is what is wrong with the store as a whole."""
    usable = _one_name_each(seen, policy)
    roles = {"draft": usable, "target": usable}
    for role, pin in (("draft", policy.pin_draft), ("target", policy.pin_target)):
        if pin is not None:
            roles[role] = [one for one in usable if one.folded == folded(pin)]
            if not roles[role]:
                return PairChoice(False, nopair.unusable_pin(pin, role, seen))
    drafts, targets = roles["draft"], roles["target"]
    choice = _best(_pairs(drafts, targets, any_size=bool(policy.pin_draft and policy.pin_target)), policy)
    if choice.ranked:
        return choice
    if not usable:
        return replace(choice, reason=nopair.nothing_usable(seen, fault))
    if policy.pin_draft and policy.pin_target:
        same = drafts[0].id == targets[0].id
        reason = (
            "the same model is pinned as draft and target" if same else nopair.apart(drafts[0], targets[0])
        )
    elif policy.pin_draft:
        reason = nopair.unmatched_draft(drafts[0])
    else:
        fitting = [one for one in targets if _fits(one.need(policy.context), policy)]
        reason = nopair.unmatched_target((fitting or targets)[-1], usable, seen)
    return replace(choice, reason=f"{reason}; {fault}" if fault else reason)


def _one_name_each(seen: Iterable[Candidate], policy: PairPolicy) -> list[Candidate]:
    """Returns the files that can be used, the smallest first, each by the one of its names that is best to show."""
    pins = {folded(pin) for pin in (policy.pin_draft, policy.pin_target) if pin}

    def rank(one: Candidate) -> tuple[bool, int, int, str]:
        return one.folded not in pins, one.file.name.count("/"), len(one.file.name), one.file.name

    best: dict[tuple[int, int] | None, Candidate] = {}
    for one in sorted((one for one in seen if one.fault is None), key=rank):
        best.setdefault(one.id, one)
    return sorted(best.values(), key=lambda one: (one.bytes, one.file.name))


def _pairs(
    drafts: list[Candidate], targets: list[Candidate], *, any_size: bool
) -> Iterator[tuple[Candidate, Candidate]]:
    """Yields all pairs of one vocabulary, the largest target first and for each the smallest draft first.

    Args:
        drafts: The models to draft with, the smallest first.
        targets: The targets, the smallest first.
        any_size: Whether a draft need not be smaller than its target.
    """
    families: dict[Fingerprint | None, list[Candidate]] = {}
    for one in drafts:
        families.setdefault(one.known.tokenizer, []).append(one)
    for target in reversed(targets):
        for draft in families.get(target.known.tokenizer, []):
            if draft.id != target.id and (any_size or draft.bytes < target.bytes):
                yield draft, target


def _best(pairs: Iterable[tuple[Candidate, Candidate]], policy: PairPolicy) -> PairChoice:
    """Returns the first pair that fits; without one, why not even the smallest does; without any pair, nothing."""
    fitting: list[tuple[int, Candidate, Candidate]] = []
    others: list[tuple[int, Candidate, Candidate]] = []
    for draft, target in pairs:
        needed = draft.need(policy.context) + target.need(policy.context)
        (fitting if _fits(needed, policy) else others).append((needed, draft, target))
        if len(fitting) == MOST_RANKED:
            break
    ranked = [
        {"draft": draft.file.name, "target": target.file.name, "fits": fits, "bytes": needed}
        for fits, some in ((True, fitting), (False, others))
        for needed, draft, target in some[:MOST_RANKED]
    ][:MOST_RANKED]
    if fitting:
        _, draft, target = fitting[0]
        return PairChoice(True, "one vocabulary", draft.file, target.file, target.known.family, ranked=ranked)
    if not others or policy.memory_bytes is None:
        return PairChoice(False, "")
    needed, draft, target = min(others, key=lambda pair: pair[0])
    reason = nopair.too_large(
        draft, target, needed=needed, context=policy.context, memory=policy.memory_bytes
    )
    return PairChoice(False, reason, ranked=ranked)


def _fits(needed: int, policy: PairPolicy) -> bool:
    return policy.memory_bytes is None or needed <= policy.memory_bytes
