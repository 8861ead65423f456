"""Holds the edge's answers against the OpenAPI document that it gives out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from jsonschema_rs import Draft202012Validator

from edge.answers import SAFE_HEADERS
from edge.openapi import document
from edge.routes import find
from edge.settings import EdgeSettings
from shared.labels import BASE_PATH
from tests.edge.support import Reply

DOCUMENT = document(EdgeSettings())
EVERYWHERE = {*SAFE_HEADERS, "Content-Type"}
"""Headers that need no words at each answer."""


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """Return what checks an instance against a schema of the document."""
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def component(name: str) -> Draft202012Validator:
    """Return what checks an instance against a named schema."""
    return validator({"$ref": f"#/components/schemas/{name}"})


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Return all operations by path and method."""
    return {
        (path, method): operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }


@dataclass(frozen=True)
class Documented:
    """What the document says of one answer."""

    answer: dict[str, Any]

    @classmethod
    def of(cls, method: str, path: str, status: int) -> Documented:
        """Find an answer by a path below the base; a KeyError means that it is not documented."""
        route = find(BASE_PATH + path)
        assert route is not None, path
        return cls(DOCUMENT["paths"][route.template or "/"][method.lower()]["responses"][str(status)])

    def faults(self, reply: Reply) -> list[str]:
        """Return in what an answer differs from its description."""
        return [*self._header_faults(reply.headers), *self._body_faults(reply)]

    def _header_faults(self, headers: dict[str, str]) -> list[str]:
        told = self.answer.get("headers", {})
        faults = [f"{name} is not told of" for name in headers if name not in EVERYWHERE and name not in told]
        for name, header in told.items():
            if name not in headers:
                faults += [f"{name} is missing"] if header.get("required") else []
            elif not re.fullmatch(header["schema"].get("pattern", ".+"), headers[name]):
                faults.append(f"{name} has the wrong form")
        return faults

    def _body_faults(self, reply: Reply) -> list[str]:
        if "content" not in self.answer:
            return ["there is a body"] if reply.text else []
        media_type = reply.headers["Content-Type"].partition(";")[0]
        if media_type not in self.answer["content"]:
            return [f"{media_type} is not told of"]
        value = reply.text if media_type == "text/html" else reply.json
        check = validator(self.answer["content"][media_type]["schema"])
        return [f"{error.instance_path}: {error.message[:300]}" for error in check.iter_errors(value)]
