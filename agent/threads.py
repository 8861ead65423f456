"""Work in a thread that nobody waits for, as it may never end: on a drive or in a driver that does not answer."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

T = TypeVar("T")


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
