"""What an entry of the hostile corpus is, and what its prompts and keys carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shared.runid import RunKeys
from tests.edge.support import RUN_SECRET, make_event

MARK: Final = "Umbrageous Capybara Sonata"
"""In every prompt, and in most of what a caller can choose; the tests look for it everywhere."""

GOOD: Final = f'{{"prompt": "{MARK}"}}'
"""A body with nothing wrong in it."""

JSON: Final = {"content-type": "application/json"}

CALLER: Final = "192.0.2.1"

KEYS: Final = RunKeys(RUN_SECRET.encode())

FIELDS: Final = {
    "prompt": MARK,
    "k": 4,
    "n": 50,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "seed": 0,
    "chat": False,
    "ignore_eos": False,
    "include_output": False,
}

RUN_ID: Final = KEYS.run_id(bytes(range(16)), FIELDS)
"""A run id that is ours, of a run that no tower knows."""


@dataclass(frozen=True)
class Hostile:
    """One event for the handler, as API Gateway or a direct invoker sends it.

    Attributes:
        name: What it is, in few words.
        why: Why somebody would send it.
        status: What it must be answered with.
        event: The event.
        says: A phrase of the answer's body.
        header: A line of the answer's head, `Name: value`.
        before: Events sent first, whose answers do not matter.
        runs: How many runs the tower is asked for.
    """

    name: str
    why: str
    status: int
    event: Any
    says: str = ""
    header: str = ""
    before: tuple[Mapping[str, Any], ...] = ()
    runs: int = 0


@dataclass(frozen=True)
class Wire:
    """Bytes for the local edge's socket.

    Attributes:
        name: What it is, in few words.
        why: Why somebody would send it.
        sends: The bytes.
        statuses: What is answered, in order.
        stays: Whether the connection can be used afterwards; else the edge closes it.
        leaves: Whether the client leaves at once, without reading.
        says: A phrase of the last answer, head or body.
        runs: How many runs the tower is asked for.
    """

    name: str
    why: str
    sends: bytes
    statuses: tuple[int, ...]
    stays: bool = False
    leaves: bool = False
    says: str = ""
    runs: int = 0


def post(
    body: str | bytes | None, headers: Mapping[str, str] | None = None, *, address: str = CALLER
) -> dict[str, Any]:
    """Return the event of `POST /run` with a body."""
    return make_event("POST", "/run", body=body, headers={**JSON, **(headers or {})}, source_ip=address)


def get(path: str, query: str = "", headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the event of a GET below the base."""
    return make_event("GET", path, query=query, headers=dict(headers or {}))


def whole(path: str, method: str = "GET") -> dict[str, Any]:
    """Return an event with this path, base or no base."""
    event = make_event(method, "")
    event["rawPath"] = event["requestContext"]["http"]["path"] = path
    return event


def changed(event: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an event with fields of its own."""
    return {**event, **fields}


def without(event: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return an event that lacks fields."""
    return {name: value for name, value in event.items() if name not in names}


def asked(event: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an event whose `requestContext.http` has fields of its own."""
    context = event["requestContext"]
    return {**event, "requestContext": {**context, "http": {**context["http"], **fields}}}
