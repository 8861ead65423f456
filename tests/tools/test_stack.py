"""Tests of `tools.stack` and `tools.serve`: what is in use already is said in a sentence."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shared.client import Specdec
from tools import serve
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


def test_a_port_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make serve` names the port that another program has, and the command for another one."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert serve.main(["--port", str(port)]) == 1
    said = f"serve: port {port} is taken; choose another: python -m tools.serve --port 9000\n"
    assert capsys.readouterr().err == said
