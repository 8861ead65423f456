"""Receipts, payloads and keys over the handler, signed and stored as a local edge does it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from edge import issuer
from shared.keyfile import load_or_create
from shared.keys import load_keys
from shared.labels import BASE_PATH
from shared.verify import verify_receipt
from tests.edge.fake_tower import FakeTower, accepted, say
from tests.edge.support import Client, Reply, assert_problem, client, make_event


def edge(folder: Path, url: str = "ws://127.0.0.1:9/specdec", **changes: str) -> Client:
    """Return an edge that signs by a key file and stores in a directory."""
    fields = {
        "signer": "file",
        "signing_key_file": str(folder / "edge-key.pem"),
        "receipts_dir": str(folder / "receipts"),
        **changes,
    }
    return client(url, **fields)


def body(reply: Reply) -> dict[str, Any]:
    """Return a receipt as it is stored: without what came beside it."""
    return {name: value for name, value in reply.json.items() if name not in ("prompt_salt", "output")}


def refused(reply: Reply, status: int, sentence: str) -> None:
    """Check a problem's status and its sentence."""
    assert_problem(reply, status)
    assert reply.json["detail"] == sentence


def test_a_run_is_signed_stored_and_found(tmp_path: Path) -> None:
    """A run's receipt verifies by the key that `/keys` tells, and `Link` names where it is kept, byte for byte."""
    with FakeTower() as tower:
        it = edge(tmp_path, tower.url)
        reply = it.run()
    keys = it.get("/keys")
    assert keys.status == 200 and keys.headers["Cache-Control"] == "public, max-age=300"
    pinned = json.dumps(keys.json).encode()
    report = verify_receipt(reply.json, key_pem=pinned, require_signature=True)
    assert report.ok
    digest = reply.json["payload_sha3_256"]
    assert reply.headers["Link"] == f'<{BASE_PATH}/receipts/{digest}>; rel="canonical"'
    stored = it.get(f"/receipts/{digest}")
    assert (stored.status, stored.json) == (200, body(reply))
    assert stored.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert "prompt_salt" not in stored.json and "output" not in stored.json
    payload = it.get(f"/receipts/{digest}/payload")
    assert hashlib.sha3_256(payload.text.encode()).hexdigest() == digest
    assert payload.headers["ETag"] == f'"{digest}"'
    assert payload.headers["Content-Type"] == "application/json"


def test_a_run_that_is_asked_for_again_keeps_its_receipt(tmp_path: Path) -> None:
    """Whoever asks after a finished run, on whichever instance, gets the very receipt that was signed first."""
    with FakeTower() as tower:
        first = edge(tmp_path, tower.url).run()
        again = edge(tmp_path, tower.url).get(f"/runs/{first.payload['run_id']}")
    if first.payload["generated_at"] == again.payload["generated_at"]:  # this tower tells no time of its own
        assert again.json == body(first)
    assert again.json["signature"]["signed"] and "Link" in again.headers


def test_a_run_that_goes_on_is_not_signed(tmp_path: Path) -> None:
    """A 202 answer says that it is not final, and is not stored."""
    with FakeTower(lambda _, connection, frame: say(connection, accepted(frame, 1))) as tower:
        it = edge(tmp_path, tower.url)
        reply = it.run()
    assert reply.status == 202 and "Link" not in reply.headers
    assert reply.json["signature"]["note"] == issuer.INTERIM
    assert it.get(f"/receipts/{reply.json['payload_sha3_256']}").status == 404


def test_a_roadmap_is_signed_and_not_stored(tmp_path: Path) -> None:
    """With the tower down the answer is a ROADMAP receipt, signed like any other; nothing is kept of it."""
    it = edge(tmp_path)
    reply = it.run()
    assert reply.payload["label"] == "SPEC-DECODE ROADMAP"
    assert reply.json["signature"]["signed"] and "Link" not in reply.headers
    assert it.get(f"/receipts/{reply.json['payload_sha3_256']}").status == 404


def test_curves_are_the_same_for_an_hour(tmp_path: Path) -> None:
    """Equal questions get the very same receipt, signed once; it is stored only when asked for."""
    it = edge(tmp_path)
    first = it.get("/curve", "k=3&alpha=0.6")
    assert it.get("/curve", "k=3&alpha=0.6&store=0").text == first.text
    assert first.json["signature"]["signed"] and first.payload["generated_at"].endswith(":00:00Z")
    digest = first.json["payload_sha3_256"]
    assert "Link" not in first.headers
    assert it.get(f"/receipts/{digest}").status == 404
    kept = it.get("/curve", "k=3&alpha=0.6&store=1")
    assert kept.text == first.text and kept.headers["Link"].startswith(f"<{BASE_PATH}/receipts/{digest}>")
    assert it.get(f"/receipts/{digest}").json == first.json


