"""`template.yaml` as CloudFormation gets it: transformed by aws-sam-translator, as `sam deploy` has it done by AWS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

from samcli.yamlhelper import yaml_parse
from samtranslator.translator.transform import transform  # type: ignore[import-untyped]

from edge.health import PROBE_TIMEOUT_S
from edge.session import CLOSE_TIMEOUT_S
from edge.tower import OPEN_TIMEOUT_S
from shared.labels import BASE_PATH

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "template.yaml"
REGION = "us-east-1"

ARNS = {
    "TowerTokenSecretArn": f"arn:aws:secretsmanager:{REGION}:123456789012:secret:tower-token-AbCdEf",
    "RunSecretArn": f"arn:aws:secretsmanager:{REGION}:123456789012:secret:run-secret-AbCdEf",
}
"""The parameters that have no default."""


HEALTH_WAIT_S = PROBE_TIMEOUT_S + CLOSE_TIMEOUT_S
"""How long a health holds an instance that finds the tower silent, and knew nothing of it."""

RUN_WAIT_S = OPEN_TIMEOUT_S + CLOSE_TIMEOUT_S
"""How long a run, or a question after one, does."""


class _NoPolicies:
    """A loader of AWS's managed policies, of which the template uses none."""

    def load(self) -> dict[str, str]:
        """Return none."""
        return {}


def source() -> dict[str, Any]:
    """Return the template as it is written."""
    parsed: dict[str, Any] = yaml_parse(TEMPLATE.read_text("utf-8"))
    return parsed


def transformed(text: str | None = None, **parameters: str) -> dict[str, Any]:
    """Return the CloudFormation template, references to parameters and resources still in it.

    Args:
        text: A SAM template instead of the project's.
        parameters: Values of parameters, as far as SAM looks at them.
    """
    template = yaml_parse(text) if text else source()
    # `sam deploy` uploads the artifact and writes here where it is.
    template["Resources"]["EdgeFunction"]["Properties"]["CodeUri"] = "s3://bucket/artifact"
    values = {**ARNS, **parameters}
    for name, about in template["Parameters"].items():
        values.setdefault(name, about.get("Default"))
    with mock.patch.dict(os.environ, {"AWS_DEFAULT_REGION": REGION}):
        done: dict[str, Any] = transform(template, values, _NoPolicies())
    return done


def buckets() -> dict[str, tuple[int, int]]:
    """Return burst and requests per second of the gateway's buckets, parameters at their defaults."""
    template = transformed()
    stage = template["Resources"]["ApiApiGatewayDefaultStage"]["Properties"]

    def bucket(about: dict[str, Any]) -> tuple[int, int]:
        rate = about["ThrottlingRateLimit"]
        return about["ThrottlingBurstLimit"], (
            template["Parameters"][rate["Ref"]]["Default"] if isinstance(rate, dict) else rate
        )

    own = {
        route.removeprefix(f"GET {BASE_PATH}/"): bucket(about)
        for route, about in stage["RouteSettings"].items()
    }
    return {**own, "others": bucket(stage["DefaultRouteSettings"])}
