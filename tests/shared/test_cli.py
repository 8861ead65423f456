"""The `specdec` command: what it prints, what it sends and how it exits."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared import cli_run, labels
from shared.canonical import sha3_256_hex
from shared.cli import _parser, main
from shared.cli_parts import energy_rows
from shared.client import Receipt, Specdec
from shared.client_protocol import TRIES
from shared.curve import accounting_modeled
from shared.keys import key_id
from tests.shared.build import (
    KEYS,
    PROMPT,
    example_energy,
    measured_payload,
    metered_payload,
    receipt,
    roadmap_payload,
)
from tests.shared.service import Answer, serve
from tests.shared.test_dsse import ED25519, P256, pem, signed

SALT = KEYS.salt(bytes(range(16))).hex()
MEASURED = measured_payload()
CURVE = {
    "schema": labels.PAYLOAD_SCHEMA,
    "label": labels.CURVE_LABEL,
    "measured": labels.UNAVAILABLE,
    "accounting_modeled": accounting_modeled(4, 0.2),
}
Capture = pytest.CaptureFixture[str]


def rows(text: str) -> dict[str, str]:
    """What was printed, by the name at the start of the line."""
    return {line[:22].strip(): line[22:].strip() for line in text.splitlines() if line[:22].strip()}


def saved(tmp_path: Path, content: Any) -> str:
    """A file with the receipt."""
    path = tmp_path / "receipt.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Standard input with these bytes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_health(capsys: Capture) -> None:
    """Health prints status, label, the pair or why there is none, and whether a run can be measured."""
    answer = {
        "status": "LIVE",
        "label": labels.HEALTH_ROADMAP,
        "same_family_pair": {"found": False, "reason": "tower unreachable"},
        "measured_run_possible": False,
    }
    with serve(Answer(200, answer)) as service:
        assert main(["health", "--url", service.url]) == 0
    assert rows(capsys.readouterr().out) == {
        "status": "LIVE",
        "label": "SPEC-DECODE ROADMAP (no same-family pair)",
        "same-family pair": "none, tower unreachable",
        "measured run possible": "no",
    }


def test_health_with_a_pair(capsys: Capture) -> None:
    """A pair is printed by its names; control characters in them do not reach the terminal."""
    pair = {"found": True, "reason": "one vocabulary", "draft": "small\x1b[2J", "target": "large"}
    answer = {"status": "LIVE", "label": "L", "same_family_pair": pair, "measured_run_possible": True}
    with serve(Answer(200, answer)) as service:
        assert main(["health", "--url", service.url]) == 0
    printed = rows(capsys.readouterr().out)
    assert printed["same-family pair"] == "small [2J -> large, one vocabulary"
    assert printed["measured run possible"] == "yes"


def test_pair(capsys: Capture) -> None:
    """The pair is printed part by part, and after it what the tower holds and why it cannot be used."""
    pair = {"found": True, "reason": "one vocabulary", "draft": "small", "target": "large", "family": "llama"}
    models = [
        {"name": "small", "family": "llama", "parameters": 10, "loadable": True},
        {"name": "odd\x1b[2J", "loadable": False, "reason": "another architecture"},
    ]
    with serve(*[Answer(200, {"same_family_pair": pair, "models": models})] * 3) as service:
        assert main(["pair", "--url", service.url]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "found                  yes",
            "draft                  small",
            "target                 large",
            "family                 llama",
            "reason                 one vocabulary",
            "model                  small, can be used",
            "                       odd [2J, cannot be used: another architecture",
        ]
        assert main(["pair", "--url", service.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"same_family_pair": pair, "models": models}
        assert main(["pair", "--url", service.url, "--csv"]) == 0
    assert (
        capsys.readouterr().out == "name,family,parameters,loadable\nsmall,llama,10,True\nodd [2J,,,False\n"
    )


@pytest.mark.parametrize("answer", [{}, {"same_family_pair": [], "models": 5}, {"models": [5]}], ids=str)
def test_no_pair(answer: Any, capsys: Capture) -> None:
    """An answer of another shape holds no pair."""
    with serve(Answer(200, answer)) as service:
        assert main(["pair", "--url", service.url]) == 0
    assert capsys.readouterr().out == "found                  no\n"


def test_odd_health(capsys: Capture) -> None:
    """A health answer of another shape is printed as far as it goes, without a traceback."""
    with serve(Answer(200, {"same_family_pair": []})) as service:
        assert main(["health", "--url", service.url]) == 0
    assert rows(capsys.readouterr().out)["same-family pair"] == "none, None"


def test_curve(capsys: Capture) -> None:
    """The curve prints each number with MODELED beside it."""
    with serve(Answer(200, receipt(CURVE))) as service:
        assert (
            main(
                [
                    "curve",
                    "--url",
                    service.url,
                    "--k",
                    "4",
                    "--alpha",
                    "0.5",
                    "--alpha",
                    "0.7",
                    "--alpha",
                    "0.9",
                ]
            )
            == 0
        )
    assert service.requests[0][1] == f"{labels.BASE_PATH}/curve?k=4&alpha=0.5&alpha=0.7&alpha=0.9"
    printed = rows(capsys.readouterr().out)
    assert printed["label"] == "SPEC-DECODE MODELED"
    assert printed["curve"] == "k=4, cost_ratio=0.2, v=1.0"
    assert printed["at alpha 0.7"] == "speedup 1.5406 (MODELED), tokens per step 2.7731 (MODELED)"
    assert printed["receipt"] == f"sha3-256 {receipt(CURVE)['payload_sha3_256']} (verified)"
    assert printed["signature"] == "unsigned"


def test_measured_run(capsys: Capture, tmp_path: Path) -> None:
    """A measured run prints each number with its label, and saves a receipt that verifies without the salt."""
    out = tmp_path / "saved.json"
    output = "line\x1b one\nline two"
    measured = {**MEASURED, "output_sha3_256": sha3_256_hex(output.encode())}
    answer = {**receipt(measured), "prompt_salt": SALT, "output": output}
    with serve(Answer(200, answer)) as service:
        assert main(["run", PROMPT, "--url", service.url, "--k", "4", "--wait", "5", "--out", str(out)]) == 0
    assert service.requests[0][2] == {"prompt": PROMPT, "k": 4}
    text = capsys.readouterr().out
    printed = rows(text)
    assert printed["label"] == "SPEC-DECODE MEASURED"
    assert printed["models"] == "small -> large"
    assert printed["steps"] == "n=50 of 50, k=4 (MEASURED)"
    assert printed["accepted rate"] == "0.7239 (MEASURED, 95 % interval 0.6427 to 0.7925)"
    assert printed["tokens per step"] == "2.94 (MEASURED)"
    assert printed["speedup, modeled"] == "1.6121 (MODELED)"
    assert printed["speedup, measured"] == "1.5000 (MEASURED, 95 % interval 1.4000 to 1.6000, 8 pairs)"
    assert printed["energy"] == "UNAVAILABLE (no NVML library)"
    assert printed["output unchanged"] == "MEASURED (lossless)"
    assert printed["verdict"] == "valid"
    assert printed["prompt salt"].startswith(SALT)
    assert text.endswith("\nline  one\nline two\n")
    assert json.loads(out.read_text("utf-8")) == receipt(measured)
    assert main(["verify", str(out)]) == 0


def test_measured_run_with_gaps(capsys: Capture) -> None:
    """What was not measured is printed as UNAVAILABLE, never as a number."""
    payload = measured_payload()
    measured = payload["measurement"]
    del measured["timing"], measured["blocks"]
    measured["engine"]["gpu_layers"] = 33
    measured["speedup"] = payload["speedup_measured"] = labels.UNAVAILABLE
    measured["verdict"] = {"valid": False, "reasons": ["too few pairs"]}
    payload["energy"] = {"label": "MEASURED", "joules_per_token": {"speculative": 1.25, "target_only": None}}
    with serve(Answer(200, receipt(payload))) as service:
        assert main(["run", PROMPT, "--url", service.url]) == 0
    printed = rows(capsys.readouterr().out)
    assert printed["speedup, measured"] == "UNAVAILABLE"
    assert printed["J/token, speculative"] == "1.25 (MEASURED)"
    assert printed["J/token, target_only"] == "UNAVAILABLE"
    assert printed["verdict"] == "not valid: too few pairs"


def test_metered_run(capsys: Capture) -> None:
    """A run whose energy was metered prints joules, what the draft saves, whose energy it is, and idle power apart."""
    with serve(Answer(200, receipt(metered_payload()))) as service:
        assert main(["run", PROMPT, "--url", service.url]) == 0
    printed = rows(capsys.readouterr().out)
    assert printed["J/token, speculative"] == "0.835 (MEASURED)"
    assert printed["J/token, target_only"] == "1.7381 (MEASURED)"
    detail = "MEASURED, 95 % interval 2.0717 to 2.0917, 6 pairs; above 1 the draft saves energy"
    assert printed["energy ratio"] == f"2.0814 ({detail})"
    assert printed["energy of"] == "NVIDIA GeForce RTX 4060 Ti: the GPU's board only, not the whole machine"
    assert printed["idle power, W"] == "11.5 (MEASURED, not subtracted)"


def test_energy_by_sampled_power() -> None:
    """Joules from sampled power say so, and too few pairs have no interval."""
    energy = {
        **example_energy(),
        "method": "sampled_power",
        "ratio": {"median": 2.0, "ci95": None, "pairs": 2},
    }
    printed = dict(energy_rows({**energy, "idle_watts": None}))
    assert printed["J/token, speculative"] == "0.835 (MEASURED, by sampled power)"
    assert printed["energy ratio"].startswith(
        "2.0000 (MEASURED, by sampled power, too few for an interval, 2 pairs"
    )
    assert "idle power, W" not in printed


def test_adaptive_run(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A run at an adaptive k says up to where it drafts, and why it has no accepted rate."""
    payload = measured_payload()
    payload.update(k=8, accepted_rate=None, speedup_modeled=None)
    payload["measurement"].update(mode="adaptive", k_requested="auto", k=8, accepted_rate=None)
    asked: dict[str, Any] = {}

    def run(_: Specdec, prompt: str, **fields: Any) -> Receipt:
        asked.update(fields, prompt=prompt)
        return Receipt(receipt(payload))

    monkeypatch.setattr(Specdec, "run", run)
    assert main(["run", PROMPT, "--k", "auto"]) == 0
    assert (asked["prompt"], asked["k"], asked["wait"], asked["patient"]) == (PROMPT, "auto", 0.0, False)
    printed = rows(capsys.readouterr().out)
    assert printed["steps"] == "n=50 of 50, k adaptive, up to 8 (MEASURED)"
    assert printed["accepted rate"] == "UNAVAILABLE (drafts stop where a refusal is expected)"
    assert printed["speedup, modeled"] == "UNAVAILABLE"


