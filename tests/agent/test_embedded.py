"""Tests of the embedded pair: its files, its tokenizer, and that speculation leaves its output unchanged."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from agent.decode import begin, prefill, speculative_step, target_only
from agent.measure import LoadedPair, load_pair
from agent.pairs import EMBEDDED, choose_pair
from agent.sampling import Greedy, Sampled

PROMPTS: list[dict[str, str]] = json.loads((EMBEDDED / "prompts.json").read_text(encoding="utf-8"))
TOKENISATION: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("tokenisation.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def pair() -> Iterator[LoadedPair]:
    """The embedded pair, loaded once, on one thread: two would wait for each other on a busy machine."""
    loaded = load_pair(choose_pair(embedded=True), n_ctx=1024, threads=1)
    yield loaded
    loaded.close()


def never(_: int) -> bool:
    """No token ends the text."""
    return False


def test_checksums() -> None:
    """Every file in SHA256SUMS is there and unchanged, and the models are listed."""
    lines = (EMBEDDED / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert {"draft.gguf", "target.gguf", "prompts.json"} == set(sums)
    for name, digest in sums.items():
        assert hashlib.sha256((EMBEDDED / name).read_bytes()).hexdigest() == digest, name


def test_size() -> None:
    """Both models together stay within 40 MB."""
    assert sum(path.stat().st_size for path in EMBEDDED.glob("*.gguf")) <= 40_000_000


def test_card_names_licences_and_sums() -> None:
    """The model card gives data, licences and the checksums of the files beside it."""
    card = (EMBEDDED / "MODEL_CARD.md").read_text(encoding="utf-8")
    for words in ("public domain", "PSF licence", "Apache-2.0", "held-out loss"):
        assert words in card
    for line in (EMBEDDED / "SHA256SUMS").read_text().splitlines():
        assert line.split("  ")[0] in card
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in (EMBEDDED / "PSF-LICENSE.txt").read_text()


def test_prompts_cover_both_domains() -> None:
    """At least 100 held-out prompts of prose and of code, all different."""
    domains = Counter(one["domain"] for one in PROMPTS)
    assert domains.keys() == {"prose", "code"} and min(domains.values()) >= 100
    assert len({one["prompt"] for one in PROMPTS}) == len(PROMPTS)


@pytest.mark.parametrize("which", ["draft_weights", "target_weights"])
def test_tokenisation_equals_the_trainers(pair: LoadedPair, which: str) -> None:
    """llama.cpp turns text into the very ids that the tokenizer of the training does, and back into the text."""
    vocab = getattr(pair, which).vocab
    assert len(TOKENISATION) >= 200
    for one in TOKENISATION:
        assert vocab.tokenize(one["text"]) == [0, *one["ids"]], one["text"]
        assert b"".join(map(vocab.piece, one["ids"])).decode() == one["text"]


def test_control_text_in_a_prompt_stays_text(pair: LoadedPair) -> None:
    """A prompt that spells the end-of-text token does not contain it."""
    tokens = pair.target_weights.prompt_tokens("a<|endoftext|>b", chat=False)
    assert tokens[0] == 0 and 0 not in tokens[1:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_greedy_is_lossless_on_held_out_prompts(pair: LoadedPair) -> None:
    """For 200 held-out prompts and k = 1...8 the greedy output equals the target's own, token by token."""
    by_domain = [[one for one in PROMPTS if one["domain"] == name][:100] for name in ("prose", "code")]
    chosen = [one for domain in by_domain for one in domain]
    assert len(chosen) == 200
    for number, one in enumerate(chosen):
        prompt = pair.target_weights.prompt_tokens(one["prompt"], chat=False)[
            : None if number % 10 == 0 else 48
        ]
        for model in (pair.draft, pair.target):
            prefill(prompt, model, lambda done: None)
        alone = target_only(prompt, pair.target, Greedy(), 24)
        for k in range(1, 9):
            run = begin(prompt, pair.draft, pair.target)
            while len(run.tokens) < 16:
                speculative_step(run, pair.draft, pair.target, Greedy(), k, never)
            assert run.tokens[:16] == alone[:16], (one["name"], k)
            assert pair.target.length == len(prompt) + len(run.tokens) - 1


SAMPLES, LEVEL, DETECTABLE = 4000, 1e-4, 0.15


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_first_two_sampled_tokens_follow_the_targets_law(pair: LoadedPair) -> None:
    """4,000 sampled pairs of tokens follow the target's joint law (χ², level 1e-4, power > 0.99 for w = 0.15)."""
    prompt = pair.target_weights.prompt_tokens("And the LORD said unto", chat=False)
    for model in (pair.draft, pair.target):
        prefill(prompt, model, lambda done: None)
    rule = Sampled(temperature=1.0, top_p=0.95, top_k=6, seed=2302)
    law = exact_law(pair, prompt, rule)
    seen: Counter[tuple[int, int]] = Counter()
    for _ in range(SAMPLES):
        run = begin(prompt, pair.draft, pair.target)
        while len(run.tokens) < 2:
            speculative_step(run, pair.draft, pair.target, rule, 2, never)
        seen[run.tokens[0], run.tokens[1]] += 1
    assert not set(seen) - set(law), "a token that the target cannot draw was emitted"
    # Cells too rare for the χ² approximation are put together.
    common = [cell for cell, probability in law.items() if probability * SAMPLES >= 5]
    observed = [seen[cell] for cell in common]
    expected = [law[cell] * SAMPLES for cell in common]
    if len(common) < len(law):
        observed.append(SAMPLES - sum(observed))
        expected.append(SAMPLES - sum(expected))
    freedom = len(expected) - 1
    assert freedom >= 8
    power = stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom, SAMPLES * DETECTABLE**2)
    assert power > 0.99
    assert stats.chisquare(observed, expected).pvalue > LEVEL


def exact_law(pair: LoadedPair, prompt: list[int], rule: Sampled) -> dict[tuple[int, int], float]:
    """Returns the target's exact probability of each possible pair of tokens after `prompt`."""
    law = {}
    pair.target.truncate(len(prompt) - 1)
    first = rule.distribution(pair.target.forward(prompt[-1:], 1)[0])
    for one in np.flatnonzero(first):
        pair.target.truncate(len(prompt))
        second = rule.distribution(pair.target.forward([int(one)], 1)[0])
        for two in np.flatnonzero(second):
            law[int(one), int(two)] = float(first[one] * second[two])
    return law
