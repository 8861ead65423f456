"""Signs of life of the decode worker, which go on while work goes on and must not hide a hang."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from agent.pipe import LOADING, Event, ProgressEvent

BEAT_S = 5.0
"""Seconds between two signs of life while busy."""

REPORT_S = 0.2
"""Progress within one phase is not sent more often than this."""

LOAD_PATIENCE_S = 300.0
STEP_PATIENCE_S = 60.0
"""How long the work may give no sign before the signs of life stop: in a slow phase, and in any other."""

SLOW_PHASES = frozenset({"pair", LOADING})


class Pulse:
    """Tells the agent that work goes on, and stops telling when it no longer does.

    A thread repeats the last progress every `BEAT_S`. It must not hide a hang, so it falls silent once the
    work itself has given no sign for the patience of its phase; the agent then finds the worker hung.
    """

    def __init__(self, send: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Send through `send`; nothing is sent outside `busy`."""
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._last: ProgressEvent | None = None
        self._sign_at = 0.0
        self._sent_at = 0.0

    @contextmanager
    def busy(self, run_id: str | None, phase: str, total: int) -> Iterator[None]:
        """Be busy with a run (None: with looking for a pair), beginning with a phase."""
        with self._lock:
            self._last = ProgressEvent(run_id=run_id, phase=phase, done=0, total=total)
            self._sign_at = self._clock()
            self._show()
        try:
            yield
        finally:
            with self._lock:
                self._last = None

    def progress(self, phase: str, done: int, total: int) -> None:
        """Take a sign of progress from the work, and pass it on unless the last one is very fresh."""
        with self._lock:
            if self._last is None:
                return
            news = phase != self._last.phase or done == total
            self._last = ProgressEvent(run_id=self._last.run_id, phase=phase, done=done, total=total)
            self._sign_at = self._clock()
            if news or self._sign_at - self._sent_at >= REPORT_S:
                self._show()

    def sign(self) -> None:
        """Take a sign of life that is no progress to report, such as the question whether to stop."""
        with self._lock:
            self._sign_at = self._clock()

    def beat(self) -> None:
        """Repeat the last progress if the work has given a sign within its phase's patience."""
        with self._lock:
            if self._last is None:
                return
            patience = LOAD_PATIENCE_S if self._last.phase in SLOW_PHASES else STEP_PATIENCE_S
            if self._clock() - self._sign_at <= patience:
                self._show()

    def forever(self) -> NoReturn:
        """Beat until the process ends."""
        while True:
            time.sleep(BEAT_S)
            self.beat()

    def _show(self) -> None:
        # Sent with the lock held, so that no progress can follow the result of its run.
        if self._last is not None:
            self._sent_at = self._clock()
            self._send(self._last)
