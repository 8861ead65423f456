"""The artifact of `sam build`, run as Lambda runs it: it answers as the local edge does, and needs nothing beside it.

Lambda's Python runs Lambda's own bootstrap (awslambdaric) against a Runtime API on loopback. The local edge gets the
same requests over real HTTP. Clock and random numbers are the same on both sides (`tests/lambda_runtime/layer`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from edge.observe import FIELDS, NAMESPACE
from shared.labels import BASE_PATH
from shared.verify import verify_receipt
from tests.checkout import checkout, run
from tests.edge.fake_tower import FakeTower, closed_port
from tests.edge.support import TOKEN
from tests.lambda_runtime import over_http
from tests.lambda_runtime.over_http import Answer
from tests.lambda_runtime.sandbox import ARCH, CREDENTIALS, LAYER, Sandbox, sandbox
from tools import build
from tools.stack import listening

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EVENTS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "events").glob("*.json"))}
PROMPT = "The sovereign GPU mesh"
"""How the prompts in the events begin."""

LIMIT = 35_000_000
"""Bytes that the artifact may have, unpacked; Lambda brings the AWS SDK."""

BURST = 40
"""Runs that a caller may start here: more than the events and tests before `test_limit_is_reached_alike` do."""

SETTINGS = {"SPECDEC_TOWER_TOKEN": TOKEN, "SPECDEC_RUN_SECRET": "golden-run-secret"}
HEALTH = EVENTS["health"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work tree's files in a repository of their own, so that new ones are built in too."""
    folder = tmp_path_factory.mktemp("checkout")
    return checkout(folder, "edge", "shared", "tools", "template.yaml", "pyproject.toml")


@pytest.fixture(scope="module")
def artifact(source: Path) -> Path:
    """What `sam build` puts together for this machine's architecture."""
    sam = Path(sys.executable).with_name("sam")
    home = source.with_name("home")
    home.mkdir(exist_ok=True)
    environ = {"ARCH": ARCH, "PYTHON": sys.executable, "HOME": str(home), "SAM_CLI_TELEMETRY": "0"}
    run([str(sam), "build", "--region", "us-east-1"], source, **environ)
    return source / ".aws-sam" / "build" / "EdgeFunction"


@dataclass(frozen=True)
class Pair:
    """The artifact and the local edge, each with a tower of its own that says the same."""

    function: Sandbox
    url: str

    def both(self, event: dict[str, Any]) -> Answer:
        """Send an event to both; they must give one answer, which is returned."""
        ours = over_http.from_lambda(self.function.answer(event))
        theirs = over_http.send(self.url, event)
        assert ours == theirs
        return ours


@pytest.fixture(scope="module", params=["tower up", "tower down"])
def pair(
    source: Path, artifact: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pair]:
    """Both of them, in both weathers; they sign by one key and store receipts in a folder each."""
    folder = tmp_path_factory.mktemp("pair")
    with ExitStack() as stack:
        if request.param == "tower up":
            first, second = (stack.enter_context(FakeTower()).url for _ in range(2))
        else:
            first = second = closed_port()
        arguments = ["--port", "0", "--tower-url", second, "--workers", "1"]
        arguments += ["--signing-key-file", str(folder / "key.pem"), "--receipts-dir", str(folder / "local")]
        limits = {"SPECDEC_RUNS_PER_MINUTE": "1", "SPECDEC_RUN_BURST": str(BURST)}
        environ = {
            **os.environ,
            **SETTINGS,
            **limits,
            "FROZEN_BUILD_FILE": str(artifact / build.BUILD_FILE),
            # The files that were built, whatever has become of the work tree since.
            "PYTHONSAFEPATH": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (source, ROOT))),
        }
        local = listening("tests.lambda_runtime.frozen_edge", arguments, folder, environ)
        _, url = stack.enter_context(local)
        function = sandbox(
            artifact,
            folder,
            handler="frozen.lambda_handler",
            path=[LAYER],
            environ={
                **SETTINGS,
                **limits,
                "SPECDEC_TOWER_URL": first,
                "SPECDEC_SIGNER": "file",
                "SPECDEC_SIGNING_KEY_FILE": str(folder / "key.pem"),
                "SPECDEC_RECEIPTS_DIR": str(folder / "lambda"),
            },
        )
        yield Pair(stack.enter_context(function), url)


@pytest.mark.parametrize("name", EVENTS)
def test_event_is_answered_alike(pair: Pair, name: str) -> None:
    """Status, headers and body of the artifact's answer to an event are the local edge's, to the byte."""
    answer = pair.both(EVENTS[name])
    assert answer.status < 500 or (answer.status == 503 and "/runs/" in EVENTS[name]["rawPath"])


