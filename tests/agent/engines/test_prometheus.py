"""Tests of `agent.engines.prometheus`, over HTTP: scripted vLLM, SGLang and TensorRT-LLM, and a real llama.cpp."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.engines.compare import compare
from agent.engines.engine import Completion
from agent.engines.errors import EngineAnswer, EngineInput, EngineUnreachable
from agent.engines.http import Http
from agent.engines.judge import DECODE, EXCLUDED, WALL
from agent.engines.llama_server import LlamaServer
from agent.engines.prometheus import PrometheusEngine
from shared import labels
from tests.agent.engines.support import MODEL, Scripted, serving
from tests.shared.service import Answer, serve

PROMPTS = ["To be", "or not", "to be so"]


def complete(server: Scripted, *, settle_s: float = 5.0, model: str | None = None) -> Completion:
    """Have a scripted server complete a prompt."""
    with serving(server), Http(server.url) as http:
        return PrometheusEngine(http, model=model, settle_s=settle_s).complete("abc", max_tokens=20)


def test_vllm() -> None:
    """Counters of vLLM give drafts, drafted, accepted, positions, and decode seconds without prefill."""
    server = Scripted("vllm")
    done = complete(server)
    assert (done.tokens, done.token_ids, done.stopped) == (20, tuple(range(20)), "limit")
    assert done.drafts == server.counters["drafts"] > 0
    assert done.drafted == server.counters["drafted"] == 3 * done.drafts
    assert done.accepted == server.counters["accepted"] == sum(server.positions) == 19 - done.drafts
    assert done.accepted_per_position == tuple(server.positions)
    assert done.decode_s == pytest.approx(0.19) and done.wall_s > 0
    assert (done.no_counts, done.disturbed, done.notes, done.server_figures) == (None, None, (), {})


def test_growth_is_of_one_request_only() -> None:
    """What the counters held before a request does not count for it."""
    server = Scripted("vllm")
    server.count(drafts=1000, drafted=3000, accepted=10, tokens=1010, requests=9, seconds=55.5)
    server.positions[0] = 10
    fresh, used = complete(Scripted("vllm")), complete(server)
    assert (used.drafts, used.drafted, used.accepted) == (fresh.drafts, fresh.drafted, fresh.accepted)
    assert used.accepted_per_position == fresh.accepted_per_position
    assert used.decode_s == pytest.approx(fresh.decode_s)


def test_tensorrt() -> None:
    """TensorRT-LLM's metrics are found behind its JSON ones; it counts no drafts, and its gauges are only passed on."""
    server = Scripted("trtllm", gauges={"spec_decode_acceptance_length": 2.5})
    with serving(server), Http(server.url) as http:
        engine = PrometheusEngine(http)
        done = engine.complete("abc", max_tokens=20)
        about = engine.describe()
    assert done.drafts is None and done.accepted_per_position is None
    assert (done.drafted, done.accepted) == (server.counters["drafted"], server.counters["accepted"])
    assert done.decode_s == pytest.approx(0.19)
    assert done.server_figures["gauges"] == {"trtllm_spec_decode_acceptance_length": 2.5}
    assert (about["name"], about["version"]) == ("TensorRT-LLM", "1.2.3")
    assert about["settings"] == {
        "spec_method": "DraftTarget",
        "spec_num_tokens": "3",
        "spec_draft_model": "small",
    }


@pytest.mark.parametrize(
    ("rate", "right"), [(2.78 / 4, 0), (1.78 / 3, 1)], ids=["older definition", "newer definition"]
)
def test_sglang(rate: float, right: int) -> None:
    """SGLang only has gauges, of either definition: both readings are shown, and nothing is taken for a measurement."""
    server = Scripted("sglang", gauges={"spec_accept_length": 2.78, "spec_accept_rate": rate})
    with serving(server), Http(server.url) as http:
        engine = PrometheusEngine(http)
        done, about = engine.complete("abc", max_tokens=20), engine.describe()
    assert (done.drafted, done.accepted, done.drafts, done.decode_s) == (None, None, None, None)
    assert done.no_counts and "gauges" in done.no_counts
    assert done.server_figures["label"].startswith(labels.UNAVAILABLE)
    reading = done.server_figures["readings"][right]
    assert reading["draft_acceptance_rate"] == pytest.approx(1.78 / 3)
    assert reading["num_draft_tokens"] == pytest.approx(about["settings"]["speculative_num_draft_tokens"])
    assert "sk-secret" not in str(about)


