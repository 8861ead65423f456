"""Calls to AWS that end soon, or do not begin.

A caller waits for the answer meanwhile, so limits are short, and a service that did not answer is left alone for a
while: each further try would make its caller wait in vain. The SDK is loaded by the first call, as cold starts of
`/health` must not pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from edge.deadline import NEVER, Deadline

TIMEOUT_S = 0.8
ATTEMPTS = 2
CALL_S = 2 * TIMEOUT_S * ATTEMPTS + 1.0
"""Longest call: connecting and reading time out in each attempt, and between them is a pause of at most a second."""

PAUSE_S = 20.0
"""For so long a service is left alone after it has failed."""


class AwsFailed(Exception):
    """A call gave nothing; the message says why, for people.

    Attributes:
        code: AWS's code for a refusal; None when there was no answer.
        response: AWS's answer to a refused call, else nothing.
    """

    def __init__(self, why: str, code: str | None = None, response: dict[str, Any] | None = None) -> None:
        """Say why."""
        super().__init__(why)
        self.code = code
        self.response = response or {}


class AwsPaused(AwsFailed):
    """No call was made, as one failed a moment ago."""


class AwsNoTime(AwsFailed):
    """No call was made, as it might have lasted longer than its caller has time."""


class AwsService:
    """One service of AWS."""

    def __init__(
        self,
        service: str,
        who: str,
        client: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Names the service; nothing is called yet.

        Args:
            service: boto3's name for it.
            who: What to call it in messages.
            client: Makes the client; by default boto3 with the limits above.
            clock: Seconds, for the pause after a failure.
        """
        self._service = service
        self._who = who
        self._make_client = client or self._usual_client
        self._client: Any = None
        self._clock = clock
        self._paused_until = float("-inf")

    def call(
        self, operation: str, by: Deadline = NEVER, *, calls: int = 1, **parameters: Any
    ) -> dict[str, Any]:
        """Returns what AWS answers.

        Args:
            operation: boto3's name for what to do.
            by: When this must be done, and as many further calls as `calls` counts.
            calls: How many calls there must be time for, each of `CALL_S` seconds at worst.
            parameters: The operation's.

        Raises:
            AwsNoTime: If there is not the time.
            AwsPaused: If the service is left alone.
            AwsFailed: If it refuses or does not answer.
        """
        if self._clock() < self._paused_until:
            raise AwsPaused(f"{self._who} failed a moment ago and is left alone for some seconds")
        try:
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            raise AwsFailed("boto3 is not installed here") from None
        try:
            if self._client is None:
                self._client = self._make_client()
            # Only now: loading the SDK takes time as well.
            if by.remaining() < calls * CALL_S:
                raise AwsNoTime(f"no time was left to ask {self._who}")
            answer: dict[str, Any] = getattr(self._client, operation)(**parameters)
        except ClientError as error:
            response: dict[str, Any] = dict(error.response)
            code = response.get("Error", {}).get("Code", "an error")
            raise AwsFailed(f"{self._who} refused: {code}", code, response) from None
        except (BotoCoreError, ValueError) as error:  # the latter for an endpoint that is no URL
            self.pause()
            raise AwsFailed(f"{self._who} did not answer: {type(error).__name__}") from None
        return answer

    def pause(self) -> None:
        """Leaves the service alone for a while."""
        self._paused_until = self._clock() + PAUSE_S

    def _usual_client(self) -> Any:
        import boto3
        from botocore.config import Config

        limits = Config(
            connect_timeout=TIMEOUT_S,
            read_timeout=TIMEOUT_S,
            retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        )
        make: Any = boto3.client  # typed for names of services that are known to the checker
        return make(self._service, config=limits)