@pytest.mark.parametrize("query", ["store=2", "store=", "store=true", "store=1&store=1", "store=0&store=1"])
def test_store_is_0_or_1(tmp_path: Path, query: str) -> None:
    """Anything else is refused."""
    refused(edge(tmp_path).get("/curve", query), 422, "store must be 0 or 1, once.")


def test_an_edge_without_a_store(tmp_path: Path) -> None:
    """It says so, and answers everything else."""
    it = client()
    none = "0" * 64
    refused(it.get(f"/receipts/{none}"), 503, "This edge keeps no receipts.")
    refused(it.get(f"/receipts/{none}/payload"), 503, "This edge keeps no receipts.")
    refused(it.get("/curve", "store=1"), 422, "This edge keeps no receipts; ask without store.")
    assert it.get("/keys").json == {"keys": []}


@pytest.mark.parametrize("digest", ["x", "0" * 63, "0" * 65, "A" * 64, "..", "%2e%2e%2f", "0" * 63 + "é"])
def test_what_is_no_digest_is_404(tmp_path: Path, digest: str) -> None:
    """Nothing but 64 hex digits reaches the store."""
    it = edge(tmp_path)
    for path in (f"/receipts/{digest}", f"/receipts/{digest}/payload"):
        assert_problem(it.get(path), 404)
    assert not (tmp_path / "receipts").exists()


def test_unknown_receipts_are_404(tmp_path: Path) -> None:
    """A digest that is not stored is 404, in one sentence."""
    reply = edge(tmp_path).get(f"/receipts/{'0' * 64}")
    refused(reply, 404, "No receipt with this payload digest is stored here.")


def test_damaged_receipts_are_not_given_out(tmp_path: Path) -> None:
    """A receipt that no longer fits its digest is 503, never served."""
    with FakeTower() as tower:
        it = edge(tmp_path, tower.url)
        digest = it.run().json["payload_sha3_256"]
    (file,) = (tmp_path / "receipts").glob("*/*.payload")
    file.write_bytes(file.read_bytes().replace(b"MEASURED", b"MEASURAD"))
    for path in (f"/receipts/{digest}", f"/receipts/{digest}/payload"):
        sentence = "What is stored under this digest is damaged; it is not given out."
        refused(it.get(path), 503, sentence)


def test_methods(tmp_path: Path) -> None:
    """These routes are read only."""
    it = edge(tmp_path)
    for path in (f"/receipts/{'0' * 64}", f"/receipts/{'0' * 64}/payload", "/keys"):
        reply = it.delete(path)
        assert_problem(reply, 405)
        assert reply.headers["Allow"] == "GET, HEAD, OPTIONS"


def test_keys_old_and_new(tmp_path: Path) -> None:
    """After a rotation `/keys` lists both keys, and receipts of either time verify by one saved answer."""
    old = edge(tmp_path).run()
    former = load_or_create(tmp_path / "edge-key.pem", "P-256")
    (tmp_path / "edge-key.pem").rename(tmp_path / "old-key.pem")
    ring = {"keys": [{"kind": "edge", "pem": former.pem, "valid_to": "2099-01-01T00:00:00Z"}]}
    it = edge(tmp_path, keys=json.dumps(ring))
    new = it.run()
    answer = json.dumps(it.get("/keys").json).encode()
    assert [key.keyid for key in load_keys(answer)][0] == former.keyid
    assert len(load_keys(answer)) == 2
    assert old.json["signature"]["keyid"] != new.json["signature"]["keyid"]
    for reply in (old, new):
        assert verify_receipt(reply.json, key_pem=answer, require_signature=True).ok


def test_head_stores_nothing(tmp_path: Path) -> None:
    """Whoever asks for the headers alone, or fetches ahead, leaves nothing behind."""
    it = edge(tmp_path)
    head = it.send(make_event("HEAD", "/curve", query="store=1"))
    assert (head.status, "Link" in head.headers) == (200, False)
    assert not [path for path in tmp_path.rglob("*.json") if path.is_file()]
    assert "Link" in it.get("/curve", "store=1").headers
    assert [path for path in tmp_path.rglob("*.json") if path.is_file()]
