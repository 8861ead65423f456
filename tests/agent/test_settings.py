"""Tests of agent.settings."""

import sys
from pathlib import Path

import pytest

from agent.settings import is_loopback, load_settings
from agent.worker import options as worker_options
from shared.settings import SettingsError

WITH_TOKEN = {"SPECDEC_TOWER_TOKEN": "secret-token"}


def test_defaults() -> None:
    """With a token and nothing else, the agent listens on loopback."""
    settings = load_settings([], WITH_TOKEN)
    assert (settings.host, settings.port, settings.embedded) == ("127.0.0.1", 8765, False)
    assert settings.tower_token is not None and settings.tower_token.get_secret_value() == "secret-token"
    assert "secret-token" not in repr(settings)
    assert (settings.device, settings.gpu, settings.foreign, settings.forbid) == ("auto", None, "mark", ())
    assert (settings.ollama_url, settings.ollama_unload) == ("http://127.0.0.1:11434", False)
    assert (settings.idle_s, settings.look_s, settings.keepalive_s) == (300, 3, 10)


def test_flags_outrank_environment() -> None:
    """A flag wins over the variable of the same name."""
    settings = load_settings(["--port", "0"], {**WITH_TOKEN, "SPECDEC_PORT": "99", "SPECDEC_HOST": "::1"})
    assert (settings.port, settings.host) == (0, "::1")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("192.0.2.1", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    """Loopback is what only this machine can connect to."""
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (["--port", "70000"], WITH_TOKEN, "--port must be at most 65535"),
        ([], {**WITH_TOKEN, "SPECDEC_PORT": "many"}, "SPECDEC_PORT must be an integer"),
        ([], {**WITH_TOKEN, "SPECDEC_HANG_S": "0"}, "SPECDEC_HANG_S must be above 0"),
        (["--draft", "a.gguf"], WITH_TOKEN, "--draft and --target go together"),
        (["--embedded", "--ollama-models", "x"], WITH_TOKEN, "name the pair one way only"),
        (["--port"], WITH_TOKEN, "argument --port: expected one argument"),
        (["--prt", "1"], WITH_TOKEN, "unrecognized arguments: --prt 1"),
        (["--device", "tpu"], {}, "--device must be 'auto', 'gpu' or 'cpu'"),
        ([], {"SPECDEC_FOREIGN": "ignore"}, "SPECDEC_FOREIGN must be 'mark' or 'refuse'"),
        ([], {"SPECDEC_GPU": "MIG-1c2d"}, "SPECDEC_GPU must be an index or a UUID of a whole GPU"),
        ([], {"SPECDEC_GPU": "RTX 4060"}, "SPECDEC_GPU must be an index or a UUID of a whole GPU"),
        ([], {"SPECDEC_OLLAMA_URL": "127.0.0.1:11434"}, "must look like http://host:port, or be none"),
        ([], {"SPECDEC_OLLAMA_URL": "http://x:0"}, "must look like http://host:port, or be none"),
        ([], {"SPECDEC_OLLAMA_URL": "http://me:pw@x"}, "must look like http://host:port, or be none"),
        ([], {"SPECDEC_KEEPALIVE_S": "16"}, "SPECDEC_KEEPALIVE_S must be at most 15"),
        ([], {"SPECDEC_LOOK_S": "11"}, "SPECDEC_LOOK_S must be at most 10"),
        ([], {"SPECDEC_IDLE_S": "0"}, "SPECDEC_IDLE_S must be above 0"),
        (["--tls-cert", __file__], {}, "--tls-cert and --tls-key go together"),
        (["--tls-cert", "/nowhere.pem", "--tls-key", __file__], {}, "--tls-cert is not a file: /nowhere.pem"),
    ],
)
def test_wrong_values(argv: list[str], environ: dict[str, str], message: str) -> None:
    """A wrong value is named in one line."""
    with pytest.raises(SettingsError) as caught:
        load_settings(argv, environ)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_model_that_is_no_file() -> None:
    """A mistyped model path stops the start and is named."""
    with pytest.raises(SettingsError, match="--draft is not a file: nowhere.gguf"):
        load_settings(["--draft", "nowhere.gguf", "--target", __file__], WITH_TOKEN)


