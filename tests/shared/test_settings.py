"""Settings from the environment."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field, field_validator, model_validator

from shared.settings import SettingsError, is_token, load


class Settings(BaseModel):
    """Settings like those of the edge."""

    k: int = Field(default=4, ge=1, le=16)
    cost_ratio: float = 0.2
    signer: Literal["none", "kms", "file"] = "none"
    insecure: bool = False
    tower_token: str | None = None
    tower_url: str = "wss://gpu.a-11-oy.com/specdec"

    @field_validator("tower_url")
    @classmethod
    def _url(cls, url: str) -> str:
        if not url.startswith(("ws://", "wss://")):
            raise ValueError("must start with ws:// or wss://")
        return url

    @model_validator(mode="after")
    def _whole(self) -> Settings:
        if self.signer == "file" and self.tower_token is None:
            raise ValueError("a file signer needs a token")
        return self


def test_defaults_and_values() -> None:
    """Unset and empty variables leave defaults; text is read as the field's type; others are left alone."""
    assert load(Settings, {}) == Settings()
    environ = {
        "SPECDEC_K": "8",
        "SPECDEC_COST_RATIO": "0.1",
        "SPECDEC_INSECURE": "true",
        "SPECDEC_SIGNER": "",
    }
    environ |= {"SPECDEC_URL": "http://x", "K": "9", "HOME": "/"}
    assert load(Settings, environ) == Settings(k=8, cost_ratio=0.1, insecure=True)
    assert load(Settings, {"T_K": "2"}, prefix="T_").k == 2


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"SPECDEC_K": "four"}, "SPECDEC_K must be an integer"),
        ({"SPECDEC_K": "17"}, "SPECDEC_K must be at most 16"),
        ({"SPECDEC_COST_RATIO": "x"}, "SPECDEC_COST_RATIO must be a number"),
        ({"SPECDEC_SIGNER": "rsa"}, "SPECDEC_SIGNER must be 'none', 'kms' or 'file'"),
        ({"SPECDEC_INSECURE": "perhaps"}, "SPECDEC_INSECURE must be true or false"),
        ({"SPECDEC_TOWER_URL": "http://secret"}, "SPECDEC_TOWER_URL must start with ws:// or wss://"),
        ({"SPECDEC_SIGNER": "file"}, "a file signer needs a token"),
        (
            {"SPECDEC_K": "0", "SPECDEC_INSECURE": "secret"},
            "SPECDEC_K must be at least 1; SPECDEC_INSECURE must be true or false",
        ),
    ],
    ids=lambda part: str(part)[:48],
)
def test_wrong_values(environ: dict[str, str], line: str) -> None:
    """Wrong values are named in one line, by their variables, and not repeated."""
    with pytest.raises(SettingsError) as refused:
        load(Settings, environ)
    assert str(refused.value) == line


def test_tokens() -> None:
    """A token is what a header can carry: visible ASCII, no spaces, not empty."""
    assert is_token("!aZ9~") and is_token("x" * 4096)
    assert not any(map(is_token, ("", " ", "a b", "a\n", "a\r\nX: y", "\x7f", "é", "a\0")))
