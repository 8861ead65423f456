"""Tests of agent.tokens: where tokens come from, what a file of them may hold, and changes while the agent serves."""

import json
import logging
import os
from pathlib import Path

import pytest
from websockets.datastructures import Headers

from agent.logs import JsonFormatter
from agent.settings import load_settings
from agent.tokens import NAME, TokenStore, authorized, fingerprint, open_tokens, read_tokens
from shared.settings import SettingsError

NEW, OLD = "new-token-4711", "old-token-0815"


def tokens_of(*flags: str, **environ: str) -> tuple[str, ...] | None:
    """Return the tokens that an agent started like this asks for; None if it asks for none."""
    store = open_tokens(load_settings(flags, environ), environ)
    return store.tokens if store else None


def put(path: Path, text: str, age: int) -> Path:
    """Write a file that is so many seconds old."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (1_000_000_000 - age,) * 2)
    return path


# Where they come from.


def test_variable(tmp_path: Path) -> None:
    """Without a file the variable counts, blanks around it being no part of it."""
    assert tokens_of("--state", str(tmp_path), SPECDEC_TOWER_TOKEN=f" {NEW}\n") == (NEW,)


def test_token_file_comes_first(tmp_path: Path) -> None:
    """The file named outranks the one in the state directory, which outranks the variable."""
    named = put(tmp_path / "named", f"{NEW}\n", age=9)
    put(tmp_path / "state" / NAME, f"{OLD}\n", age=0)
    state = ("--state", str(tmp_path / "state"))
    environ = {"SPECDEC_TOWER_TOKEN": "from-the-variable"}
    assert tokens_of(*state, "--token-file", str(named), **environ) == (NEW,)
    assert tokens_of(*state, **environ) == (OLD,)


@pytest.mark.parametrize(("credential_age", "state_age", "counts"), [(1, 2, NEW), (2, 1, OLD), (1, 1, NEW)])
def test_newer_of_credential_and_state(
    tmp_path: Path, credential_age: int, state_age: int, counts: str
) -> None:
    """Of systemd's credential and the state directory's file the one written last counts."""
    put(tmp_path / "credentials" / NAME, NEW, credential_age)
    put(tmp_path / "state" / NAME, OLD, state_age)
    given = {"CREDENTIALS_DIRECTORY": str(tmp_path / "credentials")}
    assert tokens_of("--state", str(tmp_path / "state"), **given) == (counts,)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_insecure_on_loopback(tmp_path: Path, host: str) -> None:
    """No token is needed on loopback when that is asked for."""
    assert tokens_of("--state", str(tmp_path), "--insecure", "--host", host) is None


def test_insecure_with_token(tmp_path: Path) -> None:
    """A token that is given is asked for, insecure or not."""
    flags = ("--state", str(tmp_path), "--insecure")
    assert tokens_of(*flags, SPECDEC_TOWER_TOKEN=NEW) == (NEW,)
    put(tmp_path / NAME, OLD, age=0)
    assert tokens_of(*flags) == (OLD,)


@pytest.mark.parametrize(
    ("flags", "environ", "sentence"),
    [
        ([], {}, "there is no token; name one with --token-file or SPECDEC_TOWER_TOKEN"),
        (
            ["--insecure", "--host", "0.0.0.0"],  # noqa: S104
            {},
            "--insecure is for loopback only; set a token, or drop --host",
        ),
        (
            ["--insecure", "--host", "example.org"],
            {},
            "--insecure is for loopback only; set a token, or drop --host",
        ),
        (["--token-file", "/does/not/exist"], {}, "the token file cannot be read (FileNotFoundError)"),
        (["--token-file", "/dev/null"], {}, "the token file is not a regular file"),
        (
            [],
            {"SPECDEC_TOWER_TOKEN": "two words"},
            "SPECDEC_TOWER_TOKEN must be printable ASCII without spaces",
        ),
    ],
)
def test_no_start(tmp_path: Path, flags: list[str], environ: dict[str, str], sentence: str) -> None:
    """Without a token that can be used the start fails with one sentence."""
    with pytest.raises(SettingsError) as caught:
        tokens_of("--state", str(tmp_path), *flags, **environ)
    assert str(caught.value) == sentence


def test_credential_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be looked at is told as that, and not taken for one that is not there."""
    stat = Path.stat

    def deny(path: Path, **options: bool) -> os.stat_result:
        if path.parent.name == "credentials":
            raise PermissionError
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", deny)
    for flags, environ in [([], {}), (["--insecure"], {}), ([], {"SPECDEC_TOWER_TOKEN": NEW})]:
        given = {**environ, "CREDENTIALS_DIRECTORY": str(tmp_path / "credentials")}
        with pytest.raises(SettingsError, match=r"^the token file cannot be read \(PermissionError\)$"):
            tokens_of("--state", str(tmp_path), *flags, **given)


