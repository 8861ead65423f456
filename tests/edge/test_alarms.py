"""Alarms and the dashboard look at what the edge really prints, and at what AWS's services report."""

from __future__ import annotations

import json
import re
from typing import Any

import boto3
import pytest

from edge import observe
from edge.faults import FaultKind
from edge.store import StoreAlarm
from edge.store_dynamodb import DynamoStore
from tests.edge.fake_tower import FakeTower, Script, black_hole, result
from tests.edge.sam import REGION, transformed
from tests.edge.support import TOKEN, client
from tests.edge.test_attestation import KEY, answers
from tests.edge.test_signing import aws_environment, closed_port

Metric = tuple[str, str, frozenset[tuple[str, str]]]
"""Namespace, name, and dimensions with their values: CloudWatch takes two that differ in one for two metrics."""

OF_AWS = {
    "AWS/ApiGateway": {"Count", "4xx", "5xx", "Latency", "IntegrationLatency", "DataProcessed"},
    "AWS/Lambda": {"Invocations", "Errors", "Throttles", "Duration", "ConcurrentExecutions"},
}
"""What API Gateway reports of an HTTP API by `ApiId`, and Lambda of a function by `FunctionName`."""

OWN_DIMENSION = {"AWS/ApiGateway": ("ApiId", "Api"), "AWS/Lambda": ("FunctionName", "EdgeFunction")}


def printed(text: str) -> set[Metric]:
    """Return the metrics in what was printed, as CloudWatch reads its embedded format."""
    found: set[Metric] = set()
    for line in text.splitlines():
        blob = json.loads(line)
        for about in blob.get("_aws", {}).get("CloudWatchMetrics", []):
            for names in about["Dimensions"]:
                dimensions = frozenset((name, blob[name]) for name in names)
                for metric in about["Metrics"]:
                    assert isinstance(blob[metric["Name"]], list | float | int)
                    found.add((about["Namespace"], metric["Name"], dimensions))
    return found


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    """The template's resources."""
    found: dict[str, Any] = transformed()["Resources"]
    return found


@pytest.fixture
def emitted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> set[Metric]:
    """What the handler prints for runs that end in every way that an alarm is about, and for a good one."""
    monkeypatch.delenv("POWERTOOLS_METRICS_DISABLED", raising=False)
    nowhere = f"http://127.0.0.1:{closed_port()}"
    aws_environment(monkeypatch, AWS_ENDPOINT_URL_KMS=nowhere, AWS_ENDPOINT_URL_DYNAMODB=nowhere)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    client().run()  # nobody listens
    with black_hole() as silent:
        client(silent, wait_s="0.2").run()
    with FakeTower(token=f"not {TOKEN}") as tower:
        client(tower.url).run()
    with FakeTower() as tower:
        client(tower.url, gpu_seconds_per_day="300").run()
        spent = client(tower.url, gpu_seconds_per_day="300")
        spent.run()
        spent.run()
        key = f"arn:aws:kms:{REGION}:123456789012:key/1"
        client(tower.url, signer="kms", kms_key_id=key).run()
        client(tower.url, tower_public_key=KEY.pem).run()  # whose results nobody has signed
        client(tower.url, gpu_seconds_per_day="300", limits_table="limits").run()
    bad: Script = answers(lambda frame: result(frame, emitted=1))
    with FakeTower(bad) as tower:
        client(tower.url).run()
    return printed(capsys.readouterr().out)


