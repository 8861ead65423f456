"""The client against a real HTTP service, and against odd protocol behaviour."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from shared import labels
from shared.canonical import sha3_256_hex
from shared.client import MAX_ANSWER, ClientError, Progress, Specdec
from shared.client_protocol import TRIES
from shared.curve import accounting_modeled
from tests.shared.build import KEYS, PROMPT, measured_payload, receipt, roadmap_payload
from tests.shared.service import Answer, serve

BASE = labels.BASE_PATH
MEASURED = measured_payload()
RUN_ID = MEASURED["run_id"]
SALT = KEYS.salt(bytes(range(16))).hex()
RUNNING = receipt(
    roadmap_payload(
        run_id=RUN_ID,
        request=MEASURED["request"],
        prompt_commitment=MEASURED["prompt_commitment"],
        roadmap={"reason": "running"},
    )
)
DONE = receipt(MEASURED)
LOCATION = f"{BASE}/runs/{RUN_ID}"
BUSY = receipt(roadmap_payload(roadmap={"reason": "the tower's queue is full", "code": "BUSY"}))
SOON = {"Retry-After": "0"}


def curve_receipt(**change: Any) -> dict[str, Any]:
    """A curve for k 8 at one alpha."""
    block = accounting_modeled(8, 0.05, 1.5, (0.6,))
    payload = {"schema": labels.PAYLOAD_SCHEMA, "label": labels.CURVE_LABEL, "measured": labels.UNAVAILABLE}
    return receipt({**payload, "accounting_modeled": block, **change})


def answering(handler: Callable[[httpx.Request], httpx.Response], timeout: float = 20.0) -> Specdec:
    """A client whose requests a function answers."""
    return Specdec("https://specdec.example", timeout, httpx.MockTransport(handler))


def refused(code: str, call: Callable[[], Any]) -> str:
    """The sentence with which the call fails, after checking its code."""
    with pytest.raises(ClientError) as error:
        call()
    assert error.value.code == code, str(error.value)
    return str(error.value)


def test_health() -> None:
    """Health is asked at the base path and returned as it is."""
    with serve(Answer(200, {"status": "LIVE"})) as service, Specdec(service.url) as client:
        assert client.health() == {"status": "LIVE"}
    assert service.requests[0][:2] == ("GET", f"{BASE}/health")


def test_curve() -> None:
    """The curve's parameters go into the query, alpha repeated, and the receipt comes back verified."""
    with serve(Answer(200, curve_receipt())) as service, Specdec(service.url + BASE + "/") as client:
        answer = client.curve(k=8, cost_ratio=0.05, alpha=[0.6, 0.6], verify_cost=1.5)
    assert answer == curve_receipt()
    query = "k=8&cost_ratio=0.05&alpha=0.6&alpha=0.6&verify_cost=1.5"
    assert service.requests[0][:2] == ("GET", f"{BASE}/curve?{query}")


@pytest.mark.parametrize(
    "asked", [{"k": 4}, {"cost_ratio": 0.2}, {"alpha": [0.5]}, {"verify_cost": 1.0}], ids=str
)
def test_curve_of_another_question(asked: dict[str, Any]) -> None:
    """A true receipt for other parameters than those asked for is refused by name."""
    with serve(Answer(200, curve_receipt())) as service, Specdec(service.url) as client:
        name = next(iter(asked))
        assert (
            refused("BAD_ANSWER", lambda: client.curve(**asked)) == f"the service answered for another {name}"
        )


def test_run_at_once() -> None:
    """A run answered at once: only the given fields are sent, salt and output come back beside the receipt."""
    payload = {**measured_payload(), "output_sha3_256": sha3_256_hex(b"text")}
    beside = {**receipt(payload), "prompt_salt": SALT, "output": "text"}
    with serve(Answer(200, beside)) as service, Specdec(service.url) as client:
        assert client.run(PROMPT, k=4, wait=30, idempotency_key="mine") == beside
    method, path, body, headers = service.requests[0]
    assert (method, path, body) == ("POST", f"{BASE}/run", {"prompt": PROMPT, "k": 4})
    assert headers["prefer"] == "wait=30" and headers["idempotency-key"] == "mine"


