"""What a question must be before it is sent, and an answer before it is believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from shared.client_steps import Answer, ClientError
from shared.models import explain, one_line
from shared.results import Receipt
from shared.runid import prompt_commitment
from shared.schemas import CurveQuery, RunRequest
from shared.verify import verify_receipt


def validated(model: type[RunRequest] | type[CurveQuery], values: Mapping[str, Any]) -> dict[str, Any]:
    """The given fields, checked and normalised; fields left out stay out."""
    try:
        return model.model_validate(values).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise ClientError("BAD_INPUT", explain(error)) from None


def run_headers(wait: float | None, idempotency_key: str | None) -> dict[str, str]:
    """The headers of a `POST /run`, checked."""
    headers = {}
    if wait is not None:
        if not 0 <= wait <= 3600:
            raise ClientError("BAD_INPUT", "wait must be a number of seconds from 0 to 3600")
        headers["Prefer"] = f"wait={round(wait)}"
    if idempotency_key is not None:
        if not (idempotency_key.isascii() and idempotency_key.isprintable() and idempotency_key.strip()):
            raise ClientError("BAD_INPUT", "idempotency_key must be printable ASCII, not blank")
        headers["Idempotency-Key"] = idempotency_key
    return headers


def verified(answer: Answer) -> Receipt:
    """The answer as a receipt, if it is one that verifies."""
    for check in verify_receipt(answer.body).checks:
        if check.status == "failed":
            raise ClientError("BAD_RECEIPT", f"the receipt does not verify: {check.detail}")
    return Receipt(answer.body)


def require_run(receipt: Receipt, run_id: str | None) -> None:
    """Refuse a receipt of another run."""
    if receipt.run_id != run_id:
        raise ClientError("BAD_ANSWER", "the service answered with another run")


def require_answer(receipt: Receipt, asked: dict[str, Any]) -> None:
    """Refuse a receipt for another prompt or other fields; one that repeats neither cannot be compared."""
    payload = receipt.payload
    if isinstance(payload.get("request"), dict):
        require_echo({name: value for name, value in asked.items() if name != "prompt"}, payload["request"])
    commitment, salt = payload.get("prompt_commitment"), receipt.get("prompt_salt")
    if commitment is not None and salt is not None:
        try:
            same = prompt_commitment(bytes.fromhex(salt), asked["prompt"]) == commitment
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ClientError("BAD_ANSWER", "the receipt commits to another prompt")


def require_echo(asked: Mapping[str, Any], answered: Mapping[str, Any]) -> None:
    """Refuse what was answered for other values than were asked for."""
    for name, value in asked.items():
        if answered.get(name) != value:
            raise ClientError("BAD_ANSWER", f"the service answered for another {name}")


def no_room(answer: Answer) -> bool:
    """Whether the service says that it has no room for a run now."""
    return answer.status == 429 or Receipt(answer.body).roadmap_code in ("BUSY", "TOWER_BUSY")


def problem(answer: Answer) -> ClientError:
    """The error for an answer that is not one: the problem's own sentence (RFC 9457), or the bare status."""
    detail = answer.body.get("detail")
    if answer.status < 400 or not isinstance(detail, str):
        return ClientError(
            "BAD_ANSWER", f"the service answered {answer.status} without a JSON object we can read"
        )
    return ClientError(f"HTTP_{answer.status}", f"the service answered {answer.status}: {one_line(detail)}")
