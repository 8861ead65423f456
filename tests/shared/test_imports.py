"""What importing the package needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODULES = sorted(path.stem for path in (Path(__file__).parents[2] / "shared").glob("*.py"))

PROBE = """
import sys

ABSENT = {
    "httpx", "cryptography", "edge", "agent", "numpy", "llama_cpp", "boto3", "rich", "shtab", "matplotlib", "plotext"
}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
for name in sys.argv[1:]:
    __import__("shared." + name)
print("imported")
"""


def test_imports_need_pydantic_alone() -> None:
    """Every module imports with httpx, rich, what draws plots and all the other parts of the project absent."""
    assert "verify" in MODULES and "cli" in MODULES
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *MODULES],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("imported\n", "")
