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


def longest(attempts: int) -> float:
    """Return the seconds that a call takes at worst: to connect and to read in each attempt, with a pause between.

    Not counted is what has no limit of its own: the resolver, each further address of a name, and an answer that drips.
    For that each answer has a second in reserve (`edge.app.RESERVE_S`).
    """
    return 2 * TIMEOUT_S * attempts + (attempts - 1) * 1.0


CALL_S = longest(ATTEMPTS)
"""Longest call of a service that may be asked twice."""

IDLE_S = 30.0
"""Connections that were not used for so long are not used again: an instance is frozen between invocations, and what it
finds then may be closed at the other end."""

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
        *,
        attempts: int = ATTEMPTS,
    ) -> None:
        """Names the service; nothing is called yet.

        Args:
            service: boto3's name for it.
            who: What to call it in messages.
            client: Makes the client; by default boto3 with the limits above.
            clock: Seconds, for the pause after a failure.
            attempts: How often a call may be sent; 1 where sending it twice would do it twice.

        Attributes:
            call_s: Seconds that a call takes at worst.
        """
        self.call_s = longest(attempts)
        self._attempts = attempts
        self._used_at = time.time()
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
            calls: How many calls there must be time for, each of `call_s` seconds at worst.
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
            if by.remaining() < calls * self.call_s:
                raise AwsNoTime(f"no time was left to ask {self._who}")
            # By the wall's clock, as the other may stand still while the instance is frozen.
            if not 0 <= time.time() - self._used_at < IDLE_S:
                self._client.close()
            self._used_at = time.time()
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
            retries={"total_max_attempts": self._attempts, "mode": "standard"},
        )
        make: Any = boto3.client  # typed for names of services that are known to the checker
        return make(self._service, config=limits)
