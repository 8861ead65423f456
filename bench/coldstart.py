"""What an instance of the edge costs: until its first answer, with each further one, in memory and in the artifact.

Each cold start is a fresh process with warm bytecode, timed inside from before the first import of the package until
the answer is there; the edge and the reference (`bench.reference_resolver`) take turns. The edge has the settings of
`template.yaml`, and a tower that refuses connections; then it makes its first curve.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.versus import ratio
from shared.errors import SpecdecError
from shared.keyfile import load_or_create
from tools.build import PLATFORMS, assemble

ROOT: Final = Path(__file__).parents[1]
COLD_LIMIT: Final = 1.3
WARM_LIMIT: Final = 4.0
SIZE_LIMIT: Final = 35e6  # bytes

WAYS: Final = ("reference", "edge", "edge, keys pinned", "edge, signing by a file")
"""What is started cold; the last also makes a curve, as KMS, which the others would ask, is not to be had here."""

BATCH, BATCHES = 200, 15
"""Calls a batch, and batches, of each way to answer warm."""

# What Lambda's runtime has imported before it imports a function is imported here before the clock starts, too.
# The peak is the kernel's for this program (VmHWM): `ru_maxrss` would begin with that of the process that forked it.
_COMMON: Final = """
import datetime, json, logging, os, sys, time, traceback

class Context:
    aws_request_id, function_name = "8f5a3c1e-0000-4000-8000-000000000000", "edge"
    invoked_function_arn = "arn:aws:lambda:eu-central-1:123456789012:function:edge"
    function_version, memory_limit_in_mb = "7", 512
    def get_remaining_time_in_millis(self):
        return 29_000

def peak_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

def answer(handler, event):
    result = handler(event, Context())
    if result["statusCode"] != 200:
        raise RuntimeError(result["body"])
    return json.loads(result["body"])

events = [json.loads(text) for text in sys.argv[1:]]
"""

_COLD: Final = """
began = time.perf_counter()
from {package} import lambda_handler
imported = time.perf_counter()
first = lambda_handler(events[0], Context())
ended = time.perf_counter()
said = {{"import_s": imported - began, "answer_s": ended - imported, "peak_kib": [peak_kib()]}}
said["modules"] = len(sys.modules)
if first["statusCode"] != 200:
    raise RuntimeError(first["body"])
said["body"] = json.loads(first["body"])
if len(events) > 1:
    began = time.perf_counter()
    second = lambda_handler(events[1], Context())
    said["curve_s"] = time.perf_counter() - began
    said["peak_kib"].append(peak_kib())
print(json.dumps(said), file=sys.stderr)
"""

_WARM: Final = """
from edge.app import lambda_handler as ours
from bench.reference_resolver import lambda_handler as theirs

ways = [(ours, events[0]), (theirs, events[1])]
for handler, event in ways:
    for _ in range({batch}):
        answer(handler, event)
taken = [[], []]
for number in range({batches}):
    for way in (0, 1) if number % 2 == 0 else (1, 0):
        handler, event = ways[way]
        context = Context()
        began = time.perf_counter()
        for _ in range({batch}):
            handler(event, context)
        taken[way].append((time.perf_counter() - began) / {batch})
print(json.dumps(taken), file=sys.stderr)
"""


def measure(rounds: int, batches: int = BATCHES) -> dict[str, Any]:
    """Returns times of cold starts and warm answers, peak memory and sizes.

    Args:
        rounds: Cold starts of each way.
        batches: Batches of each warm way.
    """
    with tempfile.TemporaryDirectory(dir=".") as folder, refusing() as tower_url:
        machine = _Machine(Path(folder).resolve(), tower_url)
        return {
            "cold": _cold(machine, rounds),
            "warm": {signer: _warm(machine, signer, batches) for signer in ("signed", "unsigned")},
            "artifact": sizes(),
        }


@contextmanager
def refusing() -> Iterator[str]:
    """Yields the URL of a tower that refuses connections: its port is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"ws://127.0.0.1:{taken.getsockname()[1]}/specdec"


