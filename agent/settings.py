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
    """Everything that can be set: variable ``SPECDEC_SOME_NAME`` and flag ``--some-name`` are one field.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        draft: GGUF file of the draft model.
        target: GGUF file of the target model.
        embedded: Use the small pair that comes with the agent.
        ollama_models: Ollama's model directory.
        state: Directory of the run store.
        token_file: File that holds the token, or the new one and the old one; see `agent.tokens`.
        tower_token: The token clients must present, if no file holds one.
        insecure: Do without a token, on loopback only.
        tls_cert: PEM file of the certificate and what chains it up, to speak TLS without a proxy in front.
        tls_key: PEM file of its private key.
        queue_limit: How many runs may wait while one is decoded.
        max_connections: How many clients may be connected at a time.
        max_deadline_s: No run gets more time than this, waiting included.
        expiry_s: How long the outcome of a run is kept.
        hang_s: Silence of the decode worker for this long means that it hangs.
        idle_s: After so long without a run the decode worker is ended, and its memory is free for others.
        look_s: How often the models on disk are looked at for a change.
        keepalive_s: Who waits for a run hears of it at least this often; below what the tunnel lets idle.
        cancel_grace_s: How long the decode worker may take to heed a cancel before it is killed.
        shutdown_grace_s: How long the run under way may go on after SIGTERM.
        context: Tokens of context for each model.
        threads: CPU threads to decode with; not set, each load of a pair tries what is fastest.
        device: Decode on the GPU or on the processor; "auto" takes the GPU wherever there is one.
        gpu: Which GPU, by UUID or index as nvidia-smi shows them; not set, the one with most memory.
        pin_draft: Take this draft and no other, named as Ollama shows it.
        pin_target: Take this target and no other, named as Ollama shows it.
        forbid: Models never to use, separated by commas.
        ollama_url: Where Ollama's server is; "none" asks nobody.
        ollama_unload: Ask Ollama to let go of the models it holds before a run.
        foreign: Other programs that compute on the GPU: "mark" makes the verdict say so, "refuse" makes no run.
        worker_module: Python module that is run as the decode worker.
    """

    model_config = ConfigDict(frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    draft: Path | None = None
    target: Path | None = None
    embedded: bool = False
    ollama_models: Path | None = None
    state: Path = Field(default_factory=_default_state)
    token_file: Path | None = None
    tower_token: SecretStr | None = None
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    queue_limit: Annotated[int, Field(ge=0, le=100)] = 4
    max_connections: Annotated[int, Field(ge=1, le=1000)] = 8
    max_deadline_s: Seconds = 600.0
    expiry_s: Seconds = 3600.0
    hang_s: Seconds = 60.0
    idle_s: Seconds = 300.0
    look_s: Annotated[float, Field(gt=0, le=10)] = 3.0
    keepalive_s: Annotated[float, Field(gt=0, le=15)] = 10.0
    cancel_grace_s: Seconds = 5.0
    shutdown_grace_s: Seconds = 5.0
    context: Annotated[int, Field(ge=64, le=1_000_000)] = 4096
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    device: Literal["auto", "gpu", "cpu"] = "auto"
    gpu: str | None = None
    pin_draft: ModelName | None = None
    pin_target: ModelName | None = None
    forbid: tuple[ModelName, ...] = ()
    ollama_url: str = "http://127.0.0.1:11434"
    ollama_unload: bool = False
    foreign: Literal["mark", "refuse"] = "mark"
    worker_module: str = "agent.worker"

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
