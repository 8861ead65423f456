"""Tests of agent.threads: what is done now and then, and work that may never end, which holds nothing up."""

import asyncio
import subprocess
import sys
import threading

import pytest

from agent import threads
from agent.threads import Repeated, in_thread
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


class Counting(Repeated):
    """Counts its steps up to a number, and notes how it begins and ends."""

    def __init__(self, most: int, *, hangs: bool = False) -> None:
        """Begin with nothing."""
        super().__init__(0.001, "counting")
        self.most, self.hangs = most, hangs
        self.log: list[str] = []
        self.reached = threading.Event()

    def begin(self) -> None:
        """Note it."""
        self.log.append("begin")

    def step(self) -> bool:
        """Count, or hang."""
        self.log.append("step")
        if self.log.count("step") == self.most:
            self.reached.set()
            if self.hangs:
                threading.Event().wait()
            return False
        return True

    def end(self) -> None:
        """Note it."""
        self.log.append("end")

    def stuck(self) -> None:
        """Note it."""
        self.log.append("stuck")


def test_repeated() -> None:
    """Steps are made between begin and end, until one says that it is the last."""
    with Counting(3) as it:
        assert it.reached.wait(PATIENCE)
    assert it.log == ["begin", "step", "step", "step", "end"]


def test_repeated_ends_with_its_block() -> None:
    """A thread that would go on for ever ends with the block."""
    with Counting(10**9) as it:
        pass
    assert it.log[0] == "begin" and it.log[-1] == "end" and not it._thread.is_alive()


def test_repeated_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that never returns is left behind after a while, and told of instead of an end."""
    monkeypatch.setattr(threads, "LEAVE_S", 0.05)
    with Counting(1, hangs=True) as it:
        assert it.reached.wait(PATIENCE)
    assert it.log == ["begin", "step", "stuck"]
