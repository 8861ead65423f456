"""`specdec sweep`: what it asks, in which order, what it prints and saves, and how it exits."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import labels, prompts
from shared.cli import main
from shared.client import Receipt, Specdec
from shared.client_protocol import TRIES
from shared.curve import accounting_modeled, expected_speedup
from shared.estimators import Step
from shared.sweep import K
from tests.shared.build import KEYS, PROMPT, measured_payload, measurement, receipt, result, roadmap_payload
from tests.shared.service import Answer, Service, serve

SALT = KEYS.salt(bytes(range(16))).hex()
NO_PAIR = Answer(
    200,
    receipt(roadmap_payload(roadmap={"reason": "the tower holds no same-family pair", "code": "NO_PAIR"})),
)
Capture = pytest.CaptureFixture[str]


def answer(k: int, speedup: float | None = 1.5, accepted: int = 3, **change: Any) -> Answer:
    """A measured run at k: 20 steps, half of them refused after so many tokens, the others accepted whole."""
    few = min(accepted, k - 1)
    steps = [Step(k, few, True, few + 1), Step(k, k, False, k + 1)] * 10
    measured = measurement(k, 20, None, steps, [] if speedup is None else [speedup] * 6) | {
        "recommended_k": 1,
        **change,
    }
    frame = result(measured)
    alpha = measured["accepted_rate"]
    payload = measured_payload() | {
        **{name: frame[name] for name in ("run_id", "nonce", "request", "measurement")},
        "n": 20,
        "k": k,
        "accepted_rate": alpha,
        "mean_accepted_len": measured["mean_accepted_len"],
        "speedup_modeled": expected_speedup(alpha, k, 0.2),
        "speedup_measured": measured["speedup"],
        "quality_delta": {name: measured["quality"][name] for name in ("identical_rate", "label")},
        "prompt_commitment": frame["request"]["prompt_commitment"],
        "accounting_modeled": accounting_modeled(k, 0.2),
    }
    return Answer(200, receipt(payload) | {"prompt_salt": SALT})


def file_of(tmp_path: Path, *domains: str) -> str:
    """A file with one prompt for each of the domains named, all of the one text that the answers commit to."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"domain": domain, "prompt": PROMPT}) for domain in domains))
    return str(path)


def sweep(service: Service, file: str, ks: str, *more: str) -> int:
    """Run the command against the service; its exit code."""
    return main(["sweep", "--url", service.url, "--prompts", file, "--k", ks, *more])


def test_order_and_requests(tmp_path: Path, capsys: Capture) -> None:
    """One run per prompt and k is asked for: all ks of a prompt together, every other prompt backwards."""
    file = file_of(tmp_path, "prose", "code", "prose")
    answers = [answer(k) for k in (1, 2, 4, 1, 2, 4, 4, 2, 1)]
    with serve(*answers) as service:
        assert sweep(service, file, "4,1-2", "--n", "20", "--temperature", "0", "--seed", "0") == 0
    fields = {"prompt": PROMPT, "n": 20, "temperature": 0.0, "seed": 0}
    assert [request[2] for request in service.requests] == [
        {**fields, "k": k} for k in (1, 2, 4, 1, 2, 4, 4, 2, 1)
    ]
    assert {request[:2] for request in service.requests} == {("POST", f"{labels.BASE_PATH}/run")}
    captured = capsys.readouterr()
    assert captured.err == ""
    assert PROMPT not in captured.out


