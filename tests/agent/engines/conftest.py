"""The real servers, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.engines.support import llama_server


@pytest.fixture(scope="session")
def speculative() -> Iterator[str]:
    """A llama.cpp server that drafts four tokens a step."""
    with llama_server("--k", "4") as url:
        yield url


@pytest.fixture(scope="session")
def plain() -> Iterator[str]:
    """A llama.cpp server of the same target without a draft."""
    with llama_server() as url:
        yield url