@pytest.mark.parametrize("absolute", [False, True])
def test_run_polls(absolute: bool) -> None:
    """A 202 is polled at its Location, relative or on the same origin, until 200; busy answers are waited out."""
    pending = {"Location": LOCATION, "Retry-After": "0"}
    answers = [
        Answer(202, {**RUNNING, "prompt_salt": SALT}, pending),
        Answer(202, RUNNING, pending),
        Answer(503, {"detail": "busy"}, {"Retry-After": "0"}),
        Answer(429, {"detail": "slow down"}, {"Retry-After": "0"}),
        Answer(200, DONE),
    ]
    with serve(*answers) as service, Specdec(service.url) as client:
        if absolute:
            answers[0].headers["Location"] = service.url + LOCATION
        assert client.run(PROMPT) == {**DONE, "prompt_salt": SALT}
    assert [request[:2] for request in service.requests] == [("POST", f"{BASE}/run")] + [
        ("GET", LOCATION)
    ] * 4
    assert "prefer" not in service.requests[0][3] and "idempotency-key" not in service.requests[0][3]


def test_progress_is_told() -> None:
    """Each 202 is told to whoever wants to know, with the run's id, also where it says no more than that."""
    queued = {**RUNNING["payload"], "progress": {"phase": "queued", "position": 2}}
    timing = {**RUNNING["payload"], "progress": {"phase": "timing", "done": 3, "total": 6}}
    pending = {"Location": LOCATION, "Retry-After": "0"}
    answers = [Answer(202, receipt(payload), pending) for payload in (RUNNING["payload"], queued, timing)]
    told: list[Progress] = []
    with serve(*answers, Answer(200, DONE)) as service, Specdec(service.url) as client:
        assert client.run(PROMPT, on_progress=told.append) == DONE
    assert told == [
        Progress(RUN_ID, "running"),
        Progress(RUN_ID, "queued", position=2),
        Progress(RUN_ID, "timing", done=3, total=6),
    ]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_asked_again(status: int) -> None:
    """A safe question, or a POST under a key, that fails in passing is asked again as soon as the service says."""
    busy = [Answer(status, {"detail": "not now"}, SOON) for _ in range(5)]
    with serve(*busy, Answer(200, DONE)) as service, Specdec(service.url) as client:
        assert client.run(PROMPT, idempotency_key="mine") == DONE
    assert [request[2:] for request in service.requests] == [service.requests[0][2:]] * 6
    with serve(*busy, Answer(200, DONE)) as service, Specdec(service.url) as client:
        assert client.cancel(RUN_ID) == DONE


@pytest.mark.parametrize(
    ("status", "headers"),
    [(429, {"Retry-After": "60"}), (503, {"Retry-After": "60"}), (500, SOON), (410, SOON)],
)
def test_not_asked_again(status: int, headers: dict[str, str]) -> None:
    """What does not pass, and what is said to pass only after the timeout, ends the call at once."""
    handler = answers_of((status, {"detail": "no"}, headers))
    with answering(handler) as client:
        assert refused(f"HTTP_{status}", client.health) == f"the service answered {status}: no"


def test_a_run_without_a_key_is_asked_for_once() -> None:
    """A POST without a key might run twice, so it is not repeated, whatever the service says."""
    with answering(answers_of((503, {"detail": "not now"}, SOON))) as client:
        refused("HTTP_503", lambda: client.run(PROMPT))


def test_a_dropped_connection() -> None:
    """A connection that breaks is tried again, a few times."""
    tried: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        tried.append(request.method)
        if len(tried) < TRIES:
            raise httpx.ReadError("the connection broke")
        return httpx.Response(200, json={"status": "LIVE"})

    with answering(handler) as client:
        assert client.health() == {"status": "LIVE"}
    assert tried == ["GET"] * TRIES


def test_another_run_by_its_id() -> None:
    """The receipt of another run than the one asked after is refused."""
    other = receipt({**roadmap_payload(), "run_id": KEYS.run_id(bytes(16), {"prompt": "other"})})
    with answering(answers_of((200, other, {}), (200, other, {}))) as client:
        for call in (client.get_run, client.cancel):
            assert refused("BAD_ANSWER", lambda: call(RUN_ID)) == "the service answered with another run"  # noqa: B023


