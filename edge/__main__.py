"""``python -m edge``: the edge on this machine, over real HTTP."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from edge.keyring import Keyring
from edge.local_server import serve
from edge.pool import WorkerDied, WorkerPool
from edge.settings import EdgeSettings
from edge.signing import FileSigner
from edge.store import DirectoryStore, StoreDown
from shared.errors import SpecdecError
from shared.settings import SettingsError, load

# These answer health and curve; runs that fill all other workers leave them free.
QUICK_WORKERS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the local edge until it is told to stop."""
    environ = dict(os.environ)
    try:
        arguments = _parser().parse_args(argv)
        if arguments.tower_url is not None:
            environ["SPECDEC_TOWER_URL"] = arguments.tower_url
        if arguments.token_file is not None:
            environ["SPECDEC_TOWER_TOKEN"] = _token(arguments.token_file)
        if arguments.tower_ca is not None:
            environ["SPECDEC_TOWER_CA"] = str(arguments.tower_ca)
        if arguments.tower_headers is not None:
            environ["SPECDEC_TOWER_HEADERS"] = _headers(arguments.tower_headers)
        if arguments.tower_public_key is not None:
            environ["SPECDEC_TOWER_PUBLIC_KEY"] = str(arguments.tower_public_key)
        if arguments.signing_key_file is not None:
            environ |= {"SPECDEC_SIGNER": "file", "SPECDEC_SIGNING_KEY_FILE": str(arguments.signing_key_file)}
        if arguments.receipts_dir is not None:
            environ["SPECDEC_RECEIPTS_DIR"] = str(arguments.receipts_dir)
        settings = load(EdgeSettings, environ)
        # All workers use the same key, so it is made here if need be; and what is wrong with one shows here.
        keyring = Keyring(settings)
        signer = keyring.signer
        # The workers get texts, not files that may change: all of them must say the same.
        texts = {
            "TOWER_PUBLIC_KEY": settings.tower_public_key,
            "TOWER_CA": settings.tower_ca,
            "KEYS": settings.keys,
        }
        environ |= {f"SPECDEC_{name}": text for name, text in texts.items() if text is not None}
        if isinstance(signer, FileSigner):
            environ["SPECDEC_SIGNING_KEYID"] = signer.keyid
        if settings.run_secret is None:
            # All workers need the same one. Run ids then live as long as this server.
            environ["SPECDEC_RUN_SECRET"] = secrets.token_hex(32)
        if settings.receipts_dir is not None:
            DirectoryStore(settings.receipts_dir).check()
        tokens = settings.tower_token or settings.tower_token_secret
        about = (
            f"the tower is {settings.tower_url}, {'with' if tokens else 'without'} a token; "
            f"receipts are {'signed' if signer else 'not signed'}"
        )
        # Nobody collects metrics here, unless it is asked for.
        environ.setdefault("POWERTOOLS_METRICS_DISABLED", "true")
        with _limits_file(settings) as file:
            if file is not None:
                environ["SPECDEC_LIMITS_FILE"] = str(file)
            asyncio.run(_serve(arguments, environ, about))
    except OSError as error:
        where = f"{arguments.host}:{arguments.port}"
        return _fail(f"cannot listen on {where} ({error.strerror}); choose another --host or --port")
    except (SpecdecError, StoreDown) as error:
        return _fail(str(error))
    except WorkerDied:
        return _fail("the first worker process did not start; its message is above")
    return 0


async def _serve(arguments: argparse.Namespace, environ: dict[str, str], about: str) -> None:
    quick, runs = WorkerPool(environ, QUICK_WORKERS), WorkerPool(environ, arguments.workers)
    await serve(arguments.host, arguments.port, quick, runs, about)


@contextmanager
def _limits_file(settings: EdgeSettings) -> Iterator[Path | None]:
    """Where all workers count together, for as long as this server lives; None if they know a place, or need none."""
    if not settings.counts or settings.limits_table is not None or settings.limits_file is not None:
        yield None
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="specdec-edge-", ignore_cleanup_errors=True)
    except OSError as error:
        raise SettingsError(
            "BAD_SETTINGS",
            f"no temporary directory can be made ({error.strerror})",
            "set SPECDEC_LIMITS_FILE",
        ) from None
    with folder as name:
        yield Path(name) / "limits.sqlite"


def _token(file: Path) -> str:
    text = _content("--token-file", file)
    if not text:
        raise SettingsError("BAD_SETTINGS", "--token-file holds no token")
    # The agent's own file may hold two: the new one is first.
    return text if text.startswith("{") else text.splitlines()[0].strip()


def _headers(text: str) -> str:
    return _content("--tower-headers", Path(text[1:])) if text.startswith("@") else text


def _content(flag: str, file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise SettingsError("BAD_SETTINGS", f"{flag} cannot be read ({type(error).__name__})") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError("BAD_SETTINGS", message, "see python -m edge --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m edge", description="The edge on this machine.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    port = _whole_number(0, 65535)
    parser.add_argument("--port", type=port, default=8080, help="port; 0 picks a free one (default 8080)")
    parser.add_argument("--tower-url", help="websocket URL of the agent; overrides SPECDEC_TOWER_URL")
    parser.add_argument("--token-file", type=Path, help="file with the agent's token")
    parser.add_argument(
        "--tower-ca", type=Path, help="file of the private authority of the agent's certificate"
    )
    parser.add_argument(
        "--tower-headers", metavar="JSON|@FILE", help="further headers for what stands before the agent"
    )
    parser.add_argument("--tower-public-key", type=Path, help="file with the key that the tower signs by")
    parser.add_argument(
        "--signing-key-file", type=_named, help="sign receipts by this key; made if not there"
    )
    parser.add_argument("--receipts-dir", type=_named, help="keep receipts in this directory")
    workers = _whole_number(1, 64)
    parser.add_argument("--workers", type=workers, default=24, help="runs handled at once (default 24)")
    return parser


def _named(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a path")
    return Path(text)


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def _fail(line: str) -> int:
    print(f"edge: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
