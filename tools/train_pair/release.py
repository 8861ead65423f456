"""Turns the trained models into what `agent/embedded/` holds: two GGUF files, prompts, checksums, model card."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tools.train_pair.export import weights, write_gguf
from tools.train_pair.train import load

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "agent" / "embedded"
TOKENISATION = ROOT / "tests" / "agent" / "tokenisation.json"
HARD_TEXTS = [
    "a",
    " ",
    "\n\n\n  x",
    "naïve café",
    "日本語 テキスト",
    "🙂🙃",
    "x" * 300,
    "don't  I'll WE'VE",
    "\t\tif  x:\r\n",
]
FORMATS = {"draft": "f16", "target": "f32"}
PROMPTS_PER_DOMAIN = 120
PROMPT_CHARACTERS = 220


def prompts(held_out: list[dict[str, str]], seed: int) -> list[dict[str, str]]:
    """Cuts prompts from held-out documents: whole lines (prose: whole words) of about 220 characters."""
    rng = random.Random(seed)  # noqa: S311 - picks examples, keeps no secret
    chosen = []
    for domain in ("prose", "code"):
        documents = [d for d in held_out if d["domain"] == domain and len(d["text"]) > 2 * PROMPT_CHARACTERS]
        seen: set[str] = set()
        while len(seen) < PROMPTS_PER_DOMAIN:
            document = rng.choice(documents)
            text = document["text"]
            start = text.rfind("\n", 0, rng.randrange(len(text) - PROMPT_CHARACTERS)) + 1
            cut = text[start : start + PROMPT_CHARACTERS]
            end = cut.rfind(" " if domain == "prose" else "\n")
            if end < PROMPT_CHARACTERS // 3 or cut[:end] in seen:
                continue
            seen.add(cut[:end])
            chosen.append({"domain": domain, "name": document["name"], "prompt": cut[:end]})
    return chosen


def card(records: dict[str, dict[str, Any]], sums: dict[str, str]) -> str:
    """Writes the model card from the training records."""
    lines = [
        "# The embedded pair",
        "",
        "A draft and a target of one family, small enough for a laptop and real enough to measure: two models of the",
        "Llama architecture over one byte-level BPE vocabulary of 2,048 tokens. They continue King James prose and",
        "Python code; they know nothing else, and are here to exercise speculative decoding, not to answer anybody.",
        "",
        "| | draft | target |",
        "|---|---|---|",
    ]
    draft, target = records["draft"], records["target"]

    def row(name: str, value: Any) -> None:
        lines.append(f"| {name} | {value(draft)} | {value(target)} |")

    row("parameters", lambda r: f"{r['parameters']:,}")
    row("layers × width, heads, FFN", lambda r: "{layers} × {width}, {heads}, {ffn}".format(**r["shape"]))
    row("context (longest training window)", lambda r: f"{r['shape']['context']} ({_longest(r)})")
    lines.append(f"| number format of matrices | {FORMATS['draft']} | {FORMATS['target']} |")
    row("training tokens", lambda r: f"{_tokens(r):,}")
    row("seeds", lambda r: ", ".join(str(stage["seed"]) for stage in r["stages"]))
    for domain in ("prose", "code"):
        row(
            f"held-out loss, {domain} (nats a token)",
            lambda r, domain=domain: f"{r['held_out'][f'{domain}_loss']:.3f}",
        )
    for domain in ("prose", "code"):
        held = draft["held_out"]
        lines.append(f"| KL(target ‖ draft), {domain} (nats) | {held[f'{domain}_kl']:.3f} | |")
        lines.append(f"| Σ min(p, q), {domain}: α at temperature 1 | {held[f'{domain}_alpha']:.3f} | |")
        lines.append(f"| greedy agreement, {domain} | {held[f'{domain}_greedy_agreement']:.3f} | |")
    lines += [
        "",
        "Held-out figures are on text of the corpora, not on text that the target wrote itself.",
        "",
        "## Data and licences",
        "",
        "* Prose: the King James Bible as packaged by Debian (`bible-kjv-text`); the text is in the public domain.",
        f"* Code: the standard library of CPython {platform.python_version()}, PSF licence (`PSF-LICENSE.txt`).",
        "* Every 40th chapter and every 40th file were kept out of training; `prompts.json` is cut from those.",
        "* The weights are released under Apache-2.0, like the rest of this project.",
        "",
        "## How they were made",
        "",
        "`tools/train_pair/README.md` has the commands. The target learned next tokens; the draft learned the",
        "target's whole distribution at every position (KL divergence from target to draft).",
        "",
        "## Checksums (SHA-256)",
        "",
        *(f"* `{name}` {digest}" for name, digest in sums.items()),
        "",
    ]
    return "\n".join(lines)


def _tokens(record: dict[str, Any]) -> int:
    return sum(stage["steps"] * stage["rows"] * stage["time_steps"] for stage in record["stages"])


def _longest(record: dict[str, Any]) -> int:
    return max(stage["time_steps"] for stage in record["stages"])


def main() -> None:
    """Writes `agent/embedded/` from the work folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("work", type=Path)
    work: Path = parser.parse_args().work
    EMBEDDED.mkdir(exist_ok=True)
    for name, number_format in FORMATS.items():
        model = load(work / f"{name}.pt")
        path = EMBEDDED / f"{name}.gguf"
        write_gguf(
            path, f"specdec {name}", model.shape, weights(model), work / "tokenizer.json", number_format
        )
    cut = prompts(json.loads((work / "held_out.json").read_text(encoding="utf-8")), seed=1611)
    (EMBEDDED / "prompts.json").write_text(
        json.dumps(cut, ensure_ascii=False, indent=0) + "\n", encoding="utf-8"
    )
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    texts = [one["prompt"] for one in cut] + HARD_TEXTS
    encoded = [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]
    TOKENISATION.write_text(json.dumps(encoded, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.copy(Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt", EMBEDDED / "PSF-LICENSE.txt")
    sums = {
        name: hashlib.sha256((EMBEDDED / name).read_bytes()).hexdigest()
        for name in ("draft.gguf", "target.gguf", "prompts.json")
    }
    (EMBEDDED / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    records = {name: json.loads((work / f"{name}.json").read_text(encoding="utf-8")) for name in FORMATS}
    (EMBEDDED / "MODEL_CARD.md").write_text(card(records, sums), encoding="utf-8")


if __name__ == "__main__":
    main()
