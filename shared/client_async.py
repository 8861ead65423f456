"""The client for asyncio; what is asked and believed is the same as `shared.client.Specdec`'s."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shared import labels
from shared.client_protocol import OnProgress, ServiceProtocol
from shared.client_steps import HEADERS, Answer, Body, ClientError, Pause, Request, Steps, T
from shared.results import Health, Receipt

if TYPE_CHECKING:
    import httpx


class AsyncSpecdec:
    """`Specdec` for asyncio: the same questions, answers and errors.

    A task that is cancelled lets go of its connection at once, and the client can be used on. The run goes on on the
    tower, as another may wait for it: `on_progress` has told its id, for `cancel`.
    """

    def __init__(
        self,
        base_url: str = labels.PUBLIC_BASE,
        timeout: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Name the service, as for `Specdec`."""
        import httpx

        self._protocol = ServiceProtocol(base_url, timeout)
        self._http = self._protocol.connections(
            lambda: httpx.AsyncClient(transport=transport, follow_redirects=False, headers=HEADERS)
        )

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def health(self) -> Health:
        """See `Specdec.health`."""
        return await self._carry_out(self._protocol.health())

    async def curve(self, **params: Any) -> Receipt:
        """See `Specdec.curve`."""
        return await self._carry_out(self._protocol.curve(params))

    async def run(
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
        """See `Specdec.run`."""
        return await self._carry_out(
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

    async def get_run(self, run_id: str) -> Receipt:
        """See `Specdec.get_run`."""
        return await self._carry_out(self._protocol.get_run(run_id))

    async def cancel(self, run_id: str) -> Receipt:
        """See `Specdec.cancel`."""
        return await self._carry_out(self._protocol.cancel(run_id))

    async def _carry_out(self, steps: Steps[T]) -> T:
        import asyncio

        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
                else:
                    step = steps.send(await self._send(step))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _send(self, request: Request) -> Answer | ClientError:
        import httpx

        body = Body(request)
        try:
            async with self._http.stream(request.method, request.url, **request.httpx_options()) as response:
                body.begin(response.headers)
                async for chunk in response.aiter_bytes():
                    body.add(chunk)
            return body.answer(response.status_code, response.headers)
        except (ClientError, httpx.HTTPError, httpx.InvalidURL) as error:
            return self._protocol.failure(error)