def test_roadmap_run(capsys: Capture) -> None:
    """A run that could not be measured says why and what to do, and exits 0: it is an honest answer."""
    with serve(Answer(200, receipt(roadmap_payload()))) as service:
        assert main(["run", PROMPT, "--url", service.url]) == 0
    printed = rows(capsys.readouterr().out)
    assert printed["label"] == "SPEC-DECODE ROADMAP"
    assert printed["measured"] == "UNAVAILABLE"
    assert printed["why"] == "tower unreachable"
    assert printed["what to do"] == "start the tower"
    assert printed["at alpha 0.5"] == "speedup 1.0764 (MODELED), tokens per step 1.9375 (MODELED)"


def test_run_options(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Every request field has an option, the prompt comes from standard input as it is, JSON is the answer."""
    stdin(monkeypatch, "Zeile 1\nZeile ü\n".encode())
    argv = ["run", "-", "--json", "--k", "2", "--n", "7", "--temperature", "0.5", "--top-p", "0.9"]
    argv += ["--top-k", "40", "--seed", "1", "--chat", "--ignore-eos", "--include-output"]
    answer = receipt(roadmap_payload())
    with serve(Answer(200, answer)) as service:
        monkeypatch.setenv("SPECDEC_URL", service.url)
        assert main(argv) == 0
    assert service.requests[0][2] == {
        "prompt": "Zeile 1\nZeile ü\n",
        "k": 2,
        "n": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 1,
        "chat": True,
        "ignore_eos": True,
        "include_output": True,
    }
    assert json.loads(capsys.readouterr().out) == answer


def test_a_receipt_that_cannot_be_saved(tmp_path: Path, capsys: Capture) -> None:
    """What was measured is printed all the same, that it is not saved is said, and what was there before stays."""
    path = tmp_path / "receipt.json"
    path.write_text("of before")
    (tmp_path / ".receipt.json.partial").mkdir()  # where it would be written first
    with serve(Answer(200, {**receipt(MEASURED), "prompt_salt": SALT})) as service:
        assert main(["run", PROMPT, "--url", service.url, "--out", str(path)]) == 1
    captured = capsys.readouterr()
    assert rows(captured.out)["label"] == "SPEC-DECODE MEASURED"
    assert rows(captured.out)["prompt salt"].startswith(SALT)
    assert captured.err == "specdec: --out cannot be written: Is a directory\n"
    assert path.read_text() == "of before"


def test_a_full_disk_under_the_answer() -> None:
    """An answer that cannot be written ends in one line, and nothing more at the program's end."""
    with Path("/dev/full").open("wb", buffering=0) as full, serve(Answer(200, receipt(CURVE))) as service:
        command = [sys.executable, "-m", "shared.cli", "curve", "--json", "--url", service.url]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "specdec: the answer cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["run", ""], "prompt must be a string of 1 to 16384 UTF-8 bytes without NUL or lone surrogates"),
        (
            ["run", "\udcff"],
            "prompt must be a string of 1 to 16384 UTF-8 bytes without NUL or lone surrogates",
        ),
        (["run", "x", "--k", "17"], 'k must be an integer from 1 to 16, or "auto"'),
        (["run", "x", "--temperature", "nan"], "temperature must be a number from 0 to 2"),
        (["run", "x", "--wait", "-1"], "wait must be a number of seconds from 0 to 3600"),
        (["run", "x", "--out", "/no/such/folder/file"], "--out must name a file in a folder that exists"),
        (["run", "x", "--out", "/"], "--out must name a file in a folder that exists"),
        (["curve", "--alpha", "2"], "alpha must be 1 to 64 numbers, each from 0 to 1"),
        (["curve", "--k", "65"], "k must be an integer from 0 to 64"),
        (["health", "--url", "nowhere"], "the URL must be like https://host or http://host:port"),
        (["health", "--timeout", "0"], "timeout must be a number of seconds above 0, at most 86400"),
        (["verify", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["verify", "/"], "/ cannot be read: Is a directory"),
        (["verify", "a\0b"], "a b cannot be read: it is no file name"),
        (["verify", __file__], f"{__file__}: the text is not JSON"),
        (
            ["verify", __file__, "--key", "/no/such/key"],
            "/no/such/key cannot be read: No such file or directory",
        ),
        (
            ["verify", __file__, "--key", __file__],
            f"{__file__}: the key file holds no public key for this; pass a saved GET /keys answer or PEM",
        ),
    ],
    ids=lambda part: ascii(part)[:48],
)
def test_bad_input(argv: list[str], sentence: str, capsys: Capture) -> None:
    """Bad input gets one sentence on standard error and exit code 2."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"specdec: {sentence}\n")


@pytest.mark.parametrize("argv", [[], ["fly"], ["run"], ["run", "x", "--k", "four"], ["verify"]])
def test_bad_usage(argv: list[str], capsys: Capture) -> None:
    """Bad usage prints the usage and exits with 2."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: specdec" in capsys.readouterr().err


