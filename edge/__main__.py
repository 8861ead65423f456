"""``python -m edge``: the edge on this machine, over real HTTP."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from edge.local_server import serve
from edge.pool import WorkerDied, WorkerPool
from edge.settings import EdgeSettings
from shared.errors import SpecdecError
from shared.settings import load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the local edge until it is told to stop."""
    arguments = _parser().parse_args(argv)
    environ = dict(os.environ)
    try:
        if arguments.tower_url is not None:
            environ["SPECDEC_TOWER_URL"] = arguments.tower_url
        if arguments.token_file is not None:
            environ["SPECDEC_TOWER_TOKEN"] = arguments.token_file.read_text("utf-8").strip()
        settings = load(EdgeSettings, environ)
        if settings.run_secret is None:
            # All workers need the same one. Run ids then live as long as this server.
            environ["SPECDEC_RUN_SECRET"] = secrets.token_hex(32)
        asyncio.run(_serve(arguments.host, arguments.port, environ, arguments.workers))
    except (OSError, UnicodeError, SpecdecError) as error:
        return _fail(str(error))
    except WorkerDied:
        return _fail("the first worker process did not start; its message is above")
    return 0


async def _serve(host: str, port: int, environ: dict[str, str], workers: int) -> None:
    await serve(host, port, WorkerPool(environ, workers))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m edge", description="The edge on this machine.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="port; 0 picks a free one (default 8080)")
    parser.add_argument("--tower-url", help="websocket URL of the agent; overrides SPECDEC_TOWER_URL")
    parser.add_argument("--token-file", type=Path, help="file with the agent's token")
    parser.add_argument("--workers", type=_count, default=6, help="worker processes at most (default 6)")
    return parser


def _count(text: str) -> int:
    if not 1 <= int(text) <= 64:
        raise ValueError
    return int(text)


def _fail(line: str) -> int:
    print(f"edge: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
