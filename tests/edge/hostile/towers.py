"""Towers that say a prompt back, each in another place of the protocol."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from websockets.sync.server import ServerConnection

from tests.edge.fake_tower import CAPABILITY, FakeTower, Script, accepted, failed, progress, result, say

FIRST: Final = 150
"""So many letters of a prompt fit where the protocol takes a name."""


def parrot(tower: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
    """Do what the protocol says, and say the prompt wherever it leaves room for words."""
    if frame["type"] == "probe":
        say(connection, CAPABILITY)
        return
    name = frame["run_id"].split(".")[0]
    known = tower.runs.get(name)
    if frame["type"] == "run" and known is None:
        prompt = frame["request"]["prompt"]
        tower.runs[name] = result(frame)
        if frame["request"]["include_output"]:
            tower.runs[name] |= {"output": prompt, "output_sha3_256": _digest(prompt)}
        phase = {"phase": prompt[:FIRST]}
        say(connection, accepted(frame), {**progress(frame), **phase}, tower.runs[name])
    elif known is None:
        say(connection, failed(frame, "NOT_FOUND", "no such run\r\nSet-Cookie: a=b"))
    elif known["run_id"] != frame["run_id"]:
        said = frame.get("request", {}).get("prompt", "")
        say(connection, failed(frame, "CONFLICT", f"another request than {said}"))
    else:
        say(connection, known)


def _digest(text: str) -> str:
    return hashlib.sha3_256(text.encode()).hexdigest()


def _answer(make: Any) -> Script:
    """The script of a tower that answers a run with the frames, texts or bytes that `make` gives, and hangs up."""

    def script(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        for reply in make(frame, frame["request"]["prompt"]):
            connection.send(json.dumps(reply) if isinstance(reply, dict) else reply)
        connection.close()

    return script


def _closes(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
    reason = frame["request"]["prompt"].encode()[:120].decode("utf-8", "ignore")
    connection.close(1011, reason)


def _deep(frame: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """A result in which a part of the measurement has fields of its own."""
    reply = result(frame)
    for name, fields in parts.items():
        reply["measurement"][name] = {**reply["measurement"][name], **fields}
    return reply


TOWERS: Final[dict[str, Script]] = {
    "says it as output": parrot,
    "fails with it": _answer(lambda frame, said: [failed(frame, "INTERNAL", said)]),
    "fails with it, pulled apart": _answer(
        lambda frame, said: [failed(frame, "WORKER_DIED", said.replace(" ", "\r\n\t"))]
    ),
    "refuses the request with it": _answer(lambda frame, said: [failed(frame, "BAD_REQUEST", said)]),
    "says to wait, and it": _answer(lambda frame, said: [failed(frame, "BUSY", said, retry_after=3600)]),
    "is in a phase of it": _answer(
        lambda frame, said: [accepted(frame), {**progress(frame), "phase": said[:FIRST]}]
    ),
    "calls a model so": _answer(
        lambda frame, said: [result(frame, target={"name": said[:FIRST], "sha256": None})]
    ),
    "gives it as a reason": _answer(
        lambda frame, said: [result(frame, verdict={"valid": False, "reasons": [said]})]
    ),
    "runs on it": _answer(lambda frame, said: [_deep(frame, engine={"system": said})]),
    "knows a field of it": _answer(lambda frame, said: [_deep(frame, engine={said: 1})]),
    "has no energy for it": _answer(
        lambda frame, said: [
            {**result(frame), "energy": {"label": "UNAVAILABLE", "code": "NO_NVML", "reason": said}}
        ]
    ),
    "ended at it": _answer(lambda frame, said: [{**result(frame), "ended_at": said}]),
    "answers for a run of it": _answer(lambda frame, said: [{**result(frame), "run_id": said}]),
    "has a nonce of it": _answer(lambda frame, said: [{**result(frame), "nonce": said}]),
    "sends a frame of its type": _answer(lambda frame, said: [{"type": said}]),
    "sends a field of its name": _answer(lambda frame, said: [{**accepted(frame), said: said}]),
    "sends it bare": _answer(lambda frame, said: [said]),
    "sends it as bytes": _answer(lambda frame, said: [said.encode("utf-8", "replace")]),
    "closes with it": _closes,
}
"""By what they do with the prompt."""