def test_the_table(tmp_path: Path, capsys: Capture) -> None:
    """The table shows each domain and all together, measured beside modeled, then the best k of each."""
    speedups = {("prose", 1): 1.1, ("prose", 2): 1.3, ("code", 1): 0.9, ("code", 2): 0.8}
    answers = [answer(k, speedup) for (_, k), speedup in speedups.items()]
    with serve(*answers) as service:
        assert sweep(service, file_of(tmp_path, "prose", "code"), "1-2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "models: small -> large",
        "",
        "prose: MEASURED                                                                     MODELED",
        "k  runs  valid  lossless  tokens  drafts  accepted rate                   speed-up  Th. 3.8  predicted",
        "1   1/1    1/1       1/1    1.50    1.00          0.500          1.10 (one prompt)     1.25       1.18",
        "2   1/1    1/1       1/1    2.50    2.00          0.750          1.30 (one prompt)     1.65       1.50",
        "",
        "code: MEASURED                                                                      MODELED",
        "k  runs  valid  lossless  tokens  drafts  accepted rate                   speed-up  Th. 3.8  predicted",
        "1   1/1    1/1       1/1    1.50    1.00          0.500          0.90 (one prompt)     1.25       1.18",
        "2   1/1    1/1       1/1    2.50    2.00          0.750          0.80 (one prompt)     1.65       1.50",
        "",
        "all domains: MEASURED                                                               MODELED",
        "k  runs  valid  lossless  tokens  drafts  accepted rate                   speed-up  Th. 3.8  predicted",
        "1   2/2    2/2       2/2    1.50    1.00          0.500  1.00 (range 0.90 to 1.10)     1.25       1.18",
        "2   2/2    2/2       2/2    2.50    2.00          0.750  1.05 (range 0.80 to 1.30)     1.65       1.50",
        "",
        "tokens, drafts: per step. accepted rate: pooled over prompts, with its 95 % interval from five on.",
        "speed-up: median over prompts, with its 95 % interval from six on; for fewer the range.",
        "Th. 3.8: at the pooled rate and cost ratio 0.2. predicted: at measured costs, if receipts hold any.",
        "",
        "prose: best k=2, speed-up 1.3000 (MEASURED); calibration recommends k=1 "
        "(MODELED, median of 2 receipts, 1 to 1)",
        "code: do not speculate: the best is k=1, speed-up 0.9000 (MEASURED); calibration recommends k=1 "
        "(MODELED, median of 2 receipts, 1 to 1)",
        "all domains: best k=2, speed-up 1.0500 (MEASURED); calibration recommends k=1 "
        "(MODELED, median of 4 receipts, 1 to 1)",
    ]


def test_intervals_in_the_table(tmp_path: Path, capsys: Capture) -> None:
    """From six prompts on the speed-up's interval is shown as such, and the rate's with it."""
    answers = [answer(4, 1 + i / 10, accepted=i % 4) for i in range(6)]
    with serve(*answers) as service:
        assert sweep(service, file_of(tmp_path, *["prose"] * 6), "4") == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("4"))
    assert "1.25 (1.00 to 1.50)" in row and "range" not in row
    rate, low, _, high = row.split()[6:10]
    assert rate == "0.838" and float(low[1:]) < 0.838 < float(high[:-1])


def test_roadmaps(tmp_path: Path, capsys: Capture) -> None:
    """A run that comes back as ROADMAP is counted under its reason, told once, and never becomes a figure."""
    failing = [Answer(503, {"detail": "no store"})] * TRIES
    with serve(NO_PAIR, answer(2), NO_PAIR, *failing) as service:
        assert sweep(service, file_of(tmp_path, "prose", "prose"), "1,2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("1 ")).split() == ["1", "0/2", "UNAVAILABLE"]
    assert next(line for line in lines if line.startswith("2 ")).split()[:2] == ["2", "1/2"]
    assert lines[-2:] == [
        "not measured: 2 run(s): the tower holds no same-family pair",
        "not measured: 1 run(s): the service answered 503: no store",
    ]


def test_nothing_measured(tmp_path: Path, capsys: Capture) -> None:
    """When no run was measured every row says UNAVAILABLE, and the exit code is 1."""
    with serve(NO_PAIR, NO_PAIR) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "1,4") == 1
    assert capsys.readouterr().out.splitlines() == [
        "prose: UNAVAILABLE",
        "k  runs  valid  lossless  tokens  drafts  accepted rate  speed-up  Th. 3.8  predicted",
        "1   0/1  UNAVAILABLE",
        "4   0/1  UNAVAILABLE",
        "",
        "prose: no speed-up was measured (UNAVAILABLE)",
        "not measured: 2 run(s): the tower holds no same-family pair",
    ]