def test_run_without_following() -> None:
    """Without following, a 202's ROADMAP receipt is the answer."""
    with serve(Answer(202, RUNNING, {"Location": LOCATION})) as service, Specdec(service.url) as client:
        assert client.run(PROMPT, follow=False)["payload"]["roadmap"] == {"reason": "running"}
    assert len(service.requests) == 1


def test_patience() -> None:
    """A patient run is asked for again while there is no room, said by 429 or by a ROADMAP, then followed as ever."""
    answers = [
        Answer(429, {"detail": "too many runs"}, SOON),
        Answer(200, BUSY, SOON),
        Answer(202, {**RUNNING, "prompt_salt": SALT}, {"Location": LOCATION, **SOON}),
        Answer(200, DONE),
    ]
    with serve(*answers) as service, Specdec(service.url) as client:
        assert client.run(PROMPT, patient=True) == {**DONE, "prompt_salt": SALT}
    assert [request[0] for request in service.requests] == ["POST", "POST", "POST", "GET"]
    assert all(request[2] == {"prompt": PROMPT} for request in service.requests[:3])


def test_no_patience() -> None:
    """Unless told to be patient, a run takes the first answer."""
    with answering(answers_of((200, BUSY, SOON), (429, {"detail": "too many runs"}, SOON))) as client:
        assert client.run(PROMPT) == BUSY
        assert "answered 429: too many runs" in refused("HTTP_429", lambda: client.run(PROMPT))


def test_patience_ends() -> None:
    """Where room is promised only after the timeout, what the service said last is the answer."""
    late = {"Retry-After": "60"}
    answers = answers_of((200, BUSY, SOON), (200, BUSY, late), (429, {"detail": "too many runs"}, late))
    with answering(answers) as client:
        assert client.run(PROMPT, patient=True) == BUSY
        sentence = refused("HTTP_429", lambda: client.run(PROMPT, patient=True))
    assert sentence == "the service answered 429: too many runs"


@pytest.mark.parametrize("payload", [{}, {"roadmap": 5}, {"roadmap": {"code": 5}}, 5], ids=str)
def test_patience_with_odd_answers(payload: Any) -> None:
    """What is no receipt is not asked for again but refused."""
    with answering(answers_of((200, {"payload": payload}, SOON))) as client:
        refused("BAD_RECEIPT", lambda: client.run(PROMPT, patient=True))


def test_get_and_cancel() -> None:
    """A run is fetched and cancelled by its id; text that is no run id is not sent anywhere."""
    with serve(Answer(202, RUNNING, {"Location": LOCATION}), Answer(200, DONE)) as service:
        with Specdec(service.url) as client:
            assert client.get_run(RUN_ID) == RUNNING
            assert client.cancel(RUN_ID) == DONE
            assert refused("BAD_INPUT", lambda: client.get_run("../keys")) == "the run id is malformed"
    assert [request[:2] for request in service.requests] == [("GET", LOCATION), ("DELETE", LOCATION)]


def test_the_run_timeout_covers_the_polling() -> None:
    """When the next poll would be too late the call ends at once and says which run goes on."""
    handler = answers_of((202, RUNNING, {"Location": LOCATION, "Retry-After": "60"}))
    started = time.monotonic()
    with answering(handler, timeout=30) as client:
        sentence = refused("TIMEOUT", lambda: client.run(PROMPT))
    assert time.monotonic() - started < 10
    assert sentence == f"the run has not ended in time; it goes on: run {RUN_ID}"


def answers_of(*answers: tuple[int, Any, dict[str, str]]) -> Callable[[httpx.Request], httpx.Response]:
    """A handler that gives the answers in order."""
    left = list(answers)

    def handler(_: httpx.Request) -> httpx.Response:
        status, body, headers = left.pop(0)
        return httpx.Response(status, json=body, headers=headers)

    return handler


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.example" + LOCATION,
        "//evil.example" + LOCATION,
        "http://specdec.example" + LOCATION,
        "https://specdec.example:444" + LOCATION,
        "https://specdec.example.evil.example/",
        "https://specdec.example@evil.example/",
        "file:///etc/passwd",
    ],
)
def test_another_origin_is_not_followed(location: str) -> None:
    """A Location on another host, port or scheme ends the call; nothing is sent there."""
    handler = answers_of((202, RUNNING, {"Location": location, "Retry-After": "0"}))
    with answering(handler) as client:
        assert "another host" in refused("FOREIGN_LOCATION", lambda: client.run(PROMPT))


