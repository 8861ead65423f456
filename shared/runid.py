"""Run ids that any stateless instance can check, and the secrets derived from them.

`run_id` is `ID.DIGEST.MAC`, each part 16 bytes in unpadded base64url (RFC 4648 section 5). ID is random, or
derived from the caller and its Idempotency-Key; DIGEST binds the request; MAC is HMAC-SHA256 (RFC 2104)
under the run secret. Nonce and prompt salt are derived the same way, so nothing has to be stored.
`digest_text` gives the DIGEST part of a bound request.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from shared.canonical import canonical_bytes
from shared.errors import SpecdecError

PART_BYTES: Final = 16
RUN_ID_PATTERN: Final = r"^[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{22}$"
_RUN_ID: Final = re.compile(RUN_ID_PATTERN[1:-1], re.ASCII)


class RunIdError(SpecdecError):
    """The text is not one of our run ids."""


@dataclass(frozen=True)
class ParsedRunId:
    """The two parts of a run id whose MAC was right.

    Attributes:
        id: 16 bytes that name the run.
        digest: First 16 bytes of the bound request's SHA3-256.
    """

    id: bytes
    digest: bytes


class RunKeys:
    """Makes and checks run ids under one secret."""

    def __init__(self, secret: bytes) -> None:
        """Take the run secret.

        Args:
            secret: At least 16 bytes, the same on every instance.

        Raises:
            RunIdError: If it is shorter.
        """
        if len(secret) < PART_BYTES:
            raise RunIdError("BAD_SECRET", "the run secret is too short", "use at least 16 bytes")
        self._secret = secret

    def new_id(self) -> bytes:
        """16 random bytes."""
        return secrets.token_bytes(PART_BYTES)

    def id_for(self, client_scope: str, idempotency_key: str) -> bytes:
        """The 16 bytes that this caller and this Idempotency-Key always get."""
        # A JSON list, not a joined string: no scope and key can be cut at another place.
        return self._mac(b"id:" + canonical_bytes([client_scope, idempotency_key]))[:PART_BYTES]

    def run_id(self, id_bytes: bytes, request: dict[str, Any]) -> str:
        """The run id of a request (with its prompt and all defaults filled in) under `id_bytes`."""
        commitment = prompt_commitment(self.salt(id_bytes), request["prompt"])
        body = f"{_encode(id_bytes)}.{digest_text(bound_request(request, commitment))}"
        return f"{body}.{_encode(self._mac(body.encode())[:PART_BYTES])}"

    def parse(self, run_id: str) -> ParsedRunId:
        """Check form and MAC.

        Raises:
            RunIdError: If the text is malformed or its MAC is not ours.
        """
        id_part, digest_part = split(run_id)
        body, _, mac = run_id.rpartition(".")
        if not hmac.compare_digest(_decode(mac), self._mac(body.encode())[:PART_BYTES]):
            raise RunIdError("NOT_FOUND", "the run id is not one of ours")
        return ParsedRunId(_decode(id_part), _decode(digest_part))

    def salt(self, id_bytes: bytes) -> bytes:
        """The 32 bytes that hide the prompt in its commitment; they go to the caller only."""
        return self._mac(b"salt:" + _encode(id_bytes).encode())

    def nonce(self, run_id: str) -> str:
        """64 hex digits that the agent must send back with its result."""
        return self._mac(b"nonce:" + run_id.encode()).hex()

    def caller(self, address: str) -> str:
        """32 hex digits that stand for a caller and tell nobody its address."""
        return self._mac(b"caller:" + address.encode()).hex()[:32]

    def _mac(self, message: bytes) -> bytes:
        return hmac.new(self._secret, message, hashlib.sha256).digest()


def prompt_commitment(salt: bytes, prompt: str) -> str:
    """SHA3-256 of salt || UTF-8 prompt, 64 hex digits: binds a prompt without telling it."""
    return hashlib.sha3_256(salt + prompt.encode("utf-8")).hexdigest()


def bound_request(request: dict[str, Any], commitment: str) -> dict[str, Any]:
    """The request with its prompt replaced by the prompt's commitment; the argument is left alone."""
    bound = {name: value for name, value in request.items() if name != "prompt"}
    return {**bound, "prompt_commitment": commitment}


def request_digest(bound: dict[str, Any]) -> bytes:
    """SHA3-256 of the canonical bound request, 32 bytes; a run id carries the first 16."""
    return hashlib.sha3_256(canonical_bytes(bound)).digest()


def digest_text(bound: dict[str, Any]) -> str:
    """The DIGEST part of the bound request's run id, 22 characters."""
    return _encode(request_digest(bound)[:PART_BYTES])


def split(run_id: str) -> tuple[str, str]:
    """The ID and DIGEST texts of a well-formed run id; needs no secret, so it proves nothing.

    Raises:
        RunIdError: If the text is malformed.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise RunIdError("NOT_FOUND", "the run id is malformed")
    id_part, digest_part, mac_part = run_id.split(".")
    for part in (id_part, digest_part, mac_part):
        _decode(part)
    return id_part, digest_part


def _encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    try:
        part = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        part = b""
    if _encode(part) != text:  # 22 digits hold 132 bits; the last 4 must be zero, or ids had aliases
        raise RunIdError("NOT_FOUND", "the run id is malformed")
    return part
