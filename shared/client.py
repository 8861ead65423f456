"""The HTTP client: asks, waits politely, and believes nothing that does not verify.

Every receipt is verified offline as it arrives and compared with what was asked. A run that outlasts the
server's wait is polled at the `Location` it names (RFC 9110 section 15.3.3), on the same origin only. A question that
fails in passing (no connection, 429, 502, 503, 504) is asked again within the call's time, after the `Retry-After` that
came with it; a `POST` only if it has an `Idempotency-Key`.

    with Specdec("http://127.0.0.1:8080") as service:
        receipt = service.run("And it came to pass", k=4, n=50)
    print(receipt.label, receipt.accepted_rate, receipt.speedup_measured)

`AsyncSpecdec` is the same with `async with` and `await`. What is asked and believed is in `shared.client_protocol`.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shared import labels
from shared.client_async import AsyncSpecdec
from shared.client_protocol import OnProgress, ServiceProtocol
from shared.client_steps import HEADERS, MAX_ANSWER, Answer, Body, ClientError, Pause, Request, Steps, T
from shared.results import Health, Progress, Receipt

if TYPE_CHECKING:
    import httpx

__all__ = ["MAX_ANSWER", "AsyncSpecdec", "ClientError", "Health", "Progress", "Receipt", "Specdec"]


class Specdec:
    """One service, for example the public one; use as a context manager or call `close`."""

    def __init__(
        self,
        base_url: str = labels.PUBLIC_BASE,
        timeout: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Name the service.

        Args:
            base_url: Scheme, host and optionally port; a base path of our own may follow.
            timeout: Seconds for one call as a whole, all polling included, up to a day. A service that sends its answer
                byte by byte can draw out the last of its requests.
            transport: What carries the requests, for tests.

        Raises:
            ClientError: If the URL or the timeout cannot be used.
        """
        import httpx

        self._protocol = ServiceProtocol(base_url, timeout)
        self._http = self._protocol.connections(
            lambda: httpx.Client(transport=transport, follow_redirects=False, headers=HEADERS)
        )

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> Health:
        """The service's health, which is no receipt.

        Raises:
            ClientError: If there is no usable answer.
        """
        return self._carry_out(self._protocol.health())

    def curve(self, **params: Any) -> Receipt:
        """The modeled curve as a verified receipt.

        Args:
            **params: Any of `k`, `cost_ratio`, `alpha` (a list) and `verify_cost`; see `CurveQuery`.

        Raises:
            ClientError: If a parameter is bad, there is no usable answer, or it answers another question.
        """
        return self._carry_out(self._protocol.curve(params))

    def run(
        self,
        prompt: str,
        *,
        wait: float | None = None,
        follow: bool = True,
        patient: bool = False,
        idempotency_key: str | None = None,
        on_progress: OnProgress | None = None,
        **fields: Any,
    ) -> Receipt:
        """Ask for a run and return its receipt, verified.

        Args:
            prompt: The prompt.
            wait: Seconds the server should wait before it answers 202 (RFC 7240 `Prefer: wait`).
            follow: Poll until the run has ended; if false, a 202's ROADMAP receipt is returned.
            patient: While the service has no room (429, or a ROADMAP that says BUSY), ask again after its
                Retry-After; what it said last is the answer when the next time would be too late.
            idempotency_key: Repeating a call under the same key never runs it twice.
            on_progress: Told how far the run is, and which one it is, each time the service says so.
            **fields: Further fields of `RunRequest`; the server fills in those left out.

        Returns:
            The receipt, with `prompt_salt` and, if asked for, `output` beside it.

        Raises:
            ClientError: If a field is bad, there is no usable answer in time, or it answers another question.
        """
        return self._carry_out(
            self._protocol.run(
                prompt,
                fields,
                wait=wait,
                follow=follow,
                patient=patient,
                idempotency_key=idempotency_key,
                on_progress=on_progress,
            )
        )

    def get_run(self, run_id: str) -> Receipt:
        """A run's receipt as it stands, verified: ROADMAP while it is running.

        Raises:
            ClientError: If there is no usable answer.
        """
        return self._carry_out(self._protocol.get_run(run_id))

    def cancel(self, run_id: str) -> Receipt:
        """Cancel a run and return its receipt, verified.

        Raises:
            ClientError: If there is no usable answer.
        """
        return self._carry_out(self._protocol.cancel(run_id))

    def _carry_out(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = next(steps)
                else:
                    step = steps.send(self._send(step))
        except StopIteration as end:
            result: T = end.value
            return result

    def _send(self, request: Request) -> Answer | ClientError:
        import httpx

        body = Body(request)
        try:
            with self._http.stream(request.method, request.url, **request.httpx_options()) as response:
                body.begin(response.headers)
                for chunk in response.iter_bytes():
                    body.add(chunk)
            return body.answer(response.status_code, response.headers)
        except (ClientError, httpx.HTTPError, httpx.InvalidURL) as error:
            return self._protocol.failure(error)
