"""Tests of `tools.stack`: two stacks do not share a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.client import Specdec
from tools.stack import PATIENCE_S, running


def test_a_second_stack_keeps_out_of_a_folder_in_use(tmp_path: Path) -> None:
    """It is refused in a sentence and changes nothing, so that the first one's edge is still let in by its agent."""
    with running(tmp_path, environ={"SPECDEC_THREADS": "1"}) as stack:
        token = (tmp_path / "token").read_text()
        with pytest.raises(
            RuntimeError, match=r"another one is running with the folder .*: use that, or stop it"
        ):
            with running(tmp_path):
                pytest.fail("it started")
        assert (tmp_path / "token").read_text() == token
        with Specdec(stack.edge_url, PATIENCE_S) as client:
            assert client.run("And it came to pass", n=1).measured
    with running(tmp_path) as again:  # the folder is free again
        assert again.edge_url
