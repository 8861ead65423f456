"""The way to the tower: one connection per invocation.

A Lambda sandbox is frozen between invocations and thaws with dead sockets, so no connection is kept. Every
way in which a tower can fail becomes a `TowerFault`, within the deadline that the caller set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from edge import observe
from edge.credentials import TokenSource
from edge.deadline import Deadline
from edge.dial import dial
from edge.faults import FaultKind, TowerFault

if TYPE_CHECKING:
    import ssl

    from edge.session import TowerSession

OPEN_TIMEOUT_S = 3.0

LEFT_ALONE_S = 5.0
"""For so long nobody waits again for a tower that has let somebody wait in vain: such calls would add up until there is
no concurrency left for `/health`."""

CORRELATION_HEADER = "X-Correlation-Id"
"""By it the tower's log says for which of the edge's invocations a connection was made."""


class Tower:
    """Where the tower is and how to be let in."""

    def __init__(
        self,
        url: str,
        token: TokenSource,
        authority: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the way; nothing is opened yet.

        Args:
            url: The tower's websocket.
            token: What it is shown.
            authority: PEM of the authority whose certificates to trust; None trusts the usual ones.
            clock: Seconds, for the pause after a silence.

        Attributes:
            loading_s: Seconds that the last connection has spent on loading code and certificates, which is not the
                tower's time.
        """
        self.loading_s = 0.0
        self.url = url
        self.token = token
        self.authority = authority
        self._clock = clock
        self._left_alone_until = float("-inf")

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        if urlsplit(self.url).scheme != "wss":
            return None
        from edge.tls import client_context

        return client_context(self.authority)

    @contextmanager
    def session(
        self, deadline: Deadline, *, fetch_token: bool = True, within: Deadline | None = None
    ) -> Iterator[TowerSession]:
        """Connect, and close at the end.

        Args:
            deadline: When to give up connecting.
            fetch_token: Fetch the token if there is none yet; on 401, fetch it again and try once more. That
                may need an AWS call.
            within: When all waiting must end: a token may be fetched until then, and who has waited for one has as
                long to connect as before. None stands for `deadline`.

        Raises:
            TowerFault: If the tower could not be reached or did not let us in.
        """
        if self._clock() < self._left_alone_until:
            reason = "the tower did not answer a moment ago, and is left alone for some seconds"
            raise TowerFault(FaultKind.SILENT, reason)
        pending = self.token.pending()
        if pending and not fetch_token:
            reason = "the edge has not fetched the tower's token yet; the first run does"
            raise TowerFault(FaultKind.REFUSED, reason)
        with ExitStack() as stack:
            with observe.phase("TowerConnect"):
                session = self._let_in(
                    deadline, within or deadline, stack, pending=pending, fetch_token=fetch_token
                )
            yield session

    def _let_in(
        self, deadline: Deadline, within: Deadline, stack: ExitStack, *, pending: bool, fetch_token: bool
    ) -> TowerSession:
        connect_s = deadline.remaining()
        if pending:
            self.token.renew(within)
            deadline = within.sooner(connect_s)
        try:
            return self._open(deadline, stack)
        except TowerFault as fault:
            may_renew = fetch_token and not pending and fault.kind is FaultKind.REFUSED
            if not (may_renew and self.token.renew(within)):
                raise
            return self._open(within.sooner(connect_s), stack)

    def _open(self, deadline: Deadline, stack: ExitStack) -> TowerSession:
        began, self.loading_s = self._clock(), 0.0
        deadline = deadline.sooner(OPEN_TIMEOUT_S)
        token = self.token.current()
        headers = {**self.token.headers(), **({"Authorization": f"Bearer {token}"} if token else {})}
        if correlation_id := observe.correlation_id():
            headers[CORRELATION_HEADER] = correlation_id
        try:
            sock = dial(self.url, deadline)
            loading = self._clock()
            from edge.session import open_session

            tls = self._tls
            self.loading_s = self._clock() - loading
            return open_session(self.url, sock, headers, tls, deadline.later(self.loading_s), stack)
        except TowerFault as fault:
            # A shorter wait, such as a probe's, may have been too short for a busy tower.
            if fault.kind is FaultKind.SILENT and self._clock() - began - self.loading_s >= OPEN_TIMEOUT_S:
                self._left_alone_until = self._clock() + LEFT_ALONE_S
            raise