def test_giving_up(tmp_path: Path, capsys: Capture) -> None:
    """When two prompts in a row are not measured at any k, the rest is not asked for."""
    answers = [NO_PAIR, NO_PAIR, answer(2), *[NO_PAIR] * 9]
    with serve(*answers) as service:
        assert sweep(service, file_of(tmp_path, *["prose"] * 6), "1,2") == 0
    assert len(service.requests) == 8
    assert capsys.readouterr().out.endswith(
        "not measured: 7 run(s): the tower holds no same-family pair\n"
        "stopped after 8 of 12 runs: 2 prompts in a row were not measured at any k\n"
    )


def test_no_room(tmp_path: Path, capsys: Capture) -> None:
    """A busy service is asked again when it says, until the timeout; then its answer is the reason."""
    busy = receipt(roadmap_payload(roadmap={"reason": "the tower's queue is full", "code": "BUSY"}))
    answers = [Answer(200, busy, {"Retry-After": "0"}), Answer(429, {"detail": "slow"}, {"Retry-After": "0"})]
    with serve(*answers, answer(1), Answer(200, busy, {"Retry-After": "999"})) as service:
        assert sweep(service, file_of(tmp_path, "prose", "code"), "1") == 0
    assert len(service.requests) == 4
    assert "not measured: 1 run(s): the tower's queue is full\n" in capsys.readouterr().out


def test_reasons_are_told_once(tmp_path: Path, capsys: Capture) -> None:
    """Runs that outlast the timeout share one line, although each goes on at a place of its own."""
    pending = receipt(roadmap_payload(roadmap={"reason": "running"}))
    late = [
        Answer(202, pending, {"Location": f"{labels.BASE_PATH}/runs/{i}", "Retry-After": "999"})
        for i in (1, 2)
    ]
    with serve(*late) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "1,2") == 1
    assert capsys.readouterr().out.endswith("\nnot measured: 2 run(s): the run has not ended in time\n")


def test_runs_that_outlast_the_timeout_are_cancelled(tmp_path: Path) -> None:
    """The next run would wait behind one that goes on: it is taken back before the next is asked for."""
    run_id = answer(1).body["payload"]["run_id"]
    place = f"{labels.BASE_PATH}/runs/{run_id}"
    pending = receipt(roadmap_payload(run_id=run_id, roadmap={"reason": "running", "code": "RUNNING"}))
    cancelled = receipt(roadmap_payload(run_id=run_id, roadmap={"reason": "cancelled", "code": "CANCELLED"}))
    late = Answer(202, pending, {"Location": place, "Retry-After": "999"})
    with serve(late, Answer(200, cancelled), answer(2)) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "1,2") == 0
    assert [request[:2] for request in service.requests] == [
        ("POST", f"{labels.BASE_PATH}/run"),
        ("DELETE", place),
        ("POST", f"{labels.BASE_PATH}/run"),
    ]


def test_unreachable(capsys: Capture) -> None:
    """Where nobody listens, the sweep ends after two of our own prompts, with exit code 1."""
    with serve() as service:
        url = service.url
    assert main(["sweep", "--k", "1", "--url", url]) == 1
    out = capsys.readouterr().out
    assert f"not measured: 2 run(s): the service cannot be reached at {url}\n" in out
    assert not any(prompt.text in out for prompt in prompts.own())


def test_altered_receipts(tmp_path: Path, capsys: Capture) -> None:
    """A receipt that does not verify gives no figure, is not saved, and makes the exit code 1."""
    altered = answer(2)
    altered.body = {**altered.body, "payload_sha3_256": "0" * 64}
    out = tmp_path / "out"
    with serve(answer(1), altered) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "1,2", "--out", str(out)) == 1
    assert [path.name for path in out.iterdir()] == ["k1-prose-1.json"]
    assert capsys.readouterr().out.endswith(
        "not measured: 1 run(s): the receipt does not verify: payload_sha3_256 is not the SHA3-256 of the payload\n"
    )


def test_answers_for_another_k(tmp_path: Path, capsys: Capture) -> None:
    """A receipt that names no request, so passes as an answer, still counts for no other k than its own."""
    other = answer(4)
    payload = {
        k: v for k, v in other.body["payload"].items() if k not in ("request", "prompt_commitment", "run_id")
    }
    with serve(Answer(200, receipt(payload))) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "2") == 1
    assert "not measured: 1 run(s): it measured another k\n" in capsys.readouterr().out


