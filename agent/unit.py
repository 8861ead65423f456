"""The unit file as this machine needs it: `specdec-agent.service` from beside this module, and a drop-in."""

import os
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from agent.settings import AgentSettings, is_loopback
from shared.settings import SettingsError

NAME = "specdec-agent.service"
UNITS = Path("etc/systemd/system")
DROP_IN = UNITS / f"{NAME}.d" / "10-install.conf"
"""Where they go, below the root directory."""

HOMES = tuple(map(Path, ("/home", "/root", "/run/user")))
"""What ProtectHome= hides."""

ROOTS_HOME = Path("/root")
"""What stands in for it is root's alone, so that nothing below it can be reached."""

_CODE = ("ExecStart", "WorkingDirectory")


@dataclass(frozen=True)
class Place:
    """Where the agent's code is.

    Attributes:
        python: The interpreter to run it with.
        code: The directory in which the package lies.
        libraries: Where that interpreter finds its packages and itself.
    """

    python: Path
    code: Path
    libraries: tuple[Path, ...]

    @classmethod
    def here(cls) -> "Place":
        """Return where the code that is running is."""
        libraries = (Path(sys.prefix), Path(sys.base_prefix))
        return cls(Path(sys.executable), Path(__file__).resolve().parents[1], libraries)

    @property
    def directories(self) -> list[Path]:
        """All that the service must be able to read, none inside another."""
        return _outermost((self.code, *self.libraries))

    def unreadable(self) -> list[Path]:
        """Return the directories that the service's user could not read, whatever the unit says."""
        return [path for path in self.directories if not _open_to_all(path)]


def rendered(place: Place) -> str:
    """Return the unit for code at this place.

    Raises:
        SettingsError: Its path cannot stand in a unit.
    """
    text = files("agent").joinpath(NAME).read_text("utf-8")
    values = dict(zip(_CODE, (f"{_quoted(place.python)} -m agent", _specified(place.code)), strict=True))
    return re.sub(
        rf"^({'|'.join(_CODE)})=.*$", lambda found: f"{found[1]}={values[found[1]]}", text, flags=re.M
    )


def drop_in(place: Place, settings: AgentSettings, groups: Collection[str]) -> str:
    """Return what the unit lacks for this machine and these settings; empty if nothing.

    Args:
        place: Where the code is.
        settings: The service's settings.
        groups: The groups that there are.

    Raises:
        SettingsError: A path cannot stand in a unit.
    """
    lines: list[str] = []
    code = [path for path in place.directories if _in_home(path)]
    named = [settings.ollama_models, *(path.parent for path in (settings.draft, settings.target) if path)]
    models = [path for path in _outermost(path for path in named if path) if _in_home(path)]
    if code or models:
        # The homes stay hidden but for these. Models may come later, so that a missing directory is no error.
        lines += ["ProtectHome=tmpfs", *(f"BindReadOnlyPaths={_quoted(path)}" for path in code)]
        lines += [f"BindReadOnlyPaths=-{_quoted(path)}" for path in models]
    if "ollama" in groups:
        # Ollama's own service keeps its models in a home that its group may read.
        lines.append("SupplementaryGroups=ollama")
    hosts = [settings.host, urlsplit(settings.ollama_url).hostname or "localhost"]
    if not all(is_loopback(host) for host in hosts):
        # An empty value takes back what the unit says.
        lines += ["IPAddressAllow=", "IPAddressDeny="]
    if settings.tls_cert is not None and settings.tls_key is not None:
        # Keys are root's; systemd hands the service a copy. Flags outrank the paths in the settings.
        lines += [f"LoadCredential=tls-cert:{_plain(settings.tls_cert)}"]
        lines += [f"LoadCredential=tls-key:{_plain(settings.tls_key)}"]
        flags = "--tls-cert %d/tls-cert --tls-key %d/tls-key"
        lines += ["ExecStart=", f"ExecStart={_quoted(place.python)} -m agent {flags}"]
    return "\n".join(["# Written by `python -m agent install`.", "[Service]", *lines, ""]) if lines else ""


def _in_home(path: Path) -> bool:
    return any(path.is_relative_to(home) for home in HOMES)


def _outermost(paths: Iterable[Path]) -> list[Path]:
    kept: list[Path] = []
    for path in sorted({Path(os.path.abspath(path)) for path in paths}, key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def _open_to_all(path: Path) -> bool:
    if path.is_relative_to(ROOTS_HOME):
        return False
    # Below other homes only the directory itself counts, as it is mounted where the way there is open.
    ways = [] if _in_home(path) else list(path.parents)
    try:
        return bool(path.stat().st_mode & 0o005 == 0o005) and all(way.stat().st_mode & 0o001 for way in ways)
    except OSError:
        return False


def _quoted(path: Path) -> str:
    return f'"{_plain(path)}"' if " " in str(path) else _plain(path)


def _plain(path: Path) -> str:
    if re.search(r"[\x00-\x1f\"'\\$:;]", str(path)):
        raise SettingsError(
            "BAD_SETTINGS", f"a path with special characters cannot be used in a unit: {str(path)!r}"
        )
    return _specified(path)


def _specified(path: Path) -> str:
    return str(path).replace("%", "%%")
