"""Errors as RFC 9457 problem documents: one clear sentence, never the caller's input."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

PROBLEM_TYPE = "application/problem+json"

_TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""As RFC 9110 names them; Python's own names are these from 3.13 on, others before."""


class Problem(Exception):
    """An HTTP error that the caller should read."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        """Describe the error.

        Args:
            status: HTTP status code, 400 or above.
            detail: One sentence saying what is wrong and what to do. It must not repeat the prompt.
            headers: Extra response headers, such as ``Allow`` or ``Retry-After``.
        """
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """Return the problem document; ``about:blank`` means that the status says it all."""
        return {
            "type": "about:blank",
            "title": _TITLES.get(self.status) or HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
