"""Tests of agent.tls: real handshakes on loopback, before and after the certificate was renewed."""

import json
import logging
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509

from agent.logs import JsonFormatter
from agent.tls import Certificate
from shared.settings import SettingsError
from tests.agent.support import PATIENCE
from tests.certificates import Authority, serial


@contextmanager
def serving(certificate: Certificate) -> Iterator[int]:
    """Shake hands with whoever connects; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.settimeout(PATIENCE)
                        certificate.context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def shown(port: int, authority: Authority, **options: ssl.TLSVersion) -> int:
    """Shake hands, and return the serial number of the certificate that the server has shown."""
    context = ssl.create_default_context(cadata=authority.pem)
    for name, value in options.items():
        setattr(context, name, value)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        # An address is no server name, so that the handshake names none.
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        der = tls.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def test_renewed_certificate_is_shown_at_once(tmp_path: Path) -> None:
    """The handshake after the files have changed shows the new certificate, and later ones as well."""
    authority = Authority.new()
    cert, key = authority.issue(tmp_path)
    with serving(Certificate(cert, key)) as port:
        first = serial(cert)
        assert shown(port, authority) == first
        authority.issue(tmp_path)
        assert serial(cert) != first
        assert [shown(port, authority) for _ in range(2)] == [serial(cert)] * 2


def test_what_could_not_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A key that is made readable after it was written looks the same as before; the failure is logged once."""
    authority = Authority.new()
    cert, key = authority.issue(tmp_path)
    certificate = Certificate(cert, key)
    first = serial(cert)

    def out_of_reach(_: Certificate) -> ssl.SSLContext:
        raise SettingsError("BAD_SETTINGS", "the certificate and its key cannot be used (PermissionError)")

    with serving(certificate) as port:
        authority.issue(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(Certificate, "_load", out_of_reach)
            assert [shown(port, authority) for _ in range(2)] == [first] * 2
        assert shown(port, authority) == serial(cert) != first
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == [
        "certificate kept as it was"
    ]


def test_half_of_a_renewal_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While certificate and key do not belong together the former ones serve, and the log says so, once."""
    authority = Authority.new()
    cert, key = authority.issue(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    new_cert, new_key = authority.issue(other)
    first = serial(cert)
    with serving(Certificate(cert, key)) as port, caplog.at_level(logging.INFO):
        shutil.copy(new_cert, cert)
        assert [shown(port, authority) for _ in range(2)] == [first] * 2
        key.unlink()
        assert shown(port, authority) == first
        shutil.copy(new_key, key)
        assert shown(port, authority) == serial(new_cert)
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [line["message"] for line in lines] == ["certificate kept as it was"] * 2 + ["certificate read"]
    assert "KEY_VALUES_MISMATCH" in lines[0]["cause"] and "FileNotFoundError" in lines[1]["cause"]


def test_old_tls_is_refused(tmp_path: Path) -> None:
    """A client that knows nothing newer than TLS 1.1 is not served, one with 1.2 is."""
    authority = Authority.new()
    certificate = Certificate(*authority.issue(tmp_path))
    assert certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2
    with serving(certificate) as port:
        assert shown(port, authority, maximum_version=ssl.TLSVersion.TLSv1_2) == serial(tmp_path / "cert.pem")


@pytest.mark.parametrize(
    ("cert", "key", "why"),
    [
        (None, b"", "FileNotFoundError"),
        (b"garbage", b"garbage", "[A-Z_]+|no PEM, or a key with a password"),
        (b"", b"", "[A-Z_]+|no PEM, or a key with a password"),
    ],
)
def test_files_that_are_no_certificate(tmp_path: Path, cert: bytes | None, key: bytes, why: str) -> None:
    """What cannot be used stops the start with one sentence."""
    if cert is not None:
        (tmp_path / "cert.pem").write_bytes(cert)
    (tmp_path / "key.pem").write_bytes(key)
    sentence = rf"^the certificate and its key cannot be used \(({why})\); see --tls-cert and --tls-key$"
    with pytest.raises(SettingsError, match=sentence):
        Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")


def test_key_with_a_password_is_not_asked_about(tmp_path: Path) -> None:
    """An encrypted key stops the start instead of waiting for somebody at the terminal."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    cert, key = Authority.new().issue(tmp_path)
    key.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(SettingsError, match="cannot be used"):
        Certificate(cert, key)
