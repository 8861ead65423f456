"""The OpenAPI document: valid, strict, always the same, and true of what is served."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from edge.local_server import _message
from edge.openapi import document
from edge.parts import Parts
from edge.routes import ROUTES
from edge.runbooks import runbook
from shared.labels import BASE_PATH
from shared.schemas import CurveQuery, RunRequest
from tests.edge import fake_tower
from tests.edge.documented import DOCUMENT, Documented, component, operations, validator
from tests.edge.fake_tower import FakeTower, accepted, failed, progress, say
from tests.edge.support import PROMPT, Client, Reply, client, make_event, settings
from tests.edge.test_intake import BAD_FIELDS

NOBODY = "0" * 64
FOREIGN = ".".join(["A" * 22] * 3)
NO_5XX = {"/health", "/curve", "/run"}


def folder_edge(folder: Path, url: str = "ws://127.0.0.1:9/specdec", **changes: str) -> Client:
    """Return an edge that signs and stores."""
    key, receipts = str(folder / "key.pem"), str(folder / "receipts")
    return client(url, signer="file", signing_key_file=key, receipts_dir=receipts, **changes)


def ask(it: Client, method: str, path: str, query: str = "", **headers: str) -> Reply:
    """Send a request without a body; underscores in names of headers stand for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return it.send(make_event(method, path, query=query, headers=named))


def as_documented(method: str, path: str, reply: Reply, status: int) -> Reply:
    """Check an answer against the document."""
    assert reply.status == status, reply.text
    assert Documented.of(method, path, status).faults(reply) == []
    return reply


def test_it_is_valid_openapi() -> None:
    """The document is what OpenAPI 3.1 says, and each schema is one of JSON Schema 2020-12."""
    validate(DOCUMENT)
    for name in DOCUMENT["components"]["schemas"]:
        component(name)
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["servers"][1]["url"] == BASE_PATH


def test_a_broken_document_would_be_found() -> None:
    """The check above can fail: a response without a description is refused."""
    broken = copy.deepcopy(DOCUMENT)
    del broken["paths"]["/health"]["get"]["responses"]["200"]["description"]
    with pytest.raises(Exception, match="description.{1,3} is a required property"):
        validate(broken)


def test_every_reference_is_to_something() -> None:
    """Each `$ref` and each link names what is there, and no schema is left over."""
    text = json.dumps(DOCUMENT)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names == set(DOCUMENT["components"]["schemas"])
    ids = [operation["operationId"] for operation in operations().values()]
    assert len(ids) == len(set(ids))
    linked = {
        link["operationId"]
        for operation in operations().values()
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    }
    assert linked == {"receipt", "receipt_payload", "run_status", "run_cancel"} <= set(ids)


def test_paths_and_methods_are_the_routes() -> None:
    """The document has the routes' paths and methods, no more and no fewer."""
    told = {path: {method.upper() for method in methods} for path, methods in DOCUMENT["paths"].items()}
    assert told == {route.template or "/": set(route.methods) for route in ROUTES}


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_the_handler_takes_what_is_documented(path: str) -> None:
    """Every other method is 405, with an `Allow` that says what is taken."""
    it = client()
    below = path.rstrip("/").format_map({"run_id": FOREIGN, "digest": NOBODY})
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY"):
        reply = ask(it, method, below)
        assert (reply.status != 405) == (method.lower() in DOCUMENT["paths"][path]), method
        if reply.status == 405:
            allowed = set(reply.headers["Allow"].lower().split(", "))
            assert allowed - {"head", "options"} == set(DOCUMENT["paths"][path])
            component("Problem").validate(reply.json)


def test_health_is_as_documented() -> None:
    """With a tower and without."""
    as_documented("GET", "/health", client().get("/health"), 200)
    with FakeTower() as tower:
        reply = as_documented("GET", "/health", client(tower.url).get("/health"), 200)
    assert reply.json["models"] and reply.json["measured_run_possible"]


