"""Makes receipts: signs payloads, stores them, and remembers the curves of the present hour.

A run's receipt is signed and stored once: who asks again gets the one that is stored. Signing or storing may fail; the
answer is given all the same and says so.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from edge.keyring import Keyring
from edge.payloads import curve_payload
from edge.problems import Problem
from edge.settings import EdgeSettings
from edge.signing import signature
from edge.store import DirectoryStore, Receipt, ReceiptStore, StoreAlarm, StoreDown
from edge.store_dynamodb import DynamoStore
from shared.canonical import canonical_bytes, sha3_256_hex
from shared.receipts import build_receipt, unsigned_signature
from shared.schemas import CurveQuery

logger = logging.getLogger(__name__)

CURVE_PERIOD_S = 3600
"""A curve's payload is dated to the beginning of such a period, so that within it equal questions get equal answers."""

CURVES_KEPT = 512
CURVES_SIGNED = 120
"""New curves that one instance signs in a period; further ones are unsigned, so that a flood of them costs nothing."""

CURVES_STORED = 20
"""Curves that one instance stores in a period."""

INTERIM = "this answer is not final, so it is not signed; the receipt that follows it is"
ENOUGH = "this edge has signed enough different curves for this hour; ask again in the next"


class Issuer:
    """Makes the receipts of one edge instance."""

    def __init__(
        self,
        keyring: Keyring,
        store: ReceiptStore | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Puts the parts together.

        Args:
            keyring: Holds the signer.
            store: Where receipts are kept; None keeps none.
            clock: Unix time.
        """
        self._keyring = keyring
        self._store = store
        self._clock = clock
        self._period = -1
        self._curves: OrderedDict[str, Receipt] = OrderedDict()
        self._kept: dict[str, Receipt] = {}
        self._signed = self._stored = 0

    def interim(self, payload: dict[str, Any]) -> Receipt:
        """Returns the receipt of an answer that another one will follow: neither signed nor stored."""
        return build_receipt(payload, unsigned_signature(INTERIM), payload["generated_at"])

    def final(self, payload: dict[str, Any]) -> tuple[Receipt, bool]:
        """Signs and stores.

        Returns:
            The receipt, and whether it is stored. What is stored already under this payload is given again.
        """
        if self._store is not None:
            try:
                before = self._store.get(sha3_256_hex(canonical_bytes(payload)))
                if before is not None and before["signature"]["signed"]:
                    return before, True
            except StoreDown as error:
                # Not tried a second time: each try may last as long as the answer has left.
                logger.error("receipt not stored: %s", error)
                return self._sign(payload), False
            except StoreAlarm:
                pass  # `_keep` meets the same, and says so
        return self._keep(self._sign(payload))

    def curve(self, query: CurveQuery, *, store: bool) -> tuple[Receipt, bool]:
        """Returns the receipt of a curve, and whether it is stored.

        Raises:
            Problem: 429 when more are to be stored than this instance stores in a period, 503 without a store.
        """
        period = int(self._clock() // CURVE_PERIOD_S)
        if period != self._period:
            self._period = period
            self._curves.clear()
            self._kept.clear()
            self._signed = self._stored = 0
        dated = datetime.fromtimestamp(period * CURVE_PERIOD_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        payload = curve_payload(query, dated)
        digest = sha3_256_hex(canonical_bytes(payload))
        receipt = self._curves.get(digest)
        if receipt is None:
            receipt = self._new_curve(payload)
            self._curves[digest] = receipt
            while len(self._curves) > CURVES_KEPT:
                self._curves.popitem(last=False)
        else:
            self._curves.move_to_end(digest)
        if not store:
            return receipt, False
        self._curves[digest], stored = self._keep_curve(digest, receipt)
        return self._curves[digest], stored

    def stored(self, digest: str) -> Receipt:
        """Returns a stored receipt.

        Raises:
            Problem: 404 if there is none, 503 if the store is down, damaged or not there.
        """
        if self._store is None:
            raise Problem(503, "This edge keeps no receipts.")
        try:
            receipt = self._store.get(digest)
        except StoreDown:
            raise Problem(503, "The receipts cannot be read now.", {"Retry-After": "5"}) from None
        except StoreAlarm:
            raise Problem(503, "What is stored under this digest is damaged; it is not given out.") from None
        if receipt is None:
            raise Problem(404, "No receipt with this payload digest is stored here.")
        return receipt

    def _sign(self, payload: dict[str, Any]) -> Receipt:
        made = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # Without a signer the payload's own time, so that equal payloads give equal receipts.
        made = max(made, payload["generated_at"]) if self._keyring.signer else payload["generated_at"]
        return build_receipt(payload, signature(self._keyring.signer, payload, made), made)

    def _new_curve(self, payload: dict[str, Any]) -> Receipt:
        if self._keyring.signer is None:
            return self._sign(payload)
        if self._signed >= CURVES_SIGNED:
            return build_receipt(payload, unsigned_signature(ENOUGH), payload["generated_at"])
        self._signed += 1
        return self._sign(payload)

    def _keep_curve(self, digest: str, receipt: Receipt) -> tuple[Receipt, bool]:
        if self._store is None:
            raise Problem(503, "This edge keeps no receipts; ask without store.")
        if digest in self._kept:
            return self._kept[digest], True
        if self._stored >= CURVES_STORED:
            left = CURVE_PERIOD_S - self._clock() % CURVE_PERIOD_S
            detail = "This edge has stored enough curves for this hour; ask without store."
            raise Problem(429, detail, {"Retry-After": str(math.ceil(left))})
        self._stored += 1
        receipt, stored = self._keep(receipt)
        if stored:
            self._kept[digest] = receipt
        return receipt, stored

    def _keep(self, receipt: Receipt) -> tuple[Receipt, bool]:
        if self._store is None:
            return receipt, False
        try:
            return self._store.put(receipt), True
        except (StoreDown, StoreAlarm) as error:
            logger.error("receipt not stored: %s", error)
            return receipt, False


def open_store(settings: EdgeSettings) -> ReceiptStore | None:
    """Returns the store that the settings name, None for none."""
    if settings.receipts_table is not None:
        return DynamoStore(settings.receipts_table)
    if settings.receipts_dir is not None:
        return DirectoryStore(settings.receipts_dir)
    return None
