"""The reference of the HTTP API, from its own OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shared.labels import BASE_PATH, PUBLIC_BASE
from tools.docs_text import NOTE, code, kind, table

Part = Mapping[str, Any]

_METHODS: Final = ("get", "post", "delete")


def page(document: Part) -> str:
    """Returns the page."""
    return "\n".join([NOTE + _head(document), *_operations(document), *_schemas(document)])


def routes(document: Part) -> str:
    """Returns the table of routes."""
    rows = [(f"`{verb} {path}`", str(operation["summary"])) for verb, path, operation in _each(document)]
    return table(("route", "answer"), rows)


def run_fields(document: Part) -> str:
    """Returns the table of a run request's fields."""
    return _properties(
        document["components"]["schemas"]["RunRequest"], ("field", "may be", "default", "says")
    )


def _head(document: Part) -> str:
    info = document["info"]
    return (
        f"# HTTP API\n\n{info['description']}\n\n"
        f"This page is made from the OpenAPI {document['openapi']} document that the service itself gives at "
        f"`GET {BASE_PATH}/openapi.json`. All paths are below `{BASE_PATH}`; the public base is `{PUBLIC_BASE}`. "
        f"Defaults are those of an edge that is not told others. [How to use the API](../api.md) explains them.\n\n"
        f"{routes(document)}"
    )


def _each(document: Part) -> Iterator[tuple[str, str, Part]]:
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield method.upper(), path, item[method]


def _operations(document: Part) -> Iterator[str]:
    for verb, path, operation in _each(document):
        parts = [f"## {verb} {path}\n", f"{_sentence(str(operation['summary']))}\n"]
        if operation.get("parameters"):
            rows = [
                (
                    f"`{each['name']}`",
                    each["in"],
                    kind(each["schema"]),
                    _default(each["schema"]),
                    _about(each),
                )
                for each in operation["parameters"]
            ]
            parts.append(table(("parameter", "in", "may be", "default", "says"), rows))
        for media, body in operation.get("requestBody", {}).get("content", {}).items():
            parts.append(f"Body: `{media}`, a {kind(body['schema'])}.\n")
        answers = [
            (
                f"`{status}`",
                _about(answer),
                _bodies(answer),
                ", ".join(f"`{name}`" for name in answer.get("headers", {})),
            )
            for status, answer in operation["responses"].items()
        ]
        parts.append(table(("status", "when", "body", "headers"), answers))
        yield "\n".join(parts)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _bodies(answer: Part) -> str:
    return " or ".join(
        f"{kind(body['schema'])} (`{media}`)" for media, body in answer.get("content", {}).items()
    )


def _schemas(document: Part) -> Iterator[str]:
    yield "## Schemas\n\nOf bodies, in JSON. A field that is not required may be absent.\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield "\n".join([f"### {name}\n", *_schema(schema)])


def _schema(schema: Part) -> Iterator[str]:
    if schema.get("description"):
        yield f"{' '.join(str(schema['description']).split())}\n"
    parts = schema.get("allOf", [])
    if parts:
        named = [kind(each) for each in parts if "$ref" in each]
        yield f"All of {' and '.join(named)}, and:\n"
    for each in [*parts, schema]:
        if each.get("properties"):
            yield _properties(each, ("field", "may be", "default", "says"))
    if not parts and not schema.get("properties"):
        yield f"{kind(schema)}.\n"


def _properties(schema: Part, head: tuple[str, str, str, str]) -> str:
    required = schema.get("required", [])
    rows = [
        (f"`{name}`", kind(each), "required" if name in required else _default(each), _about(each))
        for name, each in schema["properties"].items()
    ]
    return table(head, rows)


def _default(schema: Part) -> str:
    return code(schema["default"]) if "default" in schema else ""


def _about(part: Part) -> str:
    return str(part.get("description", ""))
