"""Tests of agent.logs."""

import json
import logging
import sys

from agent.logs import JsonFormatter, configure


def formatted(message: str, **options: object) -> dict[str, object]:
    """Return what a record is written as."""
    record = logging.makeLogRecord({"name": "agent.test", "levelname": "INFO", "msg": message, **options})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry: dict[str, object] = json.loads(line)
    return entry


def test_values_stand_beside_the_message() -> None:
    """A line is JSON with the message and the values given beside it."""
    entry = formatted("run ended", data={"run_id": "a.b.c", "code": "OK"})
    assert (entry["message"], entry["run_id"], entry["code"]) == ("run ended", "a.b.c", "OK")
    assert (entry["level"], entry["logger"]) == ("info", "agent.test")


def test_exceptions_are_not_quoted() -> None:
    """Of an exception its type and place are written, and not what it says."""
    try:
        raise ValueError("a secret")
    except ValueError:
        entry = formatted("unexpected error", exc_info=sys.exc_info())
    assert entry["exception"] == "ValueError"
    assert "test_logs.py" in str(entry["at"]) and "a secret" not in json.dumps(entry)


def test_libraries_are_quiet() -> None:
    """Libraries that log each message or each request do so no more, as those hold prompts and addresses."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        configure()
        for name in ("websockets", "httpx"):
            assert not logging.getLogger(name).isEnabledFor(logging.INFO)
        assert logging.getLogger("agent").isEnabledFor(logging.INFO)
    finally:
        root.handlers[:], root.level = handlers, level