def test_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state goes where systemd says, else below the home directory."""
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/specdec")
    assert load_settings([], WITH_TOKEN).state == Path("/var/lib/specdec")
    monkeypatch.delenv("STATE_DIRECTORY")
    assert load_settings([], WITH_TOKEN).state == Path.home() / ".local/state/specdec"


def test_worker_command(tmp_path: Path) -> None:
    """The worker gets on its command line what it needs and no secret."""
    draft, target = (str(tmp_path / name) for name in ("d.gguf", "t.gguf"))
    for path in (draft, target):
        Path(path).touch()
    named = ["--draft", draft, "--target", target, "--state", str(tmp_path)]
    command = [sys.executable, "-m", "agent.worker", "--draft", draft, "--target", target]
    rest = ["--device", "auto", "--foreign", "mark", "--ollama-url", "http://127.0.0.1:11434"]
    rest += ["--context", "4096", "--calibrations", str(tmp_path / "calibrations.json")]
    rest += ["--facts", str(tmp_path / "files.json")]
    with_threads = {**WITH_TOKEN, "SPECDEC_THREADS": "3"}
    assert load_settings(named, with_threads).worker_command() == [*command, "--threads", "3", *rest]
    assert load_settings(named, WITH_TOKEN).worker_command() == [*command, *rest]
    assert "--embedded" in load_settings(["--embedded"], WITH_TOKEN).worker_command()
    assert "secret-token" not in " ".join(load_settings(named, WITH_TOKEN).worker_command())


def test_the_worker_understands_its_command(tmp_path: Path) -> None:
    """What the command line says arrives in the worker; what is not set is left to it."""
    named = ["--embedded", "--state", str(tmp_path)]
    given = worker_options(load_settings(named, WITH_TOKEN).worker_command()[3:])
    assert (given.embedded, given.context, given.threads) == (True, 4096, None)
    assert given.calibrations == tmp_path / "calibrations.json"
    assert given.facts == tmp_path / "files.json"
    assert (given.device, given.gpu, given.foreign) == ("auto", None, "mark")
    assert (given.pin_draft, given.pin_target, given.forbid) == (None, None, [])
    assert (given.ollama_url, given.ollama_unload) == ("http://127.0.0.1:11434", False)
    chosen = {
        "THREADS": "3",
        "DEVICE": "gpu",
        "GPU": "GPU-6a7b",
        "FOREIGN": "refuse",
        "PIN_DRAFT": "llama3.2:1b",
        "PIN_TARGET": "hf.co/a/b:Q4",
        "FORBID": "qwen3:8b, mistral:7b,",
        "OLLAMA_URL": "https://ollama.example/",
        "OLLAMA_UNLOAD": "true",
    }
    environ = {f"SPECDEC_{name}": value for name, value in chosen.items()}
    given = worker_options(load_settings(["--state", str(tmp_path)], environ).worker_command()[3:])
    assert (given.embedded, given.threads, given.device, given.gpu) == (False, 3, "gpu", "GPU-6a7b")
    assert (given.foreign, given.pin_draft, given.pin_target) == ("refuse", "llama3.2:1b", "hf.co/a/b:Q4")
    assert given.forbid == ["qwen3:8b", "mistral:7b"]
    assert (given.ollama_url, given.ollama_unload) == ("https://ollama.example", True)


def test_nobody_is_asked() -> None:
    """An Ollama server that must not be asked is called none, and arrives in the worker as no address."""
    settings = load_settings([], {"SPECDEC_OLLAMA_URL": "none"})
    assert settings.ollama_url == "" and worker_options(settings.worker_command()[3:]).ollama_url == ""


def test_threads() -> None:
    """Threads are tried out at each load unless a number is set."""
    assert load_settings([], WITH_TOKEN).threads is None
    assert load_settings([], {**WITH_TOKEN, "SPECDEC_THREADS": "2"}).threads == 2
    with pytest.raises(SettingsError, match="SPECDEC_THREADS must be at least 1"):
        load_settings([], {**WITH_TOKEN, "SPECDEC_THREADS": "0"})


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names the flags and the other settings."""
    with pytest.raises(SystemExit) as caught:
        load_settings(["--help"], {})
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--token-file FILE" in text and "MAX_DEADLINE_S" in text
    assert "install | uninstall | token | selfcheck" in text.replace("\n", " ").replace("  ", " ")