def test_adaptive(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """`auto` has a row of its own: tokens and drafts per step and the measured speed-up, nothing modeled."""

    def run(_: Specdec, prompt: str, *, k: K, **__: Any) -> Receipt:
        body = Receipt(answer(4).body)
        if k == "auto":
            adaptive = {
                "mode": "adaptive",
                "k_requested": "auto",
                "k": 8,
                "accepted_rate": None,
                "drafted": 70,
            }
            body["payload"]["measurement"].update(adaptive)
        return body

    monkeypatch.setattr(Specdec, "run", run)
    assert main(["sweep", "--k", "auto,4", "--domain", "code", "--url", "http://127.0.0.1:9"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    fixed, row = (next(line for line in lines if line[:1] == [k]) for k in ("4", "auto"))
    assert fixed[1:6] == ["6/6", "6/6", "6/6", "4.50", "4.00"] and fixed[-2:] != ["-", "-"]
    assert row == ["auto", "6/6", "6/6", "6/6", "4.50", "3.50", "-", "1.50", "(1.50", "to", "1.50)", "-", "-"]


def test_saved_receipts_verify(tmp_path: Path, capsys: Capture) -> None:
    """Each receipt is saved without its salt, a ROADMAP too, and verifies; the folder must be new or empty."""
    out = tmp_path / "out"
    file = file_of(tmp_path, "prose", "code")
    with serve(answer(1), answer(2), NO_PAIR, answer(2)) as service:
        assert sweep(service, file, "1,2", "--out", str(out)) == 0
        assert sweep(service, file, "1,2", "--out", str(out)) == 2
    assert len(service.requests) == 4
    names = ["k1-code-1.json", "k1-prose-1.json", "k2-code-1.json", "k2-prose-1.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        text = (out / name).read_text("utf-8")
        assert "prompt_salt" not in text and PROMPT not in text
        assert main(["verify", str(out / name)]) == 0
    assert capsys.readouterr().err == "specdec: --out must name a new or empty folder\n"


def test_receipts_that_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """When the disk is full the sweep goes on, says so once, and exits with 1."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shared.cli_sweep.save_receipt", full)
    with serve(answer(1), answer(2)) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "1,2", "--out", str(tmp_path / "out")) == 1
    out = capsys.readouterr().out
    assert out.count("receipts cannot be saved: No space left on device\n") == 1
    assert "best k=1, speed-up 1.5000" in out


def test_json(tmp_path: Path, capsys: Capture) -> None:
    """JSON is one object: rows with their labels, the best, the reasons, and the digest of each receipt."""
    answers = [answer(1, 1.2), NO_PAIR]
    with serve(*answers) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "1,4", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["models"] == ["small -> large"]
    assert told["labels"]["speedup_measured"] == "MEASURED" and told["labels"]["speedup_modeled"] == "MODELED"
    one, four = told["rows"]
    assert (one["label"], one["k"], one["accepted_rate"], one["accepted_rate_low"]) == (
        "MEASURED",
        1,
        0.5,
        None,
    )
    assert one["speedup_measured"] == pytest.approx(1.2) and one["speedup_modeled"] == 1.25
    assert (four["label"], four["k"], four["runs"], four["asked"]) == ("UNAVAILABLE", 4, 0, 1)
    assert four["speedup_measured"] is four["tokens_per_step"] is four["speedup_modeled"] is None
    assert [(best["domain"], best["k"], best["speculate"]) for best in told["best"]] == [("prose", 1, True)]
    assert told["not_measured"] == [{"reason": "the tower holds no same-family pair", "runs": 1}]
    assert told["receipts"] == [
        {
            "domain": "prose",
            "prompt": 1,
            "k": k,
            "label": sent.body["payload"]["label"],
            "payload_sha3_256": sent.body["payload_sha3_256"],
        }
        for k, sent in zip((1, 4), answers, strict=True)
    ]


def test_json_without_a_measurement(tmp_path: Path, capsys: Capture) -> None:
    """JSON too says UNAVAILABLE where nothing was measured."""
    with serve(NO_PAIR) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "4", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"][0]["label"], told["best"][0]["speedup_measured"]) == ("UNAVAILABLE", "UNAVAILABLE")
    assert (told["best"][0]["k"], told["best"][0]["speculate"], told["models"]) == (None, None, [])


def test_csv(tmp_path: Path, capsys: Capture) -> None:
    """CSV is the rows; a missing figure is an empty field, and what went wrong goes to standard error."""
    with serve(answer(1, 1.2), NO_PAIR) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "1,4", "--csv") == 0
    captured = capsys.readouterr()
    one, four = csv.DictReader(io.StringIO(captured.out))
    assert (one["domain"], one["k"], one["label"], one["accepted_rate"]) == ("prose", "1", "MEASURED", "0.5")
    assert (one["speedup_spread"], one["speedup_modeled"]) == ("range", "1.25")
    assert (four["k"], four["label"]) == ("4", "UNAVAILABLE")
    assert four["speedup_measured"] == four["speedup_modeled"] == ""
    assert captured.err == "specdec: not measured: 1 run(s): the tower holds no same-family pair\n"


@pytest.mark.parametrize("shape", [[], ["--csv"], ["--json"]], ids=str)
def test_progress(shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """On a terminal each finished run is a line on standard error, unless JSON is asked for."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # has no bars
    with serve(answer(1), answer(1, speedup=None), NO_PAIR) as service:
        assert sweep(service, file_of(tmp_path, "code", "code", "code"), "1", *shape) == 0
    err = capsys.readouterr().err
    lines = [
        "[1/3] code 1, k=1: speed-up 1.5000 (MEASURED)",
        "[2/3] code 2, k=1: speed-up UNAVAILABLE",
        "[3/3] code 3, k=1: SPEC-DECODE ROADMAP: the tower holds no same-family pair",
    ]
    assert err.splitlines()[:3] == ([] if shape == ["--json"] else lines)


def interrupt() -> None:
    """Ctrl-C for the thread that runs the command."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Heeds SIGINT as at a terminal: a program started in the background is given it to ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupted(tmp_path: Path, capsys: Capture) -> None:
    """Ctrl-C cancels the run under way; what was measured so far is printed, the rest is UNAVAILABLE, exit code 130."""
    last = answer(2)
    last.before = interrupt
    run_id = last.body["payload"]["run_id"]
    pending = roadmap_payload(run_id=run_id, roadmap={"reason": "running", "code": "RUNNING"})
    cancelled = roadmap_payload(run_id=run_id, roadmap={"reason": "cancelled", "code": "CANCELLED"})
    found = Answer(202, receipt(pending), {"Location": f"{labels.BASE_PATH}/runs/{run_id}"})
    with serve(answer(1, 1.2), last, found, Answer(200, receipt(cancelled))) as service:
        assert sweep(service, file_of(tmp_path, "prose", "code"), "1,2") == 130
    assert [request[0] for request in service.requests] == ["POST", "POST", "POST", "DELETE"]
    keys = [request[3]["idempotency-key"] for request in service.requests[:3]]
    assert keys[0] != keys[1] == keys[2]
    captured = capsys.readouterr()
    assert captured.err == f"specdec: interrupted: run {run_id} is cancelled on the tower\n"
    lines = captured.out.splitlines()
    assert any(line.startswith("prose: best k=1, speed-up 1.2000 (MEASURED)") for line in lines)
    assert "code: no speed-up was measured (UNAVAILABLE)" in lines
    assert lines[-1] == "interrupted: 1 of 4 runs were made"


def test_closed_pipe(tmp_path: Path) -> None:
    """A reader that leaves early ends the command with 1 and no traceback."""
    command = [
        sys.executable,
        "-m",
        "shared.cli",
        "sweep",
        "--prompts",
        file_of(tmp_path, "prose"),
        "--k",
        "1",
    ]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    root = Path(__file__).parents[2]
    with (
        serve(answer(1)) as service,
        subprocess.Popen(
            [*command, "--url", service.url],
            cwd=root,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(120) == 1


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--prompts", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["--prompts", __file__], f"{__file__}: line 1: the text is not JSON"),
        (["--domain", "verse"], "--domain must be one of: code, prose"),
        (["--n", "501"], "n must be an integer from 1 to 500"),
        (["--timeout", "0"], "timeout must be a number of seconds above 0, at most 86400"),
        (["--url", "nowhere"], "the URL must be like https://host or http://host:port"),
        (["--out", "/no/such/folder"], "--out cannot be made: No such file or directory"),
        (["--out", __file__], "--out cannot be made: File exists"),
        (["--out", "a\0b"], "--out cannot be made: it is no file name"),
        (["--out", str(Path(__file__).parent)], "--out must name a new or empty folder"),
    ],
    ids=lambda part: ascii(part)[:48],
)
def test_bad_input(argv: list[str], sentence: str, capsys: Capture) -> None:
    """Bad input gets one sentence on standard error and exit code 2, and nothing is sent."""
    with serve() as service:
        assert main(["sweep", "--url", service.url, *argv]) == 2
    assert service.requests == []
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"specdec: {sentence}\n")


def test_prompts_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Prompts come from standard input as well; what is wrong with them is said without repeating them."""
    for data, code in (
        (json.dumps({"domain": "prose", "prompt": PROMPT}), 0),
        (f'{{"prompt": "{PROMPT}"}}', 2),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
        with serve(answer(1)) as service:
            assert main(["sweep", "--prompts", "-", "--k", "1", "--url", service.url]) == code
    assert capsys.readouterr().err == "specdec: standard input: line 1: domain is required\n"


@pytest.mark.parametrize(
    "ks", ["", "0", "17", "1-17", "0-3", "4-2", "1,,2", "four", "1;2", "Auto", "-1", "1-2-3"]
)
def test_bad_ks(ks: str, capsys: Capture) -> None:
    """Draft lengths that are none get the usage and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(["sweep", f"--k={ks}"])
    assert ended.value.code == 2
    assert "must be numbers from 1 to 16, ranges such as 1-8, or auto, with commas" in capsys.readouterr().err


def test_markdown(tmp_path: Path, capsys: Capture) -> None:
    """Markdown is a table whose columns wear their labels, then what the rows come to; the rest is said beside it."""
    with serve(answer(1, 1.2), NO_PAIR) as service:
        assert sweep(service, file_of(tmp_path, "prose"), "1,4", "--md") == 0
    captured = capsys.readouterr()
    head, _, one, four, blank, choice = captured.out.splitlines()
    names = [cell.strip() for cell in head.strip("|").split("|")]
    row = dict(zip(names, (cell.strip() for cell in one.strip("|").split("|")), strict=True))
    assert row["speed-up (MEASURED)"] == "1.20 (one prompt)" and row["Th. 3.8 (MODELED)"] == "1.25"
    assert (row["domain"], row["k"], row["runs"]) == ("prose", "1", "1/1")
    assert four == "| prose | 4 | 0/1 |" + " UNAVAILABLE |" * (len(names) - 3)
    assert blank == "" and choice.startswith("- prose: best k=1, speed-up 1.2000 (MEASURED)")
    assert captured.err == "specdec: not measured: 1 run(s): the tower holds no same-family pair\n"


def test_plots(tmp_path: Path, capsys: Capture) -> None:
    """A plot of the sweep goes into the file beside the rows, and is left out, with a word, if nothing was measured."""
    file, drawn, other = file_of(tmp_path, "prose"), tmp_path / "sweep.svg", tmp_path / "none.svg"
    with serve(answer(1, 1.2), NO_PAIR) as service:
        assert sweep(service, file, "1", "--csv", "--plot", str(drawn)) == 0
        assert sweep(service, file, "1", "--csv", "--plot", str(other)) == 1
    assert "median over prompts (MEASURED)" in drawn.read_text("utf-8")
    assert not other.exists()
    assert capsys.readouterr().err.endswith("specdec: there is nothing to plot, as nothing was measured\n")


@pytest.mark.parametrize("shapes", [["--json", "--csv"], ["--json", "--md"], ["--csv", "--md"]], ids=str)
def test_one_shape(shapes: list[str], capsys: Capture) -> None:
    """Two shapes of the answer at once are bad usage."""
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *shapes])
    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