def test_bad_stdin(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A prompt on standard input that is too long or not UTF-8 is refused before anything is sent."""
    for data, sentence in ((b"\xff", "the prompt is not UTF-8"), (b"x" * 20_000, "the input is larger")):
        stdin(monkeypatch, data)
        assert main(["run", "-", "--url", "http://127.0.0.1:9"]) == 2
        assert sentence in capsys.readouterr().err


def test_failing_service(capsys: Capture) -> None:
    """A service that fails, or whose receipt does not verify, gives one sentence and exit code 1."""
    altered = {**receipt(CURVE), "payload_sha3_256": "0" * 64}
    with serve(*[Answer(503, {"detail": "no store"})] * TRIES, Answer(200, altered)) as service:
        assert main(["health", "--url", service.url]) == 1
        assert main(["curve", "--url", service.url]) == 1
    assert capsys.readouterr().err == (
        "specdec: the service answered 503: no store\n"
        "specdec: the receipt does not verify: payload_sha3_256 is not the SHA3-256 of the payload\n"
    )


def test_verify(tmp_path: Path, capsys: Capture) -> None:
    """An unsigned receipt is OK with a warning; with a required signature it fails."""
    path = saved(tmp_path, receipt(CURVE))
    assert main(["verify", path]) == 0
    text = capsys.readouterr().out
    assert text.startswith("ok       receipt      both schemas are known\n")
    assert text.endswith("warning  signature    the receipt is not signed\nOK, with 1 warning(s)\n")
    assert main(["verify", path, "--require-signature"]) == 1
    assert capsys.readouterr().out.endswith("failed   signature    the receipt is not signed\nFAILED\n")


def test_verify_signed(tmp_path: Path, capsys: Capture) -> None:
    """A signed receipt is OK under its key and fails under another."""
    path, mine, other = saved(tmp_path, receipt(CURVE, signed(CURVE))), tmp_path / "mine", tmp_path / "other"
    mine.write_bytes(pem(ED25519))
    other.write_bytes(pem(P256))
    assert main(["verify", path, "--key", str(mine), "--require-signature"]) == 0
    assert capsys.readouterr().out.endswith(
        f"ok       signature    signed by the pinned edge key {key_id(pem(ED25519))[:16]}\nOK\n"
    )
    assert main(["verify", path, "--key", str(other)]) == 1
    assert "failed   signature    no trusted key made this signature\n" in capsys.readouterr().out


def test_verify_as_json(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A receipt from standard input, its report as JSON: a tampered one exits with 1."""
    stdin(monkeypatch, json.dumps({**receipt(CURVE), "payload": {**CURVE, "n": 50}}).encode())
    assert main(["verify", "-", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert {c["name"] for c in report["checks"] if c["status"] == "failed"} == {"digest", "exact_bytes"}


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"a":1,"a":2}', b'{"a":NaN}'],
    ids=lambda c: ascii(c)[:12],
)
def test_verify_unreadable(tmp_path: Path, content: bytes, capsys: Capture) -> None:
    """A file that is no strict JSON object is unreadable: exit code 2."""
    assert main(["verify", saved(tmp_path, content)]) == 2
    assert capsys.readouterr().err.startswith("specdec: ")


@pytest.mark.parametrize("content", [{}, {"payload": 5}, {"payload": {}}], ids=str)
def test_verify_no_receipt(tmp_path: Path, content: Any, capsys: Capture) -> None:
    """A JSON object that is no receipt fails: exit code 1."""
    assert main(["verify", saved(tmp_path, content)]) == 1
    assert capsys.readouterr().out.endswith("FAILED\n")


def test_as_a_process(tmp_path: Path) -> None:
    """The command runs as a process, where its output closes early too, with no traceback."""
    path = saved(tmp_path, receipt(MEASURED))
    command = [
        sys.executable,
        "-c",
        "import sys; from shared.cli import main; sys.exit(main())",
        "verify",
        path,
    ]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "OK, with 2 warning(s)")
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command, cwd=root, env=buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(120) == 1


