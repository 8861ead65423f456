"""Tests of agent.unit and of the unit file itself, by systemd's own tools; these need systemd-analyze."""

import re
import subprocess
from pathlib import Path

import pytest

from agent.settings import AgentSettings
from agent.unit import DROP_IN, NAME, Place, drop_in, rendered
from shared.settings import SettingsError
from tests.agent.support import PATIENCE, ROOT
from tests.programs import program

SHIPPED = ROOT / "agent" / NAME
OPT = Place(
    Path("/opt/specdec/.venv/bin/python"), Path("/opt/specdec"), (Path("/opt/specdec/.venv"), Path("/usr"))
)

CUDA_DEVICES = {
    "char-nvidia",
    "char-nvidia-frontend",
    "char-nvidiactl",
    "char-nvidia-uvm",
    "char-nvidia-caps",
}
"""Groups of devices that CUDA opens: drivers call the cards' one of the first two."""


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze."""
    command = [program("systemd-analyze", "systemd"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def values(text: str, key: str) -> list[str]:
    """Return what a key is set to, in all its lines."""
    return re.findall(rf"^{key}=(.*)$", text, re.M)


def in_place(directory: Path, text: str, more: str = "") -> Path:
    """Write a unit and its drop-in as systemd finds them, and return the unit's file."""
    file = directory / NAME
    file.write_text(text)
    if more:
        (directory / f"{NAME}.d").mkdir()
        (directory / f"{NAME}.d" / DROP_IN.name).write_text(more)
    return file


def here(**settings: object) -> tuple[str, str]:
    """Return the unit and the drop-in for the interpreter that runs this test."""
    place = Place.here()
    return rendered(place), drop_in(place, AgentSettings.model_validate(settings), {"ollama"})


# Systemd's tools.


def test_verify() -> None:
    """Systemd finds nothing wrong with the unit as it is shipped: no unknown key, no value that is none."""
    done = analyze("verify", "--recursive-errors=no", str(SHIPPED))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"host": "0.0.0.0", "ollama_models": Path("/home/someone/my models")},  # noqa: S104
        {"tls_cert": Path("/etc/ssl/cert.pem"), "tls_key": Path("/etc/ssl/key.pem")},
    ],
)
def test_verify_as_installed(tmp_path: Path, settings: dict[str, object]) -> None:
    """Nor with the unit that install writes for this interpreter, drop-in included."""
    done = analyze("verify", "--recursive-errors=no", str(in_place(tmp_path, *here(**settings))))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verify_would_notice(tmp_path: Path) -> None:
    """The check finds a misspelt key and an interpreter that is not there."""
    for text in (
        SHIPPED.read_text().replace("ProtectHome=", "ProtectHomes="),
        rendered(Place(Path("/nowhere/python"), Path("/"), ())),
    ):
        assert analyze("verify", "--recursive-errors=no", str(in_place(tmp_path, text))).returncode == 1


def test_exposure(tmp_path: Path) -> None:
    """What the service could do if it were taken over is rated at 2.0 at most, of 10."""
    for unit in (SHIPPED, in_place(tmp_path, rendered(Place.here()))):
        done = analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(unit))
        assert done.returncode == 0, done.stdout.splitlines()[-1]
    loose = in_place(tmp_path, SHIPPED.read_text().replace("SystemCallFilter=", "# "))
    assert analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(loose)).returncode == 1


# What they do not check.


def test_cuda_finds_its_devices() -> None:
    """All device groups that CUDA needs are let through, and nothing hides them."""
    text = SHIPPED.read_text()
    assert values(text, "DevicePolicy") == ["closed"]
    assert set(values(text, "DeviceAllow")) == {f"{group} rwm" for group in CUDA_DEVICES}
    assert values(text, "PrivateDevices") == ["no"]
    # NVML's and CUDA's clients need these as well.
    assert values(text, "ProcSubset") == ["all"]
    assert set(values(text, "RestrictAddressFamilies")[0].split()) == {"AF_UNIX", "AF_INET", "AF_INET6"}
    assert values(text, "MemoryDenyWriteExecute") == []
    for key in ("Wants", "After"):
        assert "modprobe@nvidia_uvm.service" in values(text, key)[0].split()


def test_stop_waits_for_the_drain() -> None:
    """Systemd gives a run under way its grace and the worker its time before it kills them."""
    text = SHIPPED.read_text()
    grace = float(re.findall(r"^Environment=SPECDEC_SHUTDOWN_GRACE_S=(\d+)$", text, re.M)[0])
    assert float(values(text, "TimeoutStopSec")[0]) > grace + AgentSettings().cancel_grace_s
    assert values(text, "KillMode") == ["mixed"]


def test_watchdog_outlives_a_look() -> None:
    """The service notifies, is watched and restarted, and a wrong setting is not tried again and again."""
    text = SHIPPED.read_text()
    assert (values(text, "Type"), values(text, "NotifyAccess")) == (["notify"], ["main"])
    assert float(values(text, "WatchdogSec")[0]) >= 30
    assert (values(text, "Restart"), values(text, "RestartPreventExitStatus")) == (["on-failure"], ["2"])
    assert values(text, "StartLimitIntervalSec") == ["0"]


