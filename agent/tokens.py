"""The tokens that clients may present, one or two, read again when their file changes: rotation needs no restart.

Where they come from, the first that is there:

1. the file named by ``--token-file``;
2. ``edge-token`` where systemd puts credentials or in the state directory, whichever was written last: the former is
   made at each start of the service, the latter by ``python -m agent token`` while it runs: what is written then
   counts, whatever the clock said at the start;
3. ``SPECDEC_TOWER_TOKEN``.

A file holds one token a line, the new one first. What changes into something else than that changes nothing.
"""

import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from websockets.datastructures import Headers

from agent.changes import Version, version
from agent.settings import AgentSettings, is_loopback
from shared.settings import SettingsError, is_token

log = logging.getLogger(__name__)

NAME = "edge-token"
"""Of the file in the state directory, and of systemd's credential."""

MAX_TOKENS = 2
MAX_BYTES = 8192
"""Of a whole file: headers do not take longer tokens."""


class TokenStore:
    """The tokens that count now."""

    def __init__(self, files: Sequence[Path], fallback: str | None = None) -> None:
        """Read them.

        Args:
            files: Where they may be; of those that are there the one written last counts.
            fallback: The token while there is none of the files.

        Raises:
            SettingsError: The file cannot be read or holds something else, or there is no token at all.
        """
        self._files = tuple(files)
        self._read: dict[Path, Version] = {}
        self._failed: dict[Path, Version] | None = None
        seen = self._look()
        if (path := self._counting(seen)) is not None:
            self.tokens = read_tokens(path)
        elif fallback is not None:
            self.tokens = (fallback,)
        else:
            raise SettingsError(
                "NO_TOKEN", "there is no token", "name one with --token-file or SPECDEC_TOWER_TOKEN"
            )
        self._read = seen

    def accepts(self, presented: str) -> bool:
        """Whether this is a token that counts now. The time it takes says nothing about those that do."""
        self._refresh()
        given = presented.encode()
        return sum([hmac.compare_digest(given, token.encode()) for token in self.tokens]) > 0

    def _refresh(self) -> None:
        seen = self._look()
        if seen == self._read:
            return
        try:
            path = self._counting(seen)
            if path is None:
                raise SettingsError("NO_TOKEN", "the token file is gone")
            self.tokens = read_tokens(path)
        except SettingsError as exc:
            # Tried again with the next client, for what hinders it need not show in the files; logged once.
            if seen != self._failed:
                log.error("tokens kept as they were", extra={"data": {"cause": exc.cause}})
            self._failed = seen
            return
        self._read, self._failed = seen, None
        log.info("tokens read", extra={"data": {"tokens": [fingerprint(token) for token in self.tokens]}})

    def _look(self) -> dict[Path, Version]:
        """Return the files that are there, and their versions."""
        return {path: found for path in self._files if (found := version(path)) is not None}

    def _counting(self, seen: dict[Path, Version]) -> Path | None:
        """Return the file that counts: the one written last, of those that have changed since they were read."""
        changed = {path: found for path, found in seen.items() if self._read.get(path) != found}
        among = changed or seen
        return max(among, key=lambda path: among[path][2], default=None)


def open_tokens(settings: AgentSettings, environ: Mapping[str, str]) -> TokenStore | None:
    """Return the tokens to ask for; None if the agent is to do without one.

    Raises:
        SettingsError: There is none and there should be one, or what there is cannot be used.
    """
    if settings.token_file is not None:
        read_tokens(settings.token_file)  # says what is wrong with it if it is not there
        return TokenStore([settings.token_file])
    directories = [Path(environ["CREDENTIALS_DIRECTORY"])] if environ.get("CREDENTIALS_DIRECTORY") else []
    files = [directory / NAME for directory in (*directories, settings.state)]
    text = settings.tower_token.get_secret_value().strip() if settings.tower_token else ""
    if text and not is_token(text):
        raise SettingsError("BAD_SETTINGS", "SPECDEC_TOWER_TOKEN must be printable ASCII without spaces")
    there = [file for file in files if _there(file)]
    if settings.insecure and not text and not there:
        if not is_loopback(settings.host):
            raise SettingsError(
                "BAD_SETTINGS", "--insecure is for loopback only", "set a token, or drop --host"
            )
        return None
    return TokenStore(files, text or None)


def _there(file: Path) -> bool:
    """Whether there is such a file.

    Raises:
        SettingsError: That cannot be found out, which must not be taken for a no.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise _unreadable(exc) from None
    return True


def read_tokens(path: Path) -> tuple[str, ...]:
    """Return what a file of tokens holds: one or two of them, the new one first.

    Raises:
        SettingsError: It cannot be read, or holds something else.
    """
    try:
        # A pipe would be waited for, and can be read only once.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise SettingsError("BAD_SETTINGS", "the token file is not a regular file")
            content = os.read(handle, MAX_BYTES + 1)
        finally:
            os.close(handle)
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise SettingsError(
            "BAD_SETTINGS", "the token file holds more than printable ASCII without spaces"
        ) from None
    except OSError as exc:
        raise _unreadable(exc) from None
    tokens = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not tokens:
        raise SettingsError("NO_TOKEN", "the token file is empty", "put the token into it")
    if len(tokens) > MAX_TOKENS or len(content) > MAX_BYTES:
        raise SettingsError(
            "BAD_SETTINGS", "the token file holds more than two lines, the new and the old token"
        )
    if not all(is_token(token) for token in tokens):
        raise SettingsError("BAD_SETTINGS", "the token file holds more than printable ASCII without spaces")
    return tokens


def authorized(tokens: TokenStore | None, headers: Headers) -> bool:
    """Whether a request presents a token that counts, or none is asked for."""
    if tokens is None:
        return True
    values = headers.get_all("Authorization")
    if len(values) != 1:
        return False
    scheme, _, token = values[0].partition(" ")
    return tokens.accepts(token.strip()) and scheme.lower() == "bearer"


def fingerprint(token: str) -> str:
    """Return what a token may be called by where it must not be shown."""
    return hashlib.sha256(token.encode()).hexdigest()[:8]


def _unreadable(error: OSError) -> SettingsError:
    return SettingsError("BAD_SETTINGS", f"the token file cannot be read ({type(error).__name__})")