def alarms(resources: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the alarms' properties by their names in the template."""
    return {
        name: item["Properties"]
        for name, item in resources.items()
        if item["Type"] == "AWS::CloudWatch::Alarm"
    }


def watched(alarm: dict[str, Any]) -> list[Metric]:
    """Return the metrics that an alarm looks at: its own, or those that its expression adds up."""
    stats = [item["MetricStat"]["Metric"] for item in alarm.get("Metrics", []) if "MetricStat" in item]
    return [
        (
            metric["Namespace"],
            metric["MetricName"],
            frozenset((item["Name"], item["Value"]) for item in metric["Dimensions"]),
        )
        for metric in stats or [alarm]
    ]


def is_own(name: str, alarm: dict[str, Any]) -> bool:
    """Return whether an alarm looks at what the edge prints as metrics."""
    return name != "StoreAlarm" and not alarm.get("Namespace", "").startswith("AWS/")


def test_alarms_match_what_is_printed(resources: dict[str, Any], emitted: set[Metric]) -> None:
    """Each alarm on the edge's own metrics has the dimensions of one that was printed in its very case."""
    found = {name: watched(alarm) for name, alarm in alarms(resources).items() if is_own(name, alarm)}
    assert set(found) == {
        *("UnsignedAlarm", "ReplyRefusedAlarm", "AttestationAlarm", "TowerDownAlarm", "BudgetAlarm"),
        "UncountedAlarm",
    }
    for name, metrics in found.items():
        for metric in metrics:
            assert metric[0] == observe.NAMESPACE
            assert metric in emitted, (name, metric)


def test_tower_alarm_adds_up_what_a_lost_tower_is_called(resources: dict[str, Any]) -> None:
    """A tower that is down, off or takes no token: five such runs in 15 minutes, of whichever kinds."""
    alarm = alarms(resources)["TowerDownAlarm"]
    sum_, *stats = alarm["Metrics"]
    reasons = {item["Id"]: dict(next(iter(watched({"Metrics": [item]})))[2])["reason"] for item in stats}
    assert reasons == {
        "unreachable": FaultKind.UNREACHABLE,
        "silent": FaultKind.SILENT,
        "refused": FaultKind.REFUSED,
    }
    for item in stats:
        assert item["ReturnData"] is False
        assert (item["MetricStat"]["Stat"], item["MetricStat"]["Period"]) == ("Sum", 15 * 60)
    assert set(sum_) == {"Id", "Label", "Expression"}  # the one whose data is returned
    # A reason that did not occur has no data, and must not make the sum have none.
    assert sum_["Expression"] == f"SUM([{', '.join(f'FILL({name}, 0)' for name in reasons)}])"
    assert (alarm["Threshold"], alarm["EvaluationPeriods"]) == (5, 1)
    assert not {"MetricName", "Namespace", "Dimensions", "Period", "Statistic"} & set(alarm)


def test_alarms_on_services_match_their_metrics(resources: dict[str, Any]) -> None:
    """The other alarms are on metrics that AWS reports of this API and this function."""
    others = {
        name: alarm
        for name, alarm in alarms(resources).items()
        if not is_own(name, alarm) and name != "StoreAlarm"
    }
    assert set(others) == {"ServerErrorAlarm", "FunctionErrorAlarm", "ThrottleAlarm"}
    for alarm in others.values():
        assert alarm["MetricName"] in OF_AWS[alarm["Namespace"]]
        dimension, resource = OWN_DIMENSION[alarm["Namespace"]]
        assert alarm["Dimensions"] == [{"Name": dimension, "Value": {"Ref": resource}}]


def test_every_alarm_tells_somebody(resources: dict[str, Any]) -> None:
    """All alarms are quiet without data, count in whole periods, and go to the address if there is one."""
    to = {"Fn::If": ["HasAlarmEmail", [{"Ref": "AlarmTopic"}], {"Ref": "AWS::NoValue"}]}
    for name, alarm in alarms(resources).items():
        assert alarm["AlarmActions"] == to, name
        assert alarm["TreatMissingData"] == "notBreaching"
        assert alarm["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
        assert alarm["Threshold"] >= 1
        if "Metrics" not in alarm:
            assert (alarm["Statistic"], alarm["Period"] % 60) == ("Sum", 0)
    assert resources["AlarmTopic"]["Condition"] == "HasAlarmEmail"


def test_store_alarm_reads_the_log(resources: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The line that the store writes holds the words that the filter looks for; no other line does."""
    stored = {"digest": {"S": "0" * 64}, "payload": {"B": b"{}"}}

    class Tampered:
        """A table that holds other content."""

        def get_item(self, **_: Any) -> dict[str, Any]:
            """Return it."""
            return {"Item": stored}

    with pytest.raises(StoreAlarm):
        DynamoStore("receipts", Tampered).get("0" * 64)
    observe.logger.info("answered")
    found = resources["StoreAlarms"]["Properties"]
    words = re.fullmatch('"(.+)"', found["FilterPattern"])
    assert words
    alarm, other = capsys.readouterr().out.splitlines()
    assert words[1] in alarm
    assert words[1] not in other
    (metric,) = found["MetricTransformations"]
    alarmed = alarms(resources)["StoreAlarm"]
    assert found["LogGroupName"] == {"Ref": "EdgeLogs"}
    assert (metric["MetricNamespace"], metric["MetricName"]) == (alarmed["Namespace"], alarmed["MetricName"])
    assert "Dimensions" not in metric
    assert "Dimensions" not in alarmed


def board(resources: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the dashboard's widgets, with stand-ins for what CloudFormation fills in."""
    text = resources["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    assert set(re.findall(r"\$\{([^}]+)\}", text)) == {"AWS::Region", "Api", "EdgeFunction"}
    widgets: list[dict[str, Any]] = json.loads(re.sub(r"\$\{([^}]+)\}", r"the-\1", text))["widgets"]
    return widgets


def lines(widget: dict[str, Any]) -> list[tuple[str, str, dict[str, str]]]:
    """Return a widget's metrics; a dot in its source repeats what the line above says at that place."""
    found: list[tuple[str, str, dict[str, str]]] = []
    above: list[str] = []
    for row in widget["properties"]["metrics"]:
        words = [item for item in row if isinstance(item, str)]
        words = [above[at] if word == "." else word for at, word in enumerate(words)]
        if words:
            found.append((words[0], words[1], dict(zip(words[2::2], words[3::2], strict=True))))
        above = words
    return found


def test_dashboard_shows_metrics_that_exist(resources: dict[str, Any], emitted: set[Metric]) -> None:
    """The body is JSON; each metric in it is one that was printed, or that AWS reports of these resources."""
    shown = set()
    for widget in board(resources):
        assert widget["properties"]["region"] == "the-AWS::Region"
        for namespace, name, dimensions in lines(widget):
            shown.add(name)
            if namespace == observe.NAMESPACE:
                assert name in observe.METRICS
                # Time for limits and the store is measured where these are configured.
                like = {"Limit": "Limit", "Store": "Sign"}.get(name, name)
                assert (namespace, like, frozenset(dimensions.items())) in emitted, name
            else:
                assert name in OF_AWS[namespace]
                dimension, resource = OWN_DIMENSION[namespace]
                assert dimensions == {dimension: f"the-{resource}"}
    searches = re.findall(
        r"SEARCH\('\{specdec,(\w+),(\w+)\} MetricName=\"(\w+)\"'", _expressions(board(resources))
    )
    for first, second, name in searches:
        names = {frozenset(key for key, _ in about) for _, metric, about in emitted if metric == name}
        assert names == {frozenset({first, second})}
    shown |= {name for _, _, name in searches}
    assert set(observe.METRICS) - shown == {"Unsigned", "Uncounted"}  # which have alarms


def _expressions(widgets: list[dict[str, Any]]) -> str:
    return " ".join(
        item["expression"]
        for widget in widgets
        for row in widget["properties"]["metrics"]
        for item in row
        if isinstance(item, dict) and "expression" in item
    )


def test_widgets_fit_the_grid(resources: dict[str, Any]) -> None:
    """No two widgets lie on each other, and none stands out of CloudWatch's 24 columns."""
    taken: set[tuple[int, int]] = set()
    for widget in board(resources):
        assert widget["type"] == "metric"
        cells = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
