"""Tests of the command `python -m agent.engines`: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.engines.__main__ import main, read_prompts
from agent.engines.errors import EngineInput
from tests.agent.engines.support import MODEL, Scripted, serving
from tests.agent.support import PATIENCE, ROOT

SECRET = "My secret prompt"


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """A file of prompts."""
    file = tmp_path / "prompts.txt"
    file.write_text(f"{SECRET} one\n\n{SECRET} two\n")
    return str(file)


def test_real_servers(speculative: str, plain: str, prompts: str) -> None:
    """As a user runs it: a table with every number labelled, no prompt in it, status 0."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "agent.engines", "--kind", "llama-server", "--prompts", prompts),
            *("--speculative", speculative, "--plain", plain, "--pairs", "6", "--max-tokens", "16"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    for name in (
        "speed-up",
        "tokens per second",
        "draft acceptance rate",
        "mean accepted length",
        "same text",
    ):
        assert "MEASURED" in rows[name], done.stdout
    assert "EXCLUDED: every text equals" in rows["synthetic acceptance"]
    assert "secret" not in done.stdout


def test_json(prompts: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the whole comparison is one JSON object."""
    with serving(Scripted("vllm")) as ours, serving(Scripted("vllm", speculates=False)) as alone:
        flags = ["--kind", "openai", "--speculative", ours.url, "--plain", alone.url, "--prompts", prompts]
        assert main([*flags, "--json", "--model", MODEL, "--pairs", "6"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["speedup"]["median"] == pytest.approx(2)
    assert report["counts"] == {"pairs": 6, "prompts": 2, "max_tokens": 64, "pairs_with_equal_text": 6}
    assert SECRET not in json.dumps(report)


def test_sglangs_figures_are_shown_as_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang's gauges are printed as unavailable, with both readings, and the reason; status 0 all the same."""
    gauges = {"spec_accept_length": 2.78, "spec_accept_rate": 0.695}
    ours, alone = Scripted("sglang", gauges=gauges), Scripted("sglang", speculates=False)
    with serving(ours), serving(alone):
        assert (
            main(["--kind", "openai", "--speculative", ours.url, "--plain", alone.url, "--pairs", "1"]) == 0
        )
    out = " ".join(capsys.readouterr().out.split())
    assert "draft acceptance rate UNAVAILABLE" in out
    assert "0.695 UNAVAILABLE (the server's own figure" in out
    assert "older versions" in out and "acceptance 0.593, if --speculative-num-draft-tokens is 4.00" in out
    assert "newer versions" in out and "fewer than 6 timed pairs" in out


def test_a_servers_words_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A name with control characters is printed on one line and without them."""
    name = "m\x1b[2J\nspeed-up 9"
    with serving(Scripted("bare", models=(name,))) as server:
        assert (
            main(["--kind", "openai", "--speculative", server.url, "--plain", server.url, "--pairs", "1"])
            == 0
        )
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\nspeed-up 9" not in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "required: --speculative, --plain, --kind"),
        (["--kind", "ollama"], "invalid choice: 'ollama'"),
        (
            ["--kind", "openai", "--speculative", "ftp://x", "--plain", "http://x"],
            "must be like http://host:port",
        ),
        (
            ["--kind", "openai", "--speculative", "http://u:pw@x", "--plain", "http://x"],
            "without a user name",
        ),
        (["--pairs", "0"], "--pairs: must be a whole number from 1 to 1000"),
        (["--pairs", "²"], "--pairs: must be a whole number"),
        (["--max-tokens", "1"], "--max-tokens: must be a whole number from 2"),
        (["--timeout", "x"], "--timeout: must be a whole number"),
        (["--bogus"], "--bogus"),
    ],
)
def test_bad_flags(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad flags are one sentence and status 2."""
    if flags and "--kind" not in flags:
        flags = [
            "--kind",
            "openai",
            "--speculative",
            "http://127.0.0.1:1",
            "--plain",
            "http://127.0.0.1:1",
            *flags,
        ]
    if flags == ["--kind", "ollama"]:
        flags += ["--speculative", "http://127.0.0.1:1", "--plain", "http://127.0.0.1:1"]
    assert main(flags) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("engines: ") and words in err and err.count("\n") == 1
    assert "pw@" not in err


def test_model_goes_with_openai(plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A model's name is refused where a server has one model only."""
    assert main(["--kind", "llama-server", "--speculative", plain, "--plain", plain, "--model", "x"]) == 2
    assert "--model goes with --kind openai" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["llama-server", "openai"])
def test_server_down(kind: str, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is down is one sentence and status 1, whichever it is."""
    for urls in (("http://127.0.0.1:1", plain), (plain, "http://127.0.0.1:1")):
        assert main(["--kind", kind, "--speculative", urls[0], "--plain", urls[1]]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err == (
            "engines: http://127.0.0.1:1 cannot be reached (ConnectError); start it, or check the URL\n"
        )


def test_wrong_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """A server of another kind is one sentence and status 1, without the server's own words."""
    with serving(Scripted("vllm")) as server:
        assert main(["--kind", "llama-server", "--speculative", server.url, "--plain", server.url]) == 1
    err = capsys.readouterr().err
    assert "answered 404 to /health" in err and "prompt" not in err and err.count("\n") == 1


def test_keys_come_from_variables_and_go_to_their_own_server(
    prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each server is sent its own key and never the other's, and none is printed."""
    monkeypatch.setenv("SPECDEC_SPECULATIVE_API_KEY", "sk-ours")
    monkeypatch.setenv("SPECDEC_PLAIN_API_KEY", "sk-theirs")
    with serving(Scripted("vllm")) as ours, serving(Scripted("vllm", speculates=False)) as alone:
        flags = ["--kind", "openai", "--speculative", ours.url, "--plain", alone.url, "--prompts", prompts]
        assert main([*flags, "--pairs", "1"]) == 0
    assert {headers["authorization"] for _, _, headers in ours.seen} == {"Bearer sk-ours"}
    assert {headers["authorization"] for _, _, headers in alone.seen} == {"Bearer sk-theirs"}
    assert "sk-" not in "".join(capsys.readouterr())
    monkeypatch.setenv("SPECDEC_PLAIN_API_KEY", "two words")
    assert main([*flags, "--pairs", "1"]) == 2
    assert "two words" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a\n\nb b\n", ["a", "b b"]),
        ('["a", "b\\nc"]', ["a", "b\nc"]),
        ('[{"prompt": "a", "domain": "x"}, "b"]', ["a", "b"]),
        ("  spaced\n", ["  spaced"]),
    ],
)
def test_files_of_prompts(text: str, found: list[str], tmp_path: Path) -> None:
    """Prompts come one a line, or as a JSON list of texts or objects."""
    (tmp_path / "f").write_text(text)
    assert read_prompts(str(tmp_path / "f")) == found


@pytest.mark.parametrize(
    "data", [b"", b"\n \n", b"[]", b"[1]", b'["a", 2]', b'[{"text": "a"}]', b'["a', b"\xff\xfe"]
)
def test_files_without_prompts(data: bytes, tmp_path: Path) -> None:
    """A file that holds no prompts, or something else as well, is refused without being quoted."""
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(EngineInput, match="prompts"):
        read_prompts(str(tmp_path / "f"))
    with pytest.raises(EngineInput, match="cannot be read"):
        read_prompts(str(tmp_path))
    assert os.listdir(tmp_path) == ["f"]