def test_curve_rows(capsys: Capture) -> None:
    """The curve as CSV and as Markdown: a row per alpha, each with its label."""
    with serve(Answer(200, receipt(CURVE)), Answer(200, receipt(CURVE))) as service:
        assert main(["curve", "--url", service.url, "--csv"]) == 0
        table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert main(["curve", "--url", service.url, "--md"]) == 0
    assert [row["alpha"] for row in table] == ["0.5", "0.7", "0.9"]
    assert table[1] == {
        "alpha": "0.7",
        "k": "4",
        "cost_ratio": "0.2",
        "verify_cost": "1.0",
        "speedup": "1.5406",
        "tokens_per_step": "2.7731",
        "label": "MODELED",
    }
    assert capsys.readouterr().out.splitlines()[3] == "| 0.7 | 4 | 0.2 | 1.0 | 1.5406 | 2.7731 | MODELED |"


def test_run_rows(capsys: Capture) -> None:
    """A run as CSV is one row; what there is not is an empty field there, and UNAVAILABLE in Markdown."""
    answers = [receipt(MEASURED), receipt(roadmap_payload()), receipt(roadmap_payload())]
    rows: list[dict[str, str]] = []
    with serve(*[Answer(200, answer) for answer in answers]) as service:
        for _ in range(2):
            assert main(["run", PROMPT, "--url", service.url, "--csv"]) == 0
            rows += csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert main(["run", PROMPT, "--url", service.url, "--md"]) == 0
    measured, roadmap = rows
    assert (measured["label"], measured["draft_model"], measured["k"], measured["n"]) == (
        "SPEC-DECODE MEASURED",
        "small",
        "4",
        "50",
    )
    assert float(measured["accepted_rate_measured"]) == MEASURED["measurement"]["accepted_rate"]
    spread = [measured[f"speedup_{name}"] for name in ("low", "measured", "high", "pairs")]
    assert [float(value) for value in spread] == pytest.approx([1.4, 1.5, 1.6, 8])
    assert (measured["speedup_modeled"], measured["valid"]) == ("1.6121", "True")
    assert measured["joules_per_token_measured"] == ""
    assert (roadmap["label"], roadmap["payload_sha3_256"]) == (
        "SPEC-DECODE ROADMAP",
        answers[1]["payload_sha3_256"],
    )
    filled = {name for name, value in roadmap.items() if value}
    assert filled == {"label", "payload_sha3_256"}
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 3 and table[2].count(" UNAVAILABLE |") == len(roadmap) - 2


