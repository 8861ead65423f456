"""Tests of agent.metrics: what a scrape is told, read back by Prometheus's own parser."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from agent.metrics import Metrics, resident_bytes
from shared.schemas import EnergyUnavailable, Pair, QueueState
from shared.wire import CapabilityFrame

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

CAPABILITY = CapabilityFrame(
    agent_version="1.2.3",
    same_family_pair=Pair(found=True, reason="one vocabulary", draft="a", target="b", family="llama"),
    models=[],
    queue=QueueState(running=False, waiting=0, limit=4),
    energy=EnergyUnavailable(label="UNAVAILABLE", code="ON_CPU", reason="no meter"),
)


@dataclass
class Runs:
    """A run manager as a scrape sees it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    waiting: int = 0

    def queue(self) -> QueueState:
        """Return how busy it is."""
        return QueueState(running=self.waiting > 0, waiting=self.waiting, limit=4)


@dataclass
class Worker:
    """A supervisor as a scrape sees it."""

    starts: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    last_decode_at: float | None = None
    worker_pid: int | None = None


@dataclass
class Traffic:
    """A server as a scrape sees it."""

    connections: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def read(text: bytes) -> Samples:
    """Return what Prometheus reads in a text, without the times at which series were made."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def one(samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float], name: str, **labels: str) -> float:
    """Return one sample."""
    return samples[name, tuple(sorted(labels.items()))]


async def test_everything() -> None:
    """Each count, size and age is where it belongs."""
    now = asyncio.get_running_loop().time()
    runs = Runs(Counter(OK=3, WORKER_DIED=1), waiting=2)
    worker = Worker(4, Counter(WORKER_HUNG=2), now - 50, os.getpid())
    metrics = Metrics(runs, worker, Traffic(5, Counter(unauthorized=7)))
    metrics.observe("OK", 4.0)
    metrics.observe("OK", 700.0)
    metrics.observe("WORKER_DIED", 0.5)
    samples = read(metrics.render(CAPABILITY))
    assert one(samples, "specdec_runs_total", code="OK") == 3
    assert one(samples, "specdec_runs_total", code="WORKER_DIED") == 1
    assert one(samples, "specdec_running") == 1
    assert (one(samples, "specdec_queue_depth"), one(samples, "specdec_queue_limit")) == (2, 4)
    assert one(samples, "specdec_worker_starts_total") == 4
    assert one(samples, "specdec_worker_deaths_total", cause="WORKER_HUNG") == 2
    assert one(samples, "specdec_connections") == 5
    assert one(samples, "specdec_handshakes_refused_total", reason="unauthorized") == 7
    assert one(samples, "specdec_pair_found") == 1
    assert one(samples, "specdec_energy", label="UNAVAILABLE", code="ON_CPU") == 1
    assert one(samples, "specdec_build_info", version="1.2.3") == 1
    assert one(samples, "specdec_last_decode_age_seconds") >= 50
    assert one(samples, "specdec_run_seconds_bucket", outcome="result", le="5.0") == 1
    assert one(samples, "specdec_run_seconds_count", outcome="result") == 2
    assert one(samples, "specdec_run_seconds_sum", outcome="failed") == 0.5
    for process in ("agent", "worker"):
        assert one(samples, "specdec_resident_bytes", process=process) > 1_000_000


async def test_what_is_not_known_is_left_out() -> None:
    """No worker, no decode and no run are no zeros."""
    names = {name for name, _ in read(Metrics(Runs(), Worker(), Traffic()).render(CAPABILITY))}
    assert not names & {
        "specdec_last_decode_age_seconds",
        "specdec_runs_total",
        "specdec_worker_deaths_total",
    }
    processes = [
        labels
        for name, labels in read(Metrics(Runs(), Worker(), Traffic()).render(CAPABILITY))
        if name == "specdec_resident_bytes"
    ]
    assert processes == [(("process", "agent"),)]


async def test_scrapes_see_the_present() -> None:
    """Nothing is remembered from one scrape to the next."""
    runs, worker, traffic = Runs(), Worker(), Traffic()
    metrics = Metrics(runs, worker, traffic)
    metrics.render(CAPABILITY)
    runs.outcomes["OK"] += 1
    traffic.connections = 1
    gone = CAPABILITY.model_copy(update={"same_family_pair": Pair(found=False, reason="removed")})
    samples = read(metrics.render(gone))
    assert one(samples, "specdec_runs_total", code="OK") == 1
    assert one(samples, "specdec_connections") == 1 and one(samples, "specdec_pair_found") == 0


def test_resident_bytes() -> None:
    """A process's memory is what the system says, and unknown for one that is gone."""
    with open("/proc/self/status") as file:
        kib = next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
    here = resident_bytes(os.getpid())
    assert here is not None and abs(here / 1024 - kib) < kib / 2
    assert resident_bytes(2**22 + 1) is None
