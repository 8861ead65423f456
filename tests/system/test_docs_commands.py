"""What the tutorial, the auditors' page and README tell readers to type, typed: it does what they say.

A block after a line `<!-- run -->` is run as it stands, in order, but for the address of the edge. A block after a line
`<!-- prints -->` holds lines that the block before it must have printed, in this order; `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.programs import program
from tools.stack import PATIENCE_S, Stack, running

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8080"
STEP = "--- step"

FENCE = re.compile(r"^(?:<!-- (run|prints) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

NOT_RUN = {
    "docs/tutorial.md": ["make demo", "make serve"],
    "docs/audit.md": ["python3 -m tools.build --arch arm64 --into REBUILT"],
}
"""First lines of the shell blocks that the pages say are not run here."""


@dataclass
class Typed:
    """A block to run, and lines that it must print."""

    command: str
    prints: list[str] = field(default_factory=list)


def typed(text: str) -> list[Typed]:
    """Returns the blocks of a page that are to be run."""
    found: list[Typed] = []
    for mark, language, body in FENCE.findall(text):
        if mark == "run":
            found.append(Typed(f".venv/bin/python - <<'END'\n{body}END\n" if language == "python" else body))
        elif mark == "prints":
            assert not found[-1].prints
            found[-1].prints = body.splitlines()
    return found


def missing(prints: list[str], output: list[str]) -> str | None:
    """Returns the first line that the output does not have where it should be, None if it has all."""
    left = iter([" ".join(line.split()) for line in output])
    for line in prints:
        pattern = re.compile(".+".join(map(re.escape, " ".join(line.split()).split("…"))))
        if not any(map(pattern.fullmatch, left)):
            return line
    return None


def carry_out(page: str, folder: Path, edge_url: str, *, without: str = "$^") -> None:
    """Runs what a page says in one shell, as a reader would; asserts that all of it works and prints what it says.

    Args:
        page: The page's file, below the project's folder.
        folder: Where to run it.
        edge_url: The address to put in the place of the one in the page.
        without: Blocks in which this pattern is found are left out.
    """
    text = (ROOT / page).read_text("utf-8")
    steps = [step for step in typed(text) if not re.search(without, step.command)]
    assert steps and ADDRESS in text
    lines = [f"echo '{STEP} {number}'\n{step.command}" for number, step in enumerate(steps)]
    path = os.pathsep.join([*(str(Path(program(*need)).parent) for need in NEEDED), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", "set -euo pipefail\n" + "".join(lines).replace(ADDRESS, edge_url)],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=4 * PATIENCE_S,
    )
    outputs = re.split(rf"^{STEP} \d+\n", done.stdout, flags=re.MULTILINE)[1:]
    for step, output in zip(steps, outputs, strict=False):
        line = missing(step.prints, output.splitlines())
        assert line is None, f"{line!r} is not printed by:\n{step.command}\nbut:\n{output}"
    last = f"{steps[len(outputs) - 1].command}\n{outputs[-1]}"
    assert (done.returncode, len(outputs)) == (0, len(steps)), f"exit code {done.returncode} of:\n{last}"


NEEDED = [("curl", "curl"), ("openssl", "openssl"), ("node", "nodejs"), ("bash", "bash")]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An agent with the embedded pair behind a local edge, as `make serve` starts them."""
    with running(tmp_path_factory.mktemp("state"), environ={"SPECDEC_THREADS": "1"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a reader could type the commands: the project's, but for what they write."""
    folder = tmp_path_factory.mktemp("project")
    (folder / ".venv").symlink_to(sys.prefix)
    for name in ("agent", "edge", "shared"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def tutorial(stack: Stack, folder: Path) -> Path:
    """The folder after the tutorial, with its receipt."""
    carry_out("docs/tutorial.md", folder, stack.edge_url)
    return folder


@pytest.mark.slow
def test_tutorial(tutorial: Path) -> None:
    """The tutorial measures, verifies, names both signers, and sees a changed receipt fail."""
    assert (tutorial / "receipt.json").is_file() and (tutorial / "keys.json").is_file()


@pytest.mark.slow
def test_audit(tutorial: Path, stack: Stack) -> None:
    """The tutorial's receipt is checked by hand, by openssl, by each verifier; what was changed is refused by all."""
    carry_out("docs/audit.md", tutorial, stack.edge_url)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_other_pages(tutorial: Path, stack: Stack, page: str) -> None:
    """The commands for API users and auditors work, too."""
    carry_out(page, tutorial, stack.edge_url)


DAMAGES = {
    "payload": ('payload["n"] += 1', "the bytes say something else than the payload"),
    "digest": ('receipt["payload_sha3_256"] = "0" * 64', "'the digest is that of the bytes' is not printed"),
    "edge's key": (
        'receipt["signature"]["envelope"]["signatures"][0]["keyid"] = "0" * 64',
        "the edge signed with a key that is not pinned: 0000",
    ),
    "edge's statement": ('reword(receipt["signature"]["envelope"])', "'Verified OK' is not printed"),
    "tower's statement": (
        'reword(payload["tower"]["attestation"])\nsettle()',
        "'Signature Verified Successfully' is not printed",
    ),
    "all but the signatures": ('payload["accepted_rate"] = 0.99\nsettle()', "the edge signed something else"),
}
"""What is done to a receipt, and what whoever follows the page by hand then reads."""

DAMAGE = """
import base64, hashlib, json, sys

receipt = json.load(open(sys.argv[1], encoding="utf-8"))
payload = receipt["payload"]

def reword(envelope):
    body = base64.b64decode(envelope["payload"]).replace(b"Statement", b"Statemenu")
    envelope["payload"] = base64.b64encode(body).decode()

def settle():
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    receipt["payload_canonical_base64"] = base64.b64encode(text).decode()
    receipt["payload_sha3_256"] = hashlib.sha3_256(text).hexdigest()

exec(sys.argv[3])
json.dump(receipt, open(sys.argv[2], "w", encoding="utf-8"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_audit_of_a_tampered_receipt(tutorial: Path, stack: Stack, tmp_path: Path, damage: str) -> None:
    """Whoever follows the page by hand with a receipt that was tampered with reads where it fails."""
    program_text, words = DAMAGES[damage]
    files = [str(folder / "receipt.json") for folder in (tutorial, tmp_path)]
    subprocess.run([sys.executable, "-c", DAMAGE, *files, program_text], check=True)
    with pytest.raises(AssertionError, match=re.escape(words)):
        carry_out("docs/audit.md", tmp_path, stack.edge_url, without="specdec verify|node |verify_standalone")


def test_every_shell_block_is_run_or_said_not_to_be() -> None:
    """In the tutorial and the auditors' page no command is left out in silence."""
    for page, commands in NOT_RUN.items():
        text = (ROOT / page).read_text("utf-8")
        left = [
            body.splitlines()[0]
            for mark, language, body in FENCE.findall(text)
            if language == "sh" and not mark
        ]
        assert left == commands
        assert len(re.findall(r"[Nn]ot run by the test", text)) == len(commands)


@pytest.mark.parametrize(
    ("prints", "output", "expected"),
    [
        (["ok  a …"], ["ok a b c"], None),
        (["a", "b"], ["x", "a", "y", "b"], None),
        (["b", "a"], ["a", "b"], "a"),
        (["a …"], ["a"], "a …"),
        (["a.c"], ["abc"], "a.c"),
        (["OK"], ["OK, with 1 warning(s)"], "OK"),
    ],
)
def test_lines_are_looked_for_in_order(prints: list[str], output: list[str], expected: str | None) -> None:
    """A line that differs, that is only part of one, or that comes too early, is missed."""
    assert missing(prints, output) == expected


def test_blocks_of_a_page() -> None:
    """Blocks that are marked are found, with what they print; Python goes to Python, and others are left alone."""
    page = "<!-- run -->\n```sh\na\nb\n```\n\n<!-- prints -->\n```text\nc\n```\n```sh\nd\n```\n"
    page += "<!-- run -->\n```python\ne\n```\n"
    assert typed(page) == [Typed("a\nb\n", ["c"]), Typed(".venv/bin/python - <<'END'\ne\nEND\n")]
