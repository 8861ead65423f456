"""Threads beside the work: what is done now and then, and what may never end.

A drive or a driver that does not answer keeps whoever asks it, so nothing here is waited for without a limit.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar, cast

T = TypeVar("T")

LEAVE_S = 5.0
"""How long a thread may take to end once it is to."""


class Repeated:
    """Does something now and then, in a thread, for as long as a block lasts."""

    def __init__(self, every_s: float, name: str) -> None:
        """Does it every `every_s` seconds; `name` is the thread's."""
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=name, daemon=True)

    def begin(self) -> None:
        """Comes first."""

    def step(self) -> bool:
        """Is done now and then; returns whether to go on."""
        raise NotImplementedError

    def end(self) -> None:
        """Comes last."""

    def stuck(self) -> None:
        """Comes last instead if the thread does not end."""

    def __enter__(self) -> Self:
        """Begins."""
        self.begin()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends."""
        self._over.set()
        self._thread.join(LEAVE_S)
        if self._thread.is_alive():
            self.stuck()
        else:
            self.end()

    def _go_on(self) -> None:
        while not self._over.wait(self._every_s) and self.step():
            pass


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Returns what `work` will return or raise. Unlike `asyncio.to_thread` this holds up no end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if not future.done():
            future.set_result(cast(T, result)) if error is None else future.set_exception(error)

    def carry_out() -> None:
        result: T | None = None
        error = None
        try:
            result = work()
        except Exception as exc:  # noqa: BLE001 - passed on
            error = exc
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=carry_out, name="picture", daemon=True).start()
    return future
