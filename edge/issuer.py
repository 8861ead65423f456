"""Makes receipts: signs payloads, stores them, and remembers the curves of the present hour.

A measured run's receipt is signed and stored once: who asks again gets the one that is stored. Signing or storing may
fail, or have no time left; the answer is given all the same and says so. Whatever can be had without a measurement is
signed so many times an hour and instance and no more, and not stored: no flood of it costs anything.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edge import observe
from edge.deadline import Deadline
from edge.keyring import Keyring
from edge.payloads import curve_payload
from edge.problems import Problem
from edge.settings import EdgeSettings
from edge.signing import signature
from edge.store import DirectoryStore, Receipt, ReceiptStore, StoreAlarm, StoreDown
from edge.store_dynamodb import DynamoStore
from shared.canonical import canonical_bytes, sha3_256_hex
from shared.receipts import build_receipt, unsigned_signature

if TYPE_CHECKING:
    from shared.schemas import CurveQuery

logger = logging.getLogger(__name__)

CURVE_PERIOD_S = 3600
"""A curve's payload is dated to the beginning of such a period, so that within it equal questions get equal answers."""

CURVES_SIGNED = 120
"""New curves that one instance signs in a period; further ones are unsigned, so that a flood of them costs nothing."""

ROADMAPS_SIGNED = 120
"""Answers without a measurement that one instance signs in a period."""

CURVES_STORED = 20
"""Curves that one instance stores in a period."""

