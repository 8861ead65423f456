"""The run routes against honest towers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from websockets.sync.server import ServerConnection

from edge import app, payloads, runs
from edge.payloads import now
from edge.runbooks import runbook
from shared.runid import RunKeys, prompt_commitment
from shared.verify import verify_receipt
from tests.edge.fake_tower import (
    MEASUREMENT,
    FakeTower,
    Script,
    accepted,
    failed,
    progress,
    result,
    say,
)
from tests.edge.support import (
    PROMPT,
    RUN_SECRET,
    SCALE,
    SHORT_WAIT_S,
    WAIT_S,
    FakeContext,
    assert_problem,
    assert_roadmap,
    client,
)
from tests.shared.build import example_energy

SEED_FIELDS = {
    "accepted_rate": 0.7239,
    "mean_accepted_len": 2.94,
    "speedup_modeled": 1.6121,
    "n": 50,
    "k": 4,
    "draft_model": "llama3.2:1b",
    "target_model": "llama3.1:8b",
    "quality_delta": {"identical_rate": 1.0, "label": "MEASURED (lossless)"},
}


def test_run_gives_a_measured_receipt() -> None:
    """A run on an honest tower gives the seed's fields, rounded, over the measurement in full."""
    with FakeTower() as tower:
        reply = client(tower.url).run()
    payload = reply.payload
    assert reply.status == 200
    assert payload["label"] == "SPEC-DECODE MEASURED"
    assert payload["measured"] == "MEASURED"
    assert {name: payload[name] for name in SEED_FIELDS} == SEED_FIELDS
    assert payload["speedup_measured"] == MEASUREMENT["speedup"]
    assert payload["measurement"] == MEASUREMENT
    assert payload["energy"]["code"] == "NO_NVML"
    assert payload["tower"] == {"id": "127.0.0.1", "attested": "UNPINNED"}
    assert payload["accounting_modeled"]["expected_speedup_at_alpha"]["0.7"] == 1.5406
    assert payload["citations"][0] == "arXiv:2211.17192"
    assert reply.json["signature"]["signed"] is False
    assert "output" not in reply.json


def test_run_sends_the_request_with_its_defaults() -> None:
    """The tower gets the whole request, an id, a nonce and the commitment that the receipt states."""
    with FakeTower() as tower:
        payload = client(tower.url).run(seed=7).payload
    (frame,) = tower.frames
    assert frame["request"]["prompt"] == PROMPT
    assert (frame["request"]["k"], frame["request"]["n"], frame["request"]["seed"]) == (4, 50, 7)
    assert frame["run_id"] == payload["run_id"]
    assert frame["nonce"] == payload["nonce"]
    assert frame["prompt_commitment"] == payload["prompt_commitment"]
    assert payload["request"] == {
        **{name: value for name, value in frame["request"].items() if name != "prompt"},
        "prompt_commitment": frame["prompt_commitment"],
    }


def test_configured_k_is_the_default() -> None:
    """A request without k runs at the configured one."""
    with FakeTower(lambda _, ws, frame: say(ws, failed(frame, "NO_PAIR"))) as tower:
        payload = client(tower.url, k="6").run().payload
    assert tower.frames[0]["request"]["k"] == 6
    assert payload["accounting_modeled"]["k"] == 6


def test_salt_opens_the_commitment_and_comes_with_post_only() -> None:
    """The caller can open its commitment; nobody who merely knows the run id can."""
    with FakeTower() as tower:
        edge = client(tower.url)
        posted = edge.run()
        run_id = posted.payload["run_id"]
        fetched = edge.get(f"/runs/{run_id}")
    salt = bytes.fromhex(posted.json["prompt_salt"])
    assert prompt_commitment(salt, PROMPT) == posted.payload["prompt_commitment"]
    assert fetched.status == 200
    assert "prompt_salt" not in fetched.json
    assert posted.json["prompt_salt"] not in fetched.text


def test_output_comes_beside_the_receipt_when_asked_for() -> None:
    """include_output gives the text next to the payload, never in it."""
    with FakeTower() as tower:
        reply = client(tower.url).run(include_output=True)
    assert reply.json["output"] == "and it came to pass"
    assert "and it came to pass" not in str(reply.payload)


