"""Limits counted in a DynamoDB table that all instances share, by conditional updates of single items.

Each item's `key` says what it counts: `caller#…` holds `arrival`, `day#…` holds `used` and the set `open_runs`, `run#…`
holds what the run has `reserved` of which `day_number`; times are milliseconds, and `expires` is the table's time to
live. Needs `dynamodb:UpdateItem` and `dynamodb:GetItem` on the table. A usual run costs five or six writes: one or two
to admit it, two to reserve, two to settle. Each is sent once, as sums that are sent twice may be added twice: a write
whose answer is lost, and an instance that ends between two of them, leave too much charged, never too little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Final

from edge.aws import AwsFailed, AwsNoTime, AwsService
from edge.deadline import Deadline
from edge.limits import DAY_S, OPEN_MOST, Allowance, LimitsDown, NoTime, Reservation, milliseconds

FAILED: Final = "ConditionalCheckFailedException"
KEPT_S: Final = 3 * DAY_S
"""For so long a day and its runs are kept; a caller's bucket a day longer than it takes to fill."""

Item = dict[str, dict[str, Any]]


class DynamoLimits:
    """Counts in a table."""

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
        self._dynamodb = AwsService("dynamodb", "the table of limits", client, attempts=1)

    def admit(self, client: str, by: Deadline) -> float:
        """Counts a caller's run; see `edge.limits.Limits`."""
        interval, tolerance = self._allowance.interval_ms, self._allowance.tolerance_ms
        now = milliseconds(self._clock())
        key, expires = f"caller#{client}", (now + interval + tolerance) // 1000 + DAY_S
        # A bucket that is full, or that none can be: the usual case, in one call.
        done, bucket = self._update(
            by,
            key,
            "SET arrival = :next, expires = :expires",
            "attribute_not_exists(arrival) OR arrival <= :now OR arrival > :farthest",
            next=now + interval,
            expires=expires,
            now=now,
            farthest=now + self._allowance.farthest_ms,
        )
        if not done and _number(bucket, "arrival") <= now + tolerance:
            done, bucket = self._update(
                by,
                key,
                "SET arrival = arrival + :interval, expires = :expires",
                "arrival <= :latest",
                interval=interval,
                expires=expires,
                latest=now + tolerance,
            )
        return 0.0 if done else (_number(bucket, "arrival") - now - tolerance) / 1000

    def reserve(self, run: str, seconds: float, by: Deadline) -> Reservation:
        """Takes GPU time from the day's budget; see `edge.limits.Limits`."""
        now, wanted = self._clock(), milliseconds(seconds)
        day, expires = int(now // DAY_S), int(now) + KEPT_S
        in_all = milliseconds(self._allowance.gpu_seconds_per_day)
        # As many as the budget has room for are open at most.
        remembered: dict[str, Any] = {"runs": {run}} if in_all <= OPEN_MOST * wanted else {}
        # Not begun without time for the run's part, and for giving back where that shows that it has one already.
        enough, today = self._update(
            by,
            f"day#{day}",
            "SET expires = :expires ADD used :wanted" + (", open_runs :runs" if remembered else ""),
            "attribute_not_exists(used) OR used <= :left",
            calls=3,
            expires=expires,
            wanted=wanted,
            left=in_all - wanted,
            **remembered,
        )
        if not enough:
            if self._has_reserved(run, by):
                return Reservation()
            open_runs = frozenset(today.get("open_runs", {}).get("SS", ()))
            return Reservation(wait_s=DAY_S - now % DAY_S, open=open_runs)
        new, known = self._update(
            by,
            f"run#{run}",
            "SET day_number = :day, reserved = :wanted, expires = :expires",
            "attribute_not_exists(reserved)",
            day=day,
            wanted=wanted,
            expires=expires,
        )
        if not new:
            is_open = "settled" not in known and known.get("day_number") == {"N": str(day)}
            self._give_back(by, day, wanted, None if is_open else run)
        return Reservation(new=new)

    def settle(self, run: str, seconds: float, by: Deadline) -> bool:
        """Gives back what a run has not used; see `edge.limits.Limits`."""
        return self._end(by, run, "SET settled = :now", milliseconds(seconds), now=int(self._clock()))

    def release(self, run: str, by: Deadline) -> bool:
        """Gives back all that a run has reserved; see `edge.limits.Limits`."""
        return self._end(by, run, "REMOVE reserved", 0)

    def close(self, runs: Collection[str], by: Deadline) -> None:
        """Counts today's runs as open no more; see `edge.limits.Limits`."""
        day = int(self._clock() // DAY_S)
        self._update(by, f"day#{day}", "DELETE open_runs :runs", "attribute_exists(used)", runs=set(runs))

    def _end(self, by: Deadline, run: str, change: str, used: int, **values: int) -> bool:
        condition = "attribute_exists(reserved) AND attribute_not_exists(settled)"
        # Not begun without time for both: the second is never made up for.
        done, old = self._update(by, f"run#{run}", change, condition, calls=2, **values)
        if done:
            self._give_back(by, _number(old, "day_number"), max(0, _number(old, "reserved") - used), run)
        return done

    def _give_back(self, by: Deadline, day: int, unused: int, closed: str | None) -> None:
        more: dict[str, Any] = {} if closed is None else {"runs": {closed}}
        change = "ADD used :unused" + (" DELETE open_runs :runs" if more else "")
        self._update(by, f"day#{day}", change, "attribute_exists(used)", unused=-unused, **more)

    def _has_reserved(self, run: str, by: Deadline) -> bool:
        answer = self._call("get_item", by, Key={"key": {"S": f"run#{run}"}}, ConsistentRead=True)
        return "reserved" in answer.get("Item", {})

    def _update(
        self, by: Deadline, key: str, change: str, condition: str, *, calls: int = 1, **values: int | set[str]
    ) -> tuple[bool, Item]:
        """Changes an item; returns whether the condition held, and the item as it was.

        Args:
            by: When this must be done, and as many further calls as `calls` counts.
            key: The item's.
            change: Update expression.
            condition: Condition expression.
            calls: How many calls there must be time for.
            values: Of both expressions.
        """
        named = {
            f":{name}": {"SS": sorted(value)} if isinstance(value, set) else {"N": str(value)}
            for name, value in values.items()
        }
        try:
            answer = self._call(
                "update_item",
                by,
                calls=calls,
                Key={"key": {"S": key}},
                UpdateExpression=change,
                ConditionExpression=condition,
                ReturnValues="ALL_OLD",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **({"ExpressionAttributeValues": named} if named else {}),
            )
        except AwsFailed as failure:
            return False, failure.response.get("Item", {})
        return True, answer.get("Attributes", {})

    def _call(self, operation: str, by: Deadline, *, calls: int = 1, **parameters: Any) -> dict[str, Any]:
        """Returns the table's answer.

        Raises:
            AwsFailed: If the condition does not hold.
            NoTime: If there is not the time to ask.
            LimitsDown: If it did not answer otherwise.
        """
        try:
            return self._dynamodb.call(operation, by, calls=calls, TableName=self._table, **parameters)
        except AwsNoTime as failure:
            raise NoTime(str(failure)) from None
        except AwsFailed as failure:
            if failure.code == FAILED:
                raise
            raise LimitsDown(str(failure)) from None


def _number(item: Item, name: str) -> int:
    """Returns a number that this edge has written.

    Raises:
        LimitsDown: If somebody else has.
    """
    try:
        return int(item[name]["N"])
    except (KeyError, TypeError, ValueError):
        raise LimitsDown(f"the table of limits holds an item without a whole number as {name}") from None
