"""Settings of the edge."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.settings import EdgeSettings
from shared.settings import SettingsError, load


def test_defaults_are_the_published_ones() -> None:
    """An edge that is told nothing looks at the sovereign tower, with k=4, c=0.2 and 20 seconds."""
    settings = load(EdgeSettings, {})
    assert settings.tower_host == "gpu.a-11-oy.com"
    assert (settings.k, settings.cost_ratio, settings.wait_s) == (4, 0.2, 20.0)
    assert settings.tower_token is None
    assert settings.run_secret is None
    assert (settings.run_deadline_s, settings.run_burst) == (300.0, 10)
    assert (settings.runs_per_minute, settings.gpu_seconds_per_day, settings.counts) == (0.0, 0.0, False)
    assert (settings.limits_table, settings.limits_file) == (None, None)


def test_blanks_around_a_token_are_no_part_of_it() -> None:
    """A secret that ends in a line break, as files do, still gives the token."""
    token = load(EdgeSettings, {"SPECDEC_TOWER_TOKEN": " token\n"}).tower_token
    assert token is not None
    assert token.get_secret_value() == "token"


def test_secrets_do_not_show() -> None:
    """Printing the settings prints no secret."""
    secrets = {
        "SPECDEC_RUN_SECRET": "run-secret-of-16",
        "SPECDEC_TOWER_TOKEN": '{"token": "tower-token"}',
        "SPECDEC_TOWER_HEADERS": '{"X-Gate": "gate-secret"}',
    }
    settings = load(EdgeSettings, secrets)
    for secret in ("run-secret-of-16", "tower-token", "gate-secret"):
        assert secret not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPECDEC_K", "17"),
        ("SPECDEC_COST_RATIO", "inf"),
        ("SPECDEC_WAIT_S", "28"),
        ("SPECDEC_TOWER_URL", "ws://"),
        ("SPECDEC_TOWER_URL", "ws://host:0/"),
        ("SPECDEC_TOWER_URL", "ws://host:99999/"),
        ("SPECDEC_TOWER_URL", "host/specdec"),
        ("SPECDEC_TOWER_TOKEN", "line\nbreak"),
        ("SPECDEC_TOWER_TOKEN", "\n"),
        ("SPECDEC_TOWER_TOKEN", "{"),
        ("SPECDEC_TOWER_TOKEN", '{"headers": {}}'),
        ("SPECDEC_TOWER_HEADERS", "[]"),
        ("SPECDEC_TOWER_HEADERS", '{"Host": "x"}'),
        ("SPECDEC_TOWER_CA", "/nowhere"),
        ("SPECDEC_TOWER_CA", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"),
        ("SPECDEC_TOWER_CA", "{}"),
        ("SPECDEC_RUN_SECRET", "fifteen-bytes.."),
        ("SPECDEC_RUN_DEADLINE_S", "9.9"),
        ("SPECDEC_RUN_DEADLINE_S", "3601"),
        ("SPECDEC_RUNS_PER_MINUTE", "-1"),
        ("SPECDEC_RUNS_PER_MINUTE", "0.0009"),
        ("SPECDEC_RUNS_PER_MINUTE", "6001"),
        ("SPECDEC_RUNS_PER_MINUTE", "nan"),
        ("SPECDEC_RUN_BURST", "0"),
        ("SPECDEC_RUN_BURST", "1.5"),
        ("SPECDEC_RUN_BURST", "1001"),
        ("SPECDEC_GPU_SECONDS_PER_DAY", "-1"),
        ("SPECDEC_GPU_SECONDS_PER_DAY", "299"),
        ("SPECDEC_GPU_SECONDS_PER_DAY", "inf"),
        ("SPECDEC_LIMITS_TABLE", "ab"),
    ],
)
def test_wrong_value_is_one_line_that_names_it(name: str, value: str) -> None:
    """Each field refuses what it cannot use."""
    with pytest.raises(SettingsError) as caught:
        load(EdgeSettings, {name: value})
    assert str(caught.value).startswith(name)
    assert "\n" not in str(caught.value)


def test_too_many_keys_for_an_environment() -> None:
    """Keys that no process could be handed in its environment stop the start with a sentence of their own."""
    with pytest.raises(SettingsError, match="SPECDEC_KEYS must be at most 100000 characters long"):
        load(EdgeSettings, {"SPECDEC_KEYS": "{" + " " * 100_000})


def test_keys_in_what_is_no_file(tmp_path: Path) -> None:
    """A directory, a pipe or a missing file in place of keys is told, not waited for."""
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe", "missing"):
        with pytest.raises(SettingsError, match="must be the text itself or a file that can be read"):
            load(EdgeSettings, {"SPECDEC_TOWER_PUBLIC_KEY": str(tmp_path / name)})


@pytest.mark.parametrize(
    ("environ", "counts"),
    [
        ({"SPECDEC_RUNS_PER_MINUTE": "0.001"}, True),
        ({"SPECDEC_RUNS_PER_MINUTE": "6000", "SPECDEC_RUN_BURST": "1000"}, True),
        ({"SPECDEC_GPU_SECONDS_PER_DAY": "300"}, True),
        ({"SPECDEC_GPU_SECONDS_PER_DAY": "10", "SPECDEC_RUN_DEADLINE_S": "10"}, True),
        ({"SPECDEC_GPU_SECONDS_PER_DAY": "0", "SPECDEC_RUN_DEADLINE_S": "3600"}, False),
        ({"SPECDEC_LIMITS_TABLE": "limits"}, False),
    ],
)
def test_limits(environ: dict[str, str], counts: bool) -> None:
    """Limits reach from a run in 17 hours to a hundred a second, and budgets from a single run on."""
    assert load(EdgeSettings, environ).counts is counts


def test_limits_are_counted_in_one_place() -> None:
    """A table and a file at once are one too many."""
    both = {"SPECDEC_LIMITS_TABLE": "limits", "SPECDEC_LIMITS_FILE": "limits.sqlite"}
    with pytest.raises(SettingsError, match="SPECDEC_LIMITS_TABLE or SPECDEC_LIMITS_FILE, not both"):
        load(EdgeSettings, both)


def test_budget_that_no_run_fits_in() -> None:
    """A budget below a run's deadline would let none start, and is refused by name."""
    environ = {"SPECDEC_GPU_SECONDS_PER_DAY": "599", "SPECDEC_RUN_DEADLINE_S": "600"}
    with pytest.raises(SettingsError, match="SPECDEC_GPU_SECONDS_PER_DAY must be 0 or at least"):
        load(EdgeSettings, environ)