class _Machine:
    """Runs the processes that are measured."""

    def __init__(self, folder: Path, tower_url: str) -> None:
        key = load_or_create(folder / "key.pem", "P-256")
        self._folder = folder
        usual = {
            "SPECDEC_TOWER_URL": tower_url,
            "SPECDEC_TOWER_TOKEN": "a-token",
            "SPECDEC_TOWER_TOKEN_SECRET": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:token",
            "SPECDEC_RUN_SECRET": "a-run-secret-for-benches",
            "SPECDEC_SIGNER": "kms",
            "SPECDEC_KMS_KEY_ID": "arn:aws:kms:eu-central-1:123456789012:key/1",
            "SPECDEC_RECEIPTS_TABLE": "receipts",
            "SPECDEC_LIMITS_TABLE": "limits",
            "SPECDEC_RUNS_PER_MINUTE": "6",
            "SPECDEC_GPU_SECONDS_PER_DAY": "14400",
        }
        self._settings: dict[str, Mapping[str, str]] = {
            "edge": usual,
            "edge, keys pinned": {**usual, "SPECDEC_TOWER_PUBLIC_KEY": key.pem},
            "reference": {},
            "unsigned": {"SPECDEC_TOWER_URL": tower_url},
        }
        by_file = {"SPECDEC_SIGNER": "file", "SPECDEC_SIGNING_KEY_FILE": str(folder / "key.pem")}
        self._settings["signed"] = {"SPECDEC_TOWER_URL": tower_url, **by_file}
        self._settings["edge, signing by a file"] = {**usual, **by_file, "SPECDEC_RECEIPTS_TABLE": ""}

    def cold(self, way: str) -> dict[str, Any]:
        """Returns what one fresh process says of its first answers."""
        package = "bench.reference_resolver" if way == "reference" else "edge.app"
        events = [hello_event() if way == "reference" else event("health")]
        events += [event("curve")] if way == WAYS[-1] else []
        said: dict[str, Any] = self._run(_COLD.format(package=package), self._settings[way], events)
        if way != "reference" and said["body"]["tower_reachable"]:
            raise RuntimeError("the tower was to refuse the edge")
        return said

    def warm(self, signer: str, batches: int) -> dict[str, list[float]]:
        """Returns seconds a call by way, batch by batch."""
        program = _WARM.format(batch=BATCH, batches=batches)
        taken = self._run(program, self._settings[signer], [event("curve"), hello_event()])
        return dict(zip(("curve", "hello"), taken, strict=True))

    def _run(self, program: str, settings: Mapping[str, str], events: list[dict[str, Any]]) -> Any:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        environ = {**kept, **settings, "PYTHONPYCACHEPREFIX": str(self._folder / "bytecode")}
        command = [sys.executable, "-c", _COMMON + program, *map(json.dumps, events)]
        # A file takes the log lines, as the answers' cost includes writing them somewhere.
        with (self._folder / "log").open("w") as log:
            done = subprocess.run(
                command, stdout=log, stderr=subprocess.PIPE, text=True, env=environ, cwd=ROOT
            )
        if done.returncode:
            raise RuntimeError(f"a measured process failed: {done.stderr[-2000:]}")
        return json.loads(done.stderr.splitlines()[-1])


def event(name: str) -> dict[str, Any]:
    """Returns one of the events that tests replay."""
    value: dict[str, Any] = json.loads((ROOT / "events" / f"{name}.json").read_text("utf-8"))
    return value


def hello_event() -> dict[str, Any]:
    """Returns the health event, sent to the reference's route."""
    health = event("health")
    health["rawPath"] = health["requestContext"]["http"]["path"] = "/hello"
    return health


def _cold(machine: _Machine, rounds: int) -> dict[str, Any]:
    for way in WAYS:
        machine.cold(way)  # compiles
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            runs[way].append(machine.cold(way))
    return cold_summary(runs)


