"""Tests of agent.token_command: a new token beside the present one, and the old one's end."""

import os
import stat
from pathlib import Path

import pytest

from agent.token_command import ETC, STATE, main, write_tokens
from agent.tokens import NAME, TokenStore, fingerprint, read_tokens


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Run the command; return its status, stdout and stderr."""
    status = main(argv)
    out, err = capsys.readouterr()
    return status, out, err


def test_rotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """New makes a file, puts a token before the present one, and drop-old leaves the new one alone."""
    file = tmp_path / "token"
    at = ("--token-file", str(file))
    status, first, told = run(capsys, "new", *at)
    assert (status, told) == (0, f"{file}: the only token\n")
    assert read_tokens(file) == (first.strip(),) and len(first.strip()) == 64
    store = TokenStore([file])
    _, second, told = run(capsys, "new", *at)
    assert told == f"{file}: the former token counts as well until drop-old\n"
    assert read_tokens(file) == (second.strip(), first.strip()) and first != second
    assert store.accepts(first.strip()) and store.accepts(second.strip())
    _, third, _ = run(capsys, "new", *at)
    assert read_tokens(file) == (third.strip(), second.strip())
    status, out, told = run(capsys, "drop-old", *at)
    assert (status, out) == (0, "") and read_tokens(file) == (third.strip(),)
    assert told == f"{file}: the only token is {fingerprint(third.strip())}\n"
    assert store.accepts(third.strip()) and not store.accepts(second.strip())


def test_list_shows_fingerprints_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """List says how many there are and names them by digests, which is all it shows."""
    file = tmp_path / "token"
    file.write_text("abc\n")
    assert run(capsys, "list", "--token-file", str(file)) == (0, f"{file}: 1 token\nba7816bf only\n", "")
    file.write_text("abc\nxyz\n")
    lines = f"{file}: 2 tokens\nba7816bf new\n{fingerprint('xyz')} old\n"
    assert run(capsys, "list", "--token-file", str(file)) == (0, lines, "")


def test_file_is_for_its_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that others could read is for its owner alone afterwards, and keeps its owner and group."""
    file = tmp_path / "token"
    file.write_text("abc\n")
    file.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(file, 12345, 23456)
    before = file.stat()
    run(capsys, "new", "--token-file", str(file))
    after = file.stat()
    assert stat.S_IMODE(after.st_mode) == 0o600
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_link_in_a_directory_of_the_service_is_not_followed(tmp_path: Path) -> None:
    """A link in place of the file is replaced, and what it leads to stays as it is."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "token").symlink_to("precious")
    if os.geteuid() == 0:
        os.chown(tmp_path / "precious", 12345, 23456)
    write_tokens(tmp_path / "token", ["abc"])
    assert not (tmp_path / "token").is_symlink()
    assert (tmp_path / "token").stat().st_uid == os.geteuid()
    assert ((tmp_path / "precious").read_text(), (tmp_path / "token").read_text()) == ("precious", "abc\n")


def test_link_named_by_the_operator_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is named by a link is changed where it is."""
    (tmp_path / "real").write_text("abc\n")
    (tmp_path / "link").symlink_to("real")
    run(capsys, "new", "--token-file", str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink() and len(read_tokens(tmp_path / "real")) == 2


def test_state_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --state it is the file in there that an agent started with the same flag reads."""
    _, token, _ = run(capsys, "new", "--state", str(tmp_path))
    assert read_tokens(tmp_path / NAME) == (token.strip(),)


def test_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With nothing named it is the service's: its file, and a newer copy where the running agent sees it at once."""
    service, state = tmp_path / ETC / NAME, tmp_path / STATE
    service.parent.mkdir(parents=True)
    service.write_text("abc\n")
    root = ("--root", str(tmp_path))
    run(capsys, "new", *root)
    assert len(read_tokens(service)) == 2 and not state.exists()
    state.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(state, 12345, 23456)
    credentials = tmp_path / "credentials"
    credentials.write_bytes(service.read_bytes())
    running = TokenStore([credentials, state / NAME])
    _, token, told = run(capsys, "new", *root)
    assert told.startswith(f"{service} and {state / NAME}: ")
    assert read_tokens(service) == read_tokens(state / NAME) and read_tokens(service)[0] == token.strip()
    assert running.accepts(token.strip())
    assert (state / NAME).stat().st_uid == state.stat().st_uid
    run(capsys, "drop-old", *root)
    assert read_tokens(service) == read_tokens(state / NAME) == (token.strip(),)


def test_copy_in_the_state_directory_is_never_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the service has made of its copy is overwritten by root's file, not the other way round."""
    service, state = tmp_path / ETC / NAME, tmp_path / STATE
    service.parent.mkdir(parents=True)
    state.mkdir(parents=True)
    service.write_text("abc\n")
    (state / NAME).write_text("planted\n")
    run(capsys, "drop-old", "--root", str(tmp_path))
    assert read_tokens(state / NAME) == read_tokens(service) == ("abc",)


def test_without_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no service is installed it is the agent's usual state directory."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    _, token, _ = run(capsys, "new", "--root", str(tmp_path))
    assert read_tokens(tmp_path / "state" / NAME) == (token.strip(),)


@pytest.mark.parametrize(
    ("action", "content", "sentence"),
    [
        ("list", None, "the token file cannot be read (FileNotFoundError)"),
        ("drop-old", None, "the token file cannot be read (FileNotFoundError)"),
        ("new", "a\nb\nc\n", "the token file holds more than two lines, the new and the old token"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str, content: str | None, sentence: str
) -> None:
    """A file that cannot be used is told in one line, and stays as it is."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    assert run(capsys, action, "--token-file", str(file)) == (2, "", f"agent token: {sentence}\n")
    assert not file.exists() if content is None else file.read_text() == content


def test_directory_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token that cannot be kept is not printed either."""
    file = tmp_path / "nowhere" / "token"
    status, out, err = run(capsys, "new", "--token-file", str(file))
    assert (status, out) == (2, "")
    assert err == f"agent token: {file} cannot be written (No such file or directory)\n"


def test_link_in_a_state_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A state directory's owner cannot have whoever runs the command read a file that is not the owner's."""
    secret = tmp_path / "secret"
    secret.write_text("root-only\n")
    state = tmp_path / "state"
    state.mkdir()
    (state / NAME).symlink_to(secret)
    for action in ("new", "list", "drop-old"):
        status, out, told = run(capsys, action, "--state", str(state))
        assert (status, out) == (2, "") and "is a link" in told
    assert (state / NAME).is_symlink() and secret.read_text() == "root-only\n"
