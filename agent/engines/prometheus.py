"""An OpenAI-compatible server, measured by what its Prometheus counters grow by over each request.

The counters belong to the whole server, so a request's share is only known while nobody else uses it: what the server
emitted beyond our own tokens marks the completion as disturbed. Traffic that neither ends nor, by that server's way of
counting, emits anything while a request of ours runs goes unseen.

vLLM and TensorRT-LLM also sum the seconds from first to last token, which leaves prefill out; of other servers only
our own clock is known, unless the answer itself says more.
"""

from __future__ import annotations

import time
from typing import Any, Final

from pydantic import Field

from agent.engines.engine import Completion
from agent.engines.errors import EngineError, EngineInput
from agent.engines.http import Answer, Http
from agent.engines.metrics import (
    LLAMA,
    SGLANG,
    TENSORRT,
    VLLM,
    Exposition,
    Family,
    Growth,
    growth,
    server_figures,
)

METRICS_PATHS: Final = ("/metrics", "/prometheus/metrics")
"""The second is TensorRT-LLM's, whose `/metrics` is JSON."""

SETTLE_S: Final = 5.0
POLL_S: Final = 0.02
"""Counters may lag behind the answer: they are read until two readings agree and our own tokens are in them."""

ABOUT_PATHS: Final[dict[Family | None, str]] = {SGLANG: "/get_server_info", LLAMA: "/props"}
"""Where a server tells its version, if not at `/version`."""

STOPS: Final = {"stop": "end_of_text", "length": "limit"}


class _Model(Answer):
    id: str


class _Models(Answer):
    data: tuple[_Model, ...]


class _Choice(Answer):
    text: str
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None


class _Usage(Answer):
    completion_tokens: int = Field(ge=0)


class _VllmMetrics(Answer):
    generation_time_ms: float | None = Field(default=None, ge=0)


class _LlamaTimings(Answer):
    predicted_ms: float | None = Field(default=None, ge=0)


class _Completion(Answer):
    choices: tuple[_Choice, ...] = Field(min_length=1)
    usage: _Usage
    metrics: _VllmMetrics | None = None
    timings: _LlamaTimings | None = None

    def decode_s(self) -> float | None:
        """Returns the seconds from first to last token, of servers that put them into the answer."""
        for milliseconds in (
            self.metrics.generation_time_ms if self.metrics else None,
            self.timings.predicted_ms if self.timings else None,
        ):
            if milliseconds:
                return milliseconds / 1000
        return None


class _About(Answer):
    version: str | None = None
    build_info: str | None = None
    speculative_algorithm: str | None = None
    speculative_num_steps: int | None = None
    speculative_num_draft_tokens: int | None = None


