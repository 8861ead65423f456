"""Programs that tests need and no Python package brings."""

from __future__ import annotations

import os
import shutil

import pytest

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def program(name: str, package: str) -> str:
    """Returns where a program is; without it the test is skipped, or fails where all must be run (`.ci/run`)."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{PATH}")
    if found is not None:
        return found
    said = f"{name} is missing: install the package {package}"
    if os.environ.get("SPECDEC_TEST_ALL"):
        pytest.fail(said)
    pytest.skip(said)
