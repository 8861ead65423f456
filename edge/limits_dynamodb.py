"""Limits counted in a DynamoDB table that all instances share, by conditional updates of single items.

Each item's `key` says what it counts: `caller#…` holds `arrival`, `day#…` holds `used`, `run#…` holds what the run has
reserved; times are milliseconds, and `expires` is the table's time to live. Needs `dynamodb:UpdateItem` and
`dynamodb:GetItem` on the table. While the table does not answer, each instance counts by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from edge.aws import CALL_S, AwsFailed, AwsPaused, AwsService
from edge.limits import DAY_S, Allowance, Limits, LocalLimits

logger = logging.getLogger(__name__)

FAILED: Final = "ConditionalCheckFailedException"
RACES: Final = 3
"""Tries after another instance has changed an item in between."""


class DynamoLimits:
    """Counts in a table."""

    worst_s = CALL_S

    def __init__(
        self,
        table: str,
        allowance: Allowance,
        *,
        client: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Takes the table's name; nothing is read yet.

        Args:
            table: Its name.
            allowance: What is allowed.
            client: Makes the DynamoDB client.
            clock: Unix time.
        """
        self._table = table
        self._allowance = allowance
        self._clock = clock
        self._dynamodb = AwsService("dynamodb", "the table of limits", client)
        self._alone: Limits = LocalLimits(allowance, clock=clock)

    def admit(self, client: str) -> float:
        """Counts a caller's run; see `edge.limits.Limits`."""
        if not self._allowance.runs_per_minute:
            return 0.0
        try:
            return self._admit(client)
        except AwsFailed as failure:
            _report(failure)
            return self._alone.admit(client)

    def reserve(self, run: str, seconds: float) -> float:
        """Takes GPU time from the day's budget; see `edge.limits.Limits`."""
        if not self._allowance.gpu_seconds_per_day:
            return 0.0
        try:
            return self._reserve(run, seconds)
        except AwsFailed as failure:
            _report(failure)
            return self._alone.reserve(run, seconds)

    def settle(self, run: str, seconds: float) -> None:
        """Gives back what a run has not used; see `edge.limits.Limits`."""
        if not self._allowance.gpu_seconds_per_day:
            return
        try:
            old = self._end(run, "SET settled = :true", {":true": {"BOOL": True}})
            if old is not None:
                self._give_back(old["day"]["S"], max(0, _ms(old["reserved"]) - round(1000 * seconds)))
        except AwsFailed as failure:
            _report(failure)
            self._alone.settle(run, seconds)

    def release(self, run: str) -> None:
        """Gives back all that a run has reserved; see `edge.limits.Limits`."""
        if not self._allowance.gpu_seconds_per_day:
            return
        try:
            old = self._end(run, "REMOVE reserved", {})
            if old is not None:
                self._give_back(old["day"]["S"], _ms(old["reserved"]))
        except AwsFailed as failure:
            _report(failure)
            self._alone.release(run)

    def _admit(self, client: str) -> float:
        interval, tolerance = (
            _milliseconds(self._allowance.interval_s),
            _milliseconds(self._allowance.tolerance_s),
        )
        for _ in range(RACES):
            now = _milliseconds(self._clock())
            # A bucket that is full: the usual case, in one call.
            old = self._update(
                f"caller#{client}",
                "SET arrival = :next, expires = :expires",
                "attribute_not_exists(arrival) OR arrival <= :now",
                next=now + interval,
                now=now,
                expires=(now + interval + tolerance) // 1000 + DAY_S,
            )
            if old is None:
                return 0.0
            arrival = _ms(old["arrival"]) if "arrival" in old else now
            if arrival - now <= tolerance:
                old = self._update(
                    f"caller#{client}",
                    "SET arrival = arrival + :interval, expires = :expires",
                    "arrival <= :latest",
                    interval=interval,
                    latest=now + tolerance,
                    expires=(now + interval + tolerance) // 1000 + DAY_S,
                )
                if old is None:
                    return 0.0
                if "arrival" not in old:
                    continue  # the item has expired in between
                arrival = _ms(old["arrival"])
            return max(1, arrival - now - tolerance) / 1000
        return self._allowance.interval_s

    def _reserve(self, run: str, seconds: float) -> float:
        now = self._clock()
        day, wanted = f"day#{int(now // DAY_S)}", _milliseconds(seconds)
        # The day first: what ends between the two leaves too much charged, never too little.
        spent = self._update(
            day,
            "SET expires = :expires ADD used :wanted",
            "attribute_not_exists(used) OR used <= :left",
            wanted=wanted,
            left=_milliseconds(self._allowance.gpu_seconds_per_day) - wanted,
            expires=int(now) + 3 * DAY_S,
        )
        if spent is not None:
            return 0.0 if self._has_reserved(run) else DAY_S - now % DAY_S
        before = self._update(
            f"run#{run}",
            "SET #day = :day, reserved = :wanted, expires = :expires REMOVE settled",
            "attribute_not_exists(reserved)",
            names={"#day": "day"},
            wanted=wanted,
            day=day,
            expires=int(now) + 3 * DAY_S,
        )
        if before is not None:
            self._give_back(day, wanted)
        return 0.0

    def _has_reserved(self, run: str) -> bool:
        answer = self._dynamodb.call(
            "get_item", TableName=self._table, Key={"key": {"S": f"run#{run}"}}, ConsistentRead=True
        )
        return "reserved" in answer.get("Item", {})

    def _end(self, run: str, change: str, values: dict[str, Any]) -> dict[str, Any] | None:
        """Ends a run's reservation; returns what it was, None if it had none or has ended before."""
        try:
            answer = self._dynamodb.call(
                "update_item",
                TableName=self._table,
                Key={"key": {"S": f"run#{run}"}},
                UpdateExpression=change,
                ConditionExpression="attribute_exists(reserved) AND attribute_not_exists(settled)",
                ReturnValues="ALL_OLD",
                **({"ExpressionAttributeValues": values} if values else {}),
            )
        except AwsFailed as failure:
            if failure.code == FAILED:
                return None
            raise
        old: dict[str, Any] = answer["Attributes"]
        return old

    def _give_back(self, day: str, milliseconds: int) -> None:
        self._update(day, "ADD used :unused", "attribute_exists(used)", unused=-milliseconds)

    def _update(
        self, key: str, change: str, condition: str, names: dict[str, str] | None = None, **values: int | str
    ) -> dict[str, Any] | None:
        """Changes an item; returns None, or the item as it is where the condition does not hold."""
        try:
            self._dynamodb.call(
                "update_item",
                TableName=self._table,
                Key={"key": {"S": key}},
                UpdateExpression=change,
                ConditionExpression=condition,
                ExpressionAttributeValues={
                    f":{name}": {"S": value} if isinstance(value, str) else {"N": str(value)}
                    for name, value in values.items()
                },
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **({"ExpressionAttributeNames": names} if names else {}),
            )
        except AwsFailed as failure:
            if failure.code != FAILED:
                raise
            old: dict[str, Any] = failure.response.get("Item", {})
            return old
        return None


def _ms(attribute: dict[str, str]) -> int:
    return int(attribute["N"])


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _report(failure: AwsFailed) -> None:
    if not isinstance(failure, AwsPaused):
        logger.error("limits counted by this instance alone: %s", failure)
