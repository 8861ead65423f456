"""docs/deploy.md says what is so: parameters, alarms, log fields and metrics by name, and arithmetic that is right."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from agent.settings import AgentSettings
from edge import observe
from edge.issuer import CURVES_SIGNED, ROADMAPS_SIGNED
from edge.settings import EdgeSettings
from shared.runid import RunKeys
from shared.settings import load
from tests.edge.sam import HEALTH_WAIT_S, ROOT, RUN_WAIT_S, buckets, source, transformed

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
    periods = {name: _periods(resources[name]["Properties"]) for name in alarms}
    assert periods.pop("TowerDownAlarm") == [15 * 60] * 3
    assert list(periods.values()) == [[300]] * len(periods)
    looked_at = sum(len(found) for found in periods.values()) + 3
    said = f"$0.10 for each of the {looked_at} metrics that the {len(alarms)} alarms look at"
    assert said in section("What it costs").replace("\n", " ")


def _periods(alarm: dict[str, Any]) -> list[int]:
    stats = [item["MetricStat"] for item in alarm.get("Metrics", []) if "MetricStat" in item]
    return [about["Period"] for about in stats or [alarm]]


def test_log_fields_and_metrics_are_those_printed() -> None:
    """No name is missing, and none is made up."""
    text = section("Logs and metrics")
    fields = text[text.index("Log lines hold") : text.index("The correlation id")]
    assert re.findall(r"`(\w+)`", fields) == list(observe.FIELDS)
    assert [name.strip("`") for name, _ in rows("Logs and metrics")] == list(observe.METRICS)
    assert f"namespace `{observe.NAMESPACE}`, dimension `service` = `{observe.SERVICE}`" in text
    days = transformed()["Resources"]["EdgeLogs"]["Properties"]["RetentionInDays"]
    assert f"kept for {days} days" in text


def sums(text: str) -> list[tuple[str, float]]:
    """Return the arithmetic in a text, and what it is said to give."""
    found = re.findall(r"`([-+*/().\d e]+) = ([\d.]+)`", text)
    assert all(re.fullmatch(r"[-+*/().\d e]+", left) for left, _ in found)
    return [(left, float(right)) for left, right in found]


def test_arithmetic_is_right() -> None:
    """Every calculation gives what stands behind it, rounded to its digits."""
    costs, gateway = sums(section("What it costs")), sums(section("What the gateway lets through"))
    readme = sums(README)
    assert (len(costs), len(gateway), len(readme)) == (22, 3, 3)
    for left, right in costs + gateway + readme:
        digits = 5 if right < 0.01 else 2
        value: float = eval(left, {"__builtins__": {}})  # noqa: S307 - digits and operators alone
        assert round(value + 1e-9, digits) == right, left


def test_prices_are_those_of_the_table() -> None:
    """The arithmetic uses the memory of the template and the prices listed, and README repeats the totals."""
    text = section("What it costs")
    prices = re.findall(r"^\| \$([\d.]+) \|", text, re.MULTILINE)
    used = " ".join(left for left, _ in sums(text))
    for price in prices:
        assert price in used, price
    memory = transformed()["Resources"]["EdgeFunction"]["Properties"]["MemorySize"] / 1024
    assert used.count(f"* {memory} * 0.0000133334") == 4
    assert f"at most {CURVES_SIGNED} of them, and {ROADMAPS_SIGNED} answers" in text
    totals = re.findall(r"\*\*(\w+), all\*\* \| (`.* = [\d.]+`)", text)
    assert [name for name, _ in totals] == ["health", "curve", "run"]
    assert re.findall(r"^\| (\w+) \| (`.* = [\d.]+`) \|", README, re.MULTILINE) == totals


def test_bounds_of_what_is_spent_are_the_templates() -> None:
    """A month of all that the gateway lets through, and of all instances that are reserved."""
    text = section("What it costs").replace("\n", " ")
    rates = {name: rate for name, (_, rate) in buckets().items()}
    assert f"`({rates['health']} + {rates['curve']} + 2 * {rates['others']}) * 2592000 / 1e6 = " in text
    most = source()["Parameters"]["ReservedConcurrency"]["Default"]
    assert f"({most} that never rest: `{most} * 2592000 * " in text


def test_buckets_and_their_arithmetic_are_the_templates() -> None:
    """The table has each bucket's burst and rate, and the instances that a silent tower keeps."""
    text = section("What the gateway lets through")
    found = buckets()
    assert set(found) == {"health", "curve", "others"}
    for name in ("health", "curve"):
        assert "| `GET /{}` | {} | {} |".format(name, *found[name]) in text
    burst, rate = found["others"]
    assert f"| all others | {burst} | `RequestsPerSecond` |" in text
    assert f"`{burst} + {rate} * {RUN_WAIT_S:.1f} = " in text
    assert "`{} + {} * {:.1f} = ".format(*found["health"], HEALTH_WAIT_S) in text
    assert f"`{found['health'][0]} + {found['curve'][0]} + 2 * {burst} = " in text
    assert f"connections ({AgentSettings.model_fields['max_connections'].default})" in text.replace("\n", " ")
    parameter = source()["Parameters"]["RequestsPerSecond"]["Description"]
    assert parameter.endswith(f"health takes {found['health'][1]} and curve {found['curve'][1]} of their own")


def test_open_runs_make_the_days_item_dearer() -> None:
    """The writes that the default budget's open runs add are those of an item with so many run ids."""
    keys = RunKeys(b"a run secret that is long enough")
    one = len(keys.run_id(keys.new_id(), {"prompt": "x"})) + 1  # DynamoDB adds a byte to each element
    parameters = source()["Parameters"]
    runs = parameters["GpuSecondsPerDay"]["Default"] // parameters["RunDeadline"]["Default"]
    assert round(one, -1) == 70
    more = 2 * (math.ceil((100 + runs * one) / 1024) - 1)
    text = section("What it costs").replace("\n", " ")
    assert f"some 70 bytes, to the day's item, which a run writes twice, so that with {runs} open" in text
    assert f"it is {more} more" in text


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
