"""The SAM template, as aws-sam-translator makes CloudFormation of it, and what it packs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from edge.pool import FUNCTION_TIMEOUT_S, INTEGRATION_TIMEOUT_S
from edge.settings import EdgeSettings
from shared.labels import BASE_PATH
from tests.edge.sam import HEALTH_WAIT_S, ROOT, RUN_WAIT_S, TEMPLATE, buckets, source, transformed
from tools import build

BIN = Path(sys.executable).parent
GATEWAY_S = 30
"""After so many seconds an HTTP API gives up on an integration, whatever it is told (AWS: quotas of HTTP APIs)."""

NOT_ON_AWS = {
    "tower_headers": "they are in the token's secret",
    "wait_s": "the default fits the function's timeout",
    "signing_key_file": "KMS signs",
    "signing_keyid": "KMS signs",
    "receipts_dir": "receipts are in the table",
    "limits_file": "limits are in the table",
}


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    """The template's resources."""
    found: dict[str, Any] = transformed()["Resources"]
    return found


def arn(name: str) -> dict[str, list[str]]:
    """Return the intrinsic for a resource's ARN."""
    return {"Fn::GetAtt": [name, "Arn"]}


@pytest.mark.parametrize("command", [["sam", "validate", "--lint", "-t"], ["cfn-lint"]], ids=lambda c: c[0])
def test_linters_are_content(command: list[str], tmp_path: Path) -> None:
    """`sam validate --lint` and cfn-lint have nothing to say; they need no credentials and no network."""
    environ = {"AWS_DEFAULT_REGION": "us-east-1", "SAM_CLI_TELEMETRY": "0", "HOME": str(tmp_path)}
    done = subprocess.run(
        [BIN / command[0], *command[1:], TEMPLATE],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = "" if command[0] == "cfn-lint" else f"{TEMPLATE} is a valid SAM Template\n"
    assert done.stdout == said


def test_resources_are_these(resources: dict[str, Any]) -> None:
    """One API, one function with its version and alias, one role, one key, two tables, and what watches them."""
    kinds = sorted(resource["Type"].removeprefix("AWS::") for resource in resources.values())
    assert kinds == sorted(
        [
            *("ApiGatewayV2::Api", "ApiGatewayV2::Stage"),
            *("Lambda::Function", "Lambda::Version", "Lambda::Alias"),
            *["Lambda::Permission"] * 4,
            "IAM::Role",
            *("KMS::Key", "DynamoDB::Table", "DynamoDB::Table"),
            *("Logs::LogGroup", "Logs::MetricFilter", "SNS::Topic", "CloudWatch::Dashboard"),
            *["CloudWatch::Alarm"] * 10,
        ]
    )


def test_role_is_the_least(resources: dict[str, Any]) -> None:
    """The function may do what the edge does, each on one resource; no managed policy adds to that."""
    role = resources["EdgeFunctionRole"]["Properties"]
    assert set(role) == {"AssumeRolePolicyDocument", "Policies"}
    assert role["AssumeRolePolicyDocument"]["Statement"] == [
        {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ]
    (policy,) = role["Policies"]
    may = {statement.pop("Sid"): statement for statement in policy["PolicyDocument"]["Statement"]}
    assert all(statement.pop("Effect") == "Allow" for statement in may.values())
    assert may == {
        "WriteLog": {"Action": ["logs:CreateLogStream", "logs:PutLogEvents"], "Resource": arn("EdgeLogs")},
        "ReadTowerToken": {
            "Action": "secretsmanager:GetSecretValue",
            "Resource": {"Ref": "TowerTokenSecretArn"},
        },
        "SignReceipts": {
            "Action": "kms:Sign",
            "Resource": arn("SigningKey"),
            "Condition": {
                "StringEquals": {"kms:SigningAlgorithm": "ECDSA_SHA_256", "kms:MessageType": "RAW"}
            },
        },
        "ReadPublicKey": {"Action": "kms:GetPublicKey", "Resource": arn("SigningKey")},
        "StoreReceipts": {"Action": ["dynamodb:PutItem", "dynamodb:GetItem"], "Resource": arn("Receipts")},
        "CountRuns": {"Action": ["dynamodb:UpdateItem", "dynamodb:GetItem"], "Resource": arn("Limits")},
    }


def test_no_wildcard_but_the_stated_ones(resources: dict[str, Any]) -> None:
    """In policies a `*` stands only where the key's own policy names the key itself and the account's rights to it."""
    policies = {
        name: json.dumps(resource["Properties"].get("KeyPolicy") or resource["Properties"].get("Policies"))
        for name, resource in resources.items()
    }
    assert [name for name, text in policies.items() if "*" in text] == ["SigningKey"]
    (statement,) = resources["SigningKey"]["Properties"]["KeyPolicy"]["Statement"]
    assert (statement["Action"], statement["Resource"]) == ("kms:*", "*")
    root = {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root"}
    assert statement["Principal"] == {"AWS": root}


def test_only_the_api_may_call_the_function(resources: dict[str, Any]) -> None:
    """Each permission is for one route of this API, and for the alias."""
    permissions = [
        item["Properties"] for item in resources.values() if item["Type"] == "AWS::Lambda::Permission"
    ]
    for permission in permissions:
        assert permission["Principal"] == "apigateway.amazonaws.com"
        assert permission["FunctionName"] == {"Ref": "EdgeFunctionAliaslive"}
        assert permission["SourceArn"]["Fn::Sub"][1]["__ApiId__"] == {"Ref": "Api"}
    routes = sorted(item["SourceArn"]["Fn::Sub"][0].partition("${__Stage__}/")[2] for item in permissions)
    assert routes == [
        *(f"*{BASE_PATH}", f"*{BASE_PATH}/*"),
        *(f"GET{BASE_PATH}/curve", f"GET{BASE_PATH}/health"),
    ]


def test_api_leads_base_path_to_the_alias(resources: dict[str, Any]) -> None:
    """All methods of the base path and what is below go to the alias `live`; nothing else goes anywhere.

    Health and curve have routes for GET alone: their other methods go by the one that takes all below.
    """
    paths = resources["Api"]["Properties"]["Body"]["paths"]
    assert {(path, method) for path, methods in paths.items() for method in methods} == {
        (BASE_PATH, "x-amazon-apigateway-any-method"),
        (f"{BASE_PATH}/{{proxy+}}", "x-amazon-apigateway-any-method"),
        (f"{BASE_PATH}/health", "get"),
        (f"{BASE_PATH}/curve", "get"),
    }
    for (route,) in (methods.values() for methods in paths.values()):
        integration = route["x-amazon-apigateway-integration"]
        assert integration["payloadFormatVersion"] == "2.0"
        assert "${EdgeFunctionAliaslive}/invocations" in integration["uri"]["Fn::Sub"]
    alias = resources["EdgeFunctionAliaslive"]["Properties"]
    (version,) = [name for name, item in resources.items() if item["Type"] == "AWS::Lambda::Version"]
    assert alias["Name"] == "live"
    assert alias["FunctionVersion"] == {"Fn::GetAtt": [version, "Version"]}
    assert resources[version]["DeletionPolicy"] == "Retain"


def test_timeouts(resources: dict[str, Any]) -> None:
    """The function ends before the gateway gives up; the local edge knows the same timeout."""
    function = resources["EdgeFunction"]["Properties"]
    assert function["Timeout"] == FUNCTION_TIMEOUT_S == 29
    assert INTEGRATION_TIMEOUT_S == GATEWAY_S
    assert (function["Runtime"], function["MemorySize"]) == ("python3.13", 512)
    assert function["Runtime"] == f"python{build.PYTHON}"


def test_buckets_are_of_routes_that_exist(resources: dict[str, Any]) -> None:
    """Health and curve have buckets of their own, under keys that the API's routes have; the rest has the default."""
    stage = resources["ApiApiGatewayDefaultStage"]["Properties"]
    assert stage["StageName"] == "$default"
    assert set(stage["RouteSettings"]) == {
        f"{method.upper()} {path}"
        for path, methods in resources["Api"]["Properties"]["Body"]["paths"].items()
        for method in methods
        if not method.startswith("x-")
    }
    assert buckets()["health"] == (15, 15)
    assert buckets()["curve"] == (15, 25)
    assert buckets()["others"] == (10, 10)
    assert stage["DefaultRouteSettings"]["ThrottlingRateLimit"] == {"Ref": "RequestsPerSecond"}


def test_what_the_gateway_lets_through_finds_an_instance() -> None:
    """Each bucket fits the reserved concurrency while a silent tower makes each instance wait, and so do all bursts."""
    most = source()["Parameters"]["ReservedConcurrency"]["Default"]
    waits_s = {"health": HEALTH_WAIT_S, "others": RUN_WAIT_S}
    found = buckets()
    for name, wait_s in waits_s.items():
        burst, rate = found[name]
        assert burst + rate * wait_s <= most, name
    # AWS does not say whether routes without settings of their own share a bucket: the base path, and all below.
    assert found["health"][0] + found["curve"][0] + 2 * found["others"][0] <= most


def test_concurrency_is_reserved_unless_zero() -> None:
    """`ReservedConcurrency` 0 leaves the property away, which small accounts need; 0 itself would stop the function."""
    template = transformed()
    reserved = template["Resources"]["EdgeFunction"]["Properties"]["ReservedConcurrentExecutions"]
    assert reserved == {"Fn::If": ["HasReservation", {"Ref": "ReservedConcurrency"}, {"Ref": "AWS::NoValue"}]}
    wanted = {"Fn::Not": [{"Fn::Equals": [{"Ref": "ReservedConcurrency"}, 0]}]}
    assert template["Conditions"]["HasReservation"] == wanted
    assert template["Parameters"]["ReservedConcurrency"]["Default"] == 50


def test_processor_and_snapshots_are_parameters(resources: dict[str, Any]) -> None:
    """Either architecture that `make build` builds for, and SnapStart or not, off by default."""
    function = resources["EdgeFunction"]["Properties"]
    assert function["Architectures"] == [{"Ref": "Architecture"}]
    assert function["SnapStart"] == {"ApplyOn": {"Ref": "SnapStart"}}
    parameters = source()["Parameters"]
    assert parameters["Architecture"]["AllowedValues"] == list(build.PLATFORMS)
    assert parameters["SnapStart"]["AllowedValues"] == ["None", "PublishedVersions"]
    assert parameters["SnapStart"]["Default"] == "None"


def test_each_variable_is_a_setting(resources: dict[str, Any]) -> None:
    """Every variable names a field of the settings, and every field has its variable or a reason to have none."""
    variables = resources["EdgeFunction"]["Properties"]["Environment"]["Variables"]
    named = {name.removeprefix("SPECDEC_").lower() for name in variables}
    assert all(name.startswith("SPECDEC_") for name in variables)
    assert named <= set(EdgeSettings.model_fields)
    assert set(EdgeSettings.model_fields) - named == set(NOT_ON_AWS)


def test_each_parameter_is_used_and_explained() -> None:
    """No parameter is without a description or without effect."""
    template = source()
    used = set(re.findall(r"!Ref (\w+)", TEMPLATE.read_text("utf-8")))
    used |= set(re.findall(r"\$\{(\w+)\}", TEMPLATE.read_text("utf-8")))
    for name, about in template["Parameters"].items():
        assert about["Description"]
        assert name in used, name


def test_bounds_of_parameters_are_those_of_settings() -> None:
    """What CloudFormation lets pass the function starts with, where one parameter alone decides."""
    parameters = source()["Parameters"]
    bounds = {
        "DraftLength": "k",
        "CostRatio": "cost_ratio",
        "RunDeadline": "run_deadline_s",
        "RunsPerMinute": "runs_per_minute",
        "RunBurst": "run_burst",
        "GpuSecondsPerDay": "gpu_seconds_per_day",
    }
    for name, field in bounds.items():
        told = {
            key: value for item in EdgeSettings.model_fields[field].metadata for key, value in _limits(item)
        }
        assert (parameters[name]["MinValue"], parameters[name]["MaxValue"]) == (told["ge"], told["le"]), name
    for name in ("DraftLength", "CostRatio", "RunDeadline", "RunBurst"):
        assert parameters[name]["Default"] == EdgeSettings.model_fields[bounds[name]].default


def _limits(item: object) -> list[tuple[str, Any]]:
    return [(name, getattr(item, name)) for name in ("ge", "le") if hasattr(item, name)]


def test_secrets_are_read_at_deployment(resources: dict[str, Any]) -> None:
    """No cold start waits for the token, and the function gets the secret's ARN for when it has been rotated."""
    variables = resources["EdgeFunction"]["Properties"]["Environment"]["Variables"]
    token, secret = (
        {"Fn::Sub": f"{{{{resolve:secretsmanager:${{{name}}}}}}}"}
        for name in ("TowerTokenSecretArn", "RunSecretArn")
    )
    assert variables["SPECDEC_TOWER_TOKEN"] == token
    assert variables["SPECDEC_RUN_SECRET"] == secret
    assert variables["SPECDEC_TOWER_TOKEN_SECRET"] == {"Ref": "TowerTokenSecretArn"}
    secrets = [name for name in source()["Parameters"] if "Token" in name or "Secret" in name]
    assert all(name.endswith("Arn") for name in secrets)  # parameters are shown to whoever may see the stack


def test_receipts_outlive_the_stack(resources: dict[str, Any]) -> None:
    """Key and table stay when the stack goes or replaces them, and the table cannot be deleted by mistake."""
    for name in ("SigningKey", "Receipts"):
        assert resources[name]["UpdateReplacePolicy"] == "Retain"
    # A key costs money, and a creation that fails has signed nothing; the table's protection would hinder it.
    assert resources["SigningKey"]["DeletionPolicy"] == "RetainExceptOnCreate"
    assert resources["Receipts"]["DeletionPolicy"] == "Retain"
    table = resources["Receipts"]["Properties"]
    assert table["DeletionProtectionEnabled"] is True
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    key = resources["SigningKey"]["Properties"]
    assert (key["KeySpec"], key["KeyUsage"]) == ("ECC_NIST_P256", "SIGN_VERIFY")


def test_counts_and_logs_go(resources: dict[str, Any]) -> None:
    """Limits are a cache that forgets by itself; log lines are kept for a month."""
    limits = resources["Limits"]["Properties"]
    assert limits["TimeToLiveSpecification"] == {"AttributeName": "expires", "Enabled": True}
    assert "DeletionPolicy" not in resources["Limits"]
    assert resources["EdgeLogs"]["Properties"] == {"RetentionInDays": 30}
    assert resources["EdgeFunction"]["Properties"]["LoggingConfig"] == {"LogGroup": {"Ref": "EdgeLogs"}}


def test_nothing_costs_while_idle(resources: dict[str, Any]) -> None:
    """Tables are paid by request; nothing is provisioned."""
    for name in ("Receipts", "Limits"):
        assert resources[name]["Properties"]["BillingMode"] == "PAY_PER_REQUEST"
    assert "ProvisionedConcurrencyConfig" not in resources["EdgeFunctionAliaslive"]["Properties"]


def test_artifact_holds_edge_and_shared_only() -> None:
    """SAM's build is `make build`'s, which packs the two folders that the function may import, and no other."""
    text = (ROOT / "edge" / "Makefile").read_text("utf-8")
    assert '-m tools.build --arch $(ARCH) --into "$(ARTIFACTS_DIR)"' in text
    assert build.SOURCES == ("edge", "shared")


def test_packed_packages_are_those_of_the_project() -> None:
    """edge/requirements.txt pins as pyproject.toml does, less what only the local server needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {*project["dependencies"], *project["optional-dependencies"]["edge"]}
    lines = (ROOT / "edge" / "requirements.txt").read_text("utf-8").splitlines()
    packed = {line for line in lines if line and not line.startswith("#")}
    assert packed <= declared
    assert not any(line.startswith(("uvicorn", "httpx", "boto3")) for line in packed)
