"""Tests of agent.settings."""

import sys
from pathlib import Path

import pytest

from agent.settings import AgentSettings, load_settings
from agent.worker import options as worker_options
from shared.settings import SettingsError

WITH_TOKEN = {"SPECDEC_TOWER_TOKEN": "secret-token"}


def token_of(settings: AgentSettings) -> str | None:
    """Return the token to ask for."""
    return settings.tower_token.get_secret_value() if settings.tower_token else None


def test_defaults() -> None:
    """With a token and nothing else, the agent listens on loopback."""
    settings = load_settings([], WITH_TOKEN)
    assert (settings.host, settings.port, settings.embedded) == ("127.0.0.1", 8765, False)
    assert token_of(settings) == "secret-token"
    assert "secret-token" not in repr(settings)


def test_flags_outrank_environment() -> None:
    """A flag wins over the variable of the same name."""
    settings = load_settings(["--port", "0"], {**WITH_TOKEN, "SPECDEC_PORT": "99", "SPECDEC_HOST": "::1"})
    assert (settings.port, settings.host) == (0, "::1")


def test_token_file(tmp_path: Path) -> None:
    """The token file wins over the variable, and its newline is no part of the token."""
    (tmp_path / "token").write_text("from-file\n")
    assert token_of(load_settings(["--token-file", str(tmp_path / "token")], WITH_TOKEN)) == "from-file"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_insecure_on_loopback(host: str) -> None:
    """No token is needed on loopback when that is asked for."""
    assert token_of(load_settings(["--insecure", "--host", host], {})) is None


def test_insecure_with_token() -> None:
    """A token that is given is asked for, insecure or not."""
    assert token_of(load_settings(["--insecure"], WITH_TOKEN)) == "secret-token"


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        ([], {}, "there is no token; name one with --token-file or SPECDEC_TOWER_TOKEN"),
        (["--insecure", "--host", "0.0.0.0"], {}, "--insecure is for loopback only"),  # noqa: S104
        (["--insecure", "--host", "example.org"], {}, "--insecure is for loopback only"),
        (["--port", "70000"], WITH_TOKEN, "--port must be at most 65535"),
        ([], {**WITH_TOKEN, "SPECDEC_PORT": "many"}, "SPECDEC_PORT must be an integer"),
        ([], {**WITH_TOKEN, "SPECDEC_HANG_S": "0"}, "SPECDEC_HANG_S must be above 0"),
        (["--draft", "a.gguf"], WITH_TOKEN, "--draft and --target go together"),
        (["--embedded", "--ollama-models", "x"], WITH_TOKEN, "name the pair one way only"),
        (["--port"], WITH_TOKEN, "argument --port: expected one argument"),
        (["--prt", "1"], WITH_TOKEN, "unrecognized arguments: --prt 1"),
        (["--token-file", "/does/not/exist"], {}, "the token file cannot be read"),
        ([], {"SPECDEC_TOWER_TOKEN": "two words"}, "printable ASCII without spaces"),
    ],
)
def test_wrong_values(argv: list[str], environ: dict[str, str], message: str) -> None:
    """A wrong value is named in one line."""
    with pytest.raises(SettingsError) as caught:
        load_settings(argv, environ)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_empty_token_file(tmp_path: Path) -> None:
    """An empty token file is no token, even if a variable holds one."""
    (tmp_path / "token").write_text("\n")
    with pytest.raises(SettingsError, match="the token file is empty"):
        load_settings(["--token-file", str(tmp_path / "token")], WITH_TOKEN)


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
    rest = ["--context", "4096", "--calibrations", str(tmp_path / "calibrations.json")]
    with_threads = {**WITH_TOKEN, "SPECDEC_THREADS": "3"}
    assert load_settings(named, with_threads).worker_command() == [*command, "--threads", "3", *rest]
    assert load_settings(named, WITH_TOKEN).worker_command() == [*command, *rest]
    assert "--embedded" in load_settings(["--embedded"], WITH_TOKEN).worker_command()


def test_the_worker_understands_its_command(tmp_path: Path) -> None:
    """What the command line says arrives in the worker; threads that are not set are left to it."""
    named = ["--embedded", "--state", str(tmp_path)]
    for threads in (None, 3):
        environ = WITH_TOKEN | ({"SPECDEC_THREADS": str(threads)} if threads else {})
        given = worker_options(load_settings(named, environ).worker_command()[3:])
        assert (given.embedded, given.context, given.threads) == (True, 4096, threads)
        assert given.calibrations == tmp_path / "calibrations.json"


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
