"""What systemd is told of the service, in datagrams to the socket that it names (sd_notify(3)); silence without one."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

STATUS_S = 10.0
"""How often a new status is told where no watchdog wants to hear more often."""


class Notifier:
    """Tells systemd how the service is doing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read where to tell it, and how often the watchdog wants to hear."""
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_s(environ) if self._address else None

    def send(self, *assignments: str) -> None:
        """Tell it, such as ``READY=1``. That nobody listens is no fault of the service."""
        if not self._address:
            return
        # An address that begins with @ has no place in the file system.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(assignments).encode(), address)
        except OSError as exc:
            log.warning("systemd not told", extra={"data": {"error": type(exc).__name__}})

    async def keep_telling(self, healthy: Callable[[], bool], status: Callable[[], Awaitable[str]]) -> None:
        """Feed the watchdog while the event loop turns and the service is healthy; tell of each new status."""
        if not self._address:
            return
        every_s = self.watchdog_s / 2 if self.watchdog_s else STATUS_S
        told = None
        while True:
            if self.watchdog_s:
                if healthy():
                    self.send("WATCHDOG=1")
                else:
                    log.error("watchdog not fed")
            try:
                now = await status()
            except Exception:
                # A status that cannot be told is no reason to be restarted.
                log.exception("no status for systemd")
            else:
                if now != told:
                    self.send(f"STATUS={now}")
                    told = now
            await asyncio.sleep(every_s)


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Return the seconds of silence after which systemd ends this process; None if it does not."""
    microseconds, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or int(microseconds) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1e6
