"""JSON Schemas (2020-12) of payloads, and the words that all schemas of the OpenAPI document are made of.

What a tower measures is taken from the models that check it, so that the two cannot drift apart.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from shared import labels
from shared.runid import RUN_ID_PATTERN
from shared.schemas import EnergyMeasured, EnergyUnavailable, Envelope, Measurement, RunRequest

HEX64: Final = "^[0-9a-f]{64}$"
TEXT: Final = {"type": "string"}
TEXTS: Final = {"type": "array", "items": TEXT}
HEX: Final = {**TEXT, "pattern": HEX64}
TIME: Final = {
    **TEXT,
    "format": "date-time",
    "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
}
_COUNT: Final = {"type": "integer", "minimum": 0}
_NUMBERS: Final = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}}
_RUN_ID: Final = {**TEXT, "pattern": RUN_ID_PATTERN}
_REF: Final = "#/components/schemas/"


def ref(name: str) -> dict[str, str]:
    """Returns a reference to a schema by its name."""
    return {"$ref": f"{_REF}{name}"}


def payload_schemas() -> dict[str, Any]:
    """Returns the schemas of payloads, and those that they refer to, by their names."""
    found = {
        "Payload": {"oneOf": [ref("CurvePayload"), ref("RoadmapPayload"), ref("MeasuredPayload")]},
        "CurvePayload": _payload(labels.CURVE_LABEL, labels.UNAVAILABLE, {}),
        "RoadmapPayload": _roadmap(),
        "RunningPayload": _running(),
        "MeasuredPayload": _measured(),
        "BoundRequest": _bound_request(),
        "Accounting": _accounting(),
        "Progress": _progress(),
        "Build": _build(),
        "Doctrine": _doctrine(),
    }
    for model in (Measurement, EnergyMeasured, EnergyUnavailable, Envelope):
        found |= of_model(model)
    return found


def json_object(
    properties: dict[str, Any], *, required: list[str] | None = None, closed: bool = False, about: str = ""
) -> dict[str, Any]:
    """Returns the schema of an object.

    Args:
        properties: Schemas by name.
        required: Which of them must be there; all, unless it is said.
        closed: Whether there may be no others.
        about: What it is.
    """
    return {
        "type": "object",
        **({"description": about} if about else {}),
        "properties": properties,
        "required": list(properties) if required is None else required,
        **({"additionalProperties": False} if closed else {}),
    }


def of_model(model: Any) -> dict[str, Any]:
    """Returns a model's schema, and those that it refers to, by their names.

    It is the one of validation: what a tower left out is absent from the payload too (`shared.models`).
    """
    schema = TypeAdapter(model).json_schema(ref_template=_REF + "{model}", schema_generator=_Untitled)
    found = {**schema.pop("$defs", {}), model.__name__: schema}
    for each in found.values():
        each.pop("title", None)
    return found


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles, which only repeat the fields' names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _bound_request() -> dict[str, Any]:
    """Returns what a run id binds: the request with its defaults, a commitment in place of the prompt."""
    fields = TypeAdapter(RunRequest).json_schema(schema_generator=_Untitled)["properties"]
    del fields["prompt"]
    plain = {name: {k: v for k, v in field.items() if k != "default"} for name, field in fields.items()}
    return json_object({**plain, "prompt_commitment": HEX}, closed=True)


def _payload(label: str, measured: str, more: dict[str, Any]) -> dict[str, Any]:
    return json_object(
        {
            "schema": {"const": labels.PAYLOAD_SCHEMA},
            "label": {"const": label},
            "measured": {"const": measured},
            "accounting_modeled": ref("Accounting"),
            **more,
            "generated_at": TIME,
            "edge": json_object({"build": ref("Build")}),
            "doctrine": ref("Doctrine"),
            "citations": TEXTS,
        }
    )


def _roadmap() -> dict[str, Any]:
    unavailable = json_object({"label": {"const": labels.UNAVAILABLE}, "code": TEXT, "reason": TEXT})
    roadmap = json_object({"reason": TEXT, "code": TEXT, "runbook": {**TEXTS, "minItems": 1}})
    more = {"quality_delta": {"const": labels.UNAVAILABLE}, "energy": unavailable, "roadmap": roadmap}
    payload = _payload(labels.RUN_ROADMAP, labels.UNAVAILABLE, more)
    payload["properties"] |= {
        "run_id": _RUN_ID,
        "request": ref("BoundRequest"),
        "prompt_commitment": HEX,
        "progress": ref("Progress"),
        "tower": _tower([labels.FAILED]),
    }
    return payload


def _running() -> dict[str, Any]:
    running = {"properties": {"code": {"const": "RUNNING"}, "reason": {"const": "running"}}}
    about = {"properties": {"roadmap": running}, "required": ["run_id", "progress"]}
    return {"allOf": [ref("RoadmapPayload"), about]}


def _progress() -> dict[str, Any]:
    phase = {**TEXT, "minLength": 1}
    queued = json_object({"phase": {"const": "queued"}, "position": _COUNT}, closed=True, about="Runs ahead")
    at_work = json_object({"phase": phase, "done": _COUNT, "total": _COUNT}, closed=True, about="Steps")
    return {"oneOf": [queued, at_work]}


def _measured() -> dict[str, Any]:
    rate = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
    quality = [
        *(labels.LOSSLESS, labels.DIVERGED_TIE, labels.DIVERGED_FAULT),
        *(labels.SAMPLED, labels.UNAVAILABLE),
    ]
    return _payload(
        labels.RUN_MEASURED,
        labels.MEASURED,
        {
            "run_id": _RUN_ID,
            "nonce": HEX,
            "request": ref("BoundRequest"),
            "n": {"type": "integer", "minimum": 1, "maximum": 500},
            "k": {"type": "integer", "minimum": 0, "maximum": 16},
            "accepted_rate": rate,
            "mean_accepted_len": {"type": "number", "minimum": 0, "maximum": 17},
            "speedup_modeled": {"type": ["number", "null"]},
            "speedup_measured": {"oneOf": [ref("SpeedupMeasured"), {"const": labels.UNAVAILABLE}]},
            "draft_model": TEXT,
            "target_model": TEXT,
            "quality_delta": json_object({"identical_rate": rate, "label": {"enum": quality}}),
            "energy": {"oneOf": [ref("EnergyMeasured"), ref("EnergyUnavailable")]},
            "prompt_commitment": HEX,
            "output_sha3_256": HEX,
            "measurement": ref("Measurement"),
            "tower": _tower([labels.VERIFIED, labels.UNPINNED]),
        },
    )


def _tower(attested: list[str]) -> dict[str, Any]:
    tower = json_object({"id": TEXT, "attested": {"enum": attested}})
    tower["properties"] |= {"keyid": HEX, "attestation": ref("Envelope")}
    return tower


def _accounting() -> dict[str, Any]:
    return json_object(
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
    artifact = json_object({"content_sha256": HEX, "version": TEXT, "arch": TEXT}, closed=True)
    source = json_object({"content_sha256": {"const": labels.UNAVAILABLE}, "reason": TEXT}, closed=True)
    return {"oneOf": [artifact, source]}


def _doctrine() -> dict[str, Any]:
    fields = {name: TEXTS if isinstance(value, list) else TEXT for name, value in labels.DOCTRINE.items()}
    return json_object({**fields, "label": {"const": labels.DOCTRINE["label"]}})
