"""The tower's key, and its signature over each result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.errors import AgentError
from shared.attestation import attestation_statement, attested
from shared.dsse import PAYLOAD_TYPE, make_envelope, pae, statement_bytes
from shared.errors import SpecdecError
from shared.keyfile import SigningKey, load_or_create

PRIVATE, PUBLIC = "tower-key.pem", "tower-key.pub.pem"
"""Names in the state directory: the Ed25519 key, made at the first start, and its public half, to be pinned."""


class Attester:
    """Signs results."""

    def __init__(self, key: SigningKey) -> None:
        """Keeps the key."""
        self.key = key

    def envelope(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the DSSE envelope over a result frame as JSON (see `shared.attestation`)."""
        body = statement_bytes(attestation_statement(attested(result)))
        return make_envelope(body, self.key.sign(pae(PAYLOAD_TYPE, body)), self.key.keyid)


def open_attester(state: Path) -> Attester:
    """Returns the tower's attester; its key is made at the first start and then stays.

    Raises:
        AgentError: If the key can be neither read nor made.
    """
    try:
        key = load_or_create(state / PRIVATE, "Ed25519")
        (state / PUBLIC).write_text(key.pem, encoding="ascii")
    except SpecdecError as error:
        raise AgentError(f"the tower's key: {error.cause}", error.remedy) from None
    except OSError as error:
        raise AgentError(f"the tower's public key cannot be written ({error.strerror})") from None
    return Attester(key)
