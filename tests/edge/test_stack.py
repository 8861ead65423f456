"""The stack in moto's CloudFormation, and the edge running on what it made.

Left out of the stack, as moto does not make them from a template: the API and its stage, the alias, alarms and metric
filter (the last two are put by the services' own calls instead), and with the alias the permissions, which name it.
Moto makes every key of a template a symmetric one, so the signing key, too, is made by a call, with the template's
words. Of the function moto takes no architecture, SnapStart and log group, of the tables no time to live and no
recovery, and it resolves no secrets, which is done here.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.client import BaseClient
from moto import mock_aws

from edge.app import create_handler
from edge.settings import EdgeSettings
from shared.settings import load
from shared.verify import verify_receipt
from tests.edge.fake_tower import FakeTower
from tests.edge.sam import transformed
from tests.edge.support import TOKEN, Client, assert_roadmap
from tests.edge.test_signing import aws_client, aws_environment

LEFT_OUT = {
    *("AWS::ApiGatewayV2::Api", "AWS::ApiGatewayV2::Stage", "AWS::Lambda::Alias", "AWS::Lambda::Permission"),
    *("AWS::CloudWatch::Alarm", "AWS::Logs::MetricFilter", "AWS::KMS::Key"),
}
STACK = "specdec"
API = "a1b2c3d4e5"
EMAIL = "operator@example.org"


@dataclass
class Stack:
    """What was deployed."""

    template: dict[str, Any]
    physical: dict[str, str]
    key_arn: str
    token_arn: str

    def environment(self) -> dict[str, str]:
        """Return the variables that the function has."""
        function = aws_client("lambda").get_function_configuration(FunctionName=self.physical["EdgeFunction"])
        variables: dict[str, str] = function["Environment"]["Variables"]
        return variables

    def resolved(self, value: Any) -> Any:
        """Return a property with its references filled in."""
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "Ref" in value:
            return API if value["Ref"] == "Api" else self.physical[value["Ref"]]
        if "Fn::If" in value:
            return self.resolved(value["Fn::If"][1])  # an address is given, and concurrency is reserved
        return {name: self.resolved(item) for name, item in value.items()}

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the resolved properties of the template's resources of a type."""
        return {
            name: self.resolved(item["Properties"])
            for name, item in self.template["Resources"].items()
            if item["Type"] == kind
        }