def test_cached_answers_are_as_documented(tmp_path: Path) -> None:
    """The page, keys, curves, stored receipts and this document, each with its 304."""
    with FakeTower() as tower:
        it = folder_edge(tmp_path, tower.url)
        digest = it.run().json["payload_sha3_256"]
    kept = as_documented("GET", "/curve", it.get("/curve", "k=3&store=1"), 200).json["payload_sha3_256"]
    receipts = [f"/receipts/{each}{rest}" for each in (digest, kept) for rest in ("", "/payload")]
    for path in ("", "/keys", "/openapi.json", "/curve", *receipts):
        tag = as_documented("GET", path, it.get(path), 200).headers["ETag"]
        as_documented("GET", path, ask(it, "GET", path, if_none_match=tag), 304)
    unsigned = client()
    as_documented("GET", "/curve", unsigned.get("/curve", "alpha=0&alpha=1"), 200)
    as_documented("GET", "/keys", unsigned.get("/keys"), 200)


def test_an_unsigned_stored_receipt_is_as_documented(tmp_path: Path) -> None:
    """It has no ETag, as it may be signed yet."""
    it = client(receipts_dir=str(tmp_path))
    digest = it.get("/curve", "store=1").json["payload_sha3_256"]
    reply = as_documented("GET", f"/receipts/{digest}", it.get(f"/receipts/{digest}"), 200)
    assert "ETag" not in reply.headers


def test_measured_runs_are_as_documented(tmp_path: Path) -> None:
    """Measured at once, asked for again, cancelled too late, with its text, and with an energy that was measured."""
    with FakeTower() as tower:
        it = folder_edge(tmp_path, tower.url)
        reply = as_documented("POST", "/run", it.run({"prefer": "wait=9"}, include_output=True), 200)
        assert reply.payload["measured"] == "MEASURED" and reply.json["output"] and reply.headers["Link"]
        path = f"/runs/{reply.payload['run_id']}"
        as_documented("GET", path, it.get(path), 200)
        as_documented("DELETE", path, it.delete(path), 200)
        tower.script = lambda _, connection, frame: say(connection, with_energy(frame))
        reply = as_documented("POST", "/run", client(tower.url).run(), 200)
        assert reply.payload["energy"]["label"] == "MEASURED"


def with_energy(frame: dict[str, Any]) -> dict[str, Any]:
    """Return a result that holds joules."""
    joules = {"speculative": 2.5, "target_only": 3.5}
    result = fake_tower.result(frame, engine={**fake_tower.MEASUREMENT["engine"], "gpu_layers": 17})
    return {**result, "energy": {"label": "MEASURED", "joules_per_token": joules}}


def test_runs_that_go_on_are_as_documented() -> None:
    """In the queue and at work, for whoever started it and whoever asks."""
    with FakeTower(lambda _, connection, frame: say(connection, accepted(frame, 2))) as tower:
        it = client(tower.url)
        reply = as_documented("POST", "/run", it.run({"prefer": "respond-async"}), 202)
        path = f"/runs/{reply.payload['run_id']}"
        as_documented("GET", path, it.get(path), 202)
        tower.script = lambda _, connection, frame: say(connection, progress(frame))
        reply = as_documented("GET", path, it.get(path), 202)
        assert reply.payload["progress"] == {"phase": "measuring", "done": 12, "total": 50}
        tower.script = lambda _, connection, frame: say(connection, failed(frame, "CANCELLED"))
        reply = as_documented("DELETE", path, it.delete(path), 200)
        assert reply.payload["roadmap"]["code"] == "CANCELLED"


def test_runs_without_a_measurement_are_as_documented(tmp_path: Path) -> None:
    """Tower down, tower busy, reply refused, attestation missing, no run secret."""
    reply = as_documented("POST", "/run", folder_edge(tmp_path).run(), 200)
    assert reply.payload["roadmap"]["code"] == "TOWER_UNREACHABLE" and reply.json["signature"]["signed"]
    with FakeTower(lambda _, c, frame: say(c, failed(frame, "BUSY", retry_after=7))) as tower:
        reply = as_documented("POST", "/run", client(tower.url).run(k="auto"), 200)
        assert reply.headers["Retry-After"] == "7"
        tower.script = lambda _, c, frame: say(c, fake_tower.result(frame, n=49))
        assert client(tower.url).run().payload["roadmap"]["code"] == "REPLY_REFUSED"
        as_documented("POST", "/run", client(tower.url).run(), 200)
    with FakeTower() as tower:
        from shared.keyfile import load_or_create

        key = load_or_create(tmp_path / "tower.pem", "Ed25519").pem
        reply = as_documented("POST", "/run", client(tower.url, tower_public_key=key).run(), 200)
        assert reply.payload["roadmap"]["code"] == "ATTESTATION_FAILED"
        as_documented("GET", "/keys", client(tower_public_key=key).get("/keys"), 200)
    as_documented("POST", "/run", client(run_secret=RUN_SECRET).run(), 200)


