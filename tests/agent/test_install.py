"""Tests of agent.install, below a directory that stands for the machine."""

import os
import stat
from pathlib import Path

import pytest

from agent.install import install, uninstall
from agent.settings import load_settings
from agent.tokens import open_tokens, read_tokens
from agent.unit import Place, drop_in, rendered

UNIT = "etc/systemd/system/specdec-agent.service"
DROP_IN = "etc/systemd/system/specdec-agent.service.d/10-install.conf"
TOKEN, ENV = "etc/specdec/edge-token", "etc/specdec/agent.env"


class Machine:
    """A directory in which the agent is installed, and what the commands have said."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Take an empty directory."""
        self.root = root
        self._capsys = capsys

    def install(self, *flags: str) -> list[str]:
        """Install, which must succeed; return what was said, without the root directory."""
        return self._run(install, *flags)

    def uninstall(self, *flags: str) -> list[str]:
        """Uninstall, likewise."""
        return self._run(uninstall, *flags)

    def _run(self, command: object, *flags: str) -> list[str]:
        assert callable(command)
        status = command(["--root", str(self.root), *flags])
        out, err = self._capsys.readouterr()
        assert (status, err) == (0, "")
        lines = out.replace(f"{self.root}/", "").splitlines()
        # Where this project lies is the tester's business.
        return [line for line in lines if not line.startswith("warning")]

    def files(self) -> list[str]:
        """Return the files there are."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())

    def read(self, name: str) -> str:
        """Return a file's text."""
        return (self.root / name).read_text()


@pytest.fixture
def machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which the code lies below /opt."""
    opt = Path("/opt/specdec")
    monkeypatch.setattr(Place, "here", lambda: Place(opt / ".venv/bin/python", opt, (opt / ".venv",)))
    return Machine(tmp_path, capsys)


def test_install(machine: Machine) -> None:
    """It writes unit, settings and a token for root alone, and says each of them and what is left to do."""
    said = machine.install("--port", "9000")
    assert said == [
        f"write     {ENV}",
        f"write     {UNIT}",
        f"write     {TOKEN} (a new token; the edge needs it: sudo cat {TOKEN})",
        "to do     systemctl daemon-reload   (where systemd runs)",
        "to do     systemctl enable specdec-agent.service   (where systemd runs)",
        "to do     systemctl restart specdec-agent.service, then systemctl status specdec-agent.service",
    ]
    assert machine.files() == [ENV, TOKEN, UNIT]
    assert machine.read(UNIT) == rendered(Place.here())
    assert machine.read(ENV).endswith("\nSPECDEC_PORT=9000\n")
    assert stat.S_IMODE((machine.root / TOKEN).stat().st_mode) == 0o600
    (token,) = read_tokens(machine.root / TOKEN)
    assert len(token) == 64 and token not in "".join(said)


def test_second_time(machine: Machine) -> None:
    """A second run changes nothing and says so."""
    machine.install("--port", "9000")
    before = {name: (machine.read(name), (machine.root / name).stat().st_ino) for name in machine.files()}
    assert machine.install()[:3] == [
        f"unchanged {ENV}",
        f"unchanged {UNIT}",
        f"unchanged {TOKEN} (a token is never overwritten: see python -m agent token)",
    ]
    after = {name: (machine.read(name), (machine.root / name).stat().st_ino) for name in machine.files()}
    assert after == before


def test_settings_are_added_to(machine: Machine) -> None:
    """Settings of an earlier run stay, a flag changes its own, and the drop-in follows."""
    machine.install("--port", "9000", "--embedded")
    assert machine.install("--host", "0.0.0.0", "--port", "9001")[:3] == [  # noqa: S104
        f"update    {ENV}",
        f"unchanged {UNIT}",
        f"write     {DROP_IN}",
    ]
    assert machine.read(ENV).splitlines()[-3:] == [
        "SPECDEC_EMBEDDED=true",
        "SPECDEC_HOST=0.0.0.0",
        "SPECDEC_PORT=9001",
    ]
    assert "\nIPAddressDeny=\n" in machine.read(DROP_IN)
    assert machine.install("--host", "127.0.0.1")[2] == f"remove    {DROP_IN}"
    assert not (machine.root / DROP_IN).parent.exists()


def test_edited_settings_are_kept(machine: Machine) -> None:
    """Settings that somebody has edited are theirs: flags are told, not written, and what they say counts."""
    machine.install("--port", "9000")
    edited = machine.read(ENV) + "SPECDEC_OLLAMA_MODELS=/home/ann/models\n"
    (machine.root / ENV).write_text(edited)
    assert machine.install("--port", "9001")[:4] == [
        f"kept      {ENV} (it was edited)",
        f"to do     set SPECDEC_PORT=9001 in {ENV}, then run install again",
        f"unchanged {UNIT}",
        f"write     {DROP_IN}",
    ]
    assert machine.read(ENV) == edited
    assert "BindReadOnlyPaths=-/home/ann/models" in machine.read(DROP_IN)


def test_group_of_ollama(machine: Machine) -> None:
    """Ollama's group is looked for on the machine that is installed to."""
    (machine.root / "etc").mkdir()
    (machine.root / "etc/group").write_text("root:x:0:\nollama:x:998:ann\n")
    machine.install()
    assert "SupplementaryGroups=ollama" in machine.read(DROP_IN)