@pytest.mark.parametrize("kind", ["vllm", "trtllm", "sglang"])
def test_only_vllm_is_asked_for_token_ids(kind: str) -> None:
    """Servers that refuse fields they do not know are sent none of vLLM's own."""
    server = Scripted(kind)
    complete(server)
    bodies = [body for path, body, _ in server.seen if path == "/v1/completions"]
    assert [("return_token_ids" in body) for body in bodies] == [kind == "vllm"]


def other_requests(server: Scripted) -> None:
    """Somebody else's request, short ones being our own length."""
    server.count(requests=1)


def other_tokens(server: Scripted) -> None:
    """Somebody else's request that goes on."""
    server.count(tokens=1, drafted=3)


def restart(server: Scripted) -> None:
    """The server starts again from 0 and has done other work since."""
    server.counters = {"drafts": 1, "drafted": 3, "accepted": 1, "tokens": 5, "requests": 1, "seconds": 0.1}
    server.positions = [1, 0, 0]


@pytest.mark.parametrize(
    ("happens", "reason"),
    [(other_requests, "other traffic"), (other_tokens, "other traffic"), (restart, "went backwards")],
)
def test_disturbed(happens: Callable[[Scripted], None], reason: str) -> None:
    """Other traffic and a restart are noticed: then there are no counts and no decode time."""
    server = Scripted("vllm", after=happens)
    server.count(drafts=9, drafted=27, accepted=9, tokens=99, requests=2, seconds=1)
    done = complete(server)
    assert done.disturbed and reason in done.disturbed
    assert (done.drafted, done.accepted, done.drafts, done.decode_s) == (None, None, None, None)
    assert done.no_counts == done.disturbed


@pytest.mark.parametrize("kind", ["vllm", "trtllm"])
def test_counters_that_lag(kind: str) -> None:
    """Counters that do not know of the answer yet are read again until they do."""
    late, prompt = complete(Scripted(kind, lag=3)), complete(Scripted(kind))
    assert (late.drafted, late.accepted, late.disturbed) == (prompt.drafted, prompt.accepted, None)


def test_counters_that_never_catch_up() -> None:
    """Counters that stay behind give no counts, and the reason."""
    done = complete(Scripted("vllm", lag=10**9), settle_s=0.1)
    assert (done.drafted, done.disturbed) == (None, None)
    assert done.no_counts == "the server's counters did not catch up with its answer"


def test_counters_that_contradict_each_other() -> None:
    """More accepted than drafted is believed of nobody."""
    done = complete(Scripted("vllm", after=lambda server: server.count(accepted=1000)))
    assert (done.drafted, done.accepted) == (None, None)
    assert done.no_counts == "the server's counters contradict each other"


def test_no_metrics() -> None:
    """A server without metrics completes all the same; its numbers are None, with the reason."""
    done = complete(Scripted("bare"))
    assert done.tokens == 20
    assert (done.drafted, done.decode_s) == (None, None)
    assert done.no_counts == "the server shows no Prometheus metrics"
    assert any("unseen" in note for note in done.notes)


def test_a_server_that_does_not_speculate() -> None:
    """Counters of speculation that never appeared are absent, not 0."""
    done = complete(Scripted("vllm", speculates=False))
    assert (done.drafted, done.accepted, done.accepted_per_position) == (None, None, None)
    assert done.no_counts == "the server has no usable counters of speculation"
    assert done.decode_s == pytest.approx(0.38)


def test_several_models() -> None:
    """With several models one must be named, and only its series count."""
    both = ("base", MODEL)
    with pytest.raises(EngineInput, match="serves 2 models; name one with --model"):
        complete(Scripted("vllm", models=both))
    with pytest.raises(EngineInput, match="does not serve that model"):
        complete(Scripted("vllm", models=both), model="third")
    assert complete(Scripted("vllm", models=both), model=MODEL).drafted
    other = complete(Scripted("vllm", models=both), model="base")
    assert other.drafted is None and other.no_counts and "not of this model" in other.no_counts


def test_compared_with_a_plain_server() -> None:
    """Speed-up by the servers' decode time, acceptance by counters, texts equal: all of it exact here."""
    with (
        serving(Scripted("vllm")) as ours,
        serving(Scripted("vllm", speculates=False)) as alone,
        Http(ours.url) as one,
        Http(alone.url) as other,
    ):
        report = compare(PrometheusEngine(one), PrometheusEngine(other), PROMPTS, pairs=6, max_tokens=30)
    assert isinstance(report.speedup, dict) and report.speedup["basis"] == DECODE
    assert report.speedup["median"] == pytest.approx(2) and report.speedup["pairs"] == 6
    assert report.speedup["ci95"] == pytest.approx([2, 2])
    assert report.quality == {"label": labels.LOSSLESS, "identical_rate": 1, "compared": 6}
    assert report.synthetic_acceptance["status"] == EXCLUDED
    assert isinstance(report.draft_acceptance, dict)
    rate, drafted = report.draft_acceptance["rate"], report.draft_acceptance["drafted"]
    assert rate == report.draft_acceptance["accepted"] / drafted
    # The warm-up is the seventh request, and does not count.
    assert drafted < ours.counters["drafted"] and len(report.draft_acceptance["accepted_per_position"]) == 3
    order = [path for path, _, _ in ours.seen + alone.seen if path == "/v1/completions"]
    assert len(order) == 14
    assert report.reasons == [] and report.notes == []


