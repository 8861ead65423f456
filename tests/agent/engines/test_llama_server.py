"""Tests of `agent.engines.llama_server` against real llama.cpp servers with the embedded pair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agent.decode import begin, prefill, speculative_step, target_only
from agent.engines.compare import compare
from agent.engines.engine import Completion
from agent.engines.errors import EngineAnswer, EngineInput, EngineUnreachable
from agent.engines.http import Http
from agent.engines.judge import CONTRADICTED, DECODE, EXCLUDED, UNVERIFIABLE
from agent.engines.llama_server import LlamaServer
from agent.measure import LoadedPair, load_pair
from agent.pairs import EMBEDDED, choose_pair
from agent.sampling import Greedy
from bench.ours import Watched
from shared import labels
from shared.estimators import Step
from tests.agent.engines.support import llama_server
from tests.shared.service import Answer, serve

PROMPTS = [one["prompt"] for one in json.loads((EMBEDDED / "prompts.json").read_text(encoding="utf-8"))]
SOME = [*PROMPTS[:3], *PROMPTS[-3:]]
K, BUDGET = 4, 48


@pytest.fixture(scope="module")
def pair() -> Iterator[LoadedPair]:
    """The embedded pair in our own loop, with the servers' context and one thread."""
    loaded = load_pair(choose_pair(embedded=True), n_ctx=1024, threads=1)
    yield loaded
    loaded.close()


def test_completion(speculative: str, plain: str) -> None:
    """Text, ids, time and counts come from the answer, drafts and positions from the metrics."""
    with Http(speculative) as one, Http(plain) as other:
        drafting, alone = LlamaServer(one), LlamaServer(other)
        ours, theirs = (engine.complete("And it came to pass", max_tokens=33) for engine in (drafting, alone))
        assert drafting.describe()["settings"]["speculative_types"] == "draft-simple"
        assert alone.describe()["settings"]["speculative_types"] == "none"
        about = alone.describe()
    assert (ours.text, ours.token_ids) == (theirs.text, theirs.token_ids)
    assert ours.tokens == 33 and ours.token_ids is not None and len(ours.token_ids) == 33
    assert ours.stopped == "limit" and ours.disturbed is None and ours.notes == ()
    assert ours.drafted and ours.accepted and ours.drafts and ours.accepted_per_position
    assert ours.accepted == sum(ours.accepted_per_position) and len(ours.accepted_per_position) == K
    # The first token is the prefill's; what no step emitted was decoded plainly, one token at most.
    assert 0 <= 33 - (1 + ours.accepted + ours.drafts) <= 1
    assert ours.decode_s is not None and 0 < ours.decode_s < ours.wall_s
    assert (theirs.drafted, theirs.accepted, theirs.drafts, theirs.accepted_per_position) == (0, 0, 0, None)
    assert about["name"] == "llama.cpp server" and about["model"] == "target.gguf" and about["version"]
    assert about["settings"] | {"context": 1024, "slots": 1} == about["settings"]