RUN_SECRET = "another-run-secret-for-tests"


def problems(folder: Path) -> Iterator[tuple[str, str, int, Reply]]:
    """Yield method, path and status of problems, and the answers that should be such."""
    it, bare = client(), {"content-type": "text/plain"}
    yield "GET", "/curve", 400, it.get("/curve", "&")
    yield "GET", "/curve", 422, it.get("/curve", "k=65")
    yield "POST", "/run", 400, it.post("{")
    yield "POST", "/run", 400, it.run({"idempotency-key": " "})
    yield "POST", "/run", 413, it.post(" " * 200_000)
    yield "POST", "/run", 415, it.post("{}", bare)
    yield "POST", "/run", 422, it.run(k=0)
    yield "GET", f"/runs/{FOREIGN}", 404, it.get(f"/runs/{FOREIGN}")
    yield "DELETE", "/runs/x", 404, it.delete("/runs/x")
    yield "GET", f"/receipts/{NOBODY}", 503, it.get(f"/receipts/{NOBODY}")
    stored = folder_edge(folder)
    for rest in ("", "/payload"):
        path = f"/receipts/{NOBODY}{rest}"
        yield "GET", path, 404, stored.get(path)
    for number in range(21):
        curve = stored.get("/curve", f"store=1&k={number}")
    yield "GET", "/curve", 429, curve
    path = f"/runs/{it.run().payload['run_id']}"
    yield "GET", path, 503, it.get(path)
    yield "DELETE", path, 503, it.delete(path)
    with FakeTower(lambda _, connection, frame: say(connection, failed(frame, "NOT_FOUND"))) as tower:
        yield "GET", path, 410, client(tower.url).get(path)
        yield "DELETE", path, 410, client(tower.url).delete(path)
        tower.script = lambda _, connection, frame: say(connection, failed(frame, "CONFLICT"))
        yield "POST", "/run", 422, client(tower.url).run()
        limited = client(tower.url, runs_per_minute="1", run_burst="1")
        limited.run()
        yield "POST", "/run", 429, limited.run()


def test_problems_are_as_documented(tmp_path: Path) -> None:
    """Each status of the service's own that a request can bring about."""
    seen = set()
    for method, path, status, reply in problems(tmp_path):
        as_documented(method, path, reply, status)
        assert reply.headers["Content-Type"] == "application/problem+json"
        seen.add(status)
    assert seen == {400, 404, 410, 413, 415, 422, 429, 503}