def test_stored_curve_is_answered_alike(pair: Pair) -> None:
    """Both keep the curve that was to be stored, under one digest, with one signature, and know its tag."""
    receipt = json.loads(pair.both(EVENTS["curve_store"]).body)
    _check_stored(pair, receipt)
    tagged = pair.both(EVENTS["curve_plain"])
    assert pair.both(_request("GET", "/curve", {"if-none-match": tagged.header("etag")})).status == 304


@pytest.mark.parametrize("pair", ["tower up"], indirect=True)
def test_run_is_followed_alike(pair: Pair) -> None:
    """A run's status, receipt, repetition, misuse of its key and cancellation are the same on both sides."""
    event = {**EVENTS["run_idempotent"], "headers": {**EVENTS["run_idempotent"]["headers"]}}
    event["headers"]["idempotency-key"] = "another"
    first = json.loads(pair.both(event).body)
    payload = first["payload"]
    assert payload["label"] == "SPEC-DECODE MEASURED"
    again = json.loads(pair.both(event).body)
    assert (again["payload"]["run_id"], again["prompt_salt"]) == (payload["run_id"], first["prompt_salt"])
    conflict = {**event, "body": json.dumps({**json.loads(event["body"]), "seed": 1})}
    assert pair.both(conflict).status == 422
    for method in ("GET", "DELETE"):
        answer = pair.both(_request(method, f"/runs/{payload['run_id']}"))
        assert (answer.status, json.loads(answer.body)["payload"]) == (200, payload)
    del first["prompt_salt"]
    _check_stored(pair, first)


def _check_stored(pair: Pair, receipt: dict[str, Any]) -> None:
    """Check that both give a receipt and its payload again, that it verifies, and that they know its tag."""
    digest = receipt["payload_sha3_256"]
    path = f"/receipts/{digest}"
    answer = pair.both(_request("GET", path))
    assert (answer.status, json.loads(answer.body)) == (200, receipt)
    assert pair.both(_request("HEAD", path)).body == b""
    assert pair.both(_request("GET", f"{path}/payload")).status == 200
    not_modified = pair.both(_request("GET", path, {"if-none-match": f'"{digest}"'}))
    assert (not_modified.status, not_modified.body) == (304, b"")
    keys = pair.both(EVENTS["keys"]).body
    assert verify_receipt(receipt, key_pem=keys, require_signature=True).ok


def test_limit_is_reached_alike(pair: Pair) -> None:
    """Both count a caller's runs, and refuse the one too many in the same words."""
    statuses = [pair.both(EVENTS["run"]).status for _ in range(BURST + 1)]
    assert statuses[-1] == 429
    assert statuses == sorted(statuses)


def test_artifact_is_small(source: Path, artifact: Path, tmp_path: Path) -> None:
    """Unpacked, without the AWS SDK, it has at most 35 MB for either processor; only edge/ and shared/ are ours."""
    (other,) = set(build.PLATFORMS) - {ARCH}
    run([sys.executable, "-m", "tools.build", "--arch", other, "--into", str(tmp_path / "other")], source)
    for folder in (artifact, tmp_path / "other"):
        files = dict(build.walk(folder))
        assert 20_000_000 < sum(path.stat().st_size for path in files.values()) <= LIMIT
        tops = {name.partition("/")[0] for name in files}
        assert {"edge", "shared"} <= tops
        assert not tops & {"agent", "tests", "tools", "bench", "boto3", "botocore", "numpy", "llama_cpp"}
        assert {"edge/web/index.html", "edge/build.json", "edge/app.py"} <= set(files)


def test_nothing_else_can_be_imported(artifact: Path, tmp_path: Path) -> None:
    """Neither the agent nor what it stands on, nor the SDK, is there; all that is, is the artifact's own."""
    absent = [
        "agent",
        "tools",
        "tests",
        "numpy",
        "llama_cpp",
        "pynvml",
        "boto3",
        "botocore",
        "httpx",
        "uvicorn",
    ]
    present = [
        "edge.openapi",
        "edge.limits_dynamodb",
        "shared.verify",
        "cryptography",
        "websockets",
        "pydantic",
    ]
    with sandbox(artifact, tmp_path, handler="probe.lambda_handler", path=[LAYER]) as function:
        found = function.answer([*absent, *present])["found"]
    assert {name: found[name] for name in absent} == dict.fromkeys(absent)
    assert all(str(found[name]).startswith(f"{artifact}{os.sep}") for name in present), found


