"""The tower's signature over its results: what the edge says of it, and what it refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from websockets.sync.server import ServerConnection

from agent.attest import Attester
from edge.payloads import now
from edge.runs import UNCHECKED_OUTPUT
from shared.keyfile import SigningKey
from shared.verify import verify_receipt
from shared.wire import ResultFrame
from tests.edge.fake_tower import FakeTower, Script, accepted, result, say
from tests.edge.support import PROMPT, Reply, assert_roadmap, client

PRIVATE = Ed25519PrivateKey.generate()
KEY = SigningKey(PRIVATE)
OTHER = SigningKey(Ed25519PrivateKey.generate())
ENDED = now()


def signed(frame: dict[str, Any], key: SigningKey = KEY, **changes: Any) -> dict[str, Any]:
    """Return the result of a run frame as a tower with this key signs it."""
    whole = ResultFrame.model_validate({**result(frame, **changes), "ended_at": ENDED}).model_dump(
        mode="json"
    )
    return {**whole, "attestation": Attester(key).envelope(whole)}


def answers(reply: Callable[[dict[str, Any]], dict[str, Any]]) -> Script:
    """Return a script that answers a run with what `reply` makes of its frame."""

    def script(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        say(connection, accepted(frame), reply(frame))

    return script


def run(reply: Any, *, pinned: str | None = KEY.pem, **fields: Any) -> Reply:
    """Ask a tower that answers so; `pinned` is its key on the edge."""
    pins = {} if pinned is None else {"tower_public_key": pinned}
    with FakeTower(answers(reply)) as tower:
        return client(tower.url, **pins).run(**fields)


def test_a_signed_result_is_verified() -> None:
    """With the key pinned the receipt says VERIFIED and carries the signature, which anyone can check offline."""
    reply = run(signed)
    tower = reply.payload["tower"]
    assert reply.payload["label"] == "SPEC-DECODE MEASURED"
    assert (tower["attested"], tower["keyid"]) == ("VERIFIED", KEY.keyid)
    report = verify_receipt(reply.json, tower_pem=KEY.pem.encode())
    assert report.ok
    assert {check.status for check in report.checks if check.name == "attestation"} == {"ok"}
    wrong = verify_receipt(reply.json, tower_pem=OTHER.pem.encode())
    assert [check.name for check in wrong.checks if check.status == "failed"] == ["attestation"]


def test_an_unpinned_tower_is_said_to_be() -> None:
    """Without a pinned key the receipt says UNPINNED; a signature is passed on for others to check."""
    reply = run(signed, pinned=None)
    assert reply.payload["tower"]["attested"] == "UNPINNED"
    assert verify_receipt(reply.json, tower_pem=KEY.pem.encode()).ok
    assert run(result, pinned=None).payload["tower"] == {"id": "127.0.0.1", "attested": "UNPINNED"}


def refused(reply: Reply, sentence: str) -> None:
    """Check that a reply became no measurement because of its attestation, and says so."""
    assert_roadmap(reply, "ATTESTATION_FAILED")
    assert reply.payload["tower"] == {"id": "127.0.0.1", "attested": "FAILED"}
    assert reply.payload["roadmap"]["reason"] == sentence
    assert reply.payload["roadmap"]["runbook"][0].startswith("On the edge: set SPECDEC_TOWER_PUBLIC_KEY")
    assert verify_receipt(reply.json).ok


def test_a_pinned_tower_must_sign() -> None:
    """A result without a signature, or by another key, is never MEASURED once a key is pinned."""
    refused(run(result), "the tower has not signed its result, and its key is pinned on this edge")
    sentence = "the tower's signature over its result does not hold: no trusted key made this signature"
    refused(run(lambda frame: signed(frame, OTHER)), sentence)


def test_one_of_several_pinned_keys_will_do() -> None:
    """While the tower's key is being changed both may be pinned."""
    both = OTHER.pem + KEY.pem
    assert run(signed, pinned=both).payload["tower"]["keyid"] == KEY.keyid
    assert run(lambda frame: signed(frame, OTHER), pinned=both).payload["tower"]["keyid"] == OTHER.keyid


@pytest.mark.parametrize("pinned", [KEY.pem, None], ids=["pinned", "unpinned"])
def test_a_signature_of_another_run_is_refused(pinned: str | None) -> None:
    """A true signature replayed from an earlier run of the same request is refused, pinned or not."""
    seen: list[dict[str, Any]] = []

    def replay(frame: dict[str, Any]) -> dict[str, Any]:
        seen.append(signed(frame))
        return {**seen[-1], "attestation": seen[0]["attestation"]}

    with FakeTower(answers(replay)) as tower:
        edge = client(tower.url, **({} if pinned is None else {"tower_public_key": pinned}))
        assert edge.run().payload["label"] == "SPEC-DECODE MEASURED"
        why = "the tower's attestation is about another result"
        refused(edge.run(), f"the tower's signature over its result does not hold: {why}")


def test_swapped_results_are_refused() -> None:
    """Two runs' measurements, each truly signed, cannot change places."""
    seen: list[dict[str, Any]] = []

    def swapped(frame: dict[str, Any]) -> dict[str, Any]:
        seen.append(signed(frame, k=4, n_requested=50))
        first = seen[0]
        return {
            **seen[-1],
            **{name: first[name] for name in ("measurement", "energy", "output_sha3_256", "attestation")},
        }

    with FakeTower(answers(swapped)) as tower:
        edge = client(tower.url, tower_public_key=KEY.pem)
        assert edge.run().payload["label"] == "SPEC-DECODE MEASURED"
        assert edge.run().payload["roadmap"]["code"] == "ATTESTATION_FAILED"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in a JSON value that is no container."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def altered(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value * (1 + 1e-12) or 1e-300
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    return 0 if value is None else ["x"]


