"""The asyncio client against a whole system: the embedded pair, over HTTP and a websocket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.client import AsyncSpecdec, Progress
from tools.stack import PATIENCE_S, running

pytestmark = pytest.mark.slow


async def test_runs(tmp_path: Path) -> None:
    """A run is measured while other questions are answered; a cancelled task's run is there to be cancelled."""
    told: asyncio.Queue[Progress] = asyncio.Queue()
    with running(tmp_path, environ={"SPECDEC_THREADS": "1"}) as stack:
        async with AsyncSpecdec(stack.edge_url, 2 * PATIENCE_S) as client:
            run = asyncio.create_task(
                client.run("And it came to pass", n=12, wait=2, on_progress=told.put_nowait)
            )
            first = await asyncio.wait_for(told.get(), PATIENCE_S)
            assert (await client.health()).measured_run_possible and not run.done()
            receipt = await run
            assert receipt.measured and receipt.run_id == first.run_id
            assert receipt.accepted_rate is not None and 0 < receipt.accepted_rate <= 1
            assert receipt.energy is None and receipt.energy_reason

            while not told.empty():
                told.get_nowait()
            run = asyncio.create_task(
                client.run("And it came to pass", n=500, ignore_eos=True, wait=2, on_progress=told.put_nowait)
            )
            run_id = (await asyncio.wait_for(told.get(), PATIENCE_S)).run_id
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert run_id is not None and (await client.get_run(run_id)).roadmap_code == "RUNNING"
            assert (await client.cancel(run_id)).roadmap_code == "CANCELLED"