def test_verify_rows(tmp_path: Path, capsys: Capture) -> None:
    """A verification as CSV and as Markdown is a row per check, and the exit code is the same."""
    path = saved(tmp_path, {**receipt(CURVE), "payload": {**CURVE, "n": 50}})
    assert main(["verify", path, "--csv"]) == 1
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["check"] for row in table if row["status"] == "failed"} == {"digest", "exact_bytes"}
    assert main(["verify", path, "--md"]) == 1
    assert capsys.readouterr().out.startswith(
        "| status | check | detail |\n| --- | --- | --- |\n| ok | receipt |"
    )


@pytest.mark.parametrize("command", ["health", "curve", "run", "sweep", "verify"])
def test_help(command: str, capsys: Capture) -> None:
    """The help of each command ends with examples, and each of them is good usage."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    examples = capsys.readouterr().out.partition("\nexamples:\n")[2].splitlines()
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" < ")[0].partition(" > ")[0])
        assert words[:2] == ["specdec", command]
        assert _parser().parse_args(words[1:]).command.__name__ == command


def test_help_tells_exit_codes(capsys: Capture) -> None:
    """The help of the whole says what the exit codes mean."""
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out.partition("\nexit codes:\n")[2]
    assert [line.split()[0] for line in told.splitlines()[:4]] == ["0", "1", "2", "130"]


def test_completion_in_bash(tmp_path: Path, capsys: Capture) -> None:
    """Bash, given the script, completes commands, options, and files where an option takes one."""
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    assert ended.value.code == 0
    script = tmp_path / "specdec"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "mine.json").touch()

    def completed(*words: str) -> list[str]:
        """What bash offers for the last of the words."""
        ask = (
            f"source {script}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
            'f=$(complete -p specdec); f=${f#*-F }; ${f%% *}; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.split()

    assert completed("specdec", "sw") == ["sweep"]
    assert completed("specdec", "verify", "--requ") == ["--require-signature"]
    assert "mine.json" in completed("specdec", "verify", "mi")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_completion_in_other_shells(shell: str, capsys: Capture) -> None:
    """Each other shell's script names the commands and the options."""
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("health", "sweep", "require-signature", "print-completion"))


@pytest.mark.parametrize(
    ("recommended", "ci95", "said"),
    [
        (4, [0.8, 0.95], "k=4 (MODELED, yet as measured it does not pay)"),
        (4, [0.8, 1.1], "k=4 (MODELED)"),
        (3, [0.8, 0.95], "k=3 (MODELED)"),  # of that k nothing was measured
        (0, [0.8, 0.95], "do not speculate (MODELED)"),
    ],
)
def test_a_recommendation_beside_a_measurement(recommended: int, ci95: list[float], said: str) -> None:
    """Where the measured interval at the recommended k lies below 1, that is said beside the recommendation."""
    measured = {"k": 4, "recommended_k": recommended, "speedup": {"median": 0.9, "ci95": ci95, "pairs": 8}}
    assert cli_run._predicted_rows(measured) == [("recommended", said)]
    assert cli_run._predicted_rows({**measured, "recommended_k": 4, "speedup": "UNAVAILABLE"}) == [
        ("recommended", "k=4 (MODELED)")
    ]