def test_sglang_compared_by_wall_clock() -> None:
    """Without decode times the basis is wall clock and says so; acceptance stays unavailable, with both readings."""
    gauges = {"spec_accept_length": 2.78, "spec_accept_rate": 0.695}
    with (
        serving(Scripted("sglang", gauges=gauges)) as ours,
        serving(Scripted("sglang", speculates=False)) as alone,
        Http(ours.url) as one,
        Http(alone.url) as other,
    ):
        report = compare(PrometheusEngine(one), PrometheusEngine(other), PROMPTS, pairs=6)
    assert isinstance(report.speedup, dict) and report.speedup["basis"] == WALL
    assert report.draft_acceptance == labels.UNAVAILABLE
    assert any("gauges" in reason for reason in report.reasons)
    assert len(report.server_figures["readings"]) == 2


def test_key_is_sent_and_nowhere_else() -> None:
    """The key goes into the header, and into no description or completion."""
    with serving(Scripted("vllm")) as server, Http(server.url + "/v1", api_key="sk-key") as http:
        engine = PrometheusEngine(http)
        done = engine.complete("abc", max_tokens=5)
        assert "sk-key" not in f"{done}{engine.describe()}"
        assert all(headers["authorization"] == "Bearer sk-key" for _, _, headers in server.seen)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("ftp://host", None),
        ("host:80", None),
        ("http://user:pw@host", None),
        ("http://a b", None),
        ("http://host?x=1", None),
        ("", None),
        ("http://host", "two words"),
        ("http://host", "nul\x00"),
    ],
)
def test_bad_url_or_key(url: str, key: str | None) -> None:
    """A URL with credentials or without a host, or a key that cannot be a header, is refused without repeating it."""
    with pytest.raises(EngineInput) as caught:
        Http(url, api_key=key)
    assert "pw" not in str(caught.value).split() and "nul" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (Answer(401, {}), EngineAnswer, "API key"),
        (Answer(503, {}), EngineUnreachable, "not ready"),
        (Answer(302, {}, {"Location": "http://127.0.0.1:1/"}), EngineAnswer, "answered 302"),
        (Answer(500, {"error": "the prompt was abc"}), EngineAnswer, "answered 500"),
        (Answer(200, b"not json"), EngineAnswer, "something else"),
        (Answer(200, {"choices": [], "usage": {"completion_tokens": 1}}), EngineAnswer, "something else"),
        (Answer(200, {"choices": [{"text": "x"}]}), EngineAnswer, "something else"),
        (
            Answer(200, {"choices": [{"text": "x"}], "usage": {"completion_tokens": -1}}),
            EngineAnswer,
            "something",
        ),
    ],
)
def test_bad_answers(answer: Answer, error: type[Exception], words: str) -> None:
    """Errors and answers of another shape are one sentence, which repeats neither prompt nor answer."""
    models = Answer(200, {"data": [{"id": "m"}]})
    with serve(models, Answer(404, {}), Answer(404, {}), answer) as service, Http(service.url) as http:
        engine = PrometheusEngine(http)
        with pytest.raises(error, match=words) as caught:
            engine.complete("abc", max_tokens=5)
    assert "abc" not in str(caught.value) and "\n" not in str(caught.value)


def test_real_llama_server_by_both_adapters(speculative: str) -> None:
    """llama.cpp's counters over `/v1/completions` say the same as its native answer."""
    with Http(speculative) as http:
        native = LlamaServer(http).complete("And it came to pass", max_tokens=33)
        engine = PrometheusEngine(http)
        counted = engine.complete("And it came to pass", max_tokens=33)
        about = engine.describe()
    assert counted.drafted and counted.no_counts is None and counted.decode_s
    for name in ("text", "tokens", "drafted", "accepted", "drafts", "accepted_per_position", "stopped"):
        assert getattr(counted, name) == getattr(native, name), name
    assert about["name"] == "llama.cpp server" and about["model"] == "target.gguf"