def test_zero_over_zero_is_null() -> None:
    """Without one examined draft token there is no rate and no modeled speedup."""
    nothing = {
        "stopped": "context",
        "n": 1,
        "drafted": 0,
        "accepted": 0,
        "rejections": 0,
        "emitted": 1,
        "acceptance_histogram": [1, 0, 0, 0, 0],
        "accepted_rate": None,
        "draft_acceptance_rate": None,
        "mean_accepted_len": 1.0,
        "conditional_acceptance": [None] * 4,
        "accepted_rate_ci95": None,
        "speedup": "UNAVAILABLE",
        "verdict": {"valid": False, "reasons": ["too few steps"]},
        "quality": {"identical_rate": 1.0, "label": "MEASURED (lossless)", "compared_tokens": 1},
    }
    with FakeTower(lambda _, ws, frame: say(ws, accepted(frame), result(frame, **nothing))) as tower:
        payload = client(tower.url).run().payload
    assert payload["measured"] == "MEASURED", payload.get("roadmap")
    assert payload["accepted_rate"] is None
    assert payload["speedup_modeled"] is None
    assert payload["speedup_measured"] == "UNAVAILABLE"


def _never_ends(tower: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
    say(connection, accepted(frame), progress(frame))
    tower.stopped.wait(60)


def test_run_that_outlasts_the_wait_gives_202() -> None:
    """A long run is answered with a receipt that says so, and where to ask again."""
    with FakeTower(_never_ends) as tower:
        reply = client(tower.url, wait_s=str(SHORT_WAIT_S)).run()
        payload = assert_roadmap(reply, "RUNNING")
        tower.stopped.set()
    assert reply.status == 202
    assert payload["roadmap"]["reason"] == "running"
    assert payload["progress"] == {"phase": "measuring", "done": 12, "total": 50}
    assert reply.headers["Location"] == f"/api/a11oy/v1/specdec/runs/{payload['run_id']}"
    assert int(reply.headers["Retry-After"]) > 0
    assert "prompt_salt" in reply.json


@pytest.mark.parametrize("preference", ["respond-async", "wait=0", "Respond-Async, foo=bar"])
def test_preference_not_to_wait_is_honoured(preference: str) -> None:
    """Prefer can ask for the 202 as soon as the tower has taken the run."""
    with FakeTower(_never_ends) as tower:
        reply = client(tower.url).run({"prefer": preference})
        tower.stopped.set()
    assert reply.status == 202
    assert reply.seconds < 2 * SCALE
    assert reply.headers["Preference-Applied"] in ("respond-async", "wait=0")


def test_place_in_the_queue_gives_202_at_once() -> None:
    """Nobody waits for other people's runs."""

    def queued(tower: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        say(connection, accepted(frame, position=2))
        tower.stopped.wait(60)

    with FakeTower(queued) as tower:
        reply = client(tower.url).run()
        tower.stopped.set()
    assert reply.status == 202
    assert reply.seconds < WAIT_S
    assert reply.payload["progress"] == {"phase": "queued", "position": 2}


def test_wait_ends_before_the_function_does() -> None:
    """The wait is cut to the invocation's remaining time, less the reserve."""
    with FakeTower(_never_ends) as tower:
        edge = client(tower.url)
        edge.context = FakeContext(remaining_ms=3_000)
        reply = edge.run({"prefer": "wait=600"})
        tower.stopped.set()
    assert reply.status == 202
    assert reply.seconds < 3 * SCALE
    assert reply.headers["Preference-Applied"] == "wait=1"


def test_start_of_an_instance_is_part_of_its_first_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's time begins before the function's, by what the start took; one of long ago counts for little."""
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand")
    monkeypatch.setattr(app, "_LOADED_AT", time.monotonic() - 60)
    with FakeTower() as tower:
        edge = client(tower.url)
        edge.context = FakeContext(remaining_ms=16_000)
        waits = [edge.run({"prefer": "wait=600"}).headers["Preference-Applied"] for _ in range(2)]
    assert waits == ["wait=12", "wait=14"]


def test_any_instance_can_answer_for_a_run() -> None:
    """Another instance with the same secret recognises the id and checks the result against it."""
    with FakeTower() as tower:
        run_id = client(tower.url).run({"prefer": "respond-async"}).payload["run_id"]
        reply = client(tower.url).get(f"/runs/{run_id}")
    assert reply.status == 200
    assert reply.payload["label"] == "SPEC-DECODE MEASURED"
    assert reply.payload["run_id"] == run_id


def test_running_run_is_202_with_progress() -> None:
    """GET on a run that is not done tells how far it is."""
    with FakeTower() as tower:
        edge = client(tower.url)
        run_id = edge.run().payload["run_id"]
        tower.script = lambda _, ws, frame: say(ws, progress(frame, done=33))
        reply = edge.get(f"/runs/{run_id}")
    assert reply.status == 202
    assert assert_roadmap(reply, "RUNNING")["progress"]["done"] == 33
    assert reply.headers["Location"].endswith(run_id)


@pytest.mark.parametrize("make", [accepted, progress])
def test_running_run_is_modeled_at_its_own_k(make: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """GET knows a run's k from the tower; without it, it takes the configured one."""
    with FakeTower(lambda _, ws, frame: say(ws, {**make(frame), "k": 8})) as tower:
        edge = client(tower.url)
        told = edge.get(f"/runs/{_valid_id()}").payload["accounting_modeled"]
        tower.script = lambda _, ws, frame: say(ws, make(frame))
        untold = edge.get(f"/runs/{_valid_id()}").payload["accounting_modeled"]
        posted = edge.run({"prefer": "wait=0"}, k=6).payload["accounting_modeled"]
    assert (told["k"], untold["k"], posted["k"]) == (8, 4, 6)


def _ended_at(time: str | None) -> Script:
    def script(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] == "run":
            kept["result"] = {**result(frame), **({"ended_at": time} if time else {})}
        say(connection, kept["result"])

    kept: dict[str, Any] = {}
    return script


def test_finished_run_has_one_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks whenever gets the same bytes: the time is that of the run's end."""
    ended = (datetime.now(UTC) - timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    with FakeTower(_ended_at(ended)) as tower:
        edge = client(tower.url)
        first = edge.run(k=4).json
        monkeypatch.setattr(payloads, "now", lambda: "2026-01-02T04:00:00Z")
        run_id = first["payload"]["run_id"]
        second, third = edge.get(f"/runs/{run_id}").text, client(tower.url).get(f"/runs/{run_id}").text
    del first["prompt_salt"]
    assert first["generated_at"] == first["payload"]["generated_at"] == ended
    assert second == third
    assert json.loads(second) == first


def test_tower_that_tells_no_time_gets_the_edges() -> None:
    """Without an end in the result, the receipt's time is that of the answer."""
    with FakeTower(_ended_at(None)) as tower:
        payload = client(tower.url).run().payload
    assert payload["measured"] == "MEASURED"
    assert payload["generated_at"] <= now()


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "2026-01-02", "yesterday"])
def test_end_that_cannot_be_is_refused(time: str) -> None:
    """A time that has not come, or is none, gets into no receipt."""
    with FakeTower(_ended_at(time)) as tower:
        payload = assert_roadmap(client(tower.url).run(), "REPLY_REFUSED")
    assert "ended_at" in payload["roadmap"]["reason"]


@pytest.mark.parametrize(("lead_s", "believed"), [(200, True), (400, False)])
def test_clock_of_the_tower_may_be_a_little_ahead(lead_s: int, believed: bool) -> None:
    """Five minutes are what clocks may differ by."""
    time = datetime.now(UTC) + timedelta(seconds=lead_s)
    with FakeTower(_ended_at(time.strftime("%Y-%m-%dT%H:%M:%SZ"))) as tower:
        payload = client(tower.url).run().payload
    assert (payload["measured"] == "MEASURED") is believed


@pytest.mark.parametrize(
    "run_id",
    [
        "x",
        "AAECAwQFBgcICQoLDA0ODw.B_Vx99ym7EBC0RdGLOnSpw.U4FYwc3djsW6N5pU0MT9Cw",
        "AAECAwQFBgcICQoLDA0ODw.B_Vx99ym7EBC0RdGLOnSpw",
        "ïd.ïd.ïd",
        "a" * 5000,
    ],
)
def test_foreign_run_id_is_404(run_id: str) -> None:
    """An id that this service never made is refused without asking the tower."""
    with FakeTower() as tower:
        edge = client(tower.url)
        assert_problem(edge.get(f"/runs/{run_id}"), 404)
        assert_problem(edge.delete(f"/runs/{run_id}"), 404)
    assert tower.frames == []


def _valid_id() -> str:
    keys = RunKeys(RUN_SECRET.encode())
    return keys.run_id(keys.new_id(), {"prompt": PROMPT})


@pytest.mark.parametrize("code", ["NOT_FOUND", "EXPIRED"])
def test_lost_run_is_410(code: str) -> None:
    """A valid id that the tower no longer knows is gone, for GET and DELETE."""
    with FakeTower(lambda _, ws, frame: say(ws, failed(frame, code, "gone"))) as tower:
        edge = client(tower.url)
        assert_problem(edge.get(f"/runs/{_valid_id()}"), 410)
        assert_problem(edge.delete(f"/runs/{_valid_id()}"), 410)


def test_cancelled_run_is_a_roadmap() -> None:
    """DELETE waits for the tower to say that the run is over."""
    with FakeTower(lambda _, ws, frame: say(ws, progress(frame), failed(frame, "CANCELLED"))) as tower:
        reply = client(tower.url).delete(f"/runs/{_valid_id()}")
    assert reply.status == 200
    assert tower.frames[0]["type"] == "cancel"
    assert_roadmap(reply, "CANCELLED")


def test_cancelled_run_whose_end_is_slow_is_202(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel that was taken is no failure, however long the run takes to end."""
    monkeypatch.setattr(runs, "STATUS_TIMEOUT_S", SHORT_WAIT_S)

    def slow(tower: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        say(connection, progress(frame))
        tower.stopped.wait(60)

    with FakeTower(slow) as tower:
        reply = client(tower.url).delete(f"/runs/{_valid_id()}")
        tower.stopped.set()
    assert reply.status == 202
    assert reply.seconds < (SHORT_WAIT_S + 2) * SCALE
    assert assert_roadmap(reply, "RUNNING")["progress"]["done"] == 12
    assert int(reply.headers["Retry-After"]) > 0
    assert reply.headers["Location"].startswith("/api/a11oy/v1/specdec/runs/")


def test_cancelled_run_in_the_queue_is_waited_for() -> None:
    """A run that waits behind others ends at once when cancelled."""

    def queued(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        say(connection, accepted(frame, position=2), failed(frame, "CANCELLED"))

    with FakeTower(queued) as tower:
        reply = client(tower.url).delete(f"/runs/{_valid_id()}")
    assert reply.status == 200
    assert_roadmap(reply, "CANCELLED")


def test_finished_run_stays_finished() -> None:
    """DELETE on a finished run answers its receipt."""
    with FakeTower() as tower:
        edge = client(tower.url)
        run_id = edge.run().payload["run_id"]
        reply = edge.delete(f"/runs/{run_id}")
    assert reply.status == 200
    assert reply.payload["measured"] == "MEASURED"


def test_idempotency_key_gives_the_same_run() -> None:
    """The same caller with the same key and body gets one run, not two."""
    with FakeTower() as tower:
        edge = client(tower.url)
        first = edge.run({"idempotency-key": "abc"})
        second = edge.run({"idempotency-key": "abc"})
    assert first.payload["run_id"] == second.payload["run_id"]
    assert first.payload["measurement"] == second.payload["measurement"]
    assert len(tower.runs) == 1


def test_idempotency_key_belongs_to_one_client() -> None:
    """Another caller with the same key gets a run of its own."""
    with FakeTower() as tower:
        edge = client(tower.url)
        for source_ip in ("192.0.2.1", "192.0.2.2"):
            edge.post({"prompt": PROMPT}, {"idempotency-key": "abc"}, source_ip)
    assert len(tower.runs) == 2


def test_idempotency_key_with_another_body_is_422() -> None:
    """A key cannot be used for another request."""
    with FakeTower() as tower:
        edge = client(tower.url)
        edge.run({"idempotency-key": "abc"})
        reply = edge.run({"idempotency-key": "abc"}, seed=1)
    assert "Idempotency-Key" in assert_problem(reply, 422)
    assert "prompt_salt" not in reply.text


@pytest.mark.parametrize("key", ["", "   ", "ü", "x" * 256, "a\nb"])
def test_bad_idempotency_key_is_400(key: str) -> None:
    """A key that could not travel in a header is refused."""
    assert_problem(client().run({"idempotency-key": key}), 400)


@pytest.mark.parametrize(
    "code",
    [
        "BUSY",
        "NO_PAIR",
        "BAD_MESSAGE",
        "EXPIRED",
        "CANCELLED",
        "DEADLINE",
        "LOAD_FAILED",
        "OUT_OF_MEMORY",
        "WORKER_DIED",
        "WORKER_HUNG",
        "GPU_BUSY",
        "INTERNAL",
    ],
)
def test_failed_run_is_a_roadmap(code: str) -> None:
    """Whatever goes wrong on the tower, the caller gets an honest receipt."""
    with FakeTower(lambda _, ws, frame: say(ws, failed(frame, code, "4 runs are waiting"))) as tower:
        reply = client(tower.url).run()
    assert reply.status == 200
    payload = assert_roadmap(reply, code)
    assert "4 runs are waiting" in payload["roadmap"]["reason"]
    assert payload["roadmap"]["runbook"] == runbook(code)


def test_busy_tower_says_when_to_return() -> None:
    """The tower's retry_after becomes Retry-After."""
    with FakeTower(lambda _, ws, frame: say(ws, failed(frame, "BUSY", "", retry_after=11.6))) as tower:
        reply = client(tower.url).run()
    assert reply.headers["Retry-After"] == "12"


def test_request_that_does_not_fit_the_tower_is_422() -> None:
    """BAD_REQUEST comes back as the caller's error, with the tower's reason."""
    detail = "the prompt has 700 tokens and the context 512"
    with FakeTower(lambda _, ws, frame: say(ws, failed(frame, "BAD_REQUEST", detail))) as tower:
        reply = client(tower.url).run()
    assert detail in assert_problem(reply, 422)


@pytest.mark.parametrize("code", ["BAD_REQUEST", "INTERNAL"])
def test_tower_cannot_make_the_edge_repeat_the_prompt(code: str) -> None:
    """A tower's detail that holds a piece of the prompt is left out."""
    detail = f"cannot tokenize {PROMPT[9:40]} at all"
    with FakeTower(lambda _, ws, frame: say(ws, failed(frame, code, detail))) as tower:
        reply = client(tower.url).run()
    assert reply.status in (200, 422)
    assert "zeppelins" not in reply.text
    assert "tokenize" not in reply.text


GPU = {"uuid": "GPU-1", "name": "NVIDIA GeForce RTX 4060 Ti", "compute_mode": "exclusive_process"}


def _metered(energy: dict[str, Any], **gpu: Any) -> Script:
    """A tower that has decoded on a GPU and metered its energy."""

    def script(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        engine = {**MEASUREMENT["engine"], "gpu_layers": 33}
        say(connection, {**result(frame, engine=engine, gpu={**GPU, **gpu}), "energy": energy})

    return script


def test_energy_enters_the_receipt() -> None:
    """Energy that a tower has metered stands in the receipt as it was sent, and verifies there."""
    with FakeTower(_metered(example_energy(), foreign_processes=0, events=["power_cap"])) as tower:
        reply = client(tower.url).run()
    assert reply.payload["energy"] == example_energy()
    assert reply.payload["measurement"]["gpu"] == {**GPU, "foreign_processes": 0, "events": ["power_cap"]}
    checks = {check.name: check.status for check in verify_receipt(reply.json).checks}
    assert checks["energy"] == checks["measurement"] == "ok"


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        (
            "joules_per_token",
            {"speculative": 0.5, "target_only": 1.7},
            "joules_per_token is not what windows give",
        ),
        ("power_limit_watts", 100.0, "windows have more power than power_limit_watts"),
        ("refresh_s", 0.5, "windows are too short for their method and refresh_s"),
        ("ratio", {"median": 3.0, "ci95": None, "pairs": 6}, "ratio is not what windows give"),
        ("gpu", {"uuid": "GPU-2", "name": "n"}, "gpu is not the one that decoded"),
    ],
)
def test_energy_that_contradicts_itself_is_refused(part: str, value: Any, reason: str) -> None:
    """Joules that do not follow from their windows are signed by nobody, nor is what stands beside them."""
    with FakeTower(_metered({**example_energy(), part: value})) as tower:
        payload = assert_roadmap(client(tower.url).run(), "REPLY_REFUSED")
    assert payload["roadmap"]["reason"].endswith(f"these checks: energy.{reason}")


def test_a_valid_verdict_on_a_throttled_gpu_is_refused() -> None:
    """A tower whose GPU was throttled cannot call its run valid."""
    with FakeTower(_metered(example_energy(), events=["hw_thermal"])) as tower:
        payload = assert_roadmap(client(tower.url).run(), "REPLY_REFUSED")
    assert "verdict.valid cannot be true when the GPU was throttled" in payload["roadmap"]["reason"]


@pytest.mark.parametrize(
    "prompt",
    ["Is the NVIDIA GeForce RTX 4060 Ti any good?", "Explain total_energy_counter and exclusive_process"],
)
def test_a_prompt_about_gpus_is_no_leak(prompt: str) -> None:
    """What every receipt from a GPU says may be asked about."""
    with FakeTower(_metered(example_energy())) as tower:
        assert client(tower.url).run(prompt=prompt).payload["measured"] == "MEASURED"


def _with_text(path: str, text: str) -> Script:
    def script(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        answer = result(frame)
        *parts, last = path.split(".")
        place = answer
        for part in parts:
            place = place[part]
        place[last] = [text] if last == "reasons" else text
        say(connection, answer)

    return script


@pytest.mark.parametrize(
    "path",
    [
        "measurement.draft.name",
        "measurement.target.note",
        "measurement.engine.system",
        "measurement.engine.flags",
        "measurement.verdict.reasons",
        "energy.reason",
        "energy.meter",
    ],
)
def test_measurement_that_repeats_the_prompt_is_refused(path: str) -> None:
    """No string of a measurement, named by a model or not, carries the prompt into a receipt."""
    with FakeTower(_with_text(path, f"about {PROMPT}")) as tower:
        payload = assert_roadmap(client(tower.url).run(), "REPLY_REFUSED")
    assert "repeats a piece of the prompt" in payload["roadmap"]["reason"]


def test_progress_cannot_carry_the_prompt() -> None:
    """A phase that holds a piece of the prompt is told in the edge's own word."""

    def leaks(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        say(connection, accepted(frame), {**progress(frame), "phase": f"at {PROMPT}"})

    with FakeTower(leaks) as tower:
        reply = client(tower.url).run({"prefer": "wait=1"})
    assert reply.status == 202
    assert reply.payload["progress"] == {"phase": "running", "done": 12, "total": 50}


def test_made_up_field_cannot_carry_the_prompt() -> None:
    """The name of a field that the tower made up does not reach the caller if it repeats the prompt."""
    prompt = "correct_horse_battery_staple"

    def leaks(_: FakeTower, connection: ServerConnection, frame: dict[str, Any]) -> None:
        say(connection, {**result(frame), "energy": {"label": "UNAVAILABLE", "code": "X", prompt: []}})

    with FakeTower(leaks) as tower:
        reply = client(tower.url).run(prompt=prompt)
    assert_roadmap(reply, "REPLY_REFUSED")
    assert "horse" not in reply.text


def test_edge_without_run_secret_says_so() -> None:
    """Without a run secret no run is started, and the receipt says why."""
    with FakeTower() as tower:
        edge = client(tower.url, run_secret="")
        reply = edge.run()
        assert_problem(edge.get(f"/runs/{_valid_id()}"), 503)
        assert edge.get("/health").json["measured_run_possible"] is False
    assert reply.status == 200
    assert "run secret" in assert_roadmap(reply, "NOT_CONFIGURED")["roadmap"]["reason"]
    assert [frame["type"] for frame in tower.frames] == ["probe"]


def test_run_ids_are_fresh() -> None:
    """Two runs of one body are two runs."""
    with FakeTower() as tower:
        edge = client(tower.url)
        ids = {edge.run().payload["run_id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(re.fullmatch(r"[\w-]{22}\.[\w-]{22}\.[\w-]{22}", run_id) for run_id in ids)
