"""Tests of `agent.attest`: the tower's key, and its signature over every result."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.attest import PRIVATE, PUBLIC, open_attester
from agent.errors import AgentError
from shared.attestation import attested, check_attestation
from shared.keys import load_keys
from shared.wire import ResultFrame, encode, parse_agent_frame
from tests.agent.support import run_frame
from tests.agent.test_runs import bench


def test_key_is_made_once(tmp_path: Path) -> None:
    """The first start makes an Ed25519 key that its owner alone can read, and its public half; later ones keep it."""
    first = open_attester(tmp_path)
    assert (tmp_path / PRIVATE).stat().st_mode & 0o777 == 0o600
    (public,) = load_keys((tmp_path / PUBLIC).read_bytes(), "tower")
    assert (public.keyid, public.alg) == (first.key.keyid, "ED25519")
    (tmp_path / PUBLIC).unlink()
    assert open_attester(tmp_path).key.keyid == first.key.keyid
    assert (tmp_path / PUBLIC).exists()


def test_key_that_cannot_be_used(tmp_path: Path) -> None:
    """A key that others can read, or that is none, stops the agent with one sentence."""
    open_attester(tmp_path)
    (tmp_path / PRIVATE).chmod(0o644)
    with pytest.raises(AgentError, match="the tower's key: tower-key.pem is open to others than its owner"):
        open_attester(tmp_path)
    (tmp_path / PRIVATE).chmod(0o600)
    (tmp_path / PRIVATE).write_text("none")
    with pytest.raises(AgentError, match="the tower's key: tower-key.pem holds no PEM private key"):
        open_attester(tmp_path)


async def test_results_are_signed(tmp_path: Path) -> None:
    """A result is signed over what arrives at the other end, and is signed the same after a restart."""
    attester = open_attester(tmp_path)
    keys = load_keys((tmp_path / PUBLIC).read_bytes(), "tower")
    frame = run_frame("a secret", include_output=True)
    async with bench(tmp_path, attester=attester) as it:
        run = it.runs.submit(frame)
        await it.finish(run)
        assert isinstance(run.outcome, ResultFrame)
        arrived = parse_agent_frame(encode(run.outcome))
        assert isinstance(arrived, ResultFrame) and arrived.output == "the text"
        told = arrived.model_dump(mode="json")
        key = check_attestation(told["attestation"], attested(told), keys)
        assert key is not None and key.keyid == attester.key.keyid
    async with bench(tmp_path) as it:
        outcome = it.runs.find(frame.run_id).outcome
        assert isinstance(outcome, ResultFrame)
        assert outcome.model_dump(mode="json")["attestation"] == told["attestation"]


async def test_busy_seconds_are_not_signed(tmp_path: Path) -> None:
    """The tower signs what it measured, not what is charged: the signature fits with `busy_s` and without."""
    attester = open_attester(tmp_path)
    async with bench(tmp_path, attester=attester) as it:
        run = it.runs.submit(run_frame("a prompt"))
        await it.finish(run)
        assert isinstance(run.outcome, ResultFrame)
        told = run.outcome.model_dump(mode="json")
    without = {name: value for name, value in told.items() if name != "busy_s"}
    keys = load_keys((tmp_path / PUBLIC).read_bytes(), "tower")
    assert told != without
    for frame in (told, without):
        assert ResultFrame.model_validate(frame).model_dump(mode="json") == frame
        assert check_attestation(frame["attestation"], attested(frame), keys) is not None
