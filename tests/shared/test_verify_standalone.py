"""The verifier in one file: what it recomputes, what it refuses, and that it needs nothing but Python."""

from __future__ import annotations

import ast
import base64
import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from shared.canonical import sha3_256_hex
from shared.curve import accounting_modeled
from shared.verify_standalone import verify
from tests.shared.build import (
    golden,
    measured_payload,
    measurement,
    metered_payload,
    receipt,
    result,
    roadmap_payload,
    runs,
)
from tests.shared.test_verify_signature import changed, places

SCRIPT = Path(__file__).parents[2] / "shared" / "verify_standalone.py"
ALL = ("digest", "payload", "modeled", "counts", "rates", "timing", "energy")
FIT = {**dict.fromkeys(ALL, True), "energy": None}  # where no energy was measured


def outcomes(whole: Any) -> dict[str, bool | None]:
    """Outcome by name of check."""
    return {name: ok for name, ok, _ in verify(whole)}


def place_of(whole: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    """The container of what a path leads to, and its last key."""
    for key in path[:-1]:
        whole = whole[key]
    return whole, path[-1]


def test_measured_receipt() -> None:
    """A measured receipt passes every check; so does the golden example, which gives neither timings nor energy."""
    assert outcomes(receipt(metered_payload())) == dict.fromkeys(ALL, True)
    assert outcomes(receipt(measured_payload())) == FIT
    example = receipt(golden("measured")["example_payload"])
    assert outcomes(example) == {**FIT, "timing": None}


def test_modeled_receipts() -> None:
    """Without a measurement three checks remain; a curve without its cost ratio cannot be recomputed."""
    three = {"digest": True, "payload": True, "modeled": True}
    assert outcomes(receipt(roadmap_payload())) == three
    curve = accounting_modeled(8, 0.05, 1.48, (0.0, 0.33, 1.0))
    assert outcomes(receipt({**roadmap_payload(), "accounting_modeled": curve})) == three
    seed = golden("receipts")["cases"][0]["payload"]
    assert outcomes(receipt(seed)) == {**three, "modeled": None}


@pytest.mark.parametrize("case", golden("receipts")["cases"], ids=lambda case: case["name"])
def test_golden_receipts(case: dict[str, Any]) -> None:
    """The golden bytes and digests hold, hard floats and emoji included."""
    whole = receipt(case["payload"])
    assert (whole["payload_canonical_base64"], whole["payload_sha3_256"]) == (
        case["canonical_base64"],
        case["sha3_256"],
    )
    found = outcomes(whole)
    assert found["digest"] is found["payload"] is True


def test_every_altered_number_is_caught() -> None:
    """Whatever single value of a receipt's payload, digest or bytes is altered, the digest or the bytes say so."""
    whole = receipt(measured_payload())
    rng = random.Random(1)
    paths = [path for path in places(whole) if str(path[0]).startswith("payload")]
    assert len(paths) > 100
    for path in paths * 2:
        altered = copy.deepcopy(whole)
        place, key = place_of(altered, path)
        place[key] = changed(place[key], rng)
        found = outcomes(altered)
        assert not (found["digest"] and found["payload"]), path


Route = tuple[str | int, ...]
COUNTS: list[Route] = [("measurement", name) for name in ("n", "k", "accepted", "emitted")]
COUNTS += [("measurement", "acceptance_histogram", a) for a in range(5)]
RATES: list[Route] = [
    ("measurement", name) for name in ("rejections", "drafted", "accepted_rate", "mean_accepted_len")
]
RATES += [(name,) for name in ("n", "k", "accepted_rate", "mean_accepted_len", "speedup_modeled")]
RATES += [("measurement", "draft_acceptance_rate")]
CURVE: list[Route] = [("accounting_modeled", name) for name in ("k", "cost_ratio", "verify_cost")]
CURVE += [
    ("accounting_modeled", f"expected_{name}_at_alpha", alpha)
    for name in ("speedup", "tokens_per_step")
    for alpha in ("0.5", "0.7", "0.9")
]
TIMING: list[Route] = [("speedup_measured", name) for name in ("median", "pairs")]
TIMING += [("measurement", "speedup", name) for name in ("median", "pairs")]
TIMING += [
    ("measurement", "timing", side, pair) for side in ("speculative_s", "target_only_s") for pair in (1, 7)
]
ENERGY: list[Route] = [("energy", "joules_per_token", way) for way in ("speculative", "target_only")]
ENERGY += [("energy", "windows", place, part) for place in (0, 5) for part in ("joules", "tokens")]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (name, path)
        for name, paths in zip(ALL[2:], (CURVE, COUNTS, RATES, TIMING, ENERGY), strict=True)
        for path in paths
    ],
    ids=str,
)
def test_numbers_that_do_not_follow(name: str, path: tuple[Any, ...]) -> None:
    """An edge that computes a new digest over an altered number is caught by the formula behind that number."""
    payload = metered_payload()
    place, key = place_of(payload, path)
    for factor in (1.001, -1.0, 2.0):
        before = place[key]
        place[key] = before + round(factor) if isinstance(before, int) else before * factor
        found = outcomes(receipt(payload))
        assert found["digest"] is found["payload"] is True
        assert found[name] is False, (path, factor)
        place[key] = before