# What a file may hold.


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (NEW, (NEW,)),
        (f"{NEW}\n", (NEW,)),
        (f"{NEW}\n{OLD}\n", (NEW, OLD)),
        (f"\n  {NEW}\r\n\n{OLD}\n\n", (NEW, OLD)),
    ],
)
def test_file(tmp_path: Path, text: str, tokens: tuple[str, ...]) -> None:
    """A file holds one token or two, the new one first; blank lines and blanks around them do not matter."""
    assert read_tokens(put(tmp_path / "file", text, age=0)) == tokens


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the token file is empty; put the token into it"),
        (b"\n \n", "the token file is empty; put the token into it"),
        (b"one\ntwo\nthree\n", "the token file holds more than two lines, the new and the old token"),
        (b"x" * 9000, "the token file holds more than two lines, the new and the old token"),
        (b"two words", "the token file holds more than printable ASCII without spaces"),
        ("t\u00f6ken".encode(), "the token file holds more than printable ASCII without spaces"),
        (b"\xff\x00", "the token file holds more than printable ASCII without spaces"),
        (b"bell\x07", "the token file holds more than printable ASCII without spaces"),
    ],
)
def test_bad_file(tmp_path: Path, content: bytes, sentence: str) -> None:
    """Whatever else a file holds is refused in one sentence that does not quote it."""
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_tokens(tmp_path / "file")
    assert str(caught.value) == sentence


def test_pipe_and_directory(tmp_path: Path) -> None:
    """What is no regular file is refused at once, even a pipe into which nobody writes."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(SettingsError, match="the token file is not a regular file"):
            read_tokens(path)


# What they are for.


def header(value: str) -> Headers:
    """Return the headers of a request."""
    return Headers({"Authorization": value})


def test_either_token_is_accepted(tmp_path: Path) -> None:
    """The new token is accepted and the old one, and nothing that resembles them."""
    store = TokenStore([put(tmp_path / "file", f"{NEW}\n{OLD}\n", age=0)])
    for token in (NEW, OLD):
        assert store.accepts(token) and authorized(store, header(f"Bearer {token}"))
        assert not authorized(store, header(f"Basic {token}")) and not authorized(store, header(token))
    for token in ("", NEW[:-1], NEW + "x", NEW.upper(), f"{NEW}\n{OLD}", NEW + OLD, "\xfc"):
        assert not store.accepts(token)


def test_one_header_and_no_more(tmp_path: Path) -> None:
    """Two headers, one of which is right, are none."""
    store = TokenStore([], NEW)
    both = Headers()
    both["Authorization"], both["Authorization"] = f"Bearer {NEW}", "Bearer guess"
    assert not authorized(store, both) and not authorized(store, Headers())
    assert authorized(None, Headers())


def test_all_tokens_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is compared in constant time, also after one that is right."""
    compared: list[bytes] = []

    def compare(given: bytes, token: bytes) -> bool:
        compared.append(token)
        return given == token

    monkeypatch.setattr("agent.tokens.hmac.compare_digest", compare)
    assert TokenStore([put(tmp_path / "file", f"{NEW}\n{OLD}", age=0)]).accepts(NEW)
    assert compared == [NEW.encode(), OLD.encode()]