def test_seed_and_temperature(plain: str) -> None:
    """Sampling follows the seed: the same one repeats the text, another one does not; greedy heeds none."""
    with Http(plain) as http:
        engine = LlamaServer(http)
        sampled = [
            engine.complete("In the", max_tokens=40, temperature=1.5, seed=seed).text for seed in (1, 1, 2)
        ]
        greedy = [engine.complete("In the", max_tokens=40, seed=seed).text for seed in (1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert greedy[0] == greedy[1]


def test_control_text_in_a_prompt_stays_text(plain: str, pair: LoadedPair) -> None:
    """A prompt that spells the end-of-text token is continued as our own loop does, which reads it as text."""
    with Http(plain) as http:
        done = LlamaServer(http).complete("a<|endoftext|>b", max_tokens=8)
    prompt = pair.target_weights.prompt_tokens("a<|endoftext|>b", chat=False)
    prefill(prompt, pair.target, lambda read: None)
    assert done.token_ids == tuple(target_only(prompt, pair.target, Greedy(), 8))


@dataclass
class Ours:
    """What our own loop gave under the server's rules."""

    tokens: list[int]
    steps: list[Step]
    gap: float


def our_loop(pair: LoadedPair, text: str) -> Ours:
    """Decode `BUDGET` tokens with our own steps, cut the way llama.cpp's server cuts them."""
    rule, never = Watched(), lambda token: False
    prompt = pair.target_weights.prompt_tokens(text, chat=False)
    prefill(prompt, pair.target, lambda read: None)
    tokens = target_only(prompt, pair.target, rule, 1)
    for model in (pair.draft, pair.target):
        prefill([*prompt, *tokens], model, lambda read: None)
    run = begin([*prompt, *tokens], pair.draft, pair.target)
    while (left := BUDGET - 1 - len(run.tokens)) > 1:
        speculative_step(run, pair.draft, pair.target, rule, min(K, left - 1), never)
    if left:
        run.tokens.append(rule.alone(pair.target.forward([run.pending], 1)[0]))
    return Ours([*tokens, *run.tokens], run.steps, rule.gap)


def test_our_loop_and_the_server_count_the_same(pair: LoadedPair, speculative: str) -> None:
    """Greedy at k = 4, both give the same tokens, drafted, accepted, steps and positions on prose and code.

    They are two programs around two builds of llama.cpp. What has to be levelled for that:

    * The server takes its first token from the prompt's pass and drafts from the second on; our steps draft from the
      first on. So ours starts after one plain token.
    * The server is given a number of tokens, we one of steps. It drafts at most one less than are still wanted, so
      that the step's own token fits, and decodes a single token that is left plainly, without a step. Ours is told
      the same k for each step, and decodes that token alone.
    * The server's answer has no number of steps; its counter of drafts in the metrics has, and its positions too.
    * Text that ends inside a draft would be counted differently: an accepted end of text is a token accepted for us,
      and the target's own token for the server if drafts follow it. No prompt here ends within the budget.
    * The builds use other instructions and batches, so their logits differ in the last digits. A choice between two
      tokens that close is nobody's fault: prompts on which the gap got below 0.005 are left out, and some must remain.
    """
    compared = 0
    with Http(speculative) as http:
        engine = LlamaServer(http)
        for text in [*PROMPTS[:60:8], *PROMPTS[-60::8]]:
            ours, server = our_loop(pair, text), engine.complete(text, max_tokens=BUDGET)
            if ours.gap < 0.005:
                continue
            compared += 1
            assert not any(map(pair.target_weights.vocab.ends, ours.tokens))
            assert server.token_ids == tuple(ours.tokens)
            counts = [
                len(ours.steps),
                *(sum(getattr(s, name) for s in ours.steps) for name in ("drafted", "accepted")),
            ]
            assert [server.drafts, server.drafted, server.accepted] == counts
            positions = tuple(sum(step.accepted > at for step in ours.steps) for at in range(K))
            assert server.accepted_per_position == positions
    assert compared >= 6


def test_compared(speculative: str, plain: str) -> None:
    """Two real servers: texts equal, acceptance counted, a speed-up from the servers' own decode time."""
    told: list[tuple[int, int]] = []
    with Http(speculative) as one, Http(plain) as other:
        report = compare(
            LlamaServer(one),
            LlamaServer(other),
            SOME,
            pairs=6,
            max_tokens=24,
            on_progress=lambda done, total: told.append((done, total)),
        )
    assert told == [(number, 6) for number in range(1, 7)]
    assert report.quality == {"label": labels.LOSSLESS, "identical_rate": 1, "compared": 6}
    assert isinstance(report.speedup, dict) and isinstance(report.draft_acceptance, dict)
    assert report.speedup["basis"] == DECODE and report.speedup["pairs"] == 6
    acceptance = report.draft_acceptance
    assert acceptance["rate"] == acceptance["accepted"] / acceptance["drafted"]
    assert acceptance["mean_accepted_len"] == 1 + acceptance["accepted"] / acceptance["drafts"]
    assert sum(acceptance["accepted_per_position"]) == acceptance["accepted"]
    assert report.synthetic_acceptance["status"] == EXCLUDED
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["label"] == labels.MEASURED


@pytest.mark.parametrize(
    ("rates", "status", "words"),
    [
        (["0.8", "0.6", "0.4", "0.2"], CONTRADICTED, "may be synthetic"),
        (["1", "1", "1", "1"], UNVERIFIABLE, "texts are equal"),
        (["0", "0", "0", "0"], UNVERIFIABLE, "not one draft token was accepted"),
    ],
    ids=["by chance", "always", "never"],
)
def test_synthetic_acceptance_gives_no_figures(plain: str, rates: list[str], status: str, words: str) -> None:
    """A real server told to accept by chance, always or never does not say so, is found out, and gives no figures."""
    with llama_server("--k", "4", "--synth-rates", *rates) as url, Http(url) as one, Http(plain) as other:
        report = compare(LlamaServer(one), LlamaServer(other), SOME, pairs=6, max_tokens=40)
    assert report.synthetic_acceptance["status"] == status
    assert any(words in reason for reason in report.reasons)
    assert (report.label, report.speedup, report.draft_acceptance, report.tokens_per_second) == (
        labels.UNAVAILABLE,
    ) * 4


def test_servers_that_are_not_what_they_should_be(speculative: str, plain: str) -> None:
    """A plain server that speculates gives no figures; one that drafts nothing gives no acceptance."""
    with Http(speculative) as one, Http(plain) as other:
        drafting, alone = LlamaServer(one), LlamaServer(other)
        swapped = compare(alone, drafting, SOME[:1], pairs=1, max_tokens=8)
        idle = compare(alone, alone, SOME[:1], pairs=1, max_tokens=8)
    assert "the plain server speculates too" in swapped.reasons
    assert idle.draft_acceptance == labels.UNAVAILABLE
    assert "the speculative server drafted nothing" in idle.reasons


def test_without_metrics_and_with_a_key() -> None:
    """With metrics off the exact counts are still there, drafts are not; without its key the server says that."""
    with llama_server("--k", "4", "--no-metrics", "--api-key", "sk-key") as url:
        with Http(url, api_key="sk-key") as http:
            done = LlamaServer(http).complete("And it came to pass", max_tokens=33)
        with Http(url) as http, pytest.raises(EngineAnswer, match="wants an API key"):
            LlamaServer(http)
    assert done.drafted and done.accepted
    assert (done.drafts, done.accepted_per_position, done.disturbed) == (None, None, None)
    assert any("unseen" in note for note in done.notes)


def test_nothing_listens() -> None:
    """A server that is down is one sentence."""
    with Http("http://127.0.0.1:1") as http, pytest.raises(EngineUnreachable, match="cannot be reached"):
        LlamaServer(http)


def test_still_loading() -> None:
    """A server that loads its model is not ready."""
    with (
        serve(Answer(503, {"error": {"message": "Loading model"}})) as service,
        Http(service.url) as http,
        pytest.raises(EngineUnreachable, match="not ready"),
    ):
        LlamaServer(http)


def test_draft_settings_that_are_not_heeded(speculative: str) -> None:
    """A version that takes draft settings from its command line only is not believed to have heeded a request's."""
    with Http(speculative) as http:
        with pytest.raises(EngineAnswer, match="does not take draft settings from a request"):
            LlamaServer(http, speculative={"n_max": 2}).complete("In the", max_tokens=8)
        with pytest.raises(EngineInput, match="n_max, n_min, p_min"):
            LlamaServer(http, speculative={"synth_len": 2})


def scripted(**changes: Any) -> Completion:
    """Have an older version, which repeats draft settings, complete a prompt; its answer changed as told."""
    timings = {"predicted_n": 9, "predicted_ms": 80.0, "draft_n": 8, "draft_n_accepted": 6}
    settings = {"speculative.n_max": 2, "speculative.p_min": 0.75}
    completion = {
        "content": " x",
        "tokens": [1],
        "timings": timings,
        "generation_settings": settings,
        **changes,
    }
    metrics = "llamacpp:tokens_predicted_total 7\nllamacpp:spec_decode_num_draft_tokens_total 1\n"
    later = "llamacpp:tokens_predicted_total 16\nllamacpp:spec_decode_num_draft_tokens_total 12\n"
    answers = [
        Answer(200, {"status": "ok"}),
        Answer(200, {"build_info": "b1"}),
        Answer(200, {"tokens": [1, 2]}),
        Answer(200, metrics.encode()),
        Answer(200, completion),
        Answer(200, later.encode()),
    ]
    with serve(*answers) as service, Http(service.url) as http:
        done = LlamaServer(http, speculative={"n_max": 2}).complete("ab", max_tokens=9)
    posted = {path: body for method, path, body, _ in service.requests if method == "POST"}
    assert posted["/completion"]["speculative.n_max"] == 2 and posted["/completion"]["prompt"] == [1, 2]
    assert posted["/completion"]["cache_prompt"] is False
    return done


def test_somebody_elses_drafts_are_noticed() -> None:
    """Drafts in the counters beyond those of the answer are other traffic."""
    done = scripted()
    assert done.disturbed == "other traffic on the server"
    assert (done.drafted, done.accepted, done.drafts) == (8, 6, None)


def test_impossible_counts_are_not_passed_on() -> None:
    """An answer in which more was accepted than drafted has no counts."""
    timings = {"predicted_n": 9, "predicted_ms": 80.0, "draft_n": 11, "draft_n_accepted": 12}
    done = scripted(timings=timings)
    assert (done.drafted, done.accepted) == (None, None) and done.no_counts is not None


@pytest.mark.parametrize(
    ("fields", "stopped"),
    [
        ({"stop_type": "eos"}, "end_of_text"),
        ({"stop_type": "limit", "truncated": True}, "context"),
        ({"stop_type": "word"}, "stop_word"),
        ({"stop_type": "none"}, None),
        ({}, None),
    ],
)
def test_why_it_stopped(fields: dict[str, Any], stopped: str | None) -> None:
    """The server's reason in our words, None if it tells none."""
    assert scripted(**fields).stopped == stopped