@given(runs())
def test_any_run(run: tuple[Any, ...]) -> None:
    """Every possible run, odd last steps and 0/0 included, passes."""
    measured = result(measurement(*run))["measurement"]
    payload = measured_payload()
    payload |= {"measurement": measured, "speedup_measured": measured["speedup"]}
    payload |= {name: measured[name] for name in ("n", "k", "accepted_rate", "mean_accepted_len")}
    rate, k = measured["accepted_rate"], measured["k"]
    payload["speedup_modeled"] = None
    if rate is not None:
        payload["speedup_modeled"] = sum(rate**i for i in range(k + 1)) / (0.2 * k + 1)
    assert outcomes(receipt(payload)) == FIT


def test_no_windows() -> None:
    """An energy that is UNAVAILABLE, or gives no windows, is not recomputed; one whose windows lack a way fails."""
    payload = metered_payload(windows=None)
    assert outcomes(receipt(payload))["energy"] is None
    payload = metered_payload(windows=[metered_payload()["energy"]["windows"][0]])
    assert outcomes(receipt(payload))["energy"] is False


def test_an_adaptive_run() -> None:
    """Where drafts were cut by confidence there is no accepted rate, so one that is given fails."""
    payload = measured_payload()
    payload["measurement"] |= {"k_requested": "auto", "accepted_rate": None}
    payload |= {"accepted_rate": None, "speedup_modeled": None}
    assert outcomes(receipt(payload))["rates"] is True
    assert outcomes(receipt({**payload, "accepted_rate": 0.7}))["rates"] is False


def test_nothing_timed() -> None:
    """Where no speed-up was measured, or no timings are given, the check says that it cannot tell."""
    payload = measured_payload()
    payload["measurement"]["timing"] = None
    assert outcomes(receipt(payload))["timing"] is None
    payload["measurement"]["speedup"] = payload["speedup_measured"] = "UNAVAILABLE"
    assert outcomes(receipt(payload))["timing"] is None
    assert outcomes(receipt({**payload, "speedup_measured": {"median": 9.9}}))["timing"] is False


