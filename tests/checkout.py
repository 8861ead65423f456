"""A copy of the work tree in a git repository of its own, and commands run there without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.lambda_runtime.sandbox import OFFLINE

ROOT = Path(__file__).parents[1]
SCALE = float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))


def run(command: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **OFFLINE, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=240 * SCALE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def checkout(folder: Path, *sources: str) -> Path:
    """Commit the work tree's own files below `sources`, the new ones too, to a new repository."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *sources]
    for name in filter(None, run(listing, ROOT).stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    who = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
    run(["git", "init", "--quiet"], folder)
    run(["git", "add", "--all"], folder)
    when = "2026-11-30T00:00:00Z"
    commit = ["git", *who, "commit", "--quiet", "--message", "All"]
    run(commit, folder, GIT_AUTHOR_DATE=when, GIT_COMMITTER_DATE=when)
    return folder
