"""The edge with a wall clock that stands still and random numbers that repeat: two of them answer alike to the byte.

On Lambda this is the function's handler (`frozen.lambda_handler`), and changes nothing else but that the tower may be
as slow as the machine is; time for deadlines runs on. `python -m` makes it a worker of the local edge, for which two
more things are put as they are on the other side: the caller's address, and which build it is (`FROZEN_BUILD_FILE`
names the artifact's build.json).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from datetime import datetime, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

NOW = 1795996800.0
"""2026-11-30T00:00:00Z, the time in the events."""

CALLER = "192.0.2.1"
"""The address in the events."""


class StoppedClock(datetime):
    """A datetime for which it is always `NOW`."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """Return `NOW`."""
        return cls.fromtimestamp(NOW, tz)


_count = itertools.count()


def _token_bytes(size: int) -> bytes:
    """The same bytes in the same order in every process."""
    return hashlib.sha256(f"{next(_count)}".encode()).digest()[:size]


def _sign(self: Any, message: bytes) -> bytes:
    """ECDSA whose nonce comes of key and message (RFC 6979), in place of a random one."""
    signature: bytes = self._private.sign(message, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    return signature


def freeze() -> None:
    """Stop the clock and load the dice. What reads `time.time` keeps it as a default, so it is stopped meanwhile."""
    running, time.time = time.time, lambda: NOW
    try:
        from edge import health, issuer, keyring, limits, payloads, reply  # noqa: F401 - issuer, limits: read time.time
    finally:
        time.time = running
    from shared import keyfile, runid

    for module in (keyring, payloads, reply):
        assert module.datetime is datetime  # else it tells no time any more, and another should be here
        module.datetime = StoppedClock  # type: ignore[attr-defined]
    runid.secrets = SimpleNamespace(token_bytes=_token_bytes)  # type: ignore[assignment, attr-defined]
    health.PROBE_TIMEOUT_S = 20.0
    keyfile.SigningKey.sign = _sign  # type: ignore[method-assign]


freeze()

from edge import app  # noqa: E402 - the handler is made by its import

# How long a start takes is the machine's; the first caller's wait is not shortened by it here.
app.INIT_MOST_S = 0.0

lambda_handler = app.lambda_handler


def _from_the_caller(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Handle an event of a loopback client, who cannot have the address of the events' caller, as that caller's."""
    event["requestContext"]["http"]["sourceIp"] = CALLER
    return lambda_handler(event, context)


if __name__ == "__main__":
    from edge import build_info, worker

    # A checkout is no build, and its receipts say so.
    build_info.BUILD_FILE = Path(os.environ["FROZEN_BUILD_FILE"])  # type: ignore[misc]
    app.lambda_handler = _from_the_caller
    worker.main()