class PrometheusEngine:
    """Any OpenAI-compatible server; see `agent.engines.engine.Engine`."""

    def __init__(self, http: Http, *, model: str | None = None, settle_s: float = SETTLE_S) -> None:
        """Asks the server for its models and finds its metrics.

        Args:
            http: The server.
            model: Name of the model as served; may be left out where there is one only.
            settle_s: Longest wait for the counters to catch up with an answer.

        Raises:
            EngineUnreachable: If the server is down.
            EngineAnswer: If it does not talk like an OpenAI-compatible server.
            EngineInput: If it serves several models and none is named, or not the one that is.
        """
        self._http, self._settle_s = http, settle_s
        served = [one.id for one in http.ask(_Models, "/v1/models").data]
        if model is None and len(served) != 1:
            raise EngineInput(f"{http.origin} serves {len(served)} models", "name one with --model")
        if model is not None and model not in served:
            raise EngineInput(f"{http.origin} does not serve that model", "see its /v1/models")
        self._model = served[0] if model is None else model
        self._path = next((path for path in METRICS_PATHS if self._read(path)), None)
        reading = self._scrape()
        self._family = reading.family() if reading else None

    def complete(
        self, prompt: str, *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Completion:
        """Completes a prompt and reads the counters before and after; see `Engine.complete`."""
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        if self._family is VLLM:  # others refuse fields that they do not know
            body["return_token_ids"] = True
        before = self._scrape()
        began = time.perf_counter()
        answer = self._http.ask(_Completion, "/v1/completions", body)
        wall_s = time.perf_counter() - began
        choice, tokens = answer.choices[0], answer.usage.completion_tokens
        after, grown = self._settled(before, tokens)
        disturbed = None if grown is None else disturbance(grown, tokens)
        no_counts = disturbed or self._why_no_counts(grown, tokens)
        counted = None if no_counts else grown
        timed = None if disturbed or grown is None else grown.decode_s
        return Completion(
            text=choice.text,
            tokens=tokens,
            wall_s=wall_s,
            token_ids=choice.token_ids,
            decode_s=answer.decode_s() or timed,
            drafted=counted.drafted if counted else None,
            accepted=counted.accepted if counted else None,
            drafts=counted.drafts if counted else None,
            accepted_per_position=counted.per_position if counted else None,
            stopped=STOPS.get(choice.finish_reason or ""),
            no_counts=no_counts,
            disturbed=disturbed,
            notes=self._notes(grown),
            server_figures=server_figures(self._family, after) if self._family and after else {},
        )

    def describe(self) -> dict[str, Any]:
        """Returns what the server tells of itself; see `Engine.describe`."""
        try:
            about = self._http.ask(_About, ABOUT_PATHS.get(self._family, "/version"))
        except EngineError:
            about = _About()  # not every version has that route
        settings = {
            name: value for name, value in about if name.startswith("speculative_") and value is not None
        }
        if self._family is TENSORRT and (reading := self._scrape()):
            settings |= _speculative_config(reading)
        return {
            "name": self._family.name if self._family else None,
            "version": about.version or about.build_info,
            "model": self._model.rsplit("/", 1)[-1] if self._model.startswith("/") else self._model,
            "url": self._http.origin,
            "settings": settings,
        }

    def _read(self, path: str) -> Exposition | None:
        text = self._http.text(path)
        try:
            return Exposition(text, self._model) if text else None
        except ValueError:
            return None

    def _scrape(self) -> Exposition | None:
        return self._read(self._path) if self._path else None

    def _settled(self, before: Exposition | None, tokens: int) -> tuple[Exposition | None, Growth | None]:
        """Reads the counters until they have caught up and two readings agree, or `settle_s` are over."""
        family, until, last = self._family, time.monotonic() + self._settle_s, None
        while True:
            after = self._scrape()
            if family is None or before is None or after is None:
                return after, None
            grown = growth(family, before, after)
            caught_up = grown.tokens is None or grown.tokens >= tokens
            if grown.backwards or (grown == last and (caught_up or time.monotonic() > until)):
                return after, grown
            last = grown
            time.sleep(POLL_S)

    def _why_no_counts(self, grown: Growth | None, tokens: int) -> str | None:
        if self._path is None:
            return "the server shows no Prometheus metrics"
        if self._family is None:
            return "the server's metrics are of no kind that is known here, or not of this model"
        if grown is None:
            return "the server's metrics could not be read"
        return why_no_counts(self._family, grown, tokens)

    def _notes(self, grown: Growth | None) -> tuple[str, ...]:
        if grown is None or (grown.tokens is None and grown.requests is None):
            return ("the server counts neither requests nor tokens, so that other traffic would go unseen",)
        return ()


def disturbance(grown: Growth, tokens: int) -> str | None:
    """Tells why a completion of `tokens` tokens cannot have been the server's only work, if so."""
    if grown.backwards:
        return "the server's counters went backwards: it was restarted, or another one answered"
    if (grown.requests or 0) > 1 or (grown.tokens or 0) > tokens:
        return "other traffic on the server"
    return None


def why_no_counts(family: Family, grown: Growth, tokens: int) -> str | None:
    """Tells why there are no counts of speculation for a completion of `tokens` tokens, if so."""
    if family.drafted is None:
        return f"{family.name} counts no draft tokens, it only shows gauges of its last batches"
    if grown.tokens is not None and grown.tokens < tokens:
        return "the server's counters did not catch up with its answer"
    if grown.drafted is None or grown.accepted is None:
        return "the server has no usable counters of speculation"
    if not grown.accepted <= grown.drafted:
        return "the server's counters contradict each other"
    return None


def _speculative_config(reading: Exposition) -> dict[str, Any]:
    """Returns TensorRT-LLM's own description of its speculation, from the labels of its configuration metric."""
    kept = ("spec_enabled", "spec_method", "spec_num_tokens", "spec_draft_model")
    for sample in reading.samples:
        if sample.name == "trtllm_speculative_config_info":
            return {name: sample.labels[name].rsplit("/", 1)[-1] for name in kept if name in sample.labels}
    return {}
