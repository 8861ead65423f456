"""The agent's log: one JSON object a line on stderr, never a prompt, an output or a token.

Code logs fixed words and puts values beside them: ``log.info("run ended", extra={"data": {"run_id": …}})``.
Of an exception only its type and place are written, for its message may quote what a caller sent.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "data", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["exception"] = record.exc_info[0].__name__
            entry["at"] = place(record.exc_info[2])
        return json.dumps(entry, ensure_ascii=False, default=str)


def place(tb: TracebackType | None) -> list[str]:
    """Return the frames of a traceback as ``file:line function``, outermost first, without any value."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(tb)]


def configure() -> None:
    """Send everything from INFO up to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Each connection of each poll would fill the log; and below INFO websockets logs whole frames.
    for library in ("websockets", "httpx"):
        logging.getLogger(library).setLevel(logging.WARNING)
