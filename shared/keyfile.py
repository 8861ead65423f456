"""A private signing key in a file of its own: made on first use, readable by its owner alone."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shared.errors import SpecdecError
from shared.keys import ED25519_ALG, P256_ALG, key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Kind = Literal["P-256", "Ed25519"]


class KeyFileError(SpecdecError):
    """A private key file cannot be made, read or used."""


class SigningKey:
    """A private key, P-256 (ECDSA over SHA-256, DER signatures) or Ed25519.

    Attributes:
        pem: The public half (SubjectPublicKeyInfo).
        keyid: SHA-256 of it in DER, hex.
        alg: `ECDSA_SHA_256` or `ED25519`.
    """

    def __init__(self, private: EllipticCurvePrivateKey | Ed25519PrivateKey) -> None:
        """Wraps a key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._private = private
        public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.pem: str = public.decode("ascii")
        self.keyid = key_id(public)
        self.alg = ED25519_ALG if isinstance(private, Ed25519PrivateKey) else P256_ALG

    def sign(self, message: bytes) -> bytes:
        """Returns the signature over a message."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if isinstance(self._private, ec.EllipticCurvePrivateKey):
            return self._private.sign(message, ec.ECDSA(hashes.SHA256()))
        return self._private.sign(message)


def load_or_create(path: Path, kind: Kind) -> SigningKey:
    """Returns the key in a file; a key of this kind is made if the file is not there.

    Of several processes that make it at a time one wins, and all use that one's key.

    Raises:
        KeyFileError: If it can be neither read nor made, is readable by others, or holds something else.
    """
    try:
        if not path.exists():
            _create(path, kind)
    except OSError as error:
        raise _unusable(path, error) from None
    return load_existing(path)


def load_existing(path: Path) -> SigningKey:
    """Returns the key in a file that is there.

    Raises:
        KeyFileError: If it cannot be read, is readable by others, or holds something else.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise KeyFileError("BAD_KEY_FILE", f"{path.name} is not a file")
        if mode & 0o077:
            raise KeyFileError(
                "BAD_KEY_FILE", f"{path.name} is open to others than its owner", f"chmod 600 {path.name}"
            )
        data = path.read_bytes()
    except OSError as error:
        raise _unusable(path, error) from None
    return load(data, path.name)


def _unusable(path: Path, error: OSError) -> KeyFileError:
    return KeyFileError("BAD_KEY_FILE", f"{path.name} cannot be read or made ({error.strerror})")


def load(data: bytes, name: str) -> SigningKey:
    """Returns the key in PEM (PKCS #8, no password).

    Raises:
        KeyFileError: If it is something else; `name` says what.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError("BAD_KEY_FILE", f"{name} holds no PEM private key without a password") from None
    if isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
        return SigningKey(private)
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return SigningKey(private)
    raise KeyFileError("BAD_KEY_FILE", f"the key in {name} is neither P-256 nor Ed25519")


def _create(path: Path, kind: Kind) -> None:
    """Makes the file whole or not at all; one that is there already stays."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = (
        ec.generate_private_key(ec.SECP256R1()) if kind == "P-256" else ed25519.Ed25519PrivateKey.generate()
    )
    data = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)  # fails where another process was first
        except FileExistsError:
            pass
    finally:
        partial.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # a key that signs must not be gone after a power cut
    finally:
        os.close(folder)
