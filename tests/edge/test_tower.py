"""The run routes against towers that are down, slow, broken or hostile, over real sockets."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.server import ServerConnection

from edge.credentials import FixedToken
from edge.deadline import Deadline
from edge.faults import FaultKind, TowerFault
from edge.runbooks import runbook
from edge.tower import Tower
from shared.wire import ProbeFrame
from tests.certificates import Authority
from tests.edge.fake_tower import (
    FakeTower,
    Script,
    accepted,
    black_hole,
    closed_port,
    honest,
    progress,
    result,
    say,
    says_nothing,
)
from tests.edge.support import (
    PROMPT,
    SCALE,
    SHORT_WAIT_S,
    TOKEN,
    Client,
    Reply,
    assert_problem,
    assert_roadmap,
    client,
)

LIMIT_S = (SHORT_WAIT_S + 2) * SCALE
OTHER_ID = "AAECAwQFBgcICQoLDA0ODw.B_Vx99ym7EBC0RdGLOnSpw.U4FYwc3djsW6N5pU0MT9Cw"
Frame = dict[str, Any]


def sends(make: Callable[[Frame], Frame]) -> Script:
    """Return a script that takes the run and then sends one made-up frame."""
    return lambda _, ws, frame: say(ws, accepted(frame), make(frame))


def sends_raw(data: str | bytes) -> Script:
    """Return a script that takes the run and then sends something raw."""

    def script(_: FakeTower, connection: ServerConnection, frame: Frame) -> None:
        say(connection, accepted(frame))
        connection.send(data)

    return script


def sends_bad_text(_: FakeTower, connection: ServerConnection, frame: Frame) -> None:
    """Send a text frame that is not UTF-8."""
    say(connection, accepted(frame))
    connection.send(b"\xff", text=True)


def hangs_up(_: FakeTower, connection: ServerConnection, __: Frame) -> None:
    """Close before having taken the run."""
    connection.close()


def hangs_up_in_the_middle(_: FakeTower, connection: ServerConnection, frame: Frame) -> None:
    """Take the run, then vanish without a closing handshake."""
    say(connection, accepted(frame), progress(frame))
    connection.socket.shutdown(socket.SHUT_RDWR)


def talks_without_pause(tower: FakeTower, connection: ServerConnection, frame: Frame) -> None:
    """Send progress for ever and never a result."""
    while not tower.stopped.is_set():
        say(connection, progress(frame))


def hasty(url: str) -> Client:
    """Return a client whose waits are short enough to be sat out."""
    return client(url, wait_s=str(SHORT_WAIT_S))


def _assert_next_run_works(edge: Client, tower: FakeTower) -> None:
    tower.script = honest
    assert edge.run({"prefer": "wait=20"}).payload["measured"] == "MEASURED"


def _altered(**changes: Any) -> Callable[[Frame], Frame]:
    return lambda frame: result(frame, **changes)


def _with(**changes: Any) -> Callable[[Frame], Frame]:
    return lambda frame: {**result(frame), **changes}


def _other_request(frame: Frame) -> Frame:
    altered = result(frame)
    altered["request"]["n"] = 51
    return altered


FAULTS: list[tuple[str, Script, str]] = [
    ("hangs up", hangs_up, "TOWER_CLOSED"),
    ("garbage", sends_raw("not json"), "REPLY_REFUSED"),
    ("empty", sends_raw(""), "REPLY_REFUSED"),
    ("deep", sends_raw("[" * 100_000), "REPLY_REFUSED"),
    ("nan", sends_raw('{"type": "progress", "run_id": null, "done": NaN}'), "REPLY_REFUSED"),
    ("binary", sends_raw(b"\x00\x01"), "REPLY_REFUSED"),
    ("not UTF-8", sends_bad_text, "REPLY_REFUSED"),
    ("oversize", sends_raw("x" * 300_000), "REPLY_REFUSED"),
    ("unknown type", sends_raw('{"type": "hello"}'), "REPLY_REFUSED"),
    ("client frame", sends_raw('{"type": "probe"}'), "REPLY_REFUSED"),
    ("capability", sends_raw(json.dumps({"type": "capability"})), "REPLY_REFUSED"),
    ("other run", sends(lambda frame: {**progress(frame), "run_id": OTHER_ID}), "REPLY_REFUSED"),
    ("other result", sends(_with(run_id=OTHER_ID)), "REPLY_REFUSED"),
    ("other nonce", sends(_with(nonce="0" * 64)), "REPLY_REFUSED"),
    ("other request", sends(_other_request), "REPLY_REFUSED"),
    ("output not asked for", sends(_with(output="text")), "REPLY_REFUSED"),
    ("histogram", sends(_altered(acceptance_histogram=[15, 8, 8, 7, 13])), "REPLY_REFUSED"),
    ("rate", sends(_altered(accepted_rate=0.99)), "REPLY_REFUSED"),
    ("emitted", sends(_altered(emitted=250, mean_accepted_len=5.0)), "REPLY_REFUSED"),
    ("other k", sends(_altered(k_requested=5)), "REPLY_REFUSED"),
    ("other n", sends(_altered(n_requested=60)), "REPLY_REFUSED"),
    ("interval", sends(_altered(accepted_rate_ci95=[0.8, 0.9])), "REPLY_REFUSED"),
    ("bool as count", sends(_altered(n=True)), "REPLY_REFUSED"),
    ("negative count", sends(_altered(accepted=-1)), "REPLY_REFUSED"),
    (
        "speedup of 0",
        sends(_altered(tokens_per_second={"speculative": 0, "target_only": 1})),
        "REPLY_REFUSED",
    ),
]


@pytest.mark.parametrize(
    ("script", "code"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_bad_tower_gives_an_honest_receipt(script: Script, code: str) -> None:
    """No misbehaving tower gets a measurement into a receipt, or a later run into trouble."""
    with FakeTower(script) as tower:
        edge = client(tower.url)
        reply = edge.run()
        assert reply.status == 200
        payload = assert_roadmap(reply, code)
        assert payload["run_id"] == tower.frames[0]["run_id"]
        _assert_next_run_works(edge, tower)


def test_tower_that_never_answers_is_given_up_on() -> None:
    """A websocket that stays silent costs no more than the wait, and the next run works."""
    with FakeTower(says_nothing) as tower:
        edge = hasty(tower.url)
        reply = edge.run()
        assert reply.status == 200
        assert_roadmap(reply, "TOWER_SILENT")
        assert reply.seconds < LIMIT_S
        _assert_next_run_works(edge, tower)


@pytest.mark.parametrize(
    ("preference", "limit_s"),
    [("wait=0", 2), ("respond-async", 2), ("wait=1", 3), ("respond-async, wait=2", 4)],
)
def test_short_wait_is_kept_on_a_silent_tower(preference: str, limit_s: float) -> None:
    """With the default settings, the caller's wait and two seconds are all that silence costs."""
    with FakeTower(says_nothing) as tower:
        reply = client(tower.url).run({"prefer": preference})
        tower.stopped.set()
    payload = assert_roadmap(reply, "TOWER_SILENT")
    assert reply.seconds < limit_s * SCALE
    assert reply.seconds > limit_s - 1
    assert reply.headers["Preference-Applied"] == preference
    # It got the run, and may be running it.
    assert payload["roadmap"]["runbook"][0].startswith(f"GET /api/a11oy/v1/specdec/runs/{payload['run_id']}:")


