"""The command `python -m agent token`: a new token beside the present one, and the old one's end."""

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent.settings import AgentSettings
from agent.tokens import NAME, fingerprint, read_tokens
from shared.settings import SettingsError

ETC = Path("etc/specdec")
STATE = Path("var/lib/specdec-agent")
"""Of the service, below the root directory: its settings with the token, and its state (see `agent.install`)."""

TOKEN_BYTES = 32


def main(argv: Sequence[str]) -> int:
    """Run the command; 2 when the token file cannot be used."""
    args = _parser().parse_args(argv)
    try:
        files = _files(args)
        for file in files:
            if file.is_symlink():
                # Its owner, who need not be us, would have us read or write what is not theirs.
                raise SettingsError(
                    "BAD_SETTINGS", f"{file} is a link", "name the file itself with --token-file"
                )
        present = read_tokens(files[0]) if args.action != "new" or files[0].exists() else ()
        match args.action:
            case "new":
                token = new_token()
                _write_all(files, (token, *present[:1]))
                # Alone on stdout, once: nothing else ever shows it.
                print(token)
                _tell(
                    files, "the former token counts as well until drop-old" if present else "the only token"
                )
            case "drop-old":
                _write_all(files, present[:1])
                _tell(files, f"the only token is {fingerprint(present[0])}")
            case _:
                print(f"{files[0]}: {len(present)} {'token' if len(present) == 1 else 'tokens'}")
                for token, name in zip(present, ("new", "old"), strict=False):
                    print(f"{fingerprint(token)} {name if len(present) > 1 else 'only'}")
    except SettingsError as exc:
        print(f"agent token: {exc}", file=sys.stderr)
        return 2
    return 0


def new_token() -> str:
    """Return a fresh token."""
    return secrets.token_hex(TOKEN_BYTES)


def write_tokens(path: Path, tokens: Sequence[str]) -> None:
    """Put tokens into a file, for its owner alone and all at once.

    The file keeps its owner and group; a new one gets those of its directory. What stands in its place is not followed
    if it is a link, as root may be writing where the service can.

    Raises:
        OSError: It cannot be written.
    """
    try:
        owner = path.lstat()
    except FileNotFoundError:
        owner = path.parent.stat()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{NAME}-")
    try:
        with open(handle, "w", encoding="ascii") as file:
            file.write("".join(f"{token}\n" for token in tokens))
            file.flush()
            made = os.fstat(file.fileno())
            if (made.st_uid, made.st_gid) != (owner.st_uid, owner.st_gid):
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _files(args: argparse.Namespace) -> list[Path]:
    """Return the file that counts, then the copies of it."""
    if args.token_file is not None:
        return [args.token_file.resolve()]
    if args.state is not None:
        return [args.state / NAME]
    service, state = args.root / ETC / NAME, args.root / STATE
    if not service.exists():
        return [AgentSettings().state / NAME]
    if not os.access(service, os.R_OK | os.W_OK):
        raise SettingsError(
            "BAD_SETTINGS", f"{service} is for root alone", "use sudo, or name --token-file or --state"
        )
    # The service has a copy from when it started, and takes one in its state directory that is newer.
    return [service, state / NAME] if state.is_dir() else [service]


def _write_all(files: Sequence[Path], tokens: Sequence[str]) -> None:
    for file in files:
        try:
            write_tokens(file, tokens)
        except OSError as exc:
            raise SettingsError("BAD_SETTINGS", f"{file} cannot be written ({exc.strerror})") from None


def _tell(files: Sequence[Path], what: str) -> None:
    print(f"{' and '.join(map(str, files))}: {what}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agent token",
        description="Change the agent's token without a restart: new, then tell the edge, then drop-old.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "action",
        choices=("new", "list", "drop-old"),
        help="put a new token before the present one and print it | show fingerprints (SHA-256, 8 digits) | "
        "leave the first token alone",
    )
    parser.add_argument("--token-file", type=Path, metavar="F", help="the file that the agent was given")
    parser.add_argument("--state", type=Path, metavar="DIR", help="the agent's state directory")
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help=argparse.SUPPRESS)
    return parser
