"""JSON Schemas (2020-12) of the bodies that the API takes and gives, for its OpenAPI document.

Requests and whatever a tower measures are taken from the models that check them, so that they cannot drift apart.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from shared import labels
from shared.receipts import DIGEST_ALG
from shared.runid import RUN_ID_PATTERN
from shared.schemas import (
    MAX_PROMPT_BYTES,
    EnergyMeasured,
    EnergyUnavailable,
    Envelope,
    Measurement,
    ModelListing,
    Pair,
    RunRequest,
)

HEX64: Final = "^[0-9a-f]{64}$"
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_DIGEST: Final = {**_TEXT, "pattern": HEX64}
_TIME: Final = {
    **_TEXT,
    "format": "date-time",
    "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
}
_COUNT: Final = {"type": "integer", "minimum": 0}
_NUMBERS: Final = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}}
_RUN_ID: Final = {**_TEXT, "pattern": RUN_ID_PATTERN}
_ALG: Final = {"enum": ["ECDSA_SHA_256", "ED25519"]}
_REF: Final = "#/components/schemas/"


def ref(name: str) -> dict[str, str]:
    """Returns a reference to a schema by its name."""
    return {"$ref": f"{_REF}{name}"}


def schemas() -> dict[str, Any]:
    """Returns all schemas by their names."""
    found = {
        "Problem": _object(
            {
                "type": {"const": "about:blank"},
                "title": _TEXT,
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "detail": {**_TEXT, "description": "One sentence; it never repeats a prompt"},
            },
            closed=True,
            about="RFC 9457",
        ),
        "GatewayMessage": _object(
            {"message": _TEXT}, closed=True, about="What the gateway says where it does not ask the service"
        ),
        "Health": _health(),
        "Receipt": _receipt(),
        "RunReceipt": _run_receipt(),
        "CurveReceipt": {"allOf": [ref("Receipt"), _object({"payload": ref("CurvePayload")})]},
        "CurvePayload": _payload(labels.CURVE_LABEL, labels.UNAVAILABLE, {}),
        "RoadmapPayload": _roadmap(),
        "RunningPayload": _running(),
        "MeasuredPayload": _measured(),
        "BoundRequest": _bound_request(),
        "Accounting": _accounting(),
        "Progress": _progress(),
        "Build": _build(),
        "Doctrine": _doctrine(),
        "Signature": {"oneOf": [_unsigned(), _signed()]},
        "Keys": _object({"keys": {"type": "array", "items": _key()}}, closed=True),
    }
    for model in (Measurement, EnergyMeasured, EnergyUnavailable, Envelope, ModelListing, Pair, RunRequest):
        found[model.__name__] = _of_model(model, found)
    # What JSON Schema cannot say of a text: it counts characters, the limit is in bytes.
    found["RunRequest"]["description"] = "Integers are written without a fraction: 4, not 4.0"
    found["RunRequest"]["properties"]["prompt"] |= {
        "minLength": 1,
        "maxLength": MAX_PROMPT_BYTES,
        "pattern": "^[^\\u0000]*$",
        "description": f"1 to {MAX_PROMPT_BYTES} bytes of UTF-8, without NUL",
    }
    return found


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles, which only repeat the fields' names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _object(
    properties: dict[str, Any], *, required: list[str] | None = None, closed: bool = False, about: str = ""
) -> dict[str, Any]:
    return {
        "type": "object",
        **({"description": about} if about else {}),
        "properties": properties,
        "required": list(properties) if required is None else required,
        **({"additionalProperties": False} if closed else {}),
    }


def _of_model(model: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Returns a model's schema, and puts those that it refers to beside it.

    It is the one of validation: what a tower left out is absent from the payload too (`shared.models`).
    """
    schema = TypeAdapter(model).json_schema(ref_template=_REF + "{model}", schema_generator=_Untitled)
    inner = schema.pop("$defs", {})
    for each in (schema, *inner.values()):
        each.pop("title", None)
    found.update(inner)
    return schema