@pytest.mark.parametrize("headers", [{}, {"Location": "https://specdec.example:port/"}], ids=str)
def test_no_location(headers: dict[str, str]) -> None:
    """A 202 that names no place to ask again ends the call."""
    with answering(answers_of((202, RUNNING, headers))) as client:
        assert "no place to ask again" in refused("BAD_ANSWER", lambda: client.run(PROMPT))


def test_redirects_are_not_followed() -> None:
    """A redirect is no answer: the prompt goes to the named service only."""
    with answering(answers_of((307, {}, {"Location": "https://evil.example/"}))) as client:
        assert "answered 307" in refused("BAD_ANSWER", lambda: client.run(PROMPT))


def test_a_poll_answered_with_another_run() -> None:
    """A true receipt of another run is refused."""
    other = receipt({**roadmap_payload(), "run_id": KEYS.run_id(bytes(16), {"prompt": "other"})})
    with answering(
        answers_of((202, RUNNING, {"Location": LOCATION, "Retry-After": "0"}), (200, other, {}))
    ) as client:
        assert refused("BAD_ANSWER", lambda: client.run(PROMPT)) == "the service answered with another run"


@pytest.mark.parametrize(
    ("prompt", "fields", "salt", "sentence"),
    [
        (PROMPT, {"k": 5}, SALT, "the service answered for another k"),
        (PROMPT, {"temperature": 0.5}, SALT, "the service answered for another temperature"),
        (PROMPT, {"chat": True}, SALT, "the service answered for another chat"),
        ("another prompt", {}, SALT, "the receipt commits to another prompt"),
        (PROMPT, {}, "00" * 32, "the receipt commits to another prompt"),
        (PROMPT, {}, "no hex", "the receipt commits to another prompt"),
        (PROMPT, {}, 5, "the receipt commits to another prompt"),
    ],
    ids=str,
)
def test_run_of_another_question(prompt: str, fields: dict[str, Any], salt: Any, sentence: str) -> None:
    """A true receipt for another prompt or other fields than those sent is refused."""
    with answering(answers_of((200, {**DONE, "prompt_salt": salt}, {}))) as client:
        assert refused("BAD_ANSWER", lambda: client.run(prompt, **fields)) == sentence


@pytest.mark.parametrize("call", [lambda c: c.run(PROMPT), lambda c: c.curve(), lambda c: c.get_run(RUN_ID)])
def test_altered_receipts_are_refused(call: Callable[[Specdec], Any]) -> None:
    """Every receipt is verified as it arrives."""
    altered = {**DONE, "payload": {**MEASURED, "accepted_rate": 0.99}}
    with answering(answers_of((200, altered, {}))) as client:
        sentence = refused("BAD_RECEIPT", lambda: call(client))
    assert sentence == "the receipt does not verify: payload_sha3_256 is not the SHA3-256 of the payload"


@pytest.mark.parametrize("body", [{}, {"payload": {}}, {"payload": 5}], ids=str)
def test_no_receipt(body: Any) -> None:
    """A JSON object that is no receipt is refused."""
    with answering(answers_of((200, body, {}))) as client:
        refused("BAD_RECEIPT", lambda: client.run(PROMPT))


@pytest.mark.parametrize(
    ("prompt", "fields", "sentence"),
    [
        ("", {}, "prompt must be a string of 1 to 16384 UTF-8 bytes without NUL or lone surrogates"),
        ("x", {"k": 17}, 'k must be an integer from 1 to 16, or "auto"'),
        ("x", {"kk": 1}, "kk is not a known field"),
        ("x", {"wait": -1}, "wait must be a number of seconds from 0 to 3600"),
        ("x", {"wait": float("nan")}, "wait must be a number of seconds from 0 to 3600"),
        ("x", {"idempotency_key": "é"}, "idempotency_key must be printable ASCII, not blank"),
        ("x", {"idempotency_key": "a\r\nb"}, "idempotency_key must be printable ASCII, not blank"),
        ("x", {"idempotency_key": " "}, "idempotency_key must be printable ASCII, not blank"),
    ],
    ids=str,
)
def test_bad_questions_are_not_sent(prompt: str, fields: dict[str, Any], sentence: str) -> None:
    """A question that the service would refuse is refused here, in the same words, and nothing is sent."""
    with answering(answers_of()) as client:
        assert refused("BAD_INPUT", lambda: client.run(prompt, **fields)) == sentence
        assert refused("BAD_INPUT", lambda: client.curve(k=65)) == "k must be an integer from 0 to 64"


