"""Runs that nobody asks after, from the edge's handler to an agent: what they did not use of the day comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.agent.support import PATIENCE, TOKEN, agent_here
from tests.edge.limits_bench import charged_in_file
from tests.edge.limits_crowd import NOON, TODAY
from tests.edge.support import client

ASYNC = {"prefer": "respond-async"}


@pytest.mark.parametrize("later_s", [0.0, 4000.0], ids=["kept", "expired"])
async def test_runs_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_s: float) -> None:
    """Three runs that have ended are charged the milliseconds that the agent was busy, though it keeps them no more."""
    monkeypatch.setattr("edge.limits.LocalLimits.__init__.__kwdefaults__", {"clock": lambda: NOON})
    file, now = tmp_path / "limits.sqlite", 1000.0
    async with agent_here(tmp_path / "state", clock=lambda: now) as agent:
        edge = client(agent.url, tower_token=TOKEN, limits_file=str(file), gpu_seconds_per_day="900")
        replies = [await asyncio.to_thread(edge.run, ASYNC) for _ in range(3)]
        assert [reply.status for reply in replies] == [202] * 3
        assert charged_in_file(file, TODAY) == 900_000
        busy_ms = 0
        for reply in replies:
            run = agent.runs.find(reply.json["payload"]["run_id"])
            assert await run.ends_within(PATIENCE)
            assert run.outcome is not None and run.outcome.busy_s is not None
            busy_ms += round(1000 * run.outcome.busy_s)
        now += later_s
        assert (await asyncio.to_thread(edge.run, ASYNC)).status == 202
    assert charged_in_file(file, TODAY) == 300_000 + busy_ms
