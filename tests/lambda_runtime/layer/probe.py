"""A handler that says what can be imported where it runs."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def lambda_handler(event: list[str], _: Any) -> dict[str, Any]:
    """Try to import the modules named in the event; return whence each came, null for none, and the path."""
    return {"found": {name: _origin(name) for name in event}, "path": sys.path}


def _origin(name: str) -> str | None:
    try:
        return importlib.import_module(name).__file__
    except ImportError:
        return None
