"""The reference of the codes that answers hold: why there is no measurement, and why there are no joules."""

from __future__ import annotations

from typing import Final

from edge.faults import FaultKind
from edge.reasons import failure_reason
from edge.runbooks import runbook
from shared.labels import ENERGY_CODES
from shared.wire import ErrorCode
from tools.docs_text import NOTE, table

_HEAD: Final = """# Codes

## Why a run was not measured

A run without a measurement is a receipt labelled `SPEC-DECODE ROADMAP`. Its `roadmap` block has a `code`, a `reason`
in words and a `runbook`: what to do, step by step. The steps here are those of the runbooks. A tower's own words may
follow the reason, unless they might repeat the prompt.

"""
_ENERGY_HEAD: Final = """
## Why there is no energy

`energy` is `{"label": "UNAVAILABLE", "code": …, "reason": …}` whenever a number could not be had or could not be
trusted. The run's other figures stand.

"""

_EDGE: Final = {
    "RUNNING": "the tower has the run and is not done with it (status 202)",
    "NOT_CONFIGURED": "this edge has no run secret, so it starts no run",
    "BUDGET_SPENT": "the GPU seconds of the day are taken",
    FaultKind.UNREACHABLE: "nothing listens at the tower's address, its name or TLS fails, or no agent answers there",
    FaultKind.REFUSED: "the tower, or a gate before it, refused the edge: a wrong token or missing headers",
    FaultKind.BUSY: "the tower has as many connections as it takes",
    FaultKind.SILENT: "the tower did not answer in time",
    FaultKind.CLOSED: "the tower closed the connection before it had answered",
    FaultKind.GARBLED: "the tower's answer broke the protocol or failed the edge's checks; the reason names them",
    "ATTESTATION_FAILED": "the tower's own signature over its result did not hold",
}
_ENERGY: Final = {
    "ON_CPU": "the pair was decoded on the processor, and the meter is a GPU's",
    "NO_LIBRARY": "NVIDIA's management library is not there",
    "NO_PERMISSION": "the agent may not read the meter",
    "NOT_SUPPORTED": "the GPU has no such meter",
    "NO_GPU": "there is no GPU, or not the one that decodes",
    "GPU_LOST": "the GPU stopped answering",
    "GPU_CHANGED": "another GPU or driver after the run than before",
    "COUNTER_STUCK": "the meter did not move",
    "COUNTER_WENT_BACK": "the meter went backwards",
    "OVER_POWER_LIMIT": "a window had more power than the limit in force, so the reading is wrong",
    "FOREIGN_PROCESS": "another program computed on the GPU meanwhile",
    "TOO_SHORT": "there was no time for two pairs of windows",
    "NOT_REPEATABLE": "repeats of the generation differ, so no two windows compare",
    "DECODE_FAILED": "decoding failed while it was metered",
    "NVML_ERROR": "the library reported another error",
    "PER_RUN": "it takes a run to know; only a tower's description of itself says this",
}


def page() -> str:
    """Returns the page; a code without words is a KeyError in every test."""
    edge = [(str(code), about) for code, about in _EDGE.items()]
    tower = [(str(code), failure_reason(code, "", None)) for code in ErrorCode]
    rows = [(f"`{code}`", about, _steps(runbook(code))) for code, about in edge + tower]
    energies = [(f"`{code}`", _ENERGY[code]) for code in ENERGY_CODES]
    return (
        NOTE
        + _HEAD
        + table(("code", "reason", "what to do"), rows)
        + _ENERGY_HEAD
        + table(("code", "means"), energies)
    )


def _steps(steps: list[str]) -> str:
    return " ".join(f"{number}. {_step(step)}." for number, step in enumerate(steps, 1))


def _step(text: str) -> str:
    """Returns a step with its command as code."""
    where, colon, command = text.partition(": ")
    is_command = command.startswith(("curl ", "ollama "))
    return f"{where}: `{command}`" if colon and is_command else text
