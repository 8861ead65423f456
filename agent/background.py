"""Work that goes on as long as the agent does."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


def in_background(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Begin it; should it end by an error, the log says so at once, and not when somebody misses it."""
    task = asyncio.create_task(work, name=what)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("background work has ended", exc_info=error, extra={"data": {"work": task.get_name()}})