@pytest.mark.parametrize("script", [hangs_up_in_the_middle, talks_without_pause])
def test_run_that_was_taken_is_still_running(script: Script) -> None:
    """Once the tower has taken a run, a lost connection or endless talk is a 202, not a failure."""
    with FakeTower(script) as tower:
        edge = hasty(tower.url)
        reply = edge.run()
        assert reply.status == 202
        assert_roadmap(reply, "RUNNING")
        assert reply.seconds < LIMIT_S
        _assert_next_run_works(edge, tower)


def test_refused_checks_are_named() -> None:
    """The receipt says which check the reply failed."""
    with FakeTower(sends(_altered(accepted_rate=0.99))) as tower:
        payload = client(tower.url).run().payload
    assert "accepted_rate" in payload["roadmap"]["reason"]


def test_refused_token_is_said() -> None:
    """A tower that answers 401 gives a receipt that names the token as the cause."""
    with FakeTower(token="another") as tower:
        edge = client(tower.url)
        reply = edge.run()
        assert "token" in assert_roadmap(reply, "TOWER_REFUSED")["roadmap"]["reason"]
        assert reply.status == 200
        assert edge.get("/health").json["same_family_pair"]["reason"] == "the tower refused the edge's token"
        tower.token = "a-tower-token"
        _assert_next_run_works(edge, tower)


