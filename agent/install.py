"""The commands `python -m agent install` and `uninstall`: the agent as a systemd service, every step told.

What install writes, below ``--root``::

    /etc/systemd/system/specdec-agent.service                  the unit, written anew each time
    /etc/systemd/system/specdec-agent.service.d/10-install.conf  what this machine needs beside it, if anything
    /etc/specdec/edge-token                                    made if it is not there, never changed
    /etc/specdec/agent.env                                     settings, kept once somebody has edited them
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from agent import unit
from agent.envfile import edited, parse, render
from agent.filefacts import open_regular
from agent.settings import PREFIX, AgentSettings, as_flags
from agent.token_command import ETC, STATE, new_token, write_tokens
from agent.tokens import NAME, read_tokens
from shared.settings import SettingsError, load

ENV_NAME = "agent.env"
CACHE = Path("var/cache/specdec-agent")

_FLAGS = {
    "ollama_models": ("DIR", "Ollama's model directory, if it is not the usual one"),
    "ollama_url": ("URL", "Ollama's server (default http://127.0.0.1:11434), or none"),
    "host": ("HOST", "address to listen on (default 127.0.0.1, for a tunnel or a proxy on this machine)"),
    "port": ("PORT", "port to listen on (default 8765)"),
    "tls_cert": ("PEM", "certificate to serve TLS with; systemd hands it to the service at each start"),
    "tls_key": ("PEM", "its private key"),
}
"""Settings that are flags of install; all others go into the file by hand."""


def install(argv: Sequence[str]) -> int:
    """Set the service up; 2 when it may not or a value is wrong, 1 when something could not be done."""
    try:
        args = _parse(_install_parser(), argv)
        if args.token_file is not None:
            read_tokens(args.token_file)
        job = _Job(args.root, dry=args.dry_run)
        env = _settings(job, args)
        _write_unit(job, env)
        _write_token(job, args.token_file)
        _reload(job)
    except SettingsError as exc:
        return _fail("install", str(exc), 2)
    except OSError as exc:
        return _fail("install", f"{exc.filename or 'a file'} cannot be written ({exc.strerror})", 1)
    return job.status


def uninstall(argv: Sequence[str]) -> int:
    """Undo it; 2 when it may not, 1 when something could not be undone."""
    try:
        args = _parse(_uninstall_parser(), argv)
        job = _Job(args.root, dry=args.dry_run)
        here = {name: job.root / name for name in (unit.UNITS / unit.NAME, unit.DROP_IN, ETC, STATE, CACHE)}
        if here[unit.UNITS / unit.NAME].exists():
            job.systemctl("disable", "--now", unit.NAME)
        job.remove(here[unit.UNITS / unit.NAME])
        job.remove(here[unit.DROP_IN])
        job.remove_if_empty(here[unit.DROP_IN].parent)
        job.systemctl("daemon-reload")
        env, token = here[ETC] / ENV_NAME, here[ETC] / NAME
        if args.purge or (env.exists() and not edited(text_of(env))):
            job.remove(env)
        elif env.exists():
            job.say("kept", f"{env} (it was edited; --purge removes it)")
        for path in (token, here[STATE], here[CACHE]):
            # DynamicUser= keeps directories below "private", and has links where they seem to be.
            private = path.parent / "private" / path.name
            if args.purge:
                job.remove(private)
                job.remove(path)
            elif path.exists():
                job.say("kept", f"{path} (--purge removes it)")
        job.remove_if_empty(here[ETC])
    except SettingsError as exc:
        return _fail("uninstall", str(exc), 2)
    except OSError as exc:
        return _fail("uninstall", f"{exc.filename or 'a file'} cannot be removed ({exc.strerror})", 1)
    return job.status


def text_of(path: Path) -> str:
    """Return a file's text; bytes that are no UTF-8 are replaced, as they are then no text of ours.

    Raises:
        OSError: It cannot be read, or is no regular file: a pipe would be waited for.
    """
    with open_regular(path) as file:
        return file.read().decode("utf-8", "replace")


class _Job:
    """Changes files and says so; with `dry` it only says so."""

    def __init__(self, root: Path, *, dry: bool) -> None:
        self.root = root
        self._dry = dry
        self._live = root == Path("/")
        self.status = 0

    def say(self, what: str, about: str) -> None:
        print(f"{what:<9} {about}", flush=True)

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        try:
            same = text_of(path) == text
        except FileNotFoundError:
            self.say("write", str(path))
        else:
            self.say("unchanged" if same else "update", str(path))
            if same:
                return
        if not self._dry:
            self.directory(path.parent)
            # A name that nobody can have planted a link at.
            handle, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                    os.fchmod(handle, mode)
                os.replace(fresh, path)
            except OSError:
                os.unlink(fresh)
                raise

    def directory(self, path: Path) -> None:
        if not self._dry:
            path.mkdir(mode=0o755, parents=True, exist_ok=True)

    def token(self, path: Path, tokens: Sequence[str]) -> None:
        if not self._dry:
            self.directory(path.parent)
            write_tokens(path, tokens)

    def remove(self, path: Path) -> None:
        if not path.exists() and not path.is_symlink():
            return
        self.say("remove", str(path))
        if self._dry:
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def remove_if_empty(self, path: Path) -> None:
        if not self._dry and path.is_dir() and not any(path.iterdir()):
            path.rmdir()

    def systemctl(self, *arguments: str) -> None:
        command = " ".join(("systemctl", *arguments))
        # What sd_booted(3) looks at.
        if not self._live or not Path("/run/systemd/system").is_dir():
            self.say("to do", f"{command}   (where systemd runs)")
            return
        self.say("run", command)
        if not self._dry:
            done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607
            if done.returncode:
                self.status = 1
                self.say("failed", f"{command}: {done.stderr.strip() or f'status {done.returncode}'}")


def _settings(job: _Job, args: argparse.Namespace) -> dict[str, str]:
    """Write the file of settings, or say what to put into it; return the settings that will count."""
    flags = {name: value for name in (*_FLAGS, "embedded") if (value := vars(args)[name]) is not None}
    given = {PREFIX + name.upper(): value for name, value in flags.items()}
    for name in ("ollama_models", "tls_cert", "tls_key"):
        if (variable := PREFIX + name.upper()) in given:
            given[variable] = os.path.abspath(given[variable])
            if name != "ollama_models" and not Path(given[variable]).is_file():
                raise SettingsError(
                    "BAD_SETTINGS", f"--{name.replace('_', '-')} is not a file: {given[variable]}"
                )
    path = job.root / ETC / ENV_NAME
    present = text_of(path) if path.exists() else None
    before = {} if present is None else parse(present)
    wanted = {**before, **given}
    if odd := next((name for name, value in given.items() if not value.isprintable()), None):
        raise SettingsError("BAD_SETTINGS", f"{odd} holds control characters")
    try:
        load(AgentSettings, wanted, PREFIX)
    except SettingsError as exc:
        raise as_flags(exc, flags) from None
    if present is None or not edited(present):
        job.write(path, render(wanted))
        return wanted
    job.say("kept", f"{path} (it was edited)")
    for name, value in given.items():
        if before.get(name) != value:
            job.say("to do", f"set {name}={value} in {path}, then run install again")
    return before


def _write_unit(job: _Job, env: dict[str, str]) -> None:
    place = unit.Place.here()
    job.write(job.root / unit.UNITS / unit.NAME, unit.rendered(place))
    needs = unit.drop_in(place, load(AgentSettings, env, PREFIX), groups=_groups(job.root))
    path = job.root / unit.DROP_IN
    if needs:
        job.write(path, needs)
    else:
        job.remove(path)
        job.remove_if_empty(path.parent)
    for path in place.unreadable():
        job.say(
            "warning", f"the service's user cannot reach {path}: it must be open to all, and not below /root"
        )


def _write_token(job: _Job, given: Path | None) -> None:
    path = job.root / ETC / NAME
    if path.exists():
        known = f"{path} (a token is never overwritten: see python -m agent token)"
        job.say("unchanged" if given is None or read_tokens(given) == read_tokens(path) else "kept", known)
    elif given is not None:
        job.say("write", f"{path} (the token of {given})")
        job.token(path, read_tokens(given))
    else:
        job.say("write", f"{path} (a new token; the edge needs it: sudo cat {path})")
        job.token(path, (new_token(),))


def _reload(job: _Job) -> None:
    job.systemctl("daemon-reload")
    job.systemctl("enable", unit.NAME)
    job.say("to do", f"systemctl restart {unit.NAME}, then systemctl status {unit.NAME}")


def _groups(root: Path) -> set[str]:
    try:
        lines = (root / "etc/group").read_text("utf-8").splitlines()
    except OSError:
        return set()
    return {line.partition(":")[0] for line in lines}


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    args = parser.parse_args(argv)
    args.root = args.root.absolute()
    if args.root == Path("/") and os.geteuid() != 0 and not args.dry_run:
        raise SettingsError("NOT_ROOT", "this needs root", "use sudo, --root DIR or --dry-run")
    return args


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError("BAD_SETTINGS", message, f"see {self.prog} --help")


def _install_parser() -> argparse.ArgumentParser:
    parser = _common("install", "Set the agent up as a systemd service, and say each step.")
    for name, (metavar, text) in _FLAGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    parser.add_argument(
        "--embedded", action="store_const", const="true", help="use the small pair that comes with the agent"
    )
    parser.add_argument("--token-file", type=Path, metavar="F", help="take this token instead of a new one")
    return parser


def _uninstall_parser() -> argparse.ArgumentParser:
    parser = _common("uninstall", "Stop the service and remove what install wrote.")
    parser.add_argument(
        "--purge", action="store_true", help="also the token, the settings, the runs and the key"
    )
    return parser


def _common(name: str, text: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"python -m agent {name}", description=text, allow_abbrev=False)
    parser.add_argument(
        "--root", type=Path, default=Path("/"), metavar="DIR", help="work below DIR, as for an image"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    return parser


def _fail(command: str, line: str, status: int) -> int:
    print(f"agent {command}: {line}", file=sys.stderr)
    return status
