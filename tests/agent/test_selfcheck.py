"""Tests of agent.selfcheck: the real command on this machine, which has no GPU, and on stores that lack something."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.pairs import EMBEDDED
from tests.agent.nvml_stub.stub import Stub
from tests.agent.support import PATIENCE, ROOT
from tools.ollama_store import build_store

HANGS = 777
"""The stub's code for a function that never returns."""

FILES = {"llama3.2:1b": EMBEDDED / "draft.gguf", "llama3.1:8b": EMBEDDED / "target.gguf"}


def selfcheck(state: Path, *flags: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command as an operator does."""
    environ = {**os.environ, "SPECDEC_THREADS": "1", "SPECDEC_OLLAMA_URL": "none", **settings}
    return subprocess.run(
        [sys.executable, "-m", "agent", "selfcheck", "--state", str(state), *flags],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environ,
        timeout=4 * PATIENCE,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[bool | None, str]]:
    """Return the findings of a run with --json, by what was looked at."""
    assert done.returncode == 0, done.stderr
    return {one["what"]: (one["usable"], one["found"]) for one in json.loads(done.stdout)}


def test_readable_without_a_gpu(tmp_path: Path) -> None:
    """On a machine without GPU it says line by line what can be measured and what cannot, ends with 0, no traceback."""
    done = selfcheck(tmp_path / "state", "--embedded", SPECDEC_DEVICE="cpu")
    assert done.returncode == 0
    lines = {line[:22].strip(): line[23:] for line in done.stdout.splitlines()}
    assert lines["decodes on"].startswith(" yes  cpu: the operator chose the processor")
    assert "embedded:draft drafts for embedded:target" in lines["pair"]
    assert lines["decode"].startswith(" yes  16 steps, ")
    assert " yes  MEASURED: speed-up " in lines["time"]
    assert "MEASURED (lossless)" in lines["output"]
    assert "no   UNAVAILABLE (ON_CPU): the pair was decoded on the processor" in lines["energy"]
    assert "Traceback" not in done.stdout + done.stderr
    assert "quick brown fox" not in done.stdout + done.stderr


def test_store(tmp_path: Path) -> None:
    """Models of Ollama's store are listed, those that cannot be used with the reason, and the pair is tried."""
    store = tmp_path / "models"
    build_store(store, FILES)
    (store / "manifests/registry.ollama.ai/library/broken").mkdir(parents=True)
    (store / "manifests/registry.ollama.ai/library/broken/latest").write_text("{")
    told = findings(selfcheck(tmp_path / "state", "--ollama-models", str(store), "--json"))
    assert told["ollama store"] == (True, str(store))
    assert told["model llama3.2:1b"][0] and told["model llama3.1:8b"][0]
    assert told["model broken:latest"][0] is False
    assert told["pair"] == (True, "llama3.2:1b drafts for llama3.1:8b: one vocabulary")
    assert told["time"][0] is True


def test_no_pair(tmp_path: Path) -> None:
    """Without a pair it says what to do about it, and decodes nothing."""
    store = tmp_path / "models"
    build_store(store, {"llama3.1:8b": FILES["llama3.1:8b"]})
    told = findings(selfcheck(tmp_path / "state", "--ollama-models", str(store), "--json"))
    assert told["pair"] == (
        False,
        "llama3.1:8b has no smaller model with its vocabulary: run `ollama pull llama3.2:1b`",
    )
    assert "decode" not in told and "time" not in told and "energy" not in told


def test_damaged_pair(tmp_path: Path) -> None:
    """A pair that cannot be loaded is told of in one line, and the command still ends with 0."""
    flags = []
    for name in ("draft", "target"):
        whole = (EMBEDDED / f"{name}.gguf").read_bytes()
        (tmp_path / f"{name}.gguf").write_bytes(whole[: len(whole) // 2])
        flags += [f"--{name}", str(tmp_path / f"{name}.gguf")]
    done = selfcheck(tmp_path / "state", *flags, "--json")
    told = findings(done)
    usable, why = told["decode"] if "decode" in told else told["pair"]
    assert usable is False and "draft" in why or "target" in why
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [["--port", "x"], ["--nonsense"]])
def test_wrong_setting(tmp_path: Path, flags: list[str]) -> None:
    """A wrong flag is one clear line and exit 2."""
    done = selfcheck(tmp_path / "state", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("agent selfcheck: ") and done.stderr.count("\n") == 1


def test_state_that_cannot_be_written(tmp_path: Path) -> None:
    """A state directory that no one can write into is told of."""
    (tmp_path / "file").write_text("")
    told = findings(selfcheck(tmp_path / "file" / "state", "--embedded", "--json"))
    assert told["state"] == (False, f"{tmp_path / 'file' / 'state'} cannot be written")


def test_settings_of_the_service(tmp_path: Path) -> None:
    """The service's own settings can be named, and count unless a variable or a flag says otherwise."""
    env = tmp_path / "agent.env"
    env.write_text("SPECDEC_EMBEDDED=true\nSPECDEC_DEVICE=cpu\n")
    told = findings(selfcheck(tmp_path / "state", "--settings", str(env), "--json"))
    assert told["decodes on"] == (True, "cpu: the operator chose the processor")
    assert told["pair"][0]
    absent = selfcheck(tmp_path / "state", "--settings", str(tmp_path / "absent"))
    assert (absent.returncode, absent.stderr) == (
        2,
        "agent selfcheck: the settings cannot be read (FileNotFoundError)\n",
    )


@pytest.mark.timeout(600)
def test_driver_that_does_not_answer(tmp_path: Path) -> None:
    """A driver that keeps whoever asks it is told of, and the command ends."""
    stub = Stub(tmp_path)
    stub.set({"return.nvmlInit_v2": HANGS, "return.nvmlInitWithFlags": HANGS})
    done = selfcheck(tmp_path / "state", "--embedded", "--json", **stub.environ())
    told = findings(done)
    assert told["GPU"] == (False, "the driver does not answer, so that nothing is decoded here")
    assert "pair" not in told