def test_other_subprotocol_is_said() -> None:
    """A websocket server that does not agree on the subprotocol is not a tower."""
    with FakeTower(speaks="chat") as tower:
        assert_roadmap(client(tower.url).run(), "REPLY_REFUSED")


@pytest.mark.parametrize(
    ("place", "code"),
    [
        (lambda: nullcontext(closed_port()), "TOWER_UNREACHABLE"),
        (black_hole, "TOWER_SILENT"),
        (lambda: nullcontext(closed_port().replace("ws:", "wss:")), "TOWER_UNREACHABLE"),
    ],
    ids=["refused", "black hole", "refused with TLS"],
)
def test_tower_that_is_down_gives_an_honest_receipt(
    place: Callable[[], AbstractContextManager[str]], code: str
) -> None:
    """Without a tower /run still answers in time with the modeled numbers; only the run routes are 503."""
    with place() as url:
        edge = hasty(url)
        reply = edge.run()
        run_id = reply.payload["run_id"]
        fetched = edge.get(f"/runs/{run_id}")
        cancelled = edge.delete(f"/runs/{run_id}")
    assert reply.status == 200
    assert reply.seconds < LIMIT_S
    payload = assert_roadmap(reply, code)
    # Nothing was sent, so there is nothing to ask after.
    assert payload["roadmap"]["runbook"] == runbook(code)
    assert payload["accounting_modeled"]["expected_speedup_at_alpha"] == {
        "0.5": 1.0764,
        "0.7": 1.5406,
        "0.9": 2.2751,
    }
    for answer in (fetched, cancelled):
        assert_problem(answer, 503)
        assert int(answer.headers["Retry-After"]) > 0


def test_session_says_closed_for_good() -> None:
    """A connection that the tower has closed can neither be read nor written."""
    with FakeTower(hangs_up) as tower:
        deadline = Deadline.after(30 * SCALE)
        with Tower(tower.url, FixedToken(TOKEN)).session(deadline) as session:
            session.send(ProbeFrame())
            with pytest.raises(TowerFault) as reading:
                session.receive(deadline)
            with pytest.raises(TowerFault) as writing:
                session.send(ProbeFrame())
    assert reading.value.kind is writing.value.kind is FaultKind.CLOSED


def test_connection_that_is_not_taken_up_is_given_up_on() -> None:
    """A host that drops connection attempts costs no more than the wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        # With its backlog full, Linux leaves further attempts unanswered.
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        reply = hasty(f"ws://127.0.0.1:{listener.getsockname()[1]}/").run()
    assert_roadmap(reply, "TOWER_SILENT")
    assert reply.seconds < LIMIT_S


def test_black_hole_behind_tls_is_given_up_on() -> None:
    """A TLS handshake that gets no answer ends in time, too."""
    with black_hole() as url:
        reply = hasty(url.replace("ws:", "wss:")).run()
    assert_roadmap(reply, "TOWER_SILENT")
    assert reply.seconds < LIMIT_S


def test_name_that_does_not_resolve_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without an address is a tower that is not there."""

    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert_roadmap(hasty("ws://tower.invalid/").run(), "TOWER_UNREACHABLE")


