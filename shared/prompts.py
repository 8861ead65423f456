"""Sets of prompts to measure over, our own small one or a file's, and the order in which to measure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, ValidationError

from shared.canonical import CanonicalError, strict_loads
from shared.errors import SpecdecError
from shared.models import Trimmed, explain, must
from shared.schemas import RunRequest
from shared.sweep import ALL, K

_OWN: Final = Path(__file__).with_name("prompts.json")
_DOMAIN: Final = re.compile(r"[a-z0-9_-]{1,32}", re.ASCII)


class PromptsError(SpecdecError):
    """The set of prompts cannot be used; the sentence never holds a prompt."""


@dataclass(frozen=True)
class Prompt:
    """One prompt: its domain, its number there from 1 on, and its text."""

    domain: str
    index: int
    text: str


def _domain(name: str) -> str:
    if not _DOMAIN.fullmatch(name) or name == ALL:
        raise ValueError
    return name


class _Entry(Trimmed):
    """One entry of a file; further fields, such as a name, are ignored."""

    domain: Annotated[
        str,
        AfterValidator(_domain),
        must(f"be a name of 1 to 32 characters out of a-z, 0-9, _ and -, and not {ALL}"),
    ]
    prompt: str


def own() -> list[Prompt]:
    """Six prompts each of prose and code, in our own words."""
    return parse(_OWN.read_bytes())


def parse(data: bytes) -> list[Prompt]:
    """Read a JSON list, or JSON lines, of objects with `domain` and `prompt`.

    Returns:
        The prompts, the first of each domain first, then the second of each, and so on.

    Raises:
        PromptsError: If anything in it is not as it must be.
    """
    prompts: list[Prompt] = []
    numbers: Counter[str] = Counter()
    for where, entry in _entries(data):
        try:
            domain = _Entry.model_validate(entry).domain
            text = RunRequest.model_validate({"prompt": entry["prompt"]}).prompt
        except ValidationError as error:
            raise PromptsError("BAD_INPUT", f"{where}: {explain(error)}") from None
        numbers[domain] += 1
        prompts.append(Prompt(domain, numbers[domain], text))
    if not prompts:
        raise PromptsError("BAD_INPUT", "there is no prompt in it")
    return sorted(prompts, key=lambda prompt: prompt.index)


def plan(prompts: Iterable[Prompt], ks: Sequence[K]) -> list[tuple[Prompt, K]]:
    """The order in which to measure: all ks of one prompt, then all of the next.

    A machine gets slower and faster over minutes, as it heats up or others use it. Were all prompts measured at
    k = 1 first, that drift would look like an effect of k; so it meets all ks of a prompt alike. What drift there is
    within a prompt is evened out over its domain: every other prompt goes through the ks backwards.
    """
    return [(prompt, k) for prompt in prompts for k in (ks if prompt.index % 2 else ks[::-1])]


def _entries(data: bytes) -> Iterator[tuple[str, Any]]:
    """Each entry and where it stands."""
    if data.lstrip().startswith(b"["):
        for number, entry in enumerate(_load(data, "the list"), start=1):
            yield f"entry {number}", entry
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield f"line {number}", _load(line, f"line {number}")


def _load(data: bytes, what: str) -> Any:
    try:
        return strict_loads(data)
    except CanonicalError as error:
        raise PromptsError("BAD_INPUT", f"{what}: {error.cause}") from None
