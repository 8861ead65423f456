"""Which paths there are below the base, and what they take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from shared.labels import BASE_PATH


@dataclass(frozen=True)
class Route:
    """One path.

    Attributes:
        template: Its form, below the base; parameters stand in braces.
        methods: What it takes; HEAD goes wherever GET does, and OPTIONS everywhere.
    """

    template: str
    methods: tuple[str, ...]

    @property
    def allow(self) -> str:
        """Value of `Allow`."""
        return ", ".join((*self.methods, *(("HEAD",) * ("GET" in self.methods)), "OPTIONS"))

    def matches(self, path: str) -> bool:
        """Whether a path below the base is of this form."""
        literal = map(re.escape, re.split(r"\{\w+\}", self.template))
        return re.fullmatch("[^/]+".join(literal), path) is not None


ROUTES: Final = (
    Route("", ("GET",)),
    Route("/health", ("GET",)),
    Route("/curve", ("GET",)),
    Route("/run", ("POST",)),
    Route("/runs/{run_id}", ("GET", "DELETE")),
    Route("/receipts/{digest}", ("GET",)),
    Route("/receipts/{digest}/payload", ("GET",)),
    Route("/keys", ("GET",)),
    Route("/openapi.json", ("GET",)),
)

KNOWN_METHODS: Final = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


def find(path: str) -> Route | None:
    """Return the route of a whole path, None where there is none."""
    if not path.startswith(BASE_PATH):
        return None
    below = path.removeprefix(BASE_PATH)
    return next((route for route in ROUTES if route.matches(below)), None)
