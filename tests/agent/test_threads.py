"""Tests of agent.threads: work that may never end holds nothing up."""

import asyncio
import subprocess
import sys

import pytest

from agent.threads import in_thread
from tests.agent.support import PATIENCE, ROOT


async def test_result_and_error() -> None:
    """What the work returns or raises is what is awaited."""
    assert await in_thread(lambda: 7) == 7

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_thread(fail)


async def test_nobody_listens_any_more() -> None:
    """Work that ends after whoever asked has gone is no error."""
    asked = in_thread(lambda: 7)
    asked.cancel()
    assert await in_thread(lambda: 8) == 8
    await asyncio.sleep(0)


def test_hanging_work_does_not_keep_the_process() -> None:
    """A process ends though such work never does."""
    code = (
        "import asyncio, threading\nfrom agent.threads import in_thread\n"
        "async def main():\n    in_thread(threading.Event().wait)\nasyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE, check=True)