def test_given_token(machine: Machine) -> None:
    """A token that is given is taken, and never put over one that is there."""
    for name in ("one", "two"):
        (machine.root / name).write_text(f"{name}-token\n")
    given = machine.root / "one"
    assert machine.install("--token-file", str(given))[2] == f"write     {TOKEN} (the token of one)"
    assert machine.install("--token-file", str(given))[2].startswith("unchanged")
    assert machine.install("--token-file", str(machine.root / "two"))[2].startswith(f"kept      {TOKEN}")
    assert read_tokens(machine.root / TOKEN) == ("one-token",)


def test_relative_paths(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service works in another directory, so that its paths are written in full."""
    monkeypatch.chdir(machine.root)
    machine.install("--ollama-models", "models")
    assert f"SPECDEC_OLLAMA_MODELS={machine.root}/models\n" in machine.read(ENV)


def test_the_agent_understands_it(machine: Machine) -> None:
    """What install writes is what the agent reads: settings from the environment, the token as a credential."""
    machine.install("--port", "9000", "--ollama-url", "none")
    environ = dict(
        line.split("=", 1) for line in machine.read(ENV).splitlines() if line and not line.startswith("#")
    )
    environ["CREDENTIALS_DIRECTORY"] = str((machine.root / TOKEN).parent)
    settings = load_settings(["--state", str(machine.root)], environ)
    assert (settings.port, settings.ollama_url) == (9000, "")
    store = open_tokens(settings, environ)
    assert store is not None and store.tokens == read_tokens(machine.root / TOKEN)


def test_dry_run(machine: Machine) -> None:
    """A dry run says the same and does nothing."""
    said = machine.install("--dry-run")
    assert machine.files() == [] and said == machine.install()
    files = machine.files()
    assert machine.uninstall("--purge", "--dry-run") and machine.files() == files


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--port", "70000"], "--port must be at most 65535"),
        (["--tls-cert", __file__], "--tls-cert and --tls-key go together"),
        (["--tls-cert", "/nowhere", "--tls-key", __file__], "--tls-cert is not a file: /nowhere"),
        (["--token-file", "/nowhere"], "the token file cannot be read (FileNotFoundError)"),
        (["--bogus"], "unrecognized arguments: --bogus; see python -m agent install --help"),
    ],
)
def test_wrong_values(
    machine: Machine, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    """A wrong value is told in one line before anything is written."""
    assert install(["--root", str(machine.root), *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"agent install: {sentence}\n")
    assert machine.files() == []


@pytest.mark.parametrize("command", [install, uninstall])
def test_needs_root(
    command: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root the real machine is left alone, in one sentence."""
    assert callable(command)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert command([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.endswith(": this needs root; use sudo, --root DIR or --dry-run\n")


def test_file_in_the_way(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be written is named with the reason."""
    (machine.root / "etc").write_text("no directory")
    assert install(["--root", str(machine.root)]) == 1
    assert (
        capsys.readouterr().err
        == f"agent install: {machine.root}/{ENV} cannot be written (Not a directory)\n"
    )


def test_uninstall(machine: Machine) -> None:
    """What install wrote goes; the token and the state stay, and are named."""
    machine.install("--host", "::")
    for name in ("var/lib/private/specdec-agent", "var/cache/private/specdec-agent"):
        (machine.root / name).mkdir(parents=True)
        (machine.root / name / "file").touch()
        link = machine.root / name.replace("private/", "")
        link.symlink_to("private/specdec-agent")
    assert machine.uninstall() == [
        "to do     systemctl disable --now specdec-agent.service   (where systemd runs)",
        f"remove    {UNIT}",
        f"remove    {DROP_IN}",
        "to do     systemctl daemon-reload   (where systemd runs)",
        f"remove    {ENV}",
        f"kept      {TOKEN} (--purge removes it)",
        "kept      var/lib/specdec-agent (--purge removes it)",
        "kept      var/cache/specdec-agent (--purge removes it)",
    ]
    assert [name for name in machine.files() if name.startswith("etc")] == [TOKEN]
    machine.uninstall("--purge")
    assert machine.files() == [] and not list((machine.root / "var").rglob("specdec-agent"))
    assert not (machine.root / "etc/specdec").exists()
    assert machine.uninstall() == ["to do     systemctl daemon-reload   (where systemd runs)"]


def test_uninstall_keeps_what_was_edited(machine: Machine) -> None:
    """Settings that somebody has edited stay until everything is to go."""
    machine.install()
    (machine.root / ENV).write_text("SPECDEC_PORT=1\n")
    assert f"kept      {ENV} (it was edited; --purge removes it)" in machine.uninstall()
    assert machine.files() == [ENV, TOKEN]


def test_code_below_root_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that the service's user cannot reach is told."""
    code = Path("/root/specdec")
    monkeypatch.setattr(Place, "here", lambda: Place(code / "python", code, (code,)))
    assert install(["--root", str(tmp_path)]) == 0
    assert "warning   the service's user cannot reach /root/specdec: " in capsys.readouterr().out
    assert drop_in(Place.here(), load_settings([], {}), ()) != ""


def test_planted_link_is_not_written_through(machine: Machine, tmp_path: Path) -> None:
    """A link that somebody planted at a name beside a file is not followed, and what it names stays as it was."""
    victim = tmp_path / "victim"
    victim.write_text("root's")
    folder = machine.root / "etc/specdec"
    folder.mkdir(parents=True)
    for name in (".agent.env.new", ".agent.env"):
        (folder / name).symlink_to(victim)
    machine.install()
    assert victim.read_text() == "root's"
    assert not (machine.root / ENV).is_symlink()
    assert stat.S_IMODE((machine.root / ENV).stat().st_mode) == 0o644


@pytest.mark.parametrize("kind", ["pipe", "bytes"])
def test_settings_that_are_no_text(machine: Machine, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """A pipe in the place of the settings is not waited for, and bytes that are no text end in no traceback."""
    env = machine.root / ENV
    env.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(env)
        assert install(["--root", str(machine.root)]) == 1
        assert "cannot be" in capsys.readouterr().err
        return
    env.write_bytes(b"\xff\xfe\n")
    machine.install()
    assert env.read_bytes() == b"\xff\xfe\n"
    machine.uninstall()


def test_control_characters_are_refused(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A value with a line break cannot become a setting of its own."""
    flags = ["--root", str(machine.root), "--ollama-models", "/srv/x\nSPECDEC_INSECURE=true"]
    assert install(flags) == 2
    said = capsys.readouterr().err
    assert said.startswith("agent install: ") and "control characters" in said
    assert not (machine.root / ENV).exists()