@pytest.mark.parametrize(
    "url", ["", "specdec.example", "ftp://x", "http://", "https://x?y=1", "http://x:port", "http://[", "\0"]
)
def test_bad_urls(url: str) -> None:
    """A base URL without http(s) and host is refused before anything is sent."""
    assert (
        refused("BAD_INPUT", lambda: Specdec(url)) == "the URL must be like https://host or http://host:port"
    )


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf"), 86_401.0])
def test_bad_timeouts(timeout: float) -> None:
    """A timeout that is no positive finite number is refused."""
    assert "timeout must be" in refused("BAD_INPUT", lambda: Specdec("http://x", timeout))


@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTPS_PROXY", "foo://x"), ("ALL_PROXY", "socks5://127.0.0.1:1"), ("SSL_CERT_FILE", "/nowhere/at/all")],
)
def test_an_environment_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A proxy or certificates that httpx cannot take are said in a sentence."""
    monkeypatch.setenv(name, value)
    assert "proxy or certificates" in refused("BAD_INPUT", lambda: Specdec("https://specdec.example"))


def test_problems_are_told() -> None:
    """A problem's own sentence is passed on, on one printable line."""
    problem = {"title": "Gone", "status": 410, "detail": "the run\nhas expired\x1b[2J"}
    with serve(Answer(410, problem)) as service, Specdec(service.url) as client:
        sentence = refused("HTTP_410", lambda: client.get_run(RUN_ID))
    assert sentence == "the service answered 410: the run has expired [2J"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"a":NaN}', b'{"a":1,"a":2}', b"\xff"], ids=ascii)
@pytest.mark.parametrize("status", [200, 502])
def test_unreadable_answers(status: int, body: bytes) -> None:
    """An answer that is no strict JSON object is refused, whatever its status."""
    with serve(*[Answer(status, body)] * TRIES) as service, Specdec(service.url) as client:
        assert f"answered {status}" in refused("BAD_ANSWER", client.health)


def test_endless_answers() -> None:
    """An answer beyond the size limit is cut off; one that could unfold to any size is not even read."""
    big = b'{"a":"' + b"a" * MAX_ANSWER + b'"}'
    with serve(Answer(200, big)) as service, Specdec(service.url) as client:
        assert refused("BAD_ANSWER", client.health) == "the service's answer is too large"
    small = gzip.compress(gzip.compress(big))
    for encoding in ("gzip", "gzip, gzip", "br"):
        with (
            serve(Answer(200, small, {"Content-Encoding": encoding})) as service,
            Specdec(service.url) as client,
        ):
            assert "compressed" in refused("BAD_ANSWER", client.health)
        assert service.requests[0][3]["accept-encoding"] == "identity"


def test_no_service() -> None:
    """A port where nobody listens is said to be unreachable."""
    with serve() as service:
        url = service.url
    with Specdec(url) as client:
        assert (
            refused("UNREACHABLE", client.health)
            == f"the service cannot be reached at {url}; is it running there? another one is named by --url"
        )


def test_silent_service() -> None:
    """A service that accepts and says nothing is given up after the timeout."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        with Specdec(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.2) as client:
            assert refused("TIMEOUT", client.health) == "the service did not answer in time"


@pytest.mark.parametrize("header", [None, "soon", "nan", "inf", "Wed, 21 Oct"])
def test_odd_retry_after(header: str | None) -> None:
    """Without a usable Retry-After the next poll is a second away, so not in the time that is left here."""
    headers = {"Location": LOCATION} if header is None else {"Location": LOCATION, "Retry-After": header}
    with answering(answers_of((202, RUNNING, headers)), timeout=0.9) as client:
        refused("TIMEOUT", lambda: client.run(PROMPT))