def test_resolver_that_hangs_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer costs no more than the wait."""
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60) and [])
    reply = hasty("ws://tower.invalid/").run()
    released.set()
    assert_roadmap(reply, "TOWER_SILENT")
    assert reply.seconds < LIMIT_S


def test_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a dead and a live address leads to the live one."""
    with FakeTower() as tower:
        port = int(tower.url.rsplit(":")[-1].split("/")[0])
        dead = closed_port().rsplit(":")[-1].split("/")[0]
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", number)) for number in (int(dead), port)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert client(tower.url).run().payload["measured"] == "MEASURED"


def test_full_tower_is_busy() -> None:
    """503 before the upgrade means too many connections, which is worth another try."""
    response = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_http, args=(listener, response))
        thread.start()
        reply = client(f"ws://127.0.0.1:{listener.getsockname()[1]}/specdec").run()
        thread.join()
    assert_roadmap(reply, "TOWER_BUSY")


def _answer_http(listener: socket.socket, response: bytes) -> None:
    with listener.accept()[0] as connection:
        connection.recv(65536)
        connection.sendall(response)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
def test_server_that_is_no_websocket_is_unreachable(response: bytes) -> None:
    """Proxy errors and other protocols are no tower, and no redirect is followed with the token."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_http, args=(listener, response))
        thread.start()
        reply = client(f"ws://127.0.0.1:{listener.getsockname()[1]}/specdec").run()
        thread.join()
    assert_roadmap(reply, "TOWER_UNREACHABLE")


@pytest.fixture
def authority() -> Authority:
    """An authority that no system trusts."""
    return Authority.new()


def tls(authority: Authority, directory: Path, name: str = "127.0.0.1") -> ssl.SSLContext:
    """Return a context that serves a certificate of the authority's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(directory, name))
    return context


@pytest.mark.parametrize("form", ["text", "file", "escaped"])
def test_private_authority(authority: Authority, tmp_path: Path, form: str) -> None:
    """A tower with a certificate of a private authority is reached by an edge that was given it, in any form."""
    (tmp_path / "ca.pem").write_text(authority.pem)
    given = {
        "text": authority.pem,
        "file": str(tmp_path / "ca.pem"),
        "escaped": authority.pem.replace("\n", "\\n"),
    }
    with FakeTower(tls=tls(authority, tmp_path)) as tower:
        assert tower.url.startswith("wss:")
        assert client(tower.url, tower_ca=given[form]).run().payload["measured"] == "MEASURED"


def test_authority_does_not_matter_without_tls(authority: Authority) -> None:
    """A tower without TLS is reached as before."""
    with FakeTower() as tower:
        assert client(tower.url, tower_ca=authority.pem).run().payload["measured"] == "MEASURED"


def test_certificate_that_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    """Without the authority, with another one, or for another name there is no connection, and the reason says so."""
    (tmp_path / "other").mkdir()
    with (
        FakeTower(tls=tls(authority, tmp_path)) as tower,
        FakeTower(tls=tls(authority, tmp_path / "other", "192.0.2.1")) as misnamed,
    ):
        for url, changes in [
            (tower.url, {}),
            (tower.url, {"tower_ca": Authority.new().pem}),
            (misnamed.url, {"tower_ca": authority.pem}),
        ]:
            payload = assert_roadmap(client(url, **changes).run(), "TOWER_UNREACHABLE")
            assert "the tower's certificate is not" in payload["roadmap"]["reason"]
        assert tower.requests == [] and misnamed.requests == []


ACCESS = {"CF-Access-Client-Id": "id.access", "CF-Access-Client-Secret": "a secret"}