INTERIM = "this answer is not final, so it is not signed; the receipt that follows it is"
ENOUGH = "this edge has signed enough different curves for this hour; ask again in the next"
ENOUGH_ROADMAPS = "this edge has signed enough answers without a measurement for this hour"
NO_TIME = "not signed: no time was left to sign in; ask for the run again"


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
        # Signed ones of this period by their questions, and stored ones by their digests.
        self._curves: dict[tuple[int, float, float, frozenset[float]], Receipt] = {}
        self._curves_stored: dict[str, Receipt] = {}
        self._roadmaps_signed = 0

    @property
    def worst_s(self) -> float:
        """What waits for others must leave: a signature's time at worst, and that of one call of the store.

        A store that needs more calls needs a fraction of that for each, usually; where it does not, the receipt is
        answered without being stored, as nothing is begun that may last beyond the answer's deadline.
        """
        signer = self._keyring.signer
        return max(1.0, (signer.worst_s if signer else 0.0) + (self._store.worst_s if self._store else 0.0))

    @property
    def signs(self) -> bool:
        """Whether there is somebody to sign."""
        return self._keyring.signer is not None

    def period_left_s(self) -> int:
        """Returns the whole seconds until curves are dated anew."""
        return int(CURVE_PERIOD_S - self._clock() % CURVE_PERIOD_S)

    def interim(self, payload: dict[str, Any]) -> Receipt:
        """Returns the receipt of an answer that another one will follow: neither signed nor stored."""
        return build_receipt(payload, unsigned_signature(INTERIM), payload["generated_at"])

    def roadmap(self, payload: dict[str, Any], answer_by: Deadline) -> Receipt:
        """Returns the receipt of an answer without a measurement, signed if few were in this period; never stored."""
        self._begin_period()
        if self._keyring.signer is not None and self._roadmaps_signed >= ROADMAPS_SIGNED:
            return build_receipt(payload, unsigned_signature(ENOUGH_ROADMAPS), payload["generated_at"])
        receipt = self._sign(payload, answer_by)
        self._roadmaps_signed += receipt["signature"]["signed"]
        return receipt

    def measured(self, payload: dict[str, Any], answer_by: Deadline) -> tuple[Receipt, bool]:
        """Signs and stores.

        Args:
            payload: The payload.
            answer_by: When the answer must be there; what could take longer is left out.

        Returns:
            The receipt, and whether it is stored. What is stored already under this payload is given again.
        """
        store, signer = self._store, self._keyring.signer
        if store is None:
            return self._sign(payload, answer_by), False
        if answer_by.remaining() < store.worst_s + (signer.worst_s if signer else 0.0):
            logger.error("receipt not stored: no time was left")
            return self._sign(payload, answer_by), False
        try:
            with observe.phase("Store"):
                before = store.get(sha3_256_hex(canonical_bytes(payload)), answer_by)
            if before is not None and before["signature"]["signed"]:
                return before, True
        except StoreDown as error:
            # Not tried a second time: each try may last as long as the answer has left.
            logger.error("receipt not stored: %s", error)
            return self._sign(payload, answer_by), False
        except StoreAlarm:
            pass  # `_keep` meets the same, and says so
        receipt = self._sign(payload, answer_by)
        if answer_by.remaining() < store.worst_s:
            logger.error("receipt not stored: no time was left")
            return receipt, False
        return self._keep(receipt, answer_by)

    def curve(
        self, query: CurveQuery, answer_by: Deadline, *, store: bool, usual: bool = False
    ) -> tuple[Receipt, bool]:
        """Returns the receipt of a curve, and whether it is stored.

        Args:
            query: The question.
            answer_by: When the answer must be there.
            store: Whether its receipt is to be stored.
            usual: Whether it is the question that nobody can flood this edge with: the one without parameters.

        Raises:
            Problem: 429 when more are to be stored than this instance stores in a period, 422 without a store.
        """
        period = self._begin_period()
        # What the payload follows from: equal questions have equal payloads, in whatever order they name their alphas.
        asked = (query.k, query.cost_ratio, query.verify_cost, frozenset(query.alpha))
        receipt = self._curves.get(asked)
        if receipt is None:
            dated = datetime.fromtimestamp(period * CURVE_PERIOD_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            receipt = self._new_curve(curve_payload(query, dated), answer_by, usual=usual)
        if receipt["signature"]["signed"]:
            # An unsigned one costs little to make again, and may be signed then.
            self._curves[asked] = receipt
        if not store:
            return receipt, False
        receipt, stored = self._keep_curve(receipt, answer_by)
        if asked in self._curves:
            self._curves[asked] = receipt
        return receipt, stored

    def _begin_period(self) -> int:
        """Returns the number of the present period; when it has just begun, counts begin anew."""
        period = int(self._clock() // CURVE_PERIOD_S)
        if period != self._period:
            self._period = period
            self._curves.clear()
            self._curves_stored.clear()
            self._roadmaps_signed = 0
        return period

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

    def _sign(self, payload: dict[str, Any], answer_by: Deadline) -> Receipt:
        with observe.phase("Sign"):
            receipt = self._signed(payload, answer_by)
        if self.signs and not receipt["signature"]["signed"]:
            observe.unsigned()
        return receipt

    def _signed(self, payload: dict[str, Any], answer_by: Deadline) -> Receipt:
        signer = self._keyring.signer
        if signer is None:
            # The payload's own time, so that equal payloads give equal receipts.
            made = payload["generated_at"]
            return build_receipt(payload, signature(None, payload, made), made)
        made = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        made = max(made, payload["generated_at"])
        why_not = self._keyring.why_not_signing(datetime.fromtimestamp(self._clock(), UTC))
        if why_not is not None:
            return build_receipt(payload, unsigned_signature(f"not signed: {why_not}"), made)
        if answer_by.remaining() < signer.worst_s:
            return build_receipt(payload, unsigned_signature(NO_TIME), made)
        return build_receipt(payload, signature(signer, payload, made, by=answer_by), made)

    def _new_curve(self, payload: dict[str, Any], answer_by: Deadline, *, usual: bool) -> Receipt:
        if self._keyring.signer is not None and len(self._curves) >= CURVES_SIGNED and not usual:
            return build_receipt(payload, unsigned_signature(ENOUGH), payload["generated_at"])
        return self._sign(payload, answer_by)

    def _keep_curve(self, receipt: Receipt, answer_by: Deadline) -> tuple[Receipt, bool]:
        digest = receipt["payload_sha3_256"]
        if self._store is None:
            raise Problem(422, "This edge keeps no receipts; ask without store.")
        if digest in self._curves_stored:
            return self._curves_stored[digest], True
        if len(self._curves_stored) >= CURVES_STORED:
            left = CURVE_PERIOD_S - self._clock() % CURVE_PERIOD_S
            detail = "This edge has stored enough curves for this hour; ask without store."
            raise Problem(429, detail, {"Retry-After": str(math.ceil(left))})
        receipt, stored = self._keep(receipt, answer_by)
        if stored:
            self._curves_stored[digest] = receipt
        return receipt, stored

    def _keep(self, receipt: Receipt, answer_by: Deadline) -> tuple[Receipt, bool]:
        if self._store is None:
            return receipt, False
        try:
            with observe.phase("Store"):
                return self._store.put(receipt, answer_by), True
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