@pytest.mark.parametrize("event", ["health", "curve"])
def test_first_call_needs_nothing_else(artifact: Path, tmp_path: Path, event: str) -> None:
    """A new sandbox without settings of its own answers /health and /curve, whatever the tower does."""
    with sandbox(artifact, tmp_path, environ={"SPECDEC_TOWER_URL": closed_port()}) as function:
        answer = function.answer(EVENTS[event])
    body = json.loads(answer["body"])
    assert answer["statusCode"] == 200
    if event == "health":
        assert (body["status"], body["tower_reachable"]) == ("LIVE", False)
    else:
        speedup = body["payload"]["accounting_modeled"]["expected_speedup_at_alpha"]
        assert speedup == {"0.5": 1.0764, "0.7": 1.5406, "0.9": 2.2751}


BAD_SETTINGS = [
    ({"SPECDEC_K": "s3cret"}, "SPECDEC_K must be an integer"),
    ({"SPECDEC_TOWER_URL": "https://s3cret.example"}, "SPECDEC_TOWER_URL must look like wss://host/path"),
    ({"SPECDEC_TOWER_TOKEN": "s3cret s3cret"}, "SPECDEC_TOWER_TOKEN "),
    ({"SPECDEC_SIGNER": "kms"}, "with SPECDEC_SIGNER=kms, SPECDEC_KMS_KEY_ID must be set"),
]


@pytest.mark.parametrize(("environ", "sentence"), BAD_SETTINGS)
def test_bad_setting_fails_the_start(
    artifact: Path, tmp_path: Path, environ: dict[str, str], sentence: str
) -> None:
    """Start-up ends with one line that names the variable and not its value; no invocation is taken."""
    with sandbox(artifact, tmp_path, environ=environ) as function:
        outcome, end = function.outcome(), function.outcome()
        said = function.said
    assert (outcome.about, outcome.value["errorType"]) == ("init/error", "SettingsError")
    message = outcome.value["errorMessage"]
    assert sentence in message and "\n" not in message
    assert (end.about, end.value) == ("exit", 1)
    assert [message in line for line in said].count(True) == 1
    assert "s3cret" not in json.dumps(outcome.value) + "".join(said)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of something that plays KMS and DynamoDB, at which boto3 finds them here."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def test_it_signs_and_counts_by_the_sdk_of_the_runtime(artifact: Path, tmp_path: Path, aws: str) -> None:
    """With template.yaml's settings, and the SDK that Lambda brings, a run is signed by KMS, stored and counted."""
    kms, tables = boto3.client("kms"), boto3.client("dynamodb")
    key = kms.create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")["KeyMetadata"]["Arn"]
    for table, name in (("receipts", "digest"), ("limits", "key")):
        tables.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": name, "KeyType": "HASH"}],
        )
    environ = {
        **SETTINGS,
        "AWS_ENDPOINT_URL": aws,
        "SPECDEC_SIGNER": "kms",
        "SPECDEC_KMS_KEY_ID": key,
        "SPECDEC_RECEIPTS_TABLE": "receipts",
        "SPECDEC_LIMITS_TABLE": "limits",
        "SPECDEC_RUNS_PER_MINUTE": "1",
        "SPECDEC_RUN_BURST": "1",
        "SPECDEC_GPU_SECONDS_PER_DAY": "3000",
    }
    path = [LAYER, _sdk(tmp_path / "runtime")]
    with FakeTower() as tower:
        environ["SPECDEC_TOWER_URL"] = tower.url
        with sandbox(
            artifact, tmp_path, handler="patient.lambda_handler", path=path, environ=environ
        ) as function:
            answer = over_http.from_lambda(function.answer(EVENTS["run"]))
            receipt = json.loads(answer.body)
            digest = receipt["payload_sha3_256"]
            stored = function.answer(_request("GET", f"/receipts/{digest}"))
            keys = function.answer(EVENTS["keys"])["body"].encode()
            refused = over_http.from_lambda(function.answer(EVENTS["run"]))
    assert answer.header("link") == f'<{BASE_PATH}/receipts/{digest}>; rel="canonical"'
    del receipt["prompt_salt"]
    assert json.loads(stored["body"]) == receipt
    assert verify_receipt(receipt, key_pem=keys, require_signature=True).ok
    assert receipt["signature"]["alg"] == "ECDSA_SHA_256"
    assert receipt["payload"]["edge"]["build"] == json.loads((artifact / build.BUILD_FILE).read_bytes())
    assert refused.status == 429
    assert 0 < int(refused.header("retry-after")) <= 60
    assert tables.scan(TableName="limits")["Count"] >= 2


