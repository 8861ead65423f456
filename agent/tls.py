"""TLS with certificates that are renewed while the agent serves."""

import logging
import ssl
from pathlib import Path

from agent.changes import Version, version
from shared.settings import SettingsError

log = logging.getLogger(__name__)


class Certificate:
    """A certificate and its key, read again at the first handshake after their files have changed.

    Attributes:
        context: What to serve with.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        """Read them.

        Raises:
            SettingsError: They cannot be read, or do not belong together.
        """
        self._cert, self._key = cert, key
        self._picture = self._failed = self._look()
        self._current = self._load()
        self.context = self._load()
        # Called in each handshake, before a certificate is sent, also when the client names no server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        picture = self._look()
        if picture != self._picture:
            try:
                self._current = self._load()
            except SettingsError as exc:
                # Tried again at the next handshake, for what hinders it need not show in the files; logged once.
                if picture != self._failed:
                    log.error("certificate kept as it was", extra={"data": {"cause": exc.cause}})
                self._failed = picture
            else:
                self._picture = picture
                log.info("certificate read")
        connection.context = self._current

    def _look(self) -> tuple[Version | None, Version | None]:
        return version(self._cert), version(self._key)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if any(path.exists() and not path.is_file() for path in (self._cert, self._key)):
            raise _unusable("not a file")  # a pipe would be waited for
        try:
            # Without a password to try, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self._cert, self._key, password="")
        except ssl.SSLError as exc:
            raise _unusable(exc.reason or "no PEM, or a key with a password") from None
        except OSError as exc:
            raise _unusable(type(exc).__name__) from None
        return context


def _unusable(why: str) -> SettingsError:
    cause = f"the certificate and its key cannot be used ({why})"
    return SettingsError("BAD_SETTINGS", cause, "see --tls-cert and --tls-key")
