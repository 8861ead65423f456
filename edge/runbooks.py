"""What to do when a run gave no measurement: steps for each code that a receipt can state."""

from __future__ import annotations

from edge.faults import FaultKind
from shared.labels import BASE_PATH
from shared.wire import ErrorCode

_HEALTH = f"Check: GET {BASE_PATH}/health"
_REPEAT = f"Then repeat: POST {BASE_PATH}/run"
# A run id is never run twice, and an Idempotency-Key always gives the same id.
_RUN_ANEW = f"{_REPEAT}, with a new Idempotency-Key if one was sent"
_READ_LOG = "On the tower: read the agent's log"
_SAME_VERSION = "On the tower: run an agent of this edge's version"

# Step 4 of the published walkthrough.
ACTIVATION_RUNBOOK = [
    "On the tower: ollama pull llama3.2:1b",
    "On the tower: ollama pull llama3.1:8b",
    "Confirm: curl -s https://gpu.a-11-oy.com/api/tags | python3 -m json.tool | grep '\"name\"'",
    _HEALTH,
    _REPEAT,
]

_RUNBOOKS: dict[str, list[str]] = {
    "RUNNING": [],
    "NOT_CONFIGURED": ["On the edge: set SPECDEC_RUN_SECRET, start it again", _REPEAT],
    "BUDGET_SPENT": [
        "Wait as long as Retry-After says, which is until midnight UTC",
        "On the edge: if the tower can spare more, raise SPECDEC_GPU_SECONDS_PER_DAY",
        _REPEAT,
    ],
    FaultKind.UNREACHABLE: ["On the tower: see that the agent and its tunnel run", *ACTIVATION_RUNBOOK],
    FaultKind.REFUSED: [
        "On the edge: set SPECDEC_TOWER_TOKEN to the token of the agent",
        "If a gate stands before the tower: set SPECDEC_TOWER_HEADERS to the headers that it asks for",
        _HEALTH,
        _REPEAT,
    ],
    FaultKind.BUSY: ["Wait a few seconds", _REPEAT],
    FaultKind.SILENT: ["On the tower: see that the agent runs and answers", _HEALTH, _RUN_ANEW],
    FaultKind.CLOSED: [_READ_LOG, _HEALTH, _RUN_ANEW],
    FaultKind.GARBLED: [_SAME_VERSION, _READ_LOG, _RUN_ANEW],
    "ATTESTATION_FAILED": [
        "On the edge: set SPECDEC_TOWER_PUBLIC_KEY to tower-key.pub.pem from the tower's state directory",
        _SAME_VERSION,
        _RUN_ANEW,
    ],
    ErrorCode.BUSY: ["Wait, as long as Retry-After says if it is there", _REPEAT],
    ErrorCode.NO_PAIR: ACTIVATION_RUNBOOK,
    ErrorCode.BAD_MESSAGE: [_SAME_VERSION, _REPEAT],
    ErrorCode.BAD_REQUEST: ["Change the request as the reason says", _RUN_ANEW],
    ErrorCode.CONFLICT: [_RUN_ANEW],
    ErrorCode.NOT_FOUND: [_RUN_ANEW],
    ErrorCode.EXPIRED: [_RUN_ANEW],
    ErrorCode.CANCELLED: [_RUN_ANEW],
    ErrorCode.DEADLINE: ["Ask for fewer steps (n), or return when the tower is less busy", _RUN_ANEW],
    ErrorCode.LOAD_FAILED: [_READ_LOG, "On the tower: replace the model file that it names", _RUN_ANEW],
    ErrorCode.OUT_OF_MEMORY: ["On the tower: free memory, or keep a smaller pair", _HEALTH, _RUN_ANEW],
    ErrorCode.WORKER_DIED: [_READ_LOG, _RUN_ANEW],
    ErrorCode.WORKER_HUNG: [_READ_LOG, _RUN_ANEW],
    ErrorCode.GPU_BUSY: ["On the tower: end what else holds the GPU, or wait for it", _RUN_ANEW],
    ErrorCode.INTERNAL: [_READ_LOG, _RUN_ANEW],
}


def runbook(code: str) -> list[str]:
    """Return the steps for a code."""
    return list(_RUNBOOKS[code])
