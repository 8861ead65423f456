"""The agent's settings: environment variables with the prefix SPECDEC_, and flags that outrank them."""

import argparse
import ipaddress
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from shared.settings import SettingsError, is_token, load

PREFIX = "SPECDEC_"

Seconds = Annotated[float, Field(gt=0, le=86400)]


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
        token_file: File that holds the token; outranks `tower_token`.
        tower_token: The token clients must present.
        insecure: Do without a token, on loopback only.
        queue_limit: How many runs may wait while one is decoded.
        max_connections: How many clients may be connected at a time.
        max_deadline_s: No run gets more time than this, waiting included.
        expiry_s: How long the outcome of a run is kept.
        hang_s: Silence of the decode worker for this long means that it hangs.
        cancel_grace_s: How long the decode worker may take to heed a cancel before it is killed.
        shutdown_grace_s: How long the run under way may go on after SIGTERM.
        context: Tokens of context for each model.
        threads: CPU threads to decode with; not set, each load of a pair tries what is fastest.
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
    queue_limit: Annotated[int, Field(ge=0, le=100)] = 4
    max_connections: Annotated[int, Field(ge=1, le=1000)] = 8
    max_deadline_s: Seconds = 600.0
    expiry_s: Seconds = 3600.0
    hang_s: Seconds = 60.0
    cancel_grace_s: Seconds = 5.0
    shutdown_grace_s: Seconds = 5.0
    context: Annotated[int, Field(ge=64, le=1_000_000)] = 4096
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    worker_module: str = "agent.worker"

    @model_validator(mode="after")
    def _pair_is_named_once(self) -> Self:
        if (self.draft is None) != (self.target is None):
            raise ValueError("--draft and --target go together")
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
                command += [f"--{name.replace('_', '-')}", str(path)]
        if self.embedded:
            command.append("--embedded")
        if self.threads is not None:
            command += ["--threads", str(self.threads)]
        return [*command, "--context", str(self.context), "--calibrations", str(self.calibrations)]

    @property
    def calibrations(self) -> Path:
        """Return the file in which the decode worker remembers what decoding costs."""
        return self.state / "calibrations.json"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError("BAD_SETTINGS", message, "see python -m agent --help")


def load_settings(argv: Sequence[str], environ: Mapping[str, str]) -> AgentSettings:
    """Read flags and environment; in what is returned, `tower_token` is the token to ask for, if any.

    Raises:
        SettingsError: A value is wrong, or there is no token and there should be one.
    """
    flags = {name: value for name, value in vars(_parser().parse_args(argv)).items() if value is not None}
    merged = {**environ, **{_variable(name): value for name, value in flags.items()}}
    try:
        settings = load(AgentSettings, merged, PREFIX)
    except SettingsError as exc:
        # Name a value the way it was given.
        cause = exc.cause
        for name in flags:
            cause = re.sub(rf"\b{_variable(name)}\b", _flag(name), cause)
        raise SettingsError(exc.code, cause, exc.remedy) from None
    for name in ("draft", "target"):
        path: Path | None = getattr(settings, name)
        if path is not None and not path.is_file():
            raise SettingsError("BAD_SETTINGS", f"{_flag(name)} is not a file: {path}")
    return settings.model_copy(update={"tower_token": _token(settings)})


def _token(settings: AgentSettings) -> SecretStr | None:
    if settings.token_file is not None:
        try:
            text = settings.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsError(
                "BAD_SETTINGS", f"the token file cannot be read ({type(exc).__name__})"
            ) from None
    else:
        text = settings.tower_token.get_secret_value().strip() if settings.tower_token else ""
        if not text and settings.insecure:
            if not _is_loopback(settings.host):
                raise SettingsError(
                    "BAD_SETTINGS", "--insecure is for loopback only", "set a token, or drop --host"
                )
            return None
    if not text and settings.token_file is not None:
        raise SettingsError("NO_TOKEN", "the token file is empty", "put the token into it")
    if not text:
        raise SettingsError(
            "NO_TOKEN", "there is no token", "name one with --token-file or SPECDEC_TOWER_TOKEN"
        )
    if not is_token(text):
        raise SettingsError("BAD_SETTINGS", "the token holds more than printable ASCII without spaces")
    return SecretStr(text)


def _is_loopback(host: str) -> bool:
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
        epilog=f"More settings, as variables {PREFIX}…: "
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
    "token_file": ("FILE", "file that holds the token clients must present"),
    "insecure": (None, "do without a token; on loopback only"),
}
