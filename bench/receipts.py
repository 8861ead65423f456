"""What a receipt costs: making, signing and storing it, alone and as part of `POST /run`.

One core, one process. Ways take turns, round after round; the median round counts. The run is that of a tower on
loopback which answers at once with a measurement of 50 steps, so that what is left is the edge's own work.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.deadline import Deadline
from edge.issuer import Issuer
from edge.keyring import Keyring
from edge.settings import EdgeSettings
from edge.store import DirectoryStore
from shared.keyfile import load_or_create
from tests.edge.fake_tower import FakeTower
from tests.edge.support import client
from tests.shared.build import measured_payload

BATCH = 50
"""Receipts, or runs, a round of each way."""


def measure(rounds: int) -> dict[str, Any]:
    """Returns receipts per second and core by way, and milliseconds a run takes by way."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        root = Path(folder)
        for kind in ("P-256", "Ed25519"):
            load_or_create(root / f"{kind}.pem", kind)
        return {
            "payload_bytes": len(str(measured_payload())),
            "receipts_per_s": _receipts(root, rounds),
            "run_ms": _runs(root, rounds),
        }


def _signed(root: Path, kind: str, **more: Any) -> EdgeSettings:
    return EdgeSettings(signer="file", signing_key_file=root / f"{kind}.pem", **more)


def _receipts(root: Path, rounds: int) -> dict[str, float]:
    issuers = {
        "unsigned": Issuer(Keyring(EdgeSettings()), None),
        "signed by P-256": Issuer(Keyring(_signed(root, "P-256")), None),
        "signed by Ed25519": Issuer(Keyring(_signed(root, "Ed25519")), None),
        "signed by P-256 and stored": Issuer(Keyring(_signed(root, "P-256")), DirectoryStore(root / "a")),
    }
    number = 0

    def make(issuer: Issuer) -> None:
        nonlocal number
        for _ in range(BATCH):
            number += 1
            issuer.measured({**measured_payload(), "nonce": f"{number:064x}"}, Deadline.after(60))

    def overhead() -> None:
        for _ in range(BATCH):
            measured_payload()

    spent = _turns({"": overhead, **{name: lambda i=i: make(i) for name, i in issuers.items()}}, rounds)  # type: ignore[misc]
    return {name: BATCH / (seconds - spent[""]) for name, seconds in spent.items() if name}


def _runs(root: Path, rounds: int) -> dict[str, float]:
    with FakeTower() as tower:
        key = str(root / "P-256.pem")
        edges = {
            "unsigned, not stored": client(tower.url),
            "signed by P-256": client(tower.url, signer="file", signing_key_file=key),
            "signed by P-256 and stored": client(
                tower.url, signer="file", signing_key_file=key, receipts_dir=str(root / "b")
            ),
        }

        def ask(name: str) -> None:
            for _ in range(BATCH // 5):
                reply = edges[name].run()
                if reply.payload["label"] != "SPEC-DECODE MEASURED":
                    raise RuntimeError("the run was not measured")

        spent = _turns({name: lambda name=name: ask(name) for name in edges}, rounds)  # type: ignore[misc]
    return {name: 1000 * seconds / (BATCH // 5) for name, seconds in spent.items()}


def _turns(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Returns the median seconds of each way; odd rounds go through them backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            began = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def markdown(result: dict[str, Any]) -> str:
    """Renders what `measure` returned."""
    lines = ["| receipt | per second and core |", "|---|---|"]
    lines += [f"| {name} | {rate:.0f} |" for name, rate in result["receipts_per_s"].items()]
    lines += ["", "| `POST /run` at a tower that answers at once | ms | added |", "|---|---|---|"]
    base = next(iter(result["run_ms"].values()))
    lines += [f"| {name} | {ms:.2f} | {ms - base:+.2f} |" for name, ms in result["run_ms"].items()]
    return "\n".join(lines)
