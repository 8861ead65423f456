"""What a client asks the service and when it asks again, apart from any connection.

Each question is a generator. It yields a `Request` to be sent or a `Pause` to be waited out, is sent what came of a
request, and returns the result. `Specdec` and `AsyncSpecdec` do no more than carry these steps out, so they cannot
differ in what they believe: only what verifies and answers the question (`shared.client_judge`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from shared import labels
from shared.client_judge import (
    no_room,
    problem,
    require_answer,
    require_echo,
    require_run,
    run_headers,
    validated,
    verified,
)
from shared.client_steps import Answer, ClientError, Pause, Request, Steps
from shared.models import one_line
from shared.results import Health, Progress, Receipt
from shared.runid import RunIdError, split
from shared.schemas import CurveQuery, RunRequest

TRIES: Final = 3
"""How often a question is asked that fails in passing, where the service does not say when to come back."""
FIRST_RETRY_S: Final = 0.2
"""The pause before the second time; it doubles before the next."""
PASSING: Final = (429, 502, 503, 504)
"""Statuses that say: not now."""

MOST_S: Final = 86_400
"""Seconds in which any call must be over; operating systems take not much longer ones."""

OnProgress = Callable[[Progress], object]
C = TypeVar("C")


class ServiceProtocol:
    """The questions that one service can be asked."""

    def __init__(self, base_url: str, timeout: float) -> None:
        """Name the service.

        Raises:
            ClientError: If the URL or the timeout cannot be used.
        """
        import httpx

        if not 0 < timeout <= MOST_S:
            raise ClientError("BAD_INPUT", f"timeout must be a number of seconds above 0, at most {MOST_S}")
        try:
            base = httpx.URL(base_url.rstrip("/").removesuffix(labels.BASE_PATH))
        except (httpx.InvalidURL, UnicodeError):
            base = httpx.URL("")
        plain = re.fullmatch(rb"[A-Za-z0-9._:-]+", base.raw_host)  # httpx takes almost any text for a host
        if base.scheme not in ("http", "https") or not plain or base.query or base.fragment:
            raise ClientError("BAD_INPUT", "the URL must be like https://host or http://host:port")
        self._base = base
        self._root = str(base).rstrip("/") + labels.BASE_PATH
        self._timeout = timeout

    @staticmethod
    def connections(make: Callable[[], C]) -> C:
        """The connections that `make` opens none of yet.

        Raises:
            ClientError: If what the environment says of proxies or certificates cannot be used.
        """
        try:
            return make()
        except (ImportError, OSError, ValueError) as error:
            cause = f"the proxy or certificates of the environment cannot be used: {one_line(str(error))}"
            raise ClientError("BAD_INPUT", cause) from None

    def health(self) -> Steps[Health]:
        """Ask what the service can do."""
        return Health((yield from self._ask(self._get("/health"))).body)

    def curve(self, params: Mapping[str, Any]) -> Steps[Receipt]:
        """Ask for the modeled curve; the receipt must answer these parameters."""
        asked = validated(CurveQuery, params)
        receipt = verified((yield from self._ask(self._get("/curve", params=asked))))
        block = receipt.payload["accounting_modeled"]
        try:
            alphas = {float(key) for key in block["expected_speedup_at_alpha"]}
        except (KeyError, TypeError, ValueError):
            raise ClientError("BAD_ANSWER", "the service answered with a curve that cannot be read") from None
        if "alpha" in asked:  # each is answered once, in an order of the service's own
            asked["alpha"] = set(asked["alpha"])
        require_echo(asked, {**block, "alpha": alphas})
        return receipt

    def run(
        self,
        prompt: str,
        fields: Mapping[str, Any],
        *,
        wait: float | None,
        follow: bool,
        patient: bool,
        idempotency_key: str | None,
        on_progress: OnProgress | None,
    ) -> Steps[Receipt]:
        """Ask for a run, and after it until it has ended; see `Specdec.run`."""
        asked = validated(RunRequest, {"prompt": prompt, **fields})
        tell = on_progress or (lambda progress: None)
        deadline = time.monotonic() + self._timeout
        request = Request(
            "POST", f"{self._root}/run", deadline, {"json": asked}, run_headers(wait, idempotency_key)
        )
        while True:
            first = yield from self._ask(request, fine=(429,) if patient else ())
            in_time = time.monotonic() + first.retry_after < deadline
            if not (patient and in_time and no_room(first)):
                break
            yield Pause(first.retry_after)
        if first.status == 429:
            raise problem(first)
        receipt = verified(first)
        if first.status == 202:
            tell(receipt.progress or Progress(receipt.run_id, "running"))
            if follow:
                receipt = yield from self._poll(first, receipt.run_id, deadline, tell)
        if "prompt_salt" in first.body:  # the salt comes with the first answer only
            receipt["prompt_salt"] = first.body["prompt_salt"]
        require_answer(receipt, asked)
        return receipt

    def get_run(self, run_id: str) -> Steps[Receipt]:
        """Ask after a run."""
        return (yield from self._of_run("GET", run_id))

    def cancel(self, run_id: str) -> Steps[Receipt]:
        """Take a run back."""
        return (yield from self._of_run("DELETE", run_id))

    def failure(self, error: Exception) -> ClientError:
        """What it means that httpx has failed."""
        import httpx

        if isinstance(error, ClientError):
            return error
        if isinstance(error, httpx.TimeoutException):
            return ClientError("TIMEOUT", "the service did not answer in time")
        origin = f"{self._base.scheme}://{self._base.netloc.decode()}"
        return ClientError(
            "UNREACHABLE",
            f"the service cannot be reached at {origin}",
            "is it running there? another one is named by --url",
        )

    def _get(self, path: str, **options: Any) -> Request:
        return Request("GET", self._root + path, time.monotonic() + self._timeout, options)

    def _of_run(self, method: str, run_id: str) -> Steps[Receipt]:
        try:
            split(run_id)
        except RunIdError as error:
            raise ClientError("BAD_INPUT", error.cause) from None
        deadline = time.monotonic() + self._timeout
        receipt = verified((yield from self._ask(Request(method, f"{self._root}/runs/{run_id}", deadline))))
        require_run(receipt, run_id)
        return receipt

    def _ask(self, request: Request, fine: tuple[int, ...] = ()) -> Steps[Answer]:
        """Ask until there is an answer with a good status or a fine one.

        A question that fails in passing is asked again if that is safe: as often as the service says when (Retry-After)
        and time is left, else `TRIES` times.
        """
        tries = 0
        while True:
            outcome = yield request
            tries += 1
            pause, again = FIRST_RETRY_S * 2 ** (tries - 1), tries < TRIES
            if isinstance(outcome, ClientError):
                error, passing = outcome, outcome.code == "UNREACHABLE"
            elif outcome.status in fine or (outcome.status in (200, 202) and outcome.sound):
                return outcome
            else:
                error, passing = problem(outcome), outcome.status in PASSING
                if "Retry-After" in outcome.headers:
                    pause, again = outcome.retry_after, True
            in_time = time.monotonic() + pause < request.deadline
            if not (request.repeatable and passing and again and in_time):
                raise error
            yield Pause(pause)

    def _poll(self, answer: Answer, run_id: str | None, deadline: float, tell: OnProgress) -> Steps[Receipt]:
        """Ask again until the run has ended; only an answer for the same run counts."""
        url = self._own(answer)
        while True:
            pause = answer.retry_after
            if time.monotonic() + pause >= deadline:
                raise ClientError("TIMEOUT", "the run has not ended in time", f"it goes on: run {run_id}")
            yield Pause(pause)
            try:
                answer = yield from self._ask(Request("GET", url, deadline), fine=PASSING)
            except ClientError as error:
                if error.code != "UNREACHABLE":
                    raise
                continue  # the run goes on meanwhile
            if answer.status in PASSING:
                continue
            receipt = verified(answer)
            require_run(receipt, run_id)
            if answer.status == 200:
                return receipt
            tell(receipt.progress or Progress(run_id, "running"))

    def _own(self, answer: Answer) -> str:
        """The `Location` of a 202, if it is on the origin that was asked."""
        import httpx

        try:
            url = self._base.join(answer.headers["Location"])
        except (KeyError, httpx.InvalidURL):
            raise ClientError("BAD_ANSWER", "the service named no place to ask again") from None
        if (url.scheme, url.host, url.port) != (self._base.scheme, self._base.host, self._base.port):
            raise ClientError(
                "FOREIGN_LOCATION", "the service sent us to another host, which we do not follow"
            )
        return str(url)