def test_headers_open_the_gate(caplog: pytest.LogCaptureFixture) -> None:
    """What stands before the tower gets the headers it asks for, beside the token; no log and no answer has them."""
    with caplog.at_level(logging.DEBUG, logger="edge"), FakeTower() as tower:
        tower.wants = ACCESS
        refused = client(tower.url).run()
        reason = assert_roadmap(refused, "TOWER_REFUSED")["roadmap"]["reason"]
        assert reason == "what stands before the tower refused the edge"
        edge = client(tower.url, tower_headers=json.dumps(ACCESS))
        reply = edge.run()
        assert reply.payload["measured"] == "MEASURED"
        assert edge.get("/health").json["tower_reachable"] is True
        assert tower.requests[-1]["Authorization"] == f"Bearer {TOKEN}"
        tower.wants = {"CF-Access-Client-Id": "another"}
        refused = edge.run()
    assert not any("a secret" in text for text in (caplog.text, reply.text, refused.text))


@pytest.mark.parametrize("place", [b"https://login.example/", b"wss://login.example/", b"/login"])
def test_login_page_before_the_tower_is_said(place: bytes) -> None:
    """A redirect, which is how a gate asks people to log in, is told as one."""
    response = b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_http, args=(listener, response))
        thread.start()
        reply = client(f"ws://127.0.0.1:{listener.getsockname()[1]}/specdec").run()
        thread.join()
    payload = assert_roadmap(reply, "TOWER_UNREACHABLE")
    assert payload["roadmap"]["reason"].startswith("what stands before the tower redirected the edge")


def test_prompt_never_reaches_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Not even with every logger at DEBUG, on success or failure."""
    replies: list[Reply] = []
    with caplog.at_level(logging.DEBUG), FakeTower() as tower:
        edge = client(tower.url)
        replies.append(edge.run(include_output=True))
        for script in (sends(_altered(n=3)), sends_raw(PROMPT), hangs_up):
            tower.script = script
            replies.append(edge.run())
        replies.append(edge.post({"prompt": PROMPT, "k": 99}))
    assert [reply.status for reply in replies] == [200, 200, 200, 200, 422]
    edge_logs = "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith("websockets.server")
    )
    assert "tower fault" in edge_logs
    assert "zeppelins" not in edge_logs


@dataclass
class Clock:
    """Seconds that pass when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def _let_in(tower: Tower, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float) -> str:
    """Try to connect to a tower that makes one wait so long in vain; return why it did not work."""

    def dial(*_: Any) -> None:
        clock.now += seconds
        raise TowerFault(FaultKind.SILENT, "the tower did not accept a connection in time")

    monkeypatch.setattr("edge.tower.dial", dial)
    before = clock.now
    with pytest.raises(TowerFault) as caught, tower.session(Deadline.after(60)):
        pass
    assert caught.value.kind is FaultKind.SILENT
    return "left alone" if clock.now == before else "waited"


def test_silent_tower_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has waited in full spares the next ones the wait, but not for long."""
    clock = Clock()
    tower = Tower("ws://127.0.0.1:9/", FixedToken(None), clock=clock)
    assert _let_in(tower, clock, monkeypatch, 3.0) == "waited"
    assert _let_in(tower, clock, monkeypatch, 3.0) == "left alone"
    clock.now += 4.9
    assert _let_in(tower, clock, monkeypatch, 3.0) == "left alone"
    clock.now += 0.2
    assert _let_in(tower, clock, monkeypatch, 3.0) == "waited"


def test_short_wait_says_little_of_a_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe's silence, which a busy tower may cause, keeps nobody away."""
    clock = Clock()
    tower = Tower("ws://127.0.0.1:9/", FixedToken(None), clock=clock)
    assert [_let_in(tower, clock, monkeypatch, 1.4) for _ in range(3)] == ["waited"] * 3


def test_tower_that_answers_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only silence keeps others away: what refuses does so at once, and costs nobody a wait."""
    clock = Clock()
    tower = Tower(closed_port(), FixedToken(None), clock=clock)
    for _ in range(2):
        with pytest.raises(TowerFault) as caught, tower.session(Deadline.after(60)):
            pass
        assert caught.value.reason == "the tower refused the connection"