@pytest.mark.parametrize("change", ["YQ", "YQ==\n", "YR==", "-_8=", "é", "", None, 5, ["YQ=="]], ids=ascii)
def test_base64_is_strict(change: Any) -> None:
    """Loose base64, the URL-safe alphabet and anything but text fail."""
    found = outcomes({**receipt(roadmap_payload()), "payload_canonical_base64": change})
    assert found["digest"] is found["payload"] is False


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":1}', '{"a": 1}', '{"b":1,"a":2}', '{"a":1.0}', '{"a":true}', '{"a":"\\u00e9"}']
)
def test_bytes_that_are_not_canonical(text: str) -> None:
    """Bytes that are the payload's only in another spelling fail, though the digest is theirs."""
    data = text.encode()
    whole = {
        **receipt({"a": 1} if "e9" not in text else {"a": "é"}),
        "payload_canonical_base64": base64.b64encode(data).decode(),
        "payload_sha3_256": sha3_256_hex(data),
    }
    if text == '{"b":1,"a":2}':
        whole["payload"] = json.loads(text)
    found = outcomes(whole)
    assert (found["digest"], found["payload"]) == (True, False)


def test_malformed_input() -> None:
    """Junk anywhere gives failed checks, never an error, and no number makes it work for long."""
    junk: list[Any] = [
        None,
        True,
        -1,
        10**400,
        1e308,
        float("nan"),
        "",
        "x",
        "9" * 30,
        [],
        {},
        [[]],
        {"a": None},
    ]
    for whole in (*junk, {"payload": None}, {"payload": []}, {"payload": {}}):
        assert False in outcomes(whole).values()
    rng = random.Random(2)
    good = receipt(measured_payload())
    names = ("payload", "payload_sha3_256", "payload_canonical_base64", "digest_alg")
    paths = [path for path in places(good) if path[0] in names]
    paths += [path[:end] for path in paths for end in range(1, len(path))]
    for path in paths:
        altered = copy.deepcopy(good)
        place, key = place_of(altered, path)
        place[key] = rng.choice(junk)
        assert False in outcomes(altered).values(), path
        payload = altered["payload"]
        try:
            again = receipt(payload)
        except Exception:  # noqa: S112 - junk of which there is no receipt
            continue
        verify(again)


def run(script: Path, folder: Path, *arguments: str) -> tuple[int, list[str], str]:
    """Runs the file in an interpreter that knows no packages, from an empty folder."""
    command = [sys.executable, "-I", "-S", str(script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_command(tmp_path: Path) -> None:
    """A copy of the file alone prints one line per check; 0: none failed, 1: one did, 2: nothing to check."""
    script = tmp_path / "alone" / "check.py"
    empty = tmp_path / "empty"
    script.parent.mkdir()
    empty.mkdir()
    script.write_bytes(SCRIPT.read_bytes())
    whole = receipt(metered_payload())
    texts = {
        "good": json.dumps(whole),
        "bad": json.dumps({**whole, "payload": {**whole["payload"], "n": 51}}),
        "twice": '{"payload": 1, "payload": 1}',
        "junk": "{",
    }
    paths = {name: tmp_path / f"{name}.txt" for name in texts}
    for name, text in texts.items():
        paths[name].write_text(text, "utf-8")
    code, lines, errors = run(script, empty, str(paths["good"]))
    assert (code, errors) == (0, "")
    assert [line.split()[:2] for line in lines] == [*(["ok", name] for name in ALL), ["skipped", "signature"]]
    assert "specdec verify" in lines[-1] and "openssl" in lines[-1]
    code, lines, errors = run(script, empty, str(paths["bad"]))
    assert (code, errors) == (1, "") and lines[1].startswith("failed   payload")
    for arguments in (
        [str(paths["twice"])],
        [str(paths["junk"])],
        [str(tmp_path / "none")],
        [str(empty)],
        [],
    ):
        code, lines, errors = run(script, empty, *arguments)
        assert (code, lines) == (2, []) and errors.startswith("usage: "), arguments


def test_the_file_is_small_and_stands_alone() -> None:
    """At most 150 lines, read as Python 3.9, that import nothing of ours and nothing but the standard library."""
    text = SCRIPT.read_text("utf-8")
    assert len(text.splitlines()) <= 150
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
