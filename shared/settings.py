"""Settings from the environment: one pydantic model per side, one clear line when a value is wrong.

`is_token` is the one rule of what may be a bearer token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from shared.errors import SpecdecError
from shared.models import problems

M = TypeVar("M", bound=BaseModel)
_TOKEN: Final = re.compile(r"[!-~]+")


class SettingsError(SpecdecError):
    """The environment holds a setting that cannot be used."""


def is_token(text: str) -> bool:
    """Whether the text can stand after `Bearer ` in a header: visible ASCII without spaces, not empty."""
    return _TOKEN.fullmatch(text) is not None


def load(model_cls: type[M], environ: Mapping[str, str], prefix: str = "SPECDEC_") -> M:
    """Fill a model from environment variables.

    Field `tower_url` is read from `SPECDEC_TOWER_URL`. An unset or empty variable leaves the default: a
    CloudFormation parameter cannot be absent, only empty. Values are text, so they are read leniently
    (`"4"` is 4, `"true"` is true). Variables that name no field are left alone.

    Args:
        model_cls: The settings model.
        environ: For example `os.environ`.
        prefix: What the names start with.

    Raises:
        SettingsError: Naming each bad variable and what it must be, in one line, without its value.
    """
    names = {field: f"{prefix}{field.upper()}" for field in model_cls.model_fields}
    values = {field: environ[name] for field, name in names.items() if environ.get(name)}
    try:
        return model_cls.model_validate(values, strict=False)
    except ValidationError as error:
        lines = [
            f"{names.get(where, where)} {reason}" if where else reason for where, reason in problems(error)
        ]
        raise SettingsError("BAD_SETTINGS", "; ".join(lines)) from None