def _bound_request() -> dict[str, Any]:
    """Returns what a run id binds: the request with its defaults, a commitment in place of the prompt."""
    fields = TypeAdapter(RunRequest).json_schema(schema_generator=_Untitled)["properties"]
    del fields["prompt"]
    plain = {name: {k: v for k, v in field.items() if k != "default"} for name, field in fields.items()}
    return _object({**plain, "prompt_commitment": _DIGEST}, closed=True)


def _health() -> dict[str, Any]:
    return _object(
        {
            "status": {"const": "LIVE"},
            "label": {"enum": [labels.HEALTH_MEASURED, labels.HEALTH_ROADMAP]},
            "same_family_pair": ref("Pair"),
            "measured_run_possible": {"type": "boolean"},
            "tower_reachable": {"type": "boolean"},
            "models": {"type": "array", "items": ref("ModelListing")},
            "doctrine": ref("Doctrine"),
            "endpoints": {"type": "object", "minProperties": 1, "additionalProperties": _TEXT},
        }
    )


def _receipt() -> dict[str, Any]:
    return _object(
        {
            "schema": {"const": labels.RECEIPT_SCHEMA},
            "payload": {"oneOf": [ref("CurvePayload"), ref("RoadmapPayload"), ref("MeasuredPayload")]},
            "payload_sha3_256": _DIGEST,
            "digest_alg": {"const": DIGEST_ALG},
            "digest_canonicalization": _TEXT,
            "payload_canonical_base64": {
                **_TEXT,
                "contentEncoding": "base64",
                "description": "The exact bytes that the digest is of",
            },
            "signature": ref("Signature"),
            "generated_at": _TIME,
        }
    )


def _run_receipt() -> dict[str, Any]:
    beside = {
        "prompt_salt": {**_DIGEST, "description": "Of a POST only; opens prompt_commitment"},
        "output": {**_TEXT, "description": "The emitted text, if the request asked for it"},
        "output_note": {**_TEXT, "description": "Why the text is not there"},
    }
    payload = {"oneOf": [ref("RoadmapPayload"), ref("MeasuredPayload")]}
    return {**_object(beside, required=[]), "allOf": [ref("Receipt"), _object({"payload": payload})]}


def _payload(label: str, measured: str, more: dict[str, Any]) -> dict[str, Any]:
    return _object(
        {
            "schema": {"const": labels.PAYLOAD_SCHEMA},
            "label": {"const": label},
            "measured": {"const": measured},
            "accounting_modeled": ref("Accounting"),
            **more,
            "generated_at": _TIME,
            "edge": _object({"build": ref("Build")}),
            "doctrine": ref("Doctrine"),
            "citations": _TEXTS,
        }
    )


def _roadmap() -> dict[str, Any]:
    unavailable = _object({"label": {"const": labels.UNAVAILABLE}, "code": _TEXT, "reason": _TEXT})
    roadmap = _object({"reason": _TEXT, "code": _TEXT, "runbook": {**_TEXTS, "minItems": 1}})
    more = {"quality_delta": {"const": labels.UNAVAILABLE}, "energy": unavailable, "roadmap": roadmap}
    payload = _payload(labels.RUN_ROADMAP, labels.UNAVAILABLE, more)
    payload["properties"] |= {
        "run_id": _RUN_ID,
        "request": ref("BoundRequest"),
        "prompt_commitment": _DIGEST,
        "progress": ref("Progress"),
        "tower": _tower([labels.FAILED]),
    }
    return payload


def _running() -> dict[str, Any]:
    running = {"properties": {"code": {"const": "RUNNING"}, "reason": {"const": "running"}}}
    about = {"properties": {"roadmap": running}, "required": ["run_id", "progress"]}
    return {"allOf": [ref("RoadmapPayload"), about]}


def _progress() -> dict[str, Any]:
    phase = {**_TEXT, "minLength": 1}
    queued = _object({"phase": {"const": "queued"}, "position": _COUNT}, closed=True, about="Runs ahead")
    at_work = _object({"phase": phase, "done": _COUNT, "total": _COUNT}, closed=True, about="Steps")
    return {"oneOf": [queued, at_work]}


