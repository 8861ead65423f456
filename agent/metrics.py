"""What Prometheus is told of the agent: counts, ages and sizes, read at each scrape; no prompt, no run id, no name."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.schemas import EnergyUnavailable, QueueState
from shared.wire import CapabilityFrame

BUCKETS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class RunFacts(Protocol):
    """What is read of the run manager."""

    @property
    def outcomes(self) -> Counter[str]:
        """How many runs have ended, by code."""

    def queue(self) -> QueueState:
        """How busy the agent is."""


class WorkerFacts(Protocol):
    """What is read of the supervisor."""

    @property
    def starts(self) -> int:
        """How many workers were started."""

    @property
    def deaths(self) -> Counter[str]:
        """How many of them ended without leave, by cause."""

    @property
    def last_decode_at(self) -> float | None:
        """When a run last gave a result, on the event loop's clock."""

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker, if there is one."""


class TrafficFacts(Protocol):
    """What is read of the server."""

    @property
    def connections(self) -> int:
        """How many clients are connected."""

    @property
    def refused(self) -> Counter[str]:
        """How many handshakes were refused, by reason."""


class Metrics:
    """Renders what is known of an agent as Prometheus text."""

    def __init__(self, runs: RunFacts, worker: WorkerFacts, traffic: TrafficFacts) -> None:
        """Take what is to be read."""
        self._registry = CollectorRegistry()
        self._agent = _Agent(runs, worker, traffic)
        self._registry.register(self._agent)
        self._seconds = Histogram(
            "specdec_run_seconds",
            "Seconds from the start of a run's decoding to its end",
            ["outcome"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )

    def observe(self, code: str, seconds: float) -> None:
        """Count the time that a run took, however it ended."""
        self._seconds.labels("result" if code == "OK" else "failed").observe(seconds)

    def render(self, capability: CapabilityFrame) -> bytes:
        """Return the text for a scrape; the capability says what there is to decode with."""
        self._agent.capability = capability
        return generate_latest(self._registry)


class _Agent(Collector):
    def __init__(self, runs: RunFacts, worker: WorkerFacts, traffic: TrafficFacts) -> None:
        self._runs = runs
        self._worker = worker
        self._traffic = traffic
        self.capability: CapabilityFrame | None = None

    def collect(self) -> Iterator[Metric]:
        yield from self._work()
        yield from self._processes()
        yield _gauge("specdec_connections", "Clients connected now", self._traffic.connections)
        refused = self._traffic.refused
        yield _counter("specdec_handshakes_refused", "Connections refused", "reason", refused)
        if self.capability is not None:
            yield from self._means(self.capability)

    def _work(self) -> Iterator[Metric]:
        yield _counter("specdec_runs", "Runs that have ended; OK is a result", "code", self._runs.outcomes)
        queue = self._runs.queue()
        yield _gauge("specdec_running", "Runs being decoded now", int(queue.running))
        yield _gauge("specdec_queue_depth", "Runs that wait", queue.waiting)
        yield _gauge("specdec_queue_limit", "Runs that may wait", queue.limit)
        decoded_at = self._worker.last_decode_at
        if decoded_at is not None:
            age = asyncio.get_running_loop().time() - decoded_at
            yield _gauge("specdec_last_decode_age_seconds", "Since a run last gave a result", age)

    def _processes(self) -> Iterator[Metric]:
        starts = CounterMetricFamily("specdec_worker_starts", "Decode workers started")
        starts.add_metric([], self._worker.starts)
        yield starts
        deaths = self._worker.deaths
        yield _counter("specdec_worker_deaths", "Decode workers that ended without leave", "cause", deaths)
        resident = GaugeMetricFamily("specdec_resident_bytes", "Memory in use", labels=["process"])
        for name, pid in (("agent", os.getpid()), ("worker", self._worker.worker_pid)):
            size = None if pid is None else resident_bytes(pid)
            if size is not None:
                resident.add_metric([name], size)
        yield resident

    def _means(self, capability: CapabilityFrame) -> Iterator[Metric]:
        found = int(capability.same_family_pair.found)
        yield _gauge("specdec_pair_found", "Whether there is a same-family pair to decode with", found)
        energy = GaugeMetricFamily(
            "specdec_energy", "Whether energy can be read (always 1)", labels=["label", "code"]
        )
        code = capability.energy.code if isinstance(capability.energy, EnergyUnavailable) else ""
        energy.add_metric([capability.energy.label, code], 1)
        yield energy
        build = InfoMetricFamily("specdec_build", "What is running")
        build.add_metric([], {"version": capability.agent_version})
        yield build


def resident_bytes(pid: int) -> int | None:
    """Return the memory that a process holds; None if it cannot be read, for it may be gone."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, label: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
