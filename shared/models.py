"""What all boundary models share: strictness, and one clear sentence for whatever they refuse.

Strict means: true is not 1, 4.0 is not an integer, "4" is not a number, nothing is NaN or infinite. A
refusal never holds the refused value: it may be a prompt.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

MAX_FACTS: Final = 32
_SHOWABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}", re.ASCII)


class Model(BaseModel):
    """Base of all models: strict, finite, frozen, no unknown fields, no values in errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,  # a cold start pays for the models it uses, not for all of them
    )

    @model_serializer(mode="wrap")
    def _omit_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # An optional field that nobody set is absent, not null: frames and payloads survive a round trip.
        data: dict[str, Any] = handler(self)
        return {key: item for key, item in data.items() if item is not None or key in self.model_fields_set}


def must(rule: str) -> WrapValidator:
    """Say `rule` ("must be an integer from 1 to 16") for whatever the annotated type refuses."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("rule", "must {rule}", {"rule": rule}) from None

    return WrapValidator(validate)


def printable(text: str) -> str:
    """Text from elsewhere without control characters, safe in a log or a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def one_line(text: str, length: int = 500) -> str:
    """The text's first `length` characters as `printable` makes them: one line, whatever it was."""
    return printable(text[:length])


def _short(value: str | int | float | None) -> str | int | float | None:
    return one_line(value, 200) if isinstance(value, str) else value


Fact = Annotated[
    str | int | float | bool | None, AfterValidator(_short), must("be text, a number, true, false or null")
]


class Trimmed(Model):
    """What a tower reports, unknown fields dropped: nothing unchecked gets into a signed payload."""

    model_config = ConfigDict(extra="ignore")


class Described(Model):
    """What a tower describes: besides the fields named here a few more facts, each short and plain."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Fact] = Field(init=False)

    @model_validator(mode="after")
    def _few_and_named(self) -> Self:
        names = self.__pydantic_extra__ or {}
        if len(names) > MAX_FACTS or not all(map(_SHOWABLE.fullmatch, names)):
            raise PydanticCustomError("rule", f"must hold at most {MAX_FACTS} more facts, named like fields")
        return self


def explain(error: ValidationError) -> str:
    """One sentence on the first thing wrong: the field and what it must be, never the value.

    For example `k must be an integer from 1 to 16`.
    """
    where, reason = problems(error)[0]
    return f"{where or 'the value'} {reason}"


def problems(error: ValidationError) -> list[tuple[str, str]]:
    """Each thing wrong as (path of the field, what it must be); the path of the whole value is empty."""
    details = error.errors(include_url=False, include_input=False)
    return [(_path(detail), _reason(detail)) for detail in details]


def _path(detail: ErrorDetails) -> str:
    # A name that only the caller can have chosen is shown if it looks like a field's name.
    path = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += ("." if path else "") + (part if _SHOWABLE.fullmatch(part) else "<unnamed>")
    return path


def _reason(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "rule":
        return detail["msg"]
    if kind == "value_error":  # raised by a validator of ours
        return str(context["error"])
    return _REASONS.get(kind, "is not valid").format(**context)


_REASONS: Final = {
    "extra_forbidden": "is not a known field",
    "missing": "is required",
    "union_tag_not_found": "needs a {discriminator}",
    "union_tag_invalid": "has an unknown {discriminator}",
    "model_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "finite_number": "must be finite",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "has the wrong form",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
