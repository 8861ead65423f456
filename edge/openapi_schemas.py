"""JSON Schemas (2020-12) of the bodies that the API takes and gives, for its OpenAPI document.

Requests and whatever a tower says of itself are taken from the models that check them, so that they cannot drift apart.
"""

from __future__ import annotations

from typing import Any, Final

from edge.openapi_payloads import HEX, TEXT, TIME, json_object, of_model, payload_schemas, ref
from shared import labels
from shared.receipts import DIGEST_ALG
from shared.schemas import MAX_PROMPT_BYTES, ModelListing, Pair, QueueState, RunRequest

_ANY: Final = {"type": "object"}
_ALG: Final = {"enum": ["ECDSA_SHA_256", "ED25519"]}


def schemas(k: int) -> dict[str, Any]:
    """Returns all schemas by their names; `k` is this edge's draft length where a request names none."""
    found = {
        **payload_schemas(),
        "Problem": json_object(
            {
                "type": {"const": "about:blank"},
                "title": TEXT,
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "detail": {**TEXT, "description": "One sentence; it never repeats a prompt"},
            },
            closed=True,
            about="RFC 9457",
        ),
        "GatewayMessage": json_object(
            {"message": TEXT}, closed=True, about="What the gateway says where it does not ask the service"
        ),
        "Health": _health(),
        "Receipt": _receipt(),
        "RunReceipt": _run_receipt(ref("RoadmapPayload"), ref("MeasuredPayload")),
        "RunningReceipt": _run_receipt(ref("RunningPayload")),
        "Document": json_object(
            {"openapi": {"const": "3.1.0"}, "info": _ANY, "paths": _ANY, "components": _ANY}, about="OpenAPI"
        ),
        "CurveReceipt": {"allOf": [ref("Receipt"), json_object({"payload": ref("CurvePayload")})]},
        "Signature": {"oneOf": [_unsigned(), _signed()]},
        "Keys": json_object({"keys": {"type": "array", "items": _key()}}, closed=True),
    }
    for model in (ModelListing, Pair, QueueState, RunRequest):
        found |= of_model(model)
    # What JSON Schema cannot say of a text: it counts characters, the limit is in bytes.
    found["RunRequest"]["description"] = "Integers are written without a fraction: 4, not 4.0"
    found["RunRequest"]["properties"]["k"]["default"] = k
    found["RunRequest"]["properties"]["prompt"] |= {
        "minLength": 1,
        "maxLength": MAX_PROMPT_BYTES,
        "pattern": "^[^\\u0000]*$",
        "description": f"1 to {MAX_PROMPT_BYTES} bytes of UTF-8, without NUL",
    }
    return found


def _health() -> dict[str, Any]:
    return json_object(
        {
            "status": {"const": "LIVE"},
            "label": {"enum": [labels.HEALTH_MEASURED, labels.HEALTH_ROADMAP]},
            "same_family_pair": ref("Pair"),
            "measured_run_possible": {"type": "boolean"},
            "tower_reachable": {
                "type": "boolean",
                "description": "Whether the tower answered this edge's question",
            },
            "models": {"type": "array", "items": ref("ModelListing")},
            "queue": {
                "oneOf": [ref("QueueState"), {"type": "null"}],
                "description": "Runs on the tower and before it; null where it did not answer",
            },
            "energy": {
                "oneOf": [ref("EnergyMeasured"), ref("EnergyUnavailable"), {"type": "null"}],
                "description": "Whether the tower can meter energy; null where it did not answer",
            },
            "doctrine": ref("Doctrine"),
            "endpoints": {"type": "object", "minProperties": 1, "additionalProperties": TEXT},
        }
    )


def _receipt() -> dict[str, Any]:
    return json_object(
        {
            "schema": {"const": labels.RECEIPT_SCHEMA},
            "payload": ref("Payload"),
            "payload_sha3_256": HEX,
            "digest_alg": {"const": DIGEST_ALG},
            "digest_canonicalization": TEXT,
            "payload_canonical_base64": {
                **TEXT,
                "contentEncoding": "base64",
                "description": "The exact bytes that the digest is of",
            },
            "signature": ref("Signature"),
            "generated_at": TIME,
        }
    )


def _run_receipt(*payloads: dict[str, str]) -> dict[str, Any]:
    beside = {
        "prompt_salt": {**HEX, "description": "Of a POST only; opens prompt_commitment"},
        "output": {**TEXT, "description": "The emitted text, if the request asked for it"},
        "output_note": {**TEXT, "description": "Why the text is not there"},
    }
    payload = json_object({"payload": {"oneOf": list(payloads)}})
    return {**json_object(beside, required=[]), "allOf": [ref("Receipt"), payload]}


def _unsigned() -> dict[str, Any]:
    return json_object(
        {"signed": {"const": False}, "status": {"const": labels.UNSIGNED_STATUS}, "note": TEXT}, closed=True
    )


def _signed() -> dict[str, Any]:
    entry = json_object({"keyid": HEX, "sig": TEXT})
    envelope = json_object(
        {
            "payloadType": {"const": "application/vnd.in-toto+json"},
            "payload": {**TEXT, "contentEncoding": "base64"},
            "signatures": {"type": "array", "items": entry, "minItems": 1, "maxItems": 1},
        },
        about="DSSE v1.0 over an in-toto Statement v1",
    )
    return json_object(
        {
            "signed": {"const": True},
            "status": {"const": labels.SIGNED_STATUS},
            "keyid": HEX,
            "alg": _ALG,
            "envelope": envelope,
        },
        closed=True,
    )


def _key() -> dict[str, Any]:
    moment = {"oneOf": [TIME, {"type": "null"}]}
    return json_object(
        {
            "keyid": HEX,
            "kind": {"enum": ["edge", "tower"]},
            "alg": _ALG,
            "pem": TEXT,
            "jwk": {
                "description": "RFC 7517",
                "oneOf": [_jwk("EC", "P-256", "ES256", "x", "y"), _jwk("OKP", "Ed25519", "EdDSA", "x")],
            },
            "valid_from": moment,
            "valid_to": moment,
        },
        closed=True,
    )


def _jwk(kty: str, crv: str, alg: str, *coordinates: str) -> dict[str, Any]:
    words = {"kty": kty, "crv": crv, "alg": alg, "use": "sig"}
    fixed = {name: {"const": word} for name, word in words.items()}
    return json_object({**fixed, **dict.fromkeys(coordinates, TEXT), "kid": HEX}, closed=True)
