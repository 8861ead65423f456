"""What the edge tells its operator: one JSON line and a few metrics an invocation, never what a caller sent.

Log lines hold only the fields named here, whatever is logged. Metrics are CloudWatch's embedded format (EMF), printed
beside the log. A process handles one invocation at a time, so the present one is kept in this module.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

NAMESPACE: Final = "specdec"
SERVICE: Final = "edge"
"""Also the name of the logger above all of this package's, so that it formats their lines."""

FIELDS: Final = (
    *("level", "message", "timestamp", "service", "logger", "exception_name"),
    *("correlation_id", "request_id", "cold_start"),
    *("method", "route", "status", "label", "code", "ms", "phases_ms"),
)

METRICS: Final = {
    "Runs": "answers of the run routes, by label: SPEC-DECODE MEASURED, SPEC-DECODE ROADMAP, RUNNING",
    "Refusals": "answers without what was asked for, by reason: a receipt's code, or HTTP and the status",
    "Unsigned": "answers that should be signed and are not",
    "Uncounted": "invocations whose runs could not be counted where all instances count: each allows what all may",
    "TowerConnect": "milliseconds: TCP, TLS and handshake",
    "TowerRoundTrip": "milliseconds: from the first frame sent to the first received",
    "TowerWait": "milliseconds: from then on until the run's end or the wait's",
    "Limit": "milliseconds: counting the caller's runs and the day's GPU time",
    "Sign": "milliseconds",
    "Store": "milliseconds",
}
"""What is counted, under `NAMESPACE`; the phases are measured for run routes alone."""

RUNNING: Final = "RUNNING"
"""Code of an answer that another one will follow."""

_ID = re.compile(r"[A-Za-z0-9=_+/-]{1,64}")


@dataclass
class Seen:
    """What is known of the present invocation; `phases` are milliseconds."""

    correlation_id: str | None = None
    began: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)
    unsigned: int = 0
    uncounted: bool = False
    label: str | None = None
    code: str | None = None


_seen = Seen()
_cold = True


class _Formatter(LambdaPowertoolsFormatter):
    """JSON lines of the allowed fields alone; of an exception the name, as messages and frames may hold a prompt."""

    def format(self, record: logging.LogRecord) -> str:
        record.__dict__["logger"] = record.name
        return super().format(record)

    def serialize(self, log: Any) -> str:
        return super().serialize({name: log[name] for name in FIELDS if name in log})


class _Stdout(logging.StreamHandler[TextIO]):
    """Writes to what is standard output now: workers of the local edge, and tests, exchange it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stdout

    @stream.setter
    def stream(self, _: TextIO) -> None:
        raise AttributeError


logger: Final = Logger(
    service=SERVICE,
    logger_handler=_Stdout(),
    logger_formatter=_Formatter(
        utc=True,
        use_rfc3339=True,
        serialize_stacktrace=False,
        json_deserializer=str,  # no message is JSON, and failing to read one as such costs more than to write it
    ),
)


def correlation_id() -> str | None:
    """Return the id by which the gateway, this edge and the tower speak of the present invocation."""
    return _seen.correlation_id


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Measure a part of the present invocation."""
    began = time.perf_counter()
    try:
        yield
    finally:
        _seen.phases[name] = _seen.phases.get(name, 0.0) + 1000 * (time.perf_counter() - began)


def unsigned() -> None:
    """Count an answer that should be signed and is not."""
    _seen.unsigned += 1


def uncounted() -> None:
    """Take note that a run could not be counted where all instances count."""
    _seen.uncounted = True


@contextmanager
def invocation(event: Mapping[str, Any], context: Any) -> Iterator[None]:
    """Begin an invocation: its log lines carry its ids."""
    global _seen, _cold
    given = event["requestContext"].get("requestId")
    _seen = Seen(given if isinstance(given, str) and _ID.fullmatch(given) else None)
    logger.append_keys(
        correlation_id=_seen.correlation_id,
        request_id=getattr(context, "aws_request_id", None),
        cold_start=_cold,
    )
    _cold = False
    try:
        yield
    finally:
        logger.remove_keys(["correlation_id", "request_id", "cold_start"])
        _seen = Seen()


def outcome(label: str, code: str | None) -> None:
    """Take note of a run route's label, and of why it holds no measurement."""
    _seen.label, _seen.code = label, code


def answered(method: str, route: str, status: int) -> None:
    """Log the answer, and count what is worth counting.

    Args:
        method: HTTP method, one that the edge knows.
        route: The route's template, never the path that was asked for.
        status: HTTP status.
    """
    ms = round(1000 * (time.perf_counter() - _seen.began), 1)
    phases = {name: round(value, 1) for name, value in _seen.phases.items()}
    about = {"label": _seen.label, "code": _seen.code, "ms": ms, "phases_ms": phases or None}
    logger.info("answered", extra={"method": method, "route": route, "status": status, **about})
    running = _seen.code == RUNNING
    if _seen.label is not None:
        _emit({"label": RUNNING if running else _seen.label}, Runs=1)
        _emit({}, **phases)
    reason = _seen.code or (f"HTTP {status}" if status >= 400 else None)
    if reason is not None and not running:
        _emit({"reason": reason}, Refusals=1)
    if _seen.unsigned:
        _emit({}, Unsigned=_seen.unsigned)
    if _seen.uncounted:
        _emit({}, Uncounted=1)


def _emit(dimensions: Mapping[str, str], **values: float) -> None:
    if not values or os.environ.get("POWERTOOLS_METRICS_DISABLED", "").lower() in ("1", "true"):
        return
    # Imported by the first run or refusal: cold starts of what is asked most need none of it.
    from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

    metrics = EphemeralMetrics(namespace=NAMESPACE, service=SERVICE)
    for name, word in dimensions.items():
        metrics.add_dimension(name, word)
    counts = ("Runs", "Refusals", "Unsigned", "Uncounted")
    for name, value in values.items():
        metrics.add_metric(name, MetricUnit.Count if name in counts else MetricUnit.Milliseconds, value)
    metrics.flush_metrics()
