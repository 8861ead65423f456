"""The agent's settings: environment variables with the prefix SPECDEC_, and flags that outrank them."""

import argparse
import ipaddress
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from shared.settings import SettingsError, load

PREFIX = "SPECDEC_"

Seconds = Annotated[float, Field(gt=0, le=86400)]
ModelName = Annotated[str, Field(min_length=1, max_length=300)]


def _default_state() -> Path:
    # systemd names the directory it has made for the service.
    given = os.environ.get("STATE_DIRECTORY")
    return Path(given) if given else Path.home() / ".local" / "state" / "specdec"


class AgentSettings(BaseModel):
    """Everything that can be set: variable ``SPECDEC_SOME_NAME`` and flag ``--some-name`` are one field."""

    model_config = ConfigDict(frozen=True)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8765, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    draft: Path | None = Field(default=None, description="GGUF file of the draft model.")
    target: Path | None = Field(default=None, description="GGUF file of the target model.")
    embedded: bool = Field(default=False, description="Use the small pair that comes with the agent.")
    ollama_models: Path | None = Field(
        default=None, description="Ollama's model directory, if it is not where Ollama usually keeps it."
    )
    state: Path = Field(
        default_factory=_default_state,
        description="Directory of the run store, the key and the token: systemd's `STATE_DIRECTORY`, else "
        "`~/.local/state/specdec`.",
    )
    token_file: Path | None = Field(
        default=None,
        description="File that holds the token that clients must present, or two: the new one and the old one.",
    )
    tower_token: SecretStr | None = Field(
        default=None, description="The token that clients must present, if no file holds one."
    )
    insecure: bool = Field(default=False, description="Do without a token, on loopback only.")
    tls_cert: Path | None = Field(
        default=None,
        description="PEM file of the certificate and what chains it up, to speak TLS without a proxy in front.",
    )
    tls_key: Path | None = Field(default=None, description="PEM file of its private key.")
    queue_limit: int = Field(
        default=4, ge=0, le=100, description="How many runs may wait while one is decoded."
    )
    max_connections: int = Field(
        default=8, ge=1, le=1000, description="How many clients may be connected at a time."
    )
    max_deadline_s: Seconds = Field(
        default=600.0, description="No run gets more seconds than this, waiting included."
    )
    expiry_s: Seconds = Field(default=3600.0, description="Seconds for which the outcome of a run is kept.")
    hang_s: Seconds = Field(
        default=60.0, description="Silence of the decode worker for so many seconds means that it hangs."
    )
    idle_s: Seconds = Field(
        default=300.0,
        description="After so many seconds without a run the decode worker is ended, and its memory is free for "
        "others.",
    )
    look_s: float = Field(
        default=3.0,
        gt=0,
        le=10,
        description="Seconds between two looks at the models on disk, for a change.",
    )
    keepalive_s: float = Field(
        default=10.0,
        gt=0,
        le=15,
        description="Who waits for a run hears of it at least this often, in seconds; below what the tunnel lets idle.",
    )
    cancel_grace_s: Seconds = Field(
        default=5.0,
        description="Seconds that the decode worker may take to heed a cancel before it is killed.",
    )
    shutdown_grace_s: Seconds = Field(
        default=5.0, description="Seconds that the run under way may go on after SIGTERM."
    )
    context: int = Field(default=4096, ge=64, le=1_000_000, description="Tokens of context for each model.")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="CPU threads to decode with; not set, each load of a pair tries what is fastest, as a speed-up "
        "counts only over the best plain decoding.",
    )
    device: Literal["auto", "gpu", "cpu"] = Field(
        default="auto",
        description="Decode on the GPU or on the processor; `auto` takes the GPU wherever there is one, and never "
        "the processor in silence.",
    )
    gpu: str | None = Field(
        default=None,
        description="Which GPU, by UUID or index as nvidia-smi shows them; not set, the one with most memory.",
    )
    pin_draft: ModelName | None = Field(
        default=None, description="Take this draft and no other, named as Ollama shows it."
    )
    pin_target: ModelName | None = Field(
        default=None,
        description="Take this target and no other, named as Ollama shows it; not set, the largest that fits.",
    )
    forbid: tuple[ModelName, ...] = Field(default=(), description="Models never to use, separated by commas.")
    ollama_url: str = Field(
        default="http://127.0.0.1:11434", description="Where Ollama's server is; `none` asks nobody."
    )
    ollama_unload: bool = Field(
        default=False, description="Ask Ollama to let go of the models it holds before a run."
    )
    foreign: Literal["mark", "refuse"] = Field(
        default="mark",
        description="Other programs that compute on the GPU: `mark` makes the verdict say so, `refuse` makes no run "
        "(GPU_BUSY).",
    )
    worker_module: str = Field(
        default="agent.worker", description="Python module that is run as the decode worker."
    )

    @field_validator("forbid", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("gpu")
    @classmethod
    def _is_gpu(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch("[0-9]{1,3}|GPU-[0-9A-Za-z-]{1,80}", value):
            raise ValueError("must be an index or a UUID of a whole GPU, as nvidia-smi -L shows them")
        return value

    @field_validator("ollama_url")
    @classmethod
    def _is_url_or_none(cls, value: str) -> str:
        # An empty variable is as good as none at all, so that "ask nobody" needs a word of its own.
        if value in ("", "none"):
            return ""
        parts = urlsplit(value)
        # Reading the port checks it.
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or parts.username:
            raise ValueError("must look like http://host:port, or be none")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _pair_is_named_once(self) -> Self:
        if (self.draft is None) != (self.target is None):
            raise ValueError("--draft and --target go together")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key go together")
        ways = [name for name in ("draft", "embedded", "ollama_models") if getattr(self, name)]
        if len(ways) > 1:
            raise ValueError(
                "name the pair one way only: --draft and --target, --embedded, or --ollama-models"
            )
        return self

    def worker_command(self) -> list[str]:
        """Return the command line of the decode worker."""
        command = [sys.executable, "-m", self.worker_module]
        for name in ("draft", "target", "ollama_models"):
            path: Path | None = getattr(self, name)
            if path is not None:
                command += [_flag(name), str(path)]
        if self.embedded:
            command.append("--embedded")
        if self.threads is not None:
            command += ["--threads", str(self.threads)]
        for name in ("gpu", "pin_draft", "pin_target"):
            text: str | None = getattr(self, name)
            if text is not None:
                command += [_flag(name), text]
        for model in self.forbid:
            command += ["--forbid", model]
        if self.ollama_unload:
            command.append("--ollama-unload")
        command += ["--device", self.device, "--foreign", self.foreign, "--ollama-url", self.ollama_url]
        command += ["--context", str(self.context)]
        return [*command, "--calibrations", str(self.calibrations), "--facts", str(self.facts)]

    @property
    def calibrations(self) -> Path:
        """Return the file in which the decode worker remembers what decoding costs."""
        return self.state / "calibrations.json"

    @property
    def facts(self) -> Path:
        """Return the file in which the decode worker remembers what is in model files."""
        return self.state / "files.json"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError("BAD_SETTINGS", message, "see python -m agent --help")


def load_settings(argv: Sequence[str], environ: Mapping[str, str]) -> AgentSettings:
    """Read flags and environment.

    Raises:
        SettingsError: A value is wrong.
    """
    flags = {name: value for name, value in vars(_parser().parse_args(argv)).items() if value is not None}
    merged = {**environ, **{_variable(name): value for name, value in flags.items()}}
    try:
        settings = load(AgentSettings, merged, PREFIX)
    except SettingsError as exc:
        raise as_flags(exc, flags) from None
    for name in ("draft", "target", "tls_cert", "tls_key"):
        path: Path | None = getattr(settings, name)
        if path is not None and not path.is_file():
            raise SettingsError("BAD_SETTINGS", f"{_flag(name)} is not a file: {path}")
    return settings


def as_flags(error: SettingsError, names: Iterable[str]) -> SettingsError:
    """Return the error with these settings named the way they were given."""
    cause = error.cause
    for name in names:
        cause = re.sub(rf"\b{_variable(name)}\b", _flag(name), cause)
    return SettingsError(error.code, cause, error.remedy)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can connect to what listens on the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m agent",
        description="The tower agent: measures speculative decoding for whoever holds its token.",
        epilog="Commands, each with a --help of its own: python -m agent install | uninstall | token | selfcheck."
        f" More settings, as variables {PREFIX}…: "
        + ", ".join(name.upper() for name in AgentSettings.model_fields if name not in _HELP),
        allow_abbrev=False,
    )
    for name, (metavar, text) in _HELP.items():
        if metavar is None:
            parser.add_argument(_flag(name), action="store_const", const="true", help=text)
        else:
            parser.add_argument(_flag(name), metavar=metavar, help=text)
    return parser


_HELP: dict[str, tuple[str | None, str]] = {
    "host": ("HOST", "address to listen on (default 127.0.0.1)"),
    "port": ("PORT", "port to listen on, 0 for a free one (default 8765)"),
    "draft": ("GGUF", "draft model"),
    "target": ("GGUF", "target model"),
    "embedded": (None, "use the small pair that comes with the agent"),
    "ollama_models": ("DIR", "Ollama's model directory, searched for a pair"),
    "state": ("DIR", "where runs are remembered"),
    "token_file": ("FILE", "file that holds the token clients must present, or two: the new and the old"),
    "insecure": (None, "do without a token; on loopback only"),
    "tls_cert": ("PEM", "certificate to serve TLS with, and what chains it up"),
    "tls_key": ("PEM", "its private key"),
    "device": ("WHICH", "decode on the gpu, on the cpu, or on the gpu if there is one (auto, the default)"),
}