def _deployable(template: dict[str, Any], key_arn: str, secrets: dict[str, str]) -> str:
    """Return the template without what moto does not make, the key and secrets filled in."""
    resources = {name: item for name, item in template["Resources"].items() if item["Type"] not in LEFT_OUT}
    text = json.dumps({**template, "Resources": resources, "Outputs": {}})
    text = text.replace(json.dumps({"Fn::GetAtt": ["SigningKey", "Arn"]}), json.dumps(key_arn))
    text = text.replace("${Api}", API)
    for name, value in secrets.items():
        written = json.dumps({"Fn::Sub": f"{{{{resolve:secretsmanager:${{{name}}}}}}}"})
        assert written in text
        text = text.replace(written, json.dumps(value))
    return text


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """The stack, with GPU time for one run a day."""
    aws_environment(monkeypatch)
    with mock_aws():
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("edge/app.py", "")
        aws_client("s3").create_bucket(Bucket="bucket")
        aws_client("s3").put_object(Bucket="bucket", Key="artifact", Body=packed.getvalue())
        values = {"TowerTokenSecretArn": TOKEN, "RunSecretArn": "a run secret that is long enough"}
        arns = {
            name: aws_client("secretsmanager").create_secret(Name=name, SecretString=value)["ARN"]
            for name, value in values.items()
        }
        parameters = {**arns, "AlarmEmail": EMAIL, "GpuSecondsPerDay": "300", "RunDeadline": "300"}
        template = transformed(**parameters)
        words = template["Resources"]["SigningKey"]["Properties"]
        key = aws_client("kms").create_key(
            KeySpec=words["KeySpec"], KeyUsage=words["KeyUsage"], Description=words["Description"]
        )["KeyMetadata"]["Arn"]
        client = aws_client("cloudformation")
        client.create_stack(
            StackName=STACK,
            TemplateBody=_deployable(template, key, values),
            Parameters=[
                {"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()
            ],
            Capabilities=["CAPABILITY_IAM"],
        )
        made = client.describe_stack_resources(StackName=STACK)["StackResources"]
        physical = {item["LogicalResourceId"]: item.get("PhysicalResourceId", "") for item in made}
        yield Stack(template, physical, key, arns["TowerTokenSecretArn"])


def test_stack_is_made(stack: Stack) -> None:
    """CloudFormation makes all resources that moto knows, and none is left out silently."""
    described = aws_client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
    assert described["StackStatus"] == "CREATE_COMPLETE"
    wanted = {name for name, item in stack.template["Resources"].items() if item["Type"] not in LEFT_OUT}
    assert set(stack.physical) == wanted


def test_tables_are_as_the_stores_want_them(stack: Stack) -> None:
    """Keys, billing and protection of both tables."""
    for name, key, protected in (("Receipts", "digest", True), ("Limits", "key", False)):
        table = aws_client("dynamodb").describe_table(TableName=stack.physical[name])["Table"]
        assert table["KeySchema"] == [{"AttributeName": key, "KeyType": "HASH"}]
        assert table["AttributeDefinitions"] == [{"AttributeName": key, "AttributeType": "S"}]
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert table["DeletionProtectionEnabled"] is protected


def test_function_is_configured(stack: Stack) -> None:
    """Handler, runtime, limits and role of the function; a version of it is published."""
    name = stack.physical["EdgeFunction"]
    function = aws_client("lambda").get_function(FunctionName=name)
    about = function["Configuration"]
    assert (about["Handler"], about["Runtime"]) == ("edge.app.lambda_handler", "python3.13")
    assert (about["Timeout"], about["MemorySize"]) == (29, 512)
    assert about["Role"].endswith(f":role/{stack.physical['EdgeFunctionRole']}")
    assert function["Concurrency"] == {"ReservedConcurrentExecutions": 50}
    versions = aws_client("lambda").list_versions_by_function(FunctionName=name)["Versions"]
    assert [version["Version"] for version in versions] == ["$LATEST", "1"]
    assert load(EdgeSettings, stack.environment()).signer == "kms"


def test_log_alarms_and_board_are_taken(stack: Stack) -> None:
    """The log group keeps a month; CloudWatch takes the dashboard, every alarm and the filter as they are written."""
    (group,) = aws_client("logs").describe_log_groups()["logGroups"]
    assert (group["logGroupName"], group["retentionInDays"]) == (stack.physical["EdgeLogs"], 30)
    (name,) = [
        item["DashboardName"] for item in aws_client("cloudwatch").list_dashboards()["DashboardEntries"]
    ]
    body = aws_client("cloudwatch").get_dashboard(DashboardName=name)["DashboardBody"]
    assert len(json.loads(body)["widgets"]) == 5
    alarms = stack.of_type("AWS::CloudWatch::Alarm")
    for name, properties in alarms.items():
        aws_client("cloudwatch").put_metric_alarm(AlarmName=name, **properties)
    told = {item["AlarmName"]: item for item in aws_client("cloudwatch").describe_alarms()["MetricAlarms"]}
    assert set(told) == set(alarms)
    for name, properties in alarms.items():
        assert {key: told[name].get(key) for key in properties} == properties
        assert told[name]["AlarmActions"] == [stack.physical["AlarmTopic"]]
    (found,) = stack.of_type("AWS::Logs::MetricFilter").values()
    aws_client("logs").put_metric_filter(
        logGroupName=found["LogGroupName"],
        filterName="StoreAlarms",
        filterPattern=found["FilterPattern"],
        metricTransformations=[
            {key[0].lower() + key[1:]: value for key, value in item.items()}
            for item in found["MetricTransformations"]
        ],
    )
    (subscription,) = aws_client("sns").list_subscriptions()["Subscriptions"]
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", EMAIL)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Every call to AWS: its action, as policies name it, and its parameters."""
    calls: list[tuple[str, dict[str, Any]]] = []
    call: Any = BaseClient._make_api_call  # type: ignore[attr-defined]

    def noted(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        calls.append((f"{self.meta.service_model.service_name}:{operation}", parameters))
        return call(self, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", noted)
    return calls


def test_edge_runs_on_the_stack(stack: Stack, asked: list[tuple[str, dict[str, Any]]]) -> None:
    """With the function's own variables runs are signed, stored and counted, and a rotated token is read again.

    Doing so the edge calls all that its role allows, on the resources that it names, and nothing else.
    """
    environment = stack.environment()
    asked.clear()
    with FakeTower() as tower:
        edge = Client(create_handler(load(EdgeSettings, {**environment, "SPECDEC_TOWER_URL": tower.url})))
        reply = edge.run(n=50)
        assert reply.payload["label"] == "SPEC-DECODE MEASURED"
        keys = edge.get("/keys").text.encode()
        assert verify_receipt(reply.json, key_pem=keys).ok
        digest = reply.json["payload_sha3_256"]
        assert edge.get(f"/receipts/{digest}").json == {
            name: value for name, value in reply.json.items() if name != "prompt_salt"
        }
        assert_roadmap(edge.run(), "BUDGET_SPENT")
        tower.token = "a-new-token"
        aws_client("secretsmanager").put_secret_value(SecretId=stack.token_arn, SecretString=tower.token)
        assert_roadmap(edge.run(), "BUDGET_SPENT")  # it was let in

    calls = [(action, given) for action, given in asked if action != "secretsmanager:PutSecretValue"]
    role = stack.template["Resources"]["EdgeFunctionRole"]["Properties"]["Policies"][0]["PolicyDocument"]
    rights = {
        (action, _resource(statement["Resource"], stack))
        for statement in role["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    used = {
        (action, given.get("TableName") or given.get("KeyId") or given["SecretId"]) for action, given in calls
    }
    assert used == {right for right in rights if not right[0].startswith("logs:")}
    for action, given in calls:
        if action == "kms:Sign":
            assert (given["SigningAlgorithm"], given["MessageType"]) == ("ECDSA_SHA_256", "RAW")
        if action == "dynamodb:PutItem":
            assert "ConditionExpression" in given
    counted = aws_client("dynamodb").scan(TableName=stack.physical["Limits"])["Items"]
    assert {item["key"]["S"].partition("#")[0] for item in counted} == {"caller", "day", "run"}
    assert all(
        int(item["expires"]["N"]) > 1_700_000_000 for item in counted
    )  # seconds, as time to live wants


def _resource(written: dict[str, Any], stack: Stack) -> str:
    if "Ref" in written:
        return stack.token_arn
    name = written["Fn::GetAtt"][0]
    return stack.key_arn if name == "SigningKey" else stack.physical[name]