def test_no_secret_in_the_environment() -> None:
    """The token comes as a credential, and a crash leaves no memory behind."""
    text = SHIPPED.read_text()
    assert values(text, "LoadCredential") == ["edge-token:/etc/specdec/edge-token"]
    assert "TOKEN=" not in text and values(text, "LimitCORE") == ["0"]


# What install makes of it.


def test_rendered() -> None:
    """The unit for a place differs from the one shipped in where the code is, and in nothing else."""
    changed = set(rendered(OPT).splitlines()) ^ set(SHIPPED.read_text().splitlines())
    assert changed == {
        "ExecStart=/usr/bin/env /opt/specdec/.venv/bin/python -m agent",
        "ExecStart=/opt/specdec/.venv/bin/python -m agent",
    }


def test_blanks_and_percents() -> None:
    """Paths stand in the unit so that systemd reads them as they are."""
    text = rendered(Place(Path("/srv/my code/50%/python"), Path("/srv/my code/50%"), ()))
    assert values(text, "ExecStart") == ['"/srv/my code/50%%/python" -m agent']
    assert values(text, "WorkingDirectory") == ["/srv/my code/50%%"]


@pytest.mark.parametrize("character", ['"', "\n", "$", "\\", ":", ";"])
def test_paths_that_no_unit_can_hold(character: str) -> None:
    """A path that systemd would read otherwise is refused."""
    with pytest.raises(SettingsError, match="special characters"):
        rendered(Place(Path(f"/srv/a{character}b"), Path("/srv"), ()))


def test_usual_machine_needs_no_drop_in() -> None:
    """Code below /opt and no Ollama need nothing more."""
    assert drop_in(OPT, AgentSettings(), set()) == ""


def test_models_in_a_home() -> None:
    """Homes stay hidden but for the models, which need not be there yet."""
    text = drop_in(OPT, AgentSettings(ollama_models=Path("/home/ann/.ollama/models")), {"users"})
    assert values(text, "ProtectHome") == ["tmpfs"]
    assert values(text, "BindReadOnlyPaths") == ["-/home/ann/.ollama/models"]
    named = AgentSettings(draft=Path("/home/ann/gguf/a.gguf"), target=Path("/home/ann/gguf/b.gguf"))
    assert values(drop_in(OPT, named, ()), "BindReadOnlyPaths") == ["-/home/ann/gguf"]
    assert drop_in(OPT, AgentSettings(ollama_models=Path("/srv/ollama")), ()) == ""


def test_code_in_a_home() -> None:
    """Code in a home is let through, once, with the interpreter that it runs on."""
    libraries = (Path("/home/ann/specdec/.venv"), Path("/home/ann/.pyenv/versions/3.12"))
    place = Place(libraries[0] / "bin/python", Path("/home/ann/specdec"), libraries)
    text = drop_in(place, AgentSettings(), ())
    assert values(text, "BindReadOnlyPaths") == ["/home/ann/specdec", "/home/ann/.pyenv/versions/3.12"]


def test_group_of_ollama() -> None:
    """Where there is Ollama's group the service is in it."""
    assert values(drop_in(OPT, AgentSettings(), {"ollama", "users"}), "SupplementaryGroups") == ["ollama"]


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"ollama_url": "http://gpu2:11434"}])  # noqa: S104
def test_network_beyond_loopback(settings: dict[str, str]) -> None:
    """Whoever listens or asks elsewhere is let out; others are not."""
    text = drop_in(OPT, AgentSettings.model_validate(settings), ())
    assert (values(text, "IPAddressAllow"), values(text, "IPAddressDeny")) == ([""], [""])
    assert drop_in(OPT, AgentSettings(host="::1", ollama_url="none"), ()) == ""
    assert values(SHIPPED.read_text(), "IPAddressDeny") == ["any"]


def test_certificate() -> None:
    """The key, which is root's, reaches the service as a credential, and the flags name that copy."""
    settings = AgentSettings(tls_cert=Path("/etc/ssl/c.pem"), tls_key=Path("/etc/ssl/k.pem"))
    text = drop_in(OPT, settings, ())
    assert values(text, "LoadCredential") == ["tls-cert:/etc/ssl/c.pem", "tls-key:/etc/ssl/k.pem"]
    assert values(text, "ExecStart") == [
        "",
        "/opt/specdec/.venv/bin/python -m agent --tls-cert %d/tls-cert --tls-key %d/tls-key",
    ]


def test_code_that_the_service_cannot_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories that others may not read, or that lie below root's home, are named; others are not."""
    secret, roots, code = (tmp_path / name for name in ("secret", "roots", "code"))
    for path, mode in ((secret, 0o700), (roots, 0o755), (code, 0o755)):
        path.mkdir()
        path.chmod(mode)
    # As in a home, the way there does not count.
    monkeypatch.setattr("agent.unit.HOMES", (tmp_path,))
    monkeypatch.setattr("agent.unit.ROOTS_HOME", roots)
    place = Place(code / "python", code, (secret, roots))
    assert set(place.unreadable()) == {secret, roots}
    assert Place(Path("/"), code, (Path("/usr"), tmp_path / "gone")).unreadable() == [tmp_path / "gone"]
    monkeypatch.setattr("agent.unit.HOMES", ())
    tmp_path.chmod(0o700)
    assert Place(Path("/"), code, ()).unreadable() == [code]


def test_place_of_this_code() -> None:
    """The place of the code that runs is found."""
    assert Place.here().code == ROOT and Place.here().python.is_file()