# Changes while the agent serves.


def test_change_is_taken(tmp_path: Path) -> None:
    """A token put before the present one counts at once, and the old one until it is dropped."""
    file = put(tmp_path / "file", OLD, age=9)
    store = TokenStore([file])
    assert store.accepts(OLD) and not store.accepts(NEW)
    put(file, f"{NEW}\n{OLD}", age=8)
    assert store.accepts(NEW) and store.accepts(OLD)
    put(file, NEW, age=7)
    assert store.accepts(NEW) and not store.accepts(OLD)


def test_file_is_read_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nothing changes a look costs no reading."""
    file = put(tmp_path / "file", NEW, age=9)
    reads: list[Path] = []

    def read(path: Path) -> tuple[str, ...]:
        reads.append(path)
        return read_tokens(path)

    monkeypatch.setattr("agent.tokens.read_tokens", read)
    store = TokenStore([file])
    assert all(store.accepts(NEW) for _ in range(3)) and reads == [file]
    put(file, OLD, age=8)
    assert all(store.accepts(OLD) for _ in range(3)) and reads == [file, file]


@pytest.mark.parametrize("content", [None, "", "one\ntwo\nthree", "two words"])
def test_bad_change_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    """A file that is gone or bad leaves the former tokens, is told of once, and its mending is noticed."""
    file = put(tmp_path / "file", OLD, age=9)
    store = TokenStore([file])
    if content is None:
        file.unlink()
    else:
        put(file, content, age=8)
    with caplog.at_level(logging.INFO):
        assert all(store.accepts(OLD) for _ in range(3))
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        put(file, NEW, age=7)
        assert store.accepts(NEW) and not store.accepts(OLD)
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [line["message"] for line in lines] == ["tokens kept as they were", "tokens read"]
    assert lines[1]["tokens"] == [fingerprint(NEW)]
    assert not any(secret in json.dumps(lines) for secret in (OLD, NEW, "three", "words"))


def test_what_could_not_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is made readable after it was written looks the same as before; the failure is logged once."""
    tokens = TokenStore([put(tmp_path / NAME, OLD, age=9)])
    put(tmp_path / NAME, NEW, age=8)
    with monkeypatch.context() as patch:
        patch.setattr("agent.tokens.read_tokens", _out_of_reach)
        assert tokens.accepts(OLD) and not tokens.accepts(NEW)
    assert [record.getMessage() for record in caplog.records] == ["tokens kept as they were"]
    assert tokens.accepts(NEW) and not tokens.accepts(OLD)


def _out_of_reach(path: Path) -> tuple[str, ...]:
    raise SettingsError("BAD_SETTINGS", "the token file cannot be read (PermissionError)")


def test_file_written_while_serving_counts_whatever_the_clock_said(tmp_path: Path) -> None:
    """A credential that was made while the clock was ahead does not keep an old token alive."""
    credential = put(tmp_path / "credentials" / NAME, OLD, age=-7200)
    state = tmp_path / "state" / NAME
    tokens = TokenStore([credential, state])
    put(state, f"{NEW}\n{OLD}", age=0)
    assert tokens.accepts(NEW) and tokens.accepts(OLD)
    put(state, NEW, age=-1)
    assert tokens.accepts(NEW) and not tokens.accepts(OLD)


def test_file_that_appears_outranks_the_variable(tmp_path: Path) -> None:
    """An agent that was given a variable takes the file that is made in its state directory."""
    environ = {"SPECDEC_TOWER_TOKEN": OLD}
    store = open_tokens(load_settings(["--state", str(tmp_path)], environ), environ)
    assert store is not None and store.accepts(OLD)
    put(tmp_path / NAME, NEW, age=0)
    assert store.accepts(NEW) and not store.accepts(OLD)


def test_fingerprint() -> None:
    """A token is called by the first eight digits of its SHA-256."""
    assert fingerprint("abc") == "ba7816bf"