def hours_ago(hours: float) -> str:
    """Return a time."""
    return (datetime.now(UTC) - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def ended(time: str | None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what makes results that ended then, signed like that."""

    def reply(frame: dict[str, Any]) -> dict[str, Any]:
        whole = ResultFrame.model_validate({**result(frame), "ended_at": time}).model_dump(mode="json")
        return {**whole, "attestation": Attester(KEY).envelope(whole)}

    return reply


def test_a_key_counts_within_its_time_only() -> None:
    """A tower's key that is pinned with times is not accepted outside of them, by the edge's own clock."""
    times = [({"valid_to": hours_ago(1)}, False), ({"valid_from": hours_ago(1)}, True), ({}, True)]
    for valid, accepted_now in times:
        pinned = json.dumps({"keys": [{"kind": "tower", "pem": KEY.pem, **valid}]})
        reply = run(signed, pinned=pinned)
        if accepted_now:
            assert reply.payload["tower"]["attested"] == "VERIFIED"
        else:
            refused(reply, "the tower's key that signed its result is pinned for another time than now")


def test_old_results_are_refused() -> None:
    """A result that no tower keeps any more is refused, so that a retired key cannot date its results back."""
    assert run(ended(hours_ago(24))).payload["label"] == "SPEC-DECODE MEASURED"
    reply = run(ended(hours_ago(26)))
    assert_roadmap(reply, "REPLY_REFUSED")
    assert "ended_at: longer ago than a tower keeps a run" in reply.payload["roadmap"]["reason"]


def test_a_signed_result_has_a_time() -> None:
    """A signature over a result without a time would fit no receipt."""
    refused(run(ended(None)), "the tower has signed a result without a time")


def test_output_that_cannot_be_checked_is_left_out() -> None:
    """A text that lost bytes cannot be compared with its digest; whatever it says, it is not passed on."""

    def altered_text(frame: dict[str, Any]) -> dict[str, Any]:
        return {**signed(frame), "output": "something else \ufffd"}

    reply = run(altered_text, include_output=True)
    assert reply.payload["label"] == "SPEC-DECODE MEASURED"
    assert "output" not in reply.json and reply.json["output_note"] == UNCHECKED_OUTPUT
    other = run(lambda frame: {**signed(frame), "output": "something else"}, include_output=True)
    assert_roadmap(other, "REPLY_REFUSED")


def test_every_altered_field_of_a_reply_is_refused() -> None:
    """Whatever single value of a signed reply is changed on the way, none of it is called MEASURED."""
    paths: list[tuple[Any, ...]] = []
    number = -1

    def tampered(frame: dict[str, Any]) -> dict[str, Any]:
        whole = signed(frame)
        paths[:] = [path for path in leaves(whole) if path != ("type",)]
        if number >= 0:
            place: Any = whole
            for key in paths[number][:-1]:
                place = place[key]
            place[paths[number][-1]] = altered(place[paths[number][-1]])
        return whole

    with FakeTower(answers(tampered)) as tower:
        edge = client(tower.url, tower_public_key=KEY.pem)
        assert edge.run().payload["label"] == "SPEC-DECODE MEASURED"
        assert len(paths) > 60
        measured = []
        for number in range(len(paths)):
            payload = edge.run().payload
            if payload["measured"] == "MEASURED":
                measured.append(paths[number])
    # The output is no part of a receipt unless it was asked for, and here it was not.
    assert measured == []


def test_nothing_rides_on_a_signature() -> None:
    """Fields that a tower adds to its envelope, which might hold the prompt, reach no receipt."""

    def chatty(frame: dict[str, Any]) -> dict[str, Any]:
        whole = copy.deepcopy(signed(frame))
        whole["attestation"]["note"] = PROMPT
        whole["attestation"]["signatures"][0]["cert"] = PROMPT
        return whole

    reply = run(chatty)
    assert reply.payload["tower"]["attested"] == "VERIFIED"
    assert PROMPT not in json.dumps(reply.json)


@pytest.mark.parametrize(
    "envelope",
    [
        {},
        "x",
        {"payloadType": "x"},
        {"payloadType": "application/vnd.in-toto+json", "payload": "!", "signatures": []},
    ],
    ids=str,
)
def test_malformed_signatures_are_refused(envelope: Any) -> None:
    """A reply whose attestation is no envelope breaks the protocol."""
    assert_roadmap(run(lambda frame: {**signed(frame), "attestation": envelope}), "REPLY_REFUSED")


def test_the_pinned_key_is_read_from_text_or_file(tmp_path: Any) -> None:
    """The setting is PEM text, PEM text on one line, or the name of a file."""
    file = tmp_path / "tower.pem"
    file.write_text(KEY.pem)
    for pinned in (KEY.pem, KEY.pem.replace("\n", "\\n"), str(file)):
        assert run(signed, pinned=pinned).payload["tower"]["attested"] == "VERIFIED"


def test_public_key_is_the_private_ones() -> None:
    """The key that is pinned here is the public half of the one that signs."""
    public = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert KEY.pem.encode() == public
