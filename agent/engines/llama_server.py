"""llama.cpp's own server (`llama-server`), over its native routes.

Every answer carries exact counts: `timings.draft_n` and `draft_n_accepted`, left out when nothing was drafted. Drafts
and positions come from `/metrics` where that is on. The routes and fields are those of tools/server/README.md in
https://github.com/ggml-org/llama.cpp; what follows is from its source (server-context.cpp, server-schema.cpp):

* The prompt's last pass gives the first token. Each later pass drafts at most `--spec-draft-n-max` tokens, and never
  more than the tokens still wanted less one; the last token is decoded plainly if it comes alone.
* `timings.predicted_ms` starts at the first token.
* Newer versions take draft settings from the command line only. Older ones took `speculative.n_max` and the like from
  the request, and said so by repeating them in the answer; `speculative` asks for them and insists on that echo.
* Nothing shows whether acceptance is synthetic (`--spec-synth-len`, `--spec-synth-rates`): neither `/props` nor
  `/slots` nor an answer. `agent.engines.compare` looks for what it must change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from agent.engines.engine import Completion
from agent.engines.errors import EngineAnswer, EngineInput
from agent.engines.http import Answer, Http
from agent.engines.metrics import LLAMA, Exposition, Growth, growth
from agent.engines.prometheus import disturbance

SPECULATIVE = ("n_max", "n_min", "p_min")
"""Draft settings that older versions took from a request."""

STOPS = {"eos": "end_of_text", "limit": "limit", "word": "stop_word"}


class _Health(Answer):
    status: str


class _Defaults(Answer):
    n_ctx: int | None = None


class _Props(Answer):
    build_info: str | None = None
    model_path: str | None = None
    model_alias: str | None = None
    total_slots: int | None = None
    default_generation_settings: _Defaults | None = None


class _Tokens(Answer):
    tokens: tuple[int, ...]


class _Timings(Answer):
    predicted_n: int = Field(ge=0)
    predicted_ms: float = Field(ge=0)
    draft_n: int | None = Field(default=None, ge=0)
    draft_n_accepted: int | None = Field(default=None, ge=0)


class _Completion(Answer):
    content: str
    tokens: tuple[int, ...] | None = None
    timings: _Timings
    generation_settings: dict[str, Any] = {}
    stop_type: str | None = None
    truncated: bool = False


class LlamaServer:
    """llama.cpp's server; see `agent.engines.engine.Engine`."""

    def __init__(self, http: Http, *, speculative: Mapping[str, float] | None = None) -> None:
        """Makes sure that the server is up.

        Args:
            http: The server.
            speculative: Draft settings to ask for with each request, by name: "n_max", "n_min", "p_min".

        Raises:
            EngineUnreachable: If the server is down or still loading.
            EngineAnswer: If it is not llama.cpp's.
            EngineInput: If a draft setting is not one.
        """
        self._http = http
        self._speculative = {f"speculative.{name}": value for name, value in (speculative or {}).items()}
        if not set(speculative or ()) <= set(SPECULATIVE):
            raise EngineInput(f"draft settings are {', '.join(SPECULATIVE)}")
        http.ask(_Health, "/health")
        self._props = http.ask(_Props, "/props")
        self._types: str | None = None

    def complete(
        self, prompt: str, *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Completion:
        """Completes a prompt; see `Engine.complete`.

        The prompt is tokenised first, as text throughout, so that what looks like a control token in it is none. The
        server's default samplers (penalties among them) are set aside: greedy is the target's argmax, and sampling is
        by temperature alone.

        Raises:
            EngineAnswer: Also if the server does not heed the draft settings.
        """
        ids = self._http.ask(
            _Tokens, "/tokenize", {"content": prompt, "add_special": True, "parse_special": False}
        ).tokens
        samplers = {"samplers": ["top_k"], "top_k": 1} if temperature == 0 else {"samplers": ["temperature"]}
        body = {
            "prompt": ids,
            "n_predict": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "cache_prompt": False,
            "return_tokens": True,
            **samplers,
            **self._speculative,
        }
        before = self._scrape()
        began = time.perf_counter()
        answer = self._http.ask(_Completion, "/completion", body)
        wall_s = time.perf_counter() - began
        self._heed(answer)
        after = self._scrape()
        grown = growth(LLAMA, before, after) if before and after else None
        return self._completion(answer, wall_s, grown)

    def describe(self) -> dict[str, Any]:
        """Returns what the server tells of itself; `speculative_types` once it has completed something."""
        props = self._props
        defaults = props.default_generation_settings
        return {
            "name": LLAMA.name,
            "version": props.build_info,
            "model": (props.model_path or props.model_alias or "").rsplit("/", 1)[-1] or None,
            "url": self._http.origin,
            "settings": {
                "speculative_types": self._types,
                "slots": props.total_slots,
                "context": defaults.n_ctx if defaults else None,
                **self._speculative,
            },
        }

    def _scrape(self) -> Exposition | None:
        text = self._http.text("/metrics")
        try:
            return Exposition(text) if text else None
        except ValueError:
            return None

    def _heed(self, answer: _Completion) -> None:
        settings = answer.generation_settings
        types = settings.get("speculative.types")
        self._types = types if isinstance(types, str) else None
        for name, asked in self._speculative.items():
            heeded = settings.get(name)
            if not isinstance(heeded, int | float) or abs(heeded - asked) > 1e-6:
                raise EngineAnswer(
                    f"{self._http.origin} does not take draft settings from a request",
                    "start it with --spec-draft-n-max and the like",
                )

    def _completion(self, answer: _Completion, wall_s: float, grown: Growth | None) -> Completion:
        timings = answer.timings
        drafted, accepted = timings.draft_n, timings.draft_n_accepted
        no_counts, notes = None, []
        if drafted is None and grown is not None and grown.drafted == 0:
            drafted = accepted = 0
        if drafted is None or accepted is None:
            no_counts = "the server's answer counts no draft tokens: it drafted none, or is too old to say"
        elif accepted > drafted:
            no_counts = "the server's counts contradict each other"
        disturbed = None if grown is None else disturbance(grown, timings.predicted_n)
        if grown is None:
            notes.append("the server's /metrics is off, so that other traffic would go unseen")
        elif grown.drafted is not None and grown.drafted > (drafted or 0):
            disturbed = disturbed or "other traffic on the server"
        clean = grown if not disturbed else None
        known = no_counts is None
        return Completion(
            text=answer.content,
            tokens=timings.predicted_n,
            wall_s=wall_s,
            token_ids=answer.tokens or None,
            decode_s=timings.predicted_ms / 1000 or None,
            drafted=drafted if known else None,
            accepted=accepted if known else None,
            drafts=clean.drafts if clean and known else None,
            accepted_per_position=clean.per_position if clean and known else None,
            stopped="context" if answer.truncated else STOPS.get(answer.stop_type or ""),
            no_counts=no_counts,
            disturbed=disturbed,
            notes=tuple(notes),
        )