def _sdk(folder: Path) -> Path:
    """A folder with the AWS SDK and what it needs, as Lambda's runtime has them."""
    folder.mkdir()
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "urllib3", "dateutil", "six"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        origin = Path(spec.origin)
        origin = origin.parent if origin.name == "__init__.py" else origin
        (folder / origin.name).symlink_to(origin)
    return folder


MARKER = "Zanzibar zeppelin"
"""Stands in whatever a hostile event brings."""


def _hostile() -> dict[str, Any]:
    """Events that no gateway sends."""
    run = EVENTS["run"]
    context = run["requestContext"]
    return {
        "nothing": {},
        "a list": [MARKER],
        "a text": MARKER,
        "null": None,
        "no context": {name: value for name, value in run.items() if name != "requestContext"},
        "empty context": {**run, "requestContext": {}, "rawQueryString": MARKER},
        "no path": {**run, "rawPath": None, "body": MARKER},
        "headers that are a list": {**run, "headers": [MARKER]},
        "a body that is a number": {**run, "body": 7, "rawQueryString": MARKER},
        "a body that is no Base64": {**run, "body": f"{MARKER}%%", "isBase64Encoded": True},
        "deep JSON": {**run, "body": "[" * 100_000 + MARKER},
        "five megabytes": {**run, "body": json.dumps({"prompt": MARKER * 300_000})},
        "a lone surrogate": {**run, "body": f'{{"prompt": "\ud800 {MARKER}"}}'},
        "a method that is an object": {
            **run,
            "requestContext": {**context, "http": {**context["http"], "method": {MARKER: 1}}},
        },
    }


def test_hostile_events_leave_it_alive(artifact: Path, tmp_path: Path) -> None:
    """Each is refused, or fails its own invocation alone; nothing of it is repeated or printed."""
    with sandbox(artifact, tmp_path, environ={**SETTINGS, "SPECDEC_TOWER_URL": closed_port()}) as function:
        for name, event in _hostile().items():
            outcome = function.send(event)
            if outcome.about == "response":
                assert outcome.value["statusCode"] >= 400, (name, outcome.value)
            assert MARKER not in json.dumps(outcome.value), name
            assert function.answer(HEALTH)["statusCode"] == 200, name
        assert MARKER not in "\n".join(function.said)
        assert function.process.poll() is None


def test_it_prints_json_lines_alone(artifact: Path, tmp_path: Path) -> None:
    """Every invocation prints one line of the allowed fields, with both ids; beside it only metrics; no secret."""
    with FakeTower() as tower:
        with sandbox(artifact, tmp_path, environ={**SETTINGS, "SPECDEC_TOWER_URL": tower.url}) as function:
            ids = [function.send(event).request_id for event in EVENTS.values()]
            said = [json.loads(line) for line in function.said]
    metrics = [line for line in said if "_aws" in line]
    log = [line for line in said if "_aws" not in line]
    assert all(set(line) <= set(FIELDS) for line in log)
    answered = [line for line in log if line["message"] == "answered"]
    assert [line["request_id"] for line in answered] == ids
    assert {line["correlation_id"] for line in answered} == {HEALTH["requestContext"]["requestId"]}
    assert [line["cold_start"] for line in answered] == [True] + [False] * (len(EVENTS) - 1)
    assert [line["method"] for line in answered] == [_method(event) for event in EVENTS.values()]
    declared = [metric for line in metrics for metric in line["_aws"]["CloudWatchMetrics"]]
    assert {metric["Namespace"] for metric in declared} == {NAMESPACE}
    assert {"Runs", "Refusals", "TowerWait"} <= {
        one["Name"] for metric in declared for one in metric["Metrics"]
    }
    printed, sent = json.dumps(said), json.dumps(list(EVENTS.values()))
    for secret in (PROMPT, "golden-run-secret", TOKEN, HEALTH["requestContext"]["http"]["sourceIp"]):
        assert secret in sent + json.dumps(SETTINGS)
        assert secret not in printed


def _method(event: dict[str, Any]) -> str:
    method: str = event["requestContext"]["http"]["method"]
    return method


def _request(method: str, path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """An event like those in events/, for a path below the base."""
    http = {**HEALTH["requestContext"]["http"], "method": method, "path": BASE_PATH + path}
    return {
        **HEALTH,
        "rawPath": BASE_PATH + path,
        "headers": {**HEALTH["headers"], **(headers or {})},
        "requestContext": {**HEALTH["requestContext"], "http": http},
        "pathParameters": {"proxy": path[1:]},
    }