def test_faults_of_the_service_are_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug gives a 500 with a problem document."""

    def broken(_: Parts) -> None:
        raise RuntimeError

    monkeypatch.setattr(Parts, "keys", broken)
    as_documented("GET", "/keys", client().get("/keys"), 500)


def test_what_the_gateway_says_is_documented_for_every_route() -> None:
    """Its short bodies fit; and /health, /curve and /run have no 5xx but its."""
    for (path, _), operation in operations().items():
        for status in (400, 408, 413, 429, 431, 500, 502, 503):
            answer = operation["responses"][str(status)]
            assert not [name for name, told in answer.get("headers", {}).items() if told.get("required")]
            _, _, body = _message(status, "Words")
            validator(answer["content"]["application/json"]["schema"]).validate(json.loads(body))
            service = "application/problem+json" in answer["content"]
            assert not (service and status >= 500 and path in NO_5XX)


def test_parameters_of_the_curve_are_its_model() -> None:
    """The same names; each limit is taken, and nothing beyond it."""
    parameters = {each["name"]: each for each in DOCUMENT["paths"]["/curve"]["get"]["parameters"]}
    assert set(parameters) == {*CurveQuery.model_fields, "store", "If-None-Match"}
    it = client()
    for name in CurveQuery.model_fields:
        schema = parameters[name]["schema"]
        schema = schema.get("items", schema)
        step = 1 if schema["type"] == "integer" else 0.001
        for value, status in (
            (schema["minimum"], 200),
            (schema["maximum"], 200),
            (schema["minimum"] - step, 422),
            (schema["maximum"] + step, 422),
        ):
            assert it.get("/curve", f"{name}={value}").status == status, (name, value)
    most = parameters["alpha"]["schema"]["maxItems"]
    assert it.get("/curve", "&".join(["alpha=0.5"] * most)).status == 200
    assert it.get("/curve", "&".join(["alpha=0.5"] * (most + 1))).status == 422


BEYOND_SCHEMA = [{"prompt": "é" * 8_193}, {"k": 4.0}]
"""Refused, and no fault to JSON Schema: it counts characters, and 4.0 is an integer to it. The document says both."""


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=[str(fields)[:40] for fields in BAD_FIELDS])
def test_what_a_run_refuses_its_schema_refuses(fields: dict[str, Any]) -> None:
    """The schema of the request is as strict as the edge, but for what no schema can say."""
    fits = component("RunRequest").is_valid({"prompt": PROMPT, **fields})
    assert fits == (fields in BEYOND_SCHEMA)


def test_the_schema_of_a_run_takes_what_the_edge_takes() -> None:
    """The defaults, the limits and every field at once are taken."""
    schema = DOCUMENT["components"]["schemas"]["RunRequest"]
    assert set(schema["properties"]) == set(RunRequest.model_fields)
    usual = DOCUMENT["paths"]["/run"]["post"]["requestBody"]["content"]["application/json"]["examples"][
        "usual"
    ]
    full = RunRequest(prompt=PROMPT).model_dump(mode="json")
    least = {"prompt": "x", "k": 1, "n": 1, "temperature": 0, "top_p": 1e-9, "top_k": 0, "seed": 0}
    most = {
        "prompt": "x" * 16_384,
        "k": 16,
        "n": 500,
        "temperature": 2,
        "top_p": 1,
        "top_k": 1000,
        "seed": 2**53 - 1,
    }
    for body in (usual["value"], {"prompt": PROMPT}, {"prompt": PROMPT, "k": "auto"}, full, least, most):
        component("RunRequest").validate(body)
        assert client().post(body).status == 200, body


def bodies(folder: Path) -> dict[str, tuple[str, Any]]:
    """Return real bodies with the names of their schemas."""
    with FakeTower() as tower:
        it = folder_edge(folder, tower.url)
        measured, health, keys = it.run(include_output=True), it.get("/health"), it.get("/keys")
        tower.script = lambda _, connection, frame: say(connection, accepted(frame, 1))
        waiting = it.run()
        tower.script = lambda _, connection, frame: say(connection, progress(frame))
        at_work = it.run({"prefer": "wait=0"})
        tower.script = lambda _, connection, frame: say(connection, with_energy(frame))
        metered = client(tower.url).run()
    return {
        "measured": ("RunReceipt", measured.json),
        "metered": ("RunReceipt", metered.json),
        "roadmap": ("RunReceipt", folder_edge(folder).run().json),
        "waiting": ("RunningReceipt", waiting.json),
        "at work": ("RunningReceipt", at_work.json),
        "curve": ("CurveReceipt", client().get("/curve").json),
        "health": ("Health", health.json),
        "keys": ("Keys", keys.json),
        "problem": ("Problem", client().get("/runs/x").json),
    }


MAY_BE_ABSENT = {
    *("prompt_salt", "output", "energy.reason", "progress", "run_id", "request", "prompt_commitment"),
    *("same_family_pair.draft", "same_family_pair.target", "same_family_pair.family"),
    *("models.family", "models.parameters"),
}
"""Fields of those bodies that others of the same schema lack, by the end of their path."""

RUNNING_HAS = ("payload.progress", "payload.run_id")
MEASURED_HAS = ("payload.run_id", "payload.request", "payload.prompt_commitment")
"""... and that these must have."""

MAPS = ("expected_tokens_per_step_at_alpha", "expected_speedup_at_alpha", "endpoints")
"""Objects whose names are not fields."""


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all values within a value; of lists the first entries."""
    if isinstance(value, dict):
        entries: list[tuple[str | int, Any]] = list(value.items())
    else:
        entries = list(enumerate(value[:2])) if isinstance(value, list) else []
    for name, inner in entries:
        yield (*path, name)
        yield from places(inner, (*path, name))


