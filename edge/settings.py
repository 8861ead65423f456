"""Settings of the edge, read from ``SPECDEC_*`` variables."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from edge.headers import parse_headers, parse_secret
from shared.runid import PART_BYTES

FEWEST_RUNS_PER_MINUTE = 0.001
"""Limit that is no prohibition: a run in some 17 hours."""

MAX_KEYS_TEXT = 100_000
"""Characters of keys: a process's environment takes little more in one variable."""


class EdgeSettings(BaseModel):
    """What one edge instance needs to know. Every field has a variable ``SPECDEC_<NAME>``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tower_url: str = Field(
        default="wss://gpu.a-11-oy.com/specdec", description="Where the tower's agent listens."
    )
    tower_token: SecretStr | None = Field(
        default=None, description="Bearer token for the agent, or a JSON object of `token` and `headers`."
    )
    tower_token_secret: str | None = Field(
        default=None,
        min_length=1,
        description="Name or ARN of the Secrets Manager secret that holds the same; read by a run when there is "
        "no token yet, or when the tower refuses the one there is.",
    )
    tower_headers: SecretStr | None = Field(
        default=None,
        description="Further headers for the tower, as a JSON object: what a proxy before it asks for. Those in a "
        "secret beside the token outrank them.",
    )
    tower_ca: str | None = Field(
        default=None,
        description="The certificate authority that the tower's certificate is from, if it is a private one: PEM "
        "text (a backslash and an n may stand for a line's end), or a file of it.",
    )
    run_secret: SecretStr | None = Field(
        default=None,
        description="Key from which run ids, nonces and salts are derived, at least 16 bytes; the same on all "
        "instances.",
    )
    k: int = Field(default=4, ge=1, le=16, description="Draft length when a request names none.")
    cost_ratio: float = Field(
        default=0.2,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="Draft step time over target step time, assumed by the modeled numbers.",
    )
    wait_s: float = Field(
        default=20.0,
        ge=0,
        le=27,
        allow_inf_nan=False,
        description="Seconds that `POST /run` waits for a result when the caller states no preference.",
    )
    tower_public_key: str | None = Field(
        default=None,
        description="The tower's public key or keys, which its results must be signed by: PEM text (a backslash "
        "and an n may stand for a line's end), or a file of it.",
    )
    signer: Literal["none", "kms", "file"] = Field(default="none", description="Who signs receipts.")
    kms_key_id: str | None = Field(
        default=None, min_length=1, description="Id or ARN of the KMS key (P-256), for `kms`."
    )
    signing_key_file: Path | None = Field(
        default=None, description="File of the private key, for `file`; made when it is not there."
    )
    signing_keyid: str | None = Field(
        default=None, description="Id that the key in that file must have; it is then not made."
    )
    keys: str | None = Field(
        default=None,
        description="What `GET /keys` answers, or a file of it: this edge's keys, old ones too, with their times.",
    )
    receipts_table: str | None = Field(
        default=None, min_length=3, description="DynamoDB table that receipts are stored in."
    )
    receipts_dir: Path | None = Field(
        default=None, description="Directory that receipts are stored in, instead."
    )
    run_deadline_s: float = Field(
        default=300.0,
        ge=10,
        le=3600,
        allow_inf_nan=False,
        description="Seconds after which the tower ends a run, counted from when it takes it.",
    )
    runs_per_minute: float = Field(
        default=0.0,
        ge=0,
        le=6000,
        allow_inf_nan=False,
        description="Runs that one caller may ask for, on average; 0 sets no limit, else at least 0.001.",
    )
    run_burst: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="Runs that a caller may ask for at once, if it has asked for none for long.",
    )
    gpu_seconds_per_day: float = Field(
        default=0.0,
        ge=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="GPU seconds that all runs of a day (UTC) may take together, of which each run holds "
        "`RUN_DEADLINE_S` until its end is asked for; 0 sets no limit, else at least that deadline.",
    )
    limits_table: str | None = Field(
        default=None, min_length=3, description="DynamoDB table that those are counted in."
    )
    limits_file: Path | None = Field(
        default=None,
        description="SQLite database that they are counted in, instead; without either, each process counts by "
        "itself.",
    )

    @field_validator("tower_url")
    @classmethod
    def _is_websocket_url(cls, value: str) -> str:
        parts = urlsplit(value)
        # Reading the port checks it.
        if parts.scheme not in ("ws", "wss") or not parts.hostname or parts.port == 0:
            raise ValueError("must look like wss://host/path")
        return value

    @field_validator("tower_token")
    @classmethod
    def _is_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        text = value.get_secret_value().strip()
        parse_secret(text)
        return SecretStr(text)

    @field_validator("tower_headers")
    @classmethod
    def _are_headers(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            parse_headers(value.get_secret_value())
        return value

    @field_validator("run_secret")
    @classmethod
    def _is_long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value().encode()) < PART_BYTES:
            raise ValueError(f"must be at least {PART_BYTES} bytes long")
        return value

    @field_validator("runs_per_minute")
    @classmethod
    def _is_rate(cls, value: float) -> float:
        if 0 < value < FEWEST_RUNS_PER_MINUTE:
            raise ValueError(f"must be 0 or at least {FEWEST_RUNS_PER_MINUTE}")
        return value

    @field_validator("tower_public_key", "keys", "tower_ca")
    @classmethod
    def _is_text_or_file(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if value.lstrip().startswith("-----BEGIN"):
            value = value.replace("\\n", "\n")
        elif not value.lstrip().startswith("{"):
            try:
                if not Path(value).is_file():
                    raise ValueError
                value = Path(value).read_text(encoding="utf-8")
            except (OSError, ValueError):
                raise ValueError("must be the text itself or a file that can be read") from None
        if len(value) > MAX_KEYS_TEXT:
            raise ValueError(f"must be at most {MAX_KEYS_TEXT} characters long")
        return value

    @field_validator("tower_ca")
    @classmethod
    def _is_authority(cls, value: str | None) -> str | None:
        if value is not None:
            import ssl

            try:
                ssl.create_default_context(cadata=value)
            except (ssl.SSLError, ValueError):
                raise ValueError("must be certificates in PEM") from None
        return value

    @model_validator(mode="after")
    def _signer_has_its_key(self) -> Self:
        needed = {"kms": self.kms_key_id, "file": self.signing_key_file}
        if self.signer in needed and needed[self.signer] is None:
            name = {"kms": "SPECDEC_KMS_KEY_ID", "file": "SPECDEC_SIGNING_KEY_FILE"}[self.signer]
            raise ValueError(f"with SPECDEC_SIGNER={self.signer}, {name} must be set")
        if self.receipts_table is not None and self.receipts_dir is not None:
            raise ValueError("set SPECDEC_RECEIPTS_TABLE or SPECDEC_RECEIPTS_DIR, not both")
        if self.limits_table is not None and self.limits_file is not None:
            raise ValueError("set SPECDEC_LIMITS_TABLE or SPECDEC_LIMITS_FILE, not both")
        if 0 < self.gpu_seconds_per_day < self.run_deadline_s:
            # A run holds its whole deadline until it has ended, so none would ever start.
            raise ValueError("SPECDEC_GPU_SECONDS_PER_DAY must be 0 or at least SPECDEC_RUN_DEADLINE_S")
        return self

    @property
    def counts(self) -> bool:
        """Whether there is anything to count."""
        return self.runs_per_minute > 0 or self.gpu_seconds_per_day > 0

    @property
    def tower_host(self) -> str:
        """The host name of the tower, which receipts state."""
        return urlsplit(self.tower_url).hostname or ""
