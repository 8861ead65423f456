"""Receipts in an Amazon DynamoDB table: one item for each payload digest, made by conditional puts alone.

The item holds the payload's exact bytes and the receipt without its two copies of them, to stay within 400 KB. Needs
`dynamodb:PutItem` and `dynamodb:GetItem` on the table and nothing that deletes or updates.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from edge.aws import CALL_S, AwsFailed, AwsNoTime, AwsPaused, AwsService
from edge.deadline import NEVER, Deadline
from edge.store import Receipt, StoreAlarm, StoreDown, is_signed, payload_bytes
from shared.canonical import CanonicalError, sha3_256_hex, strict_loads

logger = logging.getLogger(__name__)

_COPIES = ("payload", "payload_canonical_base64")


class DynamoStore:
    """Receipts in a table whose partition key is `digest` (a string)."""

    worst_s = CALL_S

    def __init__(
        self,
        table: str,
        client: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Names the table; nothing is called yet.

        Args:
            table: The table's name.
            client: Makes the DynamoDB client.
            clock: Seconds, for the pause after a table that did not answer.
        """
        self._table = table
        self._dynamodb = AwsService("dynamodb", "the receipts' table", client, clock)

    def put(self, receipt: Receipt, by: Deadline = NEVER) -> Receipt:
        """Stores a receipt and returns the one that is now stored."""
        data = payload_bytes(receipt)
        item = _item(receipt, data)
        there = self._put_if(item, "attribute_not_exists(digest)", {}, by)
        if there is None:
            return receipt
        before = self._receipt(there, receipt["payload_sha3_256"])
        if is_signed(before) or not is_signed(receipt):
            return before
        condition = "signed = :no AND payload = :same"
        there = self._put_if(item, condition, {":no": {"BOOL": False}, ":same": {"B": data}}, by)
        # Else another writer has put its own signature there meanwhile: that one is the first.
        return receipt if there is None else self._receipt(there, receipt["payload_sha3_256"])

    def get(self, digest: str, by: Deadline = NEVER) -> Receipt | None:
        """Returns the receipt of a payload, None if there is none."""
        key = {"digest": {"S": digest}}
        found = self._call("get_item", by, Key=key, ConsistentRead=True).get("Item")
        if found is None:
            return None
        return self._receipt(found, digest)

    def _put_if(
        self, item: dict[str, Any], condition: str, values: dict[str, Any], by: Deadline
    ) -> dict[str, Any] | None:
        """Puts an item if the condition holds; else returns the one that is there."""
        extra = {"ExpressionAttributeValues": values} if values else {}
        return self._call(
            "put_item",
            by,
            Item=item,
            ConditionExpression=condition,
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **extra,
        ).get("there")

    @staticmethod
    def _receipt(item: dict[str, Any], digest: str) -> Receipt:
        """Returns the receipt in an item, which must be about the payload of this digest."""
        try:
            data = bytes(item["payload"]["B"])
            kept = strict_loads(item["receipt"]["S"])
            copies = {
                "payload": json.loads(data),
                "payload_canonical_base64": base64.b64encode(data).decode("ascii"),
            }
            receipt: Receipt = {**kept, **copies}  # members keep their places
            right = (
                digest == sha3_256_hex(data) == receipt["payload_sha3_256"] == item["digest"]["S"]
                and receipt["signature"]["signed"] is item["signed"]["BOOL"]
            )
        except (CanonicalError, KeyError, TypeError, ValueError):
            right = False
        if not right:
            raise _alarm(digest)
        return receipt

    def _call(self, operation: str, by: Deadline, **parameters: Any) -> dict[str, Any]:
        try:
            return self._dynamodb.call(operation, by, TableName=self._table, **parameters)
        except (AwsNoTime, AwsPaused) as failure:
            raise StoreDown(str(failure)) from None
        except AwsFailed as failure:
            if failure.code == "ConditionalCheckFailedException" and "Item" in failure.response:
                return {"there": failure.response["Item"]}
            logger.error("receipt store: %s", failure.code or failure)
            raise StoreDown(str(failure)) from None


def _item(receipt: Receipt, data: bytes) -> dict[str, Any]:
    kept = {name: None if name in _COPIES else value for name, value in receipt.items()}
    return {
        "digest": {"S": receipt["payload_sha3_256"]},
        "payload": {"B": data},
        "receipt": {"S": json.dumps(kept, ensure_ascii=False, separators=(",", ":"))},
        "signed": {"BOOL": is_signed(receipt)},
        "generated_at": {"S": receipt["generated_at"]},
    }


def _alarm(digest: str) -> StoreAlarm:
    logger.critical("ALARM receipt store: other content under %s", digest)
    return StoreAlarm("the store holds other content under this digest")
