"""docs/deploy.md says what is so: parameters, alarms, log fields and metrics by name, and arithmetic that is right."""

from __future__ import annotations

import json
import re
from typing import Any

from edge import observe
from edge.issuer import CURVES_SIGNED, ROADMAPS_SIGNED
from edge.settings import EdgeSettings
from shared.settings import load
from tests.edge.sam import ROOT, source, transformed

PAGE = (ROOT / "docs" / "deploy.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")


def section(title: str) -> str:
    """Return the text under a heading."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def rows(title: str) -> list[list[str]]:
    """Return the cells of the tables in a section, without their heads."""
    lines = [
        line for line in section(title).splitlines() if line.startswith("| ") and "`" in line.split("|")[1]
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_parameter_is_in_the_table() -> None:
    """Names, order and defaults are the template's."""
    told = [(name.strip("`"), default.strip("`")) for name, default, _ in rows("Parameters")]
    parameters = source()["Parameters"]
    wanted = [
        (name, "required" if "Default" not in about else str(about["Default"]) or "empty")
        for name, about in parameters.items()
    ]
    assert told == wanted


def test_every_alarm_is_in_the_table() -> None:
    """Each says what to do."""
    resources = transformed()["Resources"]
    alarms = {name for name, item in resources.items() if item["Type"] == "AWS::CloudWatch::Alarm"}
    told = rows("Alarms, and what to do")
    assert {name.strip("`") for name, _, _ in told} == alarms
    assert all(means and do for _, means, do in told)
    slow = {name for name in alarms if resources[name]["Properties"]["Period"] != 300}
    assert slow == {"TowerDownAlarm"}
    assert resources["TowerDownAlarm"]["Properties"]["Period"] == 15 * 60


def test_log_fields_and_metrics_are_those_printed() -> None:
    """No name is missing, and none is made up."""
    text = section("Logs and metrics")
    fields = text[text.index("no other") : text.index("The correlation id")]
    assert re.findall(r"`(\w+)`", fields) == list(observe.FIELDS)
    assert [name.strip("`") for name, _ in rows("Logs and metrics")] == list(observe.METRICS)
    assert f"namespace `{observe.NAMESPACE}`, dimension `service` = `{observe.SERVICE}`" in text
    days = transformed()["Resources"]["EdgeLogs"]["Properties"]["RetentionInDays"]
    assert f"kept for {days} days" in text


def sums() -> list[tuple[str, float]]:
    """Return the arithmetic in the section on costs, and what it is said to give."""
    found = re.findall(r"`([-+*/().\d e]+) = ([\d.]+)`", section("What it costs"))
    assert all(re.fullmatch(r"[-+*/().\d e]+", left) for left, _ in found)
    return [(left, float(right)) for left, right in found]


def test_arithmetic_is_right() -> None:
    """Every calculation gives what stands behind it, rounded to its digits."""
    found = sums()
    assert len(found) == 20
    for left, right in found:
        digits = 5 if right < 0.01 else 2
        value: float = eval(left, {"__builtins__": {}})  # noqa: S307 - digits and operators alone
        assert round(value + 1e-9, digits) == right, left


def test_prices_are_those_of_the_table() -> None:
    """The arithmetic uses the memory of the template and the prices listed, and README repeats the totals."""
    text = section("What it costs")
    prices = re.findall(r"^\| \$([\d.]+) \|", text, re.MULTILINE)
    used = " ".join(left for left, _ in sums())
    for price in prices:
        assert price in used, price
    memory = transformed()["Resources"]["EdgeFunction"]["Properties"]["MemorySize"] / 1024
    assert used.count(f"* {memory} * 0.0000133334") == 4
    assert f"at most {CURVES_SIGNED} of them, and {ROADMAPS_SIGNED} answers" in text
    totals = dict(re.findall(r"\*\*(\w+), all\*\* \| `.* = ([\d.]+)`", text))
    assert totals.keys() == {"health", "curve", "run"}
    for name, total in totals.items():
        assert re.search(rf"{name} \${re.escape(total)}", README), name


def test_environment_for_sam_local_starts_the_edge() -> None:
    """With docs/sam-local.json in the place of KMS, tables and secrets every variable has a value that can be used."""
    given = json.loads((ROOT / "docs" / "sam-local.json").read_text("utf-8"))
    assert list(given) == ["EdgeFunction"]
    resources = transformed()["Resources"]
    variables = resources["EdgeFunction"]["Properties"]["Environment"]["Variables"]
    assert set(given["EdgeFunction"]) <= set(variables)  # SAM takes no others

    def local(value: Any) -> str:
        """Return what SAM makes of a variable without a stack."""
        if isinstance(value, dict) and value.get("Ref") in source()["Parameters"]:
            return str(source()["Parameters"][value["Ref"]].get("Default", value["Ref"]))
        return value if isinstance(value, str) else json.dumps(value)

    environ = {name: local(value) for name, value in variables.items()} | given["EdgeFunction"]
    settings = load(EdgeSettings, environ)
    assert (settings.signer, settings.receipts_table, settings.limits_table) == ("none", None, None)
    assert settings.tower_token_secret is None
    assert settings.kms_key_id is None


def test_commands_name_what_exists() -> None:
    """Outputs, events and targets in the commands are there."""
    outputs = source()["Outputs"]
    assert {"BaseUrl", "FunctionName", "ApiId"} <= set(outputs)
    for event in re.findall(r"-e (events/\S+)", PAGE):
        assert (ROOT / event).is_file()
    targets = set(re.findall(r"\bmake (\w+)", PAGE))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert {target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)} <= {
        "a",
        "nothing",
    }
    for link in re.findall(r"\]\(((?!https?:)[^)]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