def changed(body: Any, path: tuple[str | int, ...], *new: Any) -> Any:
    """Return a copy in which the value at a path is another one, or is not there."""
    it = copy.deepcopy(body)
    inner = it
    for part in path[:-1]:
        inner = inner[part]
    if new:
        inner[path[-1]] = new[0]
    else:
        del inner[path[-1]]
    return it


def required(name: str, path: tuple[str | int, ...]) -> bool:
    """Whether a body must have what stands at a path."""
    if isinstance(path[-1], int) or (len(path) > 1 and path[-2] in MAPS):
        return False
    dotted = ".".join(part for part in path if isinstance(part, str))
    always = (
        RUNNING_HAS
        if name in ("waiting", "at work")
        else MEASURED_HAS
        if name in ("measured", "metered")
        else ()
    )
    if dotted in always:
        return True
    return not any(f".{dotted}".endswith(f".{each}") for each in MAY_BE_ABSENT)


def test_schemas_are_strict(tmp_path: Path) -> None:
    """In every answer a required field that is missing, or any field of another type, is a fault."""
    tried = 0
    for name, (schema, body) in bodies(tmp_path).items():
        check = component(schema)
        check.validate(body)
        loose = []
        for path in places(body):
            value = body
            for part in path:
                value = value[part]
            wrong: Any = "of another type" if isinstance(value, dict | list) else {"of": "another type"}
            loose += [("type", path)] * check.is_valid(changed(body, path, wrong))
            if required(name, path):
                loose += [("missing", path)] * check.is_valid(changed(body, path))
                tried += 1
        assert loose == [], name
    assert tried > 300


def test_a_label_that_does_not_fit_is_a_fault(tmp_path: Path) -> None:
    """A ROADMAP that calls itself MEASURED fits no schema, nor does a measurement without its label."""
    for name, (schema, body) in bodies(tmp_path).items():
        if "payload" in body:
            for field in ("label", "measured"):
                assert not component(schema).is_valid(changed(body, ("payload", field), "MODELED")), name
    name, body = bodies(tmp_path)["roadmap"]
    assert not component(name).is_valid(changed(body, ("payload", "measured"), "MEASURED"))


def test_running_is_not_ended(tmp_path: Path) -> None:
    """An answer that another one follows has a schema of its own, which no final answer fits."""
    real = bodies(tmp_path)
    for name in ("measured", "roadmap"):
        assert not component("RunningReceipt").is_valid(real[name][1])
    assert runbook("RUNNING") is not None


def test_it_states_this_edges_defaults() -> None:
    """An edge with other settings says so."""
    told = document(settings(k="7", cost_ratio="0.5"))
    defaults = {
        each["name"]: each["schema"].get("default") for each in told["paths"]["/curve"]["get"]["parameters"]
    }
    assert (defaults["k"], defaults["cost_ratio"]) == (7, 0.5)
    assert told["components"]["schemas"]["RunRequest"]["properties"]["k"]["default"] == 7


def test_it_is_cached() -> None:
    """Every call gives the same bytes, under an ETag that another call may name."""
    it = client()
    first, second = it.get("/openapi.json"), it.get("/openapi.json")
    assert first.text == second.text and first.headers == second.headers
    assert first.headers["Cache-Control"] == "public, max-age=3600"
    again = ask(it, "GET", "/openapi.json", if_none_match=first.headers["ETag"])
    assert (again.status, again.text) == (304, "")
    head = ask(it, "HEAD", "/openapi.json")
    assert (head.status, head.text, head.headers) == (200, "", first.headers)


ALONE = """
import json, sys
from edge.app import create_handler
from edge.settings import EdgeSettings
from tests.edge.support import Client
print(Client(create_handler(EdgeSettings())).get("/openapi.json").text)
assert not {"boto3", "cryptography", "websockets"} & set(sys.modules), "too much was loaded"
"""


def test_it_is_the_same_everywhere_and_needs_no_aws_sdk() -> None:
    """Two processes with other hash seeds give the same bytes, and neither loads boto3."""
    texts = [
        subprocess.run(
            [sys.executable, "-c", ALONE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    lines = [text.splitlines()[-1] for text in texts]
    assert lines[0] == lines[1]
    assert json.loads(lines[0]) == DOCUMENT
