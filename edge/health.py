"""What ``/health`` says: is a same-family pair live on a tower that can be reached?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from edge.deadline import Deadline
from edge.faults import FaultKind, TowerFault
from edge.tower import Tower
from shared import labels

if TYPE_CHECKING:
    from shared.wire import CapabilityFrame

# With the closing handshake this stays below the two seconds after which /health has answered.
PROBE_TIMEOUT_S = 1.4
KEEP_S = 5.0

ENDPOINTS = {
    "health": f"GET {labels.BASE_PATH}/health",
    "curve": f"GET {labels.BASE_PATH}/curve",
    "run": f"POST {labels.BASE_PATH}/run",
    "run_status": f"GET {labels.BASE_PATH}/runs/{{run_id}}",
    "run_cancel": f"DELETE {labels.BASE_PATH}/runs/{{run_id}}",
    "receipt": f"GET {labels.BASE_PATH}/receipts/{{digest}}",
    "receipt_payload": f"GET {labels.BASE_PATH}/receipts/{{digest}}/payload",
    "keys": f"GET {labels.BASE_PATH}/keys",
    "openapi": f"GET {labels.BASE_PATH}/openapi.json",
}


class Prober:
    """Asks the tower what it can do, and remembers the answer for a few seconds."""

    def __init__(self, tower: Tower) -> None:
        """Take the tower to ask."""
        self._tower = tower
        self._answer: CapabilityFrame | TowerFault | None = None
        self._asked_at = 0.0

    def capability(self) -> CapabilityFrame | TowerFault:
        """Return the tower's capability, or why there is none. Faults are remembered too."""
        # By the wall's clock: the other may stand still while the sandbox is frozen, and that one may go back.
        if self._answer is None or not 0 <= time.time() - self._asked_at < KEEP_S:
            self._answer = self._probe()
            self._asked_at = time.time()
        return self._answer

    def _probe(self) -> CapabilityFrame | TowerFault:
        deadline = Deadline.after(PROBE_TIMEOUT_S)
        try:
            with self._tower.session(deadline, fetch_token=False) as session:
                # Imported here, as building the protocol's models takes long and a tower that is down needs none.
                from shared.wire import CapabilityFrame, ProbeFrame

                session.send(ProbeFrame())
                frame = session.receive(deadline.later(self._tower.loading_s))
        except TowerFault as fault:
            return fault
        if not isinstance(frame, CapabilityFrame):
            return TowerFault(FaultKind.GARBLED, "the tower did not answer the probe")
        return frame


def health(answer: CapabilityFrame | TowerFault, *, runs_configured: bool) -> dict[str, Any]:
    """Return the body of ``/health``."""
    if isinstance(answer, TowerFault):
        pair: dict[str, Any] = {"found": False, "reason": _pair_reason(answer)}
        models: list[Any] = []
        queue = energy = None
    else:
        found = answer.model_dump(mode="json", exclude_none=True)
        pair, models = found["same_family_pair"], found["models"]
        queue, energy = found["queue"], found["energy"]
    return {
        "status": "LIVE",
        "label": labels.HEALTH_MEASURED if pair["found"] else labels.HEALTH_ROADMAP,
        "same_family_pair": pair,
        "measured_run_possible": bool(pair["found"] and runs_configured),
        "tower_reachable": not isinstance(answer, TowerFault),
        "models": models,
        "queue": queue,
        "energy": energy,
        "doctrine": labels.DOCTRINE,
        "endpoints": ENDPOINTS,
    }


def _pair_reason(fault: TowerFault) -> str:
    """Say "tower unreachable" for a tower that is down or silent, and the reason for one that answers."""
    if fault.kind in (FaultKind.REFUSED, FaultKind.BUSY, FaultKind.GARBLED):
        return fault.reason
    return "tower unreachable"
