"""Tests of `bench.report`, `bench.models` and the command line: what is written, kept, and asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from bench import __main__ as command_line
from bench import models, report


def test_results_name_the_machine_and_no_folder(tmp_path: Path) -> None:
    """JSON and Markdown hold the same heading; nothing of this machine's folders is in it."""
    heading = report.about("python -m bench peer", "0.10 0.20 0.30")
    report.write("peer", heading, {"compared": {}}, "| table |", tmp_path)
    written = json.loads((tmp_path / "peer.json").read_text())
    assert {"machine", "library", "llama.cpp", "at", "command", "load average"} <= written.keys()
    assert written["load average"].startswith("before 0.10 0.20 0.30, after ")
    page = (tmp_path / "peer.md").read_text()
    assert page.startswith("# Peer\n") and page.endswith("| table |\n")
    assert all(f"{what}: {value}" in page for what, value in heading.items())
    assert str(Path.home()) not in page and str(tmp_path) not in page


def test_the_processor_is_named(tmp_path: Path) -> None:
    """The model name comes from the kernel; without one there is still an answer."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some Processor 9\n")
    assert report.processor(cpuinfo) == "Some Processor 9"
    assert report.processor(tmp_path / "absent")


def test_quick_lowers_only_what_is_not_given() -> None:
    """`--quick` measures less; what is given on the command line holds."""
    full, quick = command_line.parse([]), command_line.parse(["peer", "--quick", "--rounds", "8"])
    assert (full.part, full.prompts, full.rounds, full.steps) == ("all", 3, 6, 40)
    assert (quick.part, quick.prompts, quick.rounds, quick.steps) == ("peer", 1, 8, 20)
    shown = command_line.command("peer", command_line.parse(["all", "--quick", "--out", "somewhere"]))
    assert shown == "python -m bench peer --threads 1 --prompts 1 --rounds 3 --steps 20 --pair both --quick"


def test_models_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another format is made by llama.cpp where it is missing, and used again where it is there."""
    calls: list[bytes] = []

    def quantize(source: bytes, made: bytes, params: Any) -> int:
        assert params.allow_requantize
        calls.append(source)
        Path(made.decode()).write_bytes(b"GGUF")
        return 0

    monkeypatch.setattr(llama_cpp, "llama_model_quantize", quantize)
    source = tmp_path / "q4_1.gguf"
    first = models.requantised(source, "q8_0", tmp_path)
    again = models.requantised(source, "q8_0", tmp_path)
    assert first == again == tmp_path / "q8_0.gguf" and first.exists()
    assert calls == [str(source).encode()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q8_0.gguf"]


def test_a_failed_conversion_leaves_nothing_behind_that_looks_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format that llama.cpp cannot make is an error, and the next run tries again."""
    monkeypatch.setattr(llama_cpp, "llama_model_quantize", lambda *arguments: 1)
    with pytest.raises(RuntimeError, match="could not make f16"):
        models.requantised(tmp_path / "q4_1.gguf", "f16", tmp_path)
    assert not (tmp_path / "f16.gguf").exists()


def test_prompts_of_both_kinds() -> None:
    """SmolLM2 has eight prompts of each domain, none twice."""
    assert len(set(models.SMOLLM2_PROMPTS)) == 16
    assert [domain for domain, _ in models.SMOLLM2_PROMPTS].count("code") == 8