def cold_summary(runs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns medians of each way, and how many times the reference's its time is, by rounds."""
    seconds = {way: [one["import_s"] + one["answer_s"] for one in ones] for way, ones in runs.items()}
    summary: dict[str, Any] = {}
    for way, ones in runs.items():
        peaks = zip(*(one["peak_kib"] for one in ones), strict=True)
        summary[way] = {
            "starts": len(ones),
            "import_ms": 1000 * statistics.median(one["import_s"] for one in ones),
            "answer_ms": 1000 * statistics.median(one["answer_s"] for one in ones),
            "total_ms": 1000 * statistics.median(seconds[way]),
            "over_reference": ratio(seconds[way], seconds["reference"]),
            "modules": ones[0]["modules"],
            "peak_mib": [statistics.median(peak) / 1024 for peak in peaks],
        }
        if "curve_s" in ones[0]:
            summary[way]["curve_ms"] = 1000 * statistics.median(one["curve_s"] for one in ones)
    return summary


def _warm(machine: _Machine, signer: str, batches: int) -> dict[str, Any]:
    taken = machine.warm(signer, batches)
    return {
        "calls": BATCH * batches,
        **{f"{way}_us": 1e6 * statistics.median(seconds) for way, seconds in taken.items()},
        "over_hello": ratio(taken["curve"], taken["hello"]),
    }


def sizes() -> dict[str, Any]:
    """Returns the bytes of the artifact, unpacked, by architecture; or why they are not known."""
    found: dict[str, Any] = {}
    for arch in sorted(PLATFORMS):
        try:
            found[arch] = sum(map(len, assemble(arch).files.values()))
        except SpecdecError as error:
            found[arch] = f"not built: {error.cause}"
    return found


def markdown(result: Mapping[str, Any]) -> str:
    """Renders what `measure` returned."""
    lines = ["| cold start | import ms | first answer ms | total ms | / reference | modules | peak MiB |"]
    lines.append("|---|---|---|---|---|---|---|")
    for way, one in result["cold"].items():
        peak = ", then ".join(f"{mib:.1f}" for mib in one["peak_mib"])
        lines.append(
            f"| {way} | {one['import_ms']:.0f} | {one['answer_ms']:.1f} | {one['total_ms']:.0f} "
            f"| {shown(one['over_reference'])} | {one['modules']} | {peak} |"
        )
    lines += [
        "",
        "| warm, one process | curve µs | hello µs | curve / hello | calls of each |",
        "|---|---|---|---|---|",
    ]
    for signer, one in result["warm"].items():
        took = f"{one['curve_us']:.0f} | {one['hello_us']:.0f}"
        lines.append(f"| {signer} | {took} | {shown(one['over_hello'])} | {one['calls']} |")
    lines += ["", "| artifact, unpacked, without the AWS SDK | MB |", "|---|---|"]
    for arch, size in result["artifact"].items():
        lines.append(f"| {arch} | {size if isinstance(size, str) else f'{size / 1e6:.1f}'} |")
    lines += [
        "",
        "Targets: " + "; ".join(f"{what} {'met' if met else 'MISSED'}" for what, met in targets(result)),
    ]
    return "\n".join(lines)


def targets(result: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Returns what was promised, and whether it holds."""
    cold = result["cold"]["edge"]["over_reference"]["median"]
    warm = max(one["over_hello"]["median"] for one in result["warm"].values())
    known = [size for size in result["artifact"].values() if not isinstance(size, str)]
    told = [
        (f"cold / reference at most {COLD_LIMIT}", cold <= COLD_LIMIT),
        (f"curve / hello at most {WARM_LIMIT:.0f}", warm <= WARM_LIMIT),
    ]
    size = [(f"artifact at most {SIZE_LIMIT / 1e6:.0f} MB", max(known) <= SIZE_LIMIT)] if known else []
    return told + size


def shown(one: Mapping[str, Any]) -> str:
    """Writes a ratio with its interval or range."""
    return f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