def _measured() -> dict[str, Any]:
    rate = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
    lossless = [labels.LOSSLESS, labels.DIVERGED_TIE, labels.DIVERGED_FAULT, labels.SAMPLED]
    return _payload(
        labels.RUN_MEASURED,
        labels.MEASURED,
        {
            "run_id": _RUN_ID,
            "nonce": _DIGEST,
            "request": ref("BoundRequest"),
            "n": {"type": "integer", "minimum": 1, "maximum": 500},
            "k": {"type": "integer", "minimum": 0, "maximum": 16},
            "accepted_rate": rate,
            "mean_accepted_len": {"type": "number", "minimum": 0, "maximum": 17},
            "speedup_modeled": {"type": ["number", "null"]},
            "speedup_measured": {"oneOf": [ref("SpeedupMeasured"), {"const": labels.UNAVAILABLE}]},
            "draft_model": _TEXT,
            "target_model": _TEXT,
            "quality_delta": _object({"identical_rate": rate, "label": {"enum": lossless}}),
            "energy": {"oneOf": [ref("EnergyMeasured"), ref("EnergyUnavailable")]},
            "prompt_commitment": _DIGEST,
            "output_sha3_256": _DIGEST,
            "measurement": ref("Measurement"),
            "tower": _tower([labels.VERIFIED, labels.UNPINNED]),
        },
    )


def _tower(attested: list[str]) -> dict[str, Any]:
    tower = _object({"id": _TEXT, "attested": {"enum": attested}})
    tower["properties"] |= {"keyid": _DIGEST, "attestation": ref("Envelope")}
    return tower


def _accounting() -> dict[str, Any]:
    return _object(
        {
            "label": {"const": labels.ACCOUNTING_LABEL},
            "k": {"type": "integer", "minimum": 0, "maximum": 64},
            "cost_ratio": {"type": "number", "minimum": 0, "maximum": 10},
            "verify_cost": {"type": "number", "minimum": 1, "maximum": 100},
            "expected_tokens_per_step_at_alpha": _NUMBERS,
            "expected_speedup_at_alpha": _NUMBERS,
        },
        closed=True,
        about="Leviathan et al. 2023 (arXiv:2211.17192), equation 1 and theorem 3.8; no measurement",
    )


def _build() -> dict[str, Any]:
    artifact = _object({"content_sha256": _DIGEST, "version": _TEXT, "arch": _TEXT}, closed=True)
    source = _object({"content_sha256": {"const": labels.UNAVAILABLE}, "reason": _TEXT}, closed=True)
    return {"oneOf": [artifact, source]}


def _doctrine() -> dict[str, Any]:
    fields = {name: _TEXTS if isinstance(value, list) else _TEXT for name, value in labels.DOCTRINE.items()}
    return _object({**fields, "label": {"const": labels.DOCTRINE["label"]}})


def _unsigned() -> dict[str, Any]:
    return _object(
        {"signed": {"const": False}, "status": {"const": labels.UNSIGNED_STATUS}, "note": _TEXT}, closed=True
    )


def _signed() -> dict[str, Any]:
    entry = _object({"keyid": _DIGEST, "sig": _TEXT})
    envelope = _object(
        {
            "payloadType": {"const": "application/vnd.in-toto+json"},
            "payload": {**_TEXT, "contentEncoding": "base64"},
            "signatures": {"type": "array", "items": entry, "minItems": 1, "maxItems": 1},
        },
        about="DSSE v1.0 over an in-toto Statement v1",
    )
    return _object(
        {
            "signed": {"const": True},
            "status": {"const": labels.SIGNED_STATUS},
            "keyid": _DIGEST,
            "alg": _ALG,
            "envelope": envelope,
        },
        closed=True,
    )


def _key() -> dict[str, Any]:
    moment = {"oneOf": [_TIME, {"type": "null"}]}
    jwk = _object({name: _TEXT for name in ("kty", "crv", "alg", "x", "kid", "use")}, about="RFC 7517")
    return _object(
        {
            "keyid": _DIGEST,
            "kind": {"enum": ["edge", "tower"]},
            "alg": _ALG,
            "pem": _TEXT,
            "jwk": jwk,
            "valid_from": moment,
            "valid_to": moment,
        },
        closed=True,
    )
