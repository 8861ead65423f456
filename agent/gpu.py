"""The GPU that decodes: which one it is, what state it is in, and what happened to it during a run.

`find_gpu` never raises: that there is no GPU is an answer, with a reason for the operator. `GpuWatch` looks at a GPU
now and then while a run goes on, so that a run that was throttled, or shared the GPU with another program, says so.

Process ids stay on this machine, and names of processes are not even asked for; only counts are told.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from agent.nvml import POWER_VIOLATION, THERMAL_VIOLATION, Nvml, NvmlDevice, NvmlError, reading
from agent.threads import Repeated
from shared import labels

EVERY_S = 1.0
"""Seconds between two looks at a GPU that is watched."""

_EVENTS: Final = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: labels.POWER_CAP,
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of NVML's clocks event reasons, and our words for them (`shared.labels`)."""


@dataclass(frozen=True)
class GpuState:
    """What a GPU is doing at one moment; None where it does not say.

    Attributes:
        sm_clock_mhz: Clock of the processors.
        memory_clock_mhz: Clock of the memory.
        p_state: Performance state, 0 (fastest) to 15.
        temperature_c: Temperature of the chip.
        power_watts: Power as the driver states it; on most GPUs the mean of a second.
        power_limit_watts: Power limit in force.
        memory_used: Bytes in use, the driver's own among them.
        memory_free: Bytes free.
        events: What holds the clocks down, in words of `labels.CLOCK_EVENTS`.
        compute_processes: Number of programs that compute on it.
        graphics_processes: Number of programs that draw on it.
    """

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    p_state: int | None
    temperature_c: int | None
    power_watts: float | None
    power_limit_watts: float | None
    memory_used: int | None
    memory_free: int | None
    events: list[str] | None
    compute_processes: int | None
    graphics_processes: int | None


class Gpu:
    """One GPU.

    Attributes:
        device: Its readings.
        uuid: What NVML and CUDA call it.
        name: The product; its UUID where the driver does not say.
        index: NVML's index.
        memory_total: Bytes of its own memory; 0 where it has none.
    """

    def __init__(self, device: NvmlDevice) -> None:
        """Reads what tells it from others.

        Raises:
            NvmlError: If it has no UUID or is lost.
        """
        self.device = device
        self.uuid = device.uuid()
        self.name = device.name() or self.uuid
        self.index = device.index
        memory = device.memory()
        self.memory_total = memory.total if memory else 0

    def memory_free(self) -> int | None:
        """Returns the bytes that are free now; None where NVML does not tell or the GPU is lost."""
        with suppress(NvmlError):
            memory = self.device.memory()
            return memory.free if memory else None
        return None

    def state(self) -> GpuState:
        """Returns what the GPU is doing now.

        Raises:
            NvmlError: If it is lost.
        """
        device = self.device
        memory, bits = device.memory(), device.clock_events()
        compute, graphics = reading(device.compute_pids), reading(device.graphics_pids)
        return GpuState(
            sm_clock_mhz=device.sm_clock(),
            memory_clock_mhz=device.memory_clock(),
            p_state=device.p_state(),
            temperature_c=device.temperature(),
            power_watts=_thousandth(reading(device.power)),
            power_limit_watts=self.power_limit_watts(),
            memory_used=memory.used if memory else None,
            memory_free=memory.free if memory else None,
            events=None if bits is None else event_words(bits),
            compute_processes=None if compute is None else len(compute),
            graphics_processes=None if graphics is None else len(graphics),
        )

    def power_limit_watts(self) -> float | None:
        """Returns the power limit in force."""
        return _thousandth(self.device.enforced_power_limit())

    def facts(self) -> dict[str, Any]:
        """Returns what does not change during a run, for a receipt (`shared.schemas.GpuWatched`).

        Raises:
            NvmlError: If the GPU is lost.
        """
        device = self.device
        return {
            "uuid": self.uuid,
            "name": self.name,
            "index": self.index,
            "driver": device.nvml.driver_version(),
            "nvml": device.nvml.version(),
            "vbios": device.vbios(),
            "architecture": device.architecture(),
            "memory_total": self.memory_total or None,
            "pcie_generation": device.pcie_generation(),
            "pcie_width": device.pcie_width(),
            "persistence": device.persistence(),
            "compute_mode": device.compute_mode(),
            "ecc": device.ecc(),
            "mig": device.mig(),
            "power_limit_default_watts": _thousandth(device.default_power_limit()),
        }

    def describe(self) -> str:
        """Returns one line for an operator; says so where the GPU no longer answers."""
        try:
            facts, state = self.facts(), self.state()
        except NvmlError as failure:
            return f"{self.name}: {failure.cause}"
        parts = [
            self.name,
            f"driver {facts['driver']}" if facts["driver"] else None,
            f"{self.memory_total / 1024**2:,.0f} MiB" if self.memory_total else None,
            _with_unit(state.memory_free and state.memory_free / 1024**2, "MiB free"),
            _with_unit(state.power_limit_watts, "W limit"),
            _with_unit(state.temperature_c, "degrees C"),
            _with_unit(state.compute_processes, "compute processes"),
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Found:
    """The GPU that was looked for; where there is none, `code` of an UNAVAILABLE energy, and why."""

    gpu: Gpu | None
    code: str = ""
    reason: str = ""


_opening = threading.Lock()
_opened: list[Nvml] = []


def _nvml() -> Nvml:
    """Returns NVML, opened once in this process."""
    with _opening:
        if not _opened:
            _opened.append(Nvml())
        return _opened[0]


def close() -> None:
    """Closes NVML; it is opened again when it is needed."""
    with _opening:
        while _opened:
            _opened.pop().close()


def list_gpus() -> list[Gpu]:
    """Returns every GPU that can be reached.

    Raises:
        NvmlError: If NVML cannot be used, or GPUs are there and none can be reached.
    """
    gpus: list[Gpu] = []
    failure: NvmlError | None = None
    try:
        nvml = _nvml()
        for index in range(nvml.count()):
            try:
                gpus.append(Gpu(nvml.device(index)))
            except NvmlError as caught:  # one that is lost or forbidden hides no other
                failure = caught
        if failure is not None and not gpus:
            raise failure
    except NvmlError:
        close()  # a driver that was restarted answers only those who ask anew
        raise
    return gpus


def choose_gpu(wanted: str | None = None) -> Gpu:
    """Returns a GPU by UUID or by NVML's index; without a name the one with most memory, the first of equals.

    Raises:
        NvmlError: If there is none, or none of that name.
    """
    gpus = list_gpus()
    if wanted is not None:
        gpus = [gpu for gpu in gpus if wanted.lower() in (gpu.uuid.lower(), str(gpu.index))]
    if not gpus:
        raise NvmlError(
            "NO_GPU", "there is no NVIDIA GPU" if wanted is None else "no GPU has this UUID or index"
        )
    return max(gpus, key=lambda gpu: (gpu.memory_total, -gpu.index))


def find_gpu(wanted: str | None = None) -> Found:
    """Returns a GPU as `choose_gpu` does, or why there is none."""
    try:
        return Found(choose_gpu(wanted))
    except NvmlError as failure:
        return Found(None, failure.energy_code, failure.cause)


class GpuWatch(Repeated):
    """Looks at a GPU before, during and after a run; a context manager around the run.

    A failing GPU ends the watch and no run: `trouble` says so. What comes and goes between two looks is missed, but for
    time lost to heat, which the driver adds up itself.
    """

    def __init__(self, gpu: Gpu, own_pids: Collection[int], *, every_s: float = EVERY_S) -> None:
        """Watches from `__enter__` to `__exit__`.

        Args:
            gpu: The GPU.
            own_pids: Processes that are ours.
            every_s: Seconds between two looks.
        """
        super().__init__(every_s, "gpu-watch")
        self._gpu, self._own = gpu, frozenset(own_pids)
        self._facts: dict[str, Any] = {"uuid": gpu.uuid, "name": gpu.name, "index": gpu.index}
        self._before: GpuState | None = None
        self._after: GpuState | None = None
        self._violations: list[tuple[int | None, int | None]] = []
        self._events: set[str] | None = None
        self._samples = 0
        self.foreign: set[int] = set()
        self.processes_told = True
        self.own_seen = False
        self.trouble: NvmlError | None = None

    def begin(self) -> None:
        """Takes the state before."""
        self._guarded(self._begin)

    def step(self) -> bool:
        """Looks once; returns whether to look again."""
        self._guarded(self._look)
        return self.trouble is None

    def end(self) -> None:
        """Takes the state after."""
        self._guarded(self._end)

    def stuck(self) -> None:
        """Takes a driver that does not answer for a GPU that cannot be watched."""
        self.trouble = self.trouble or NvmlError("NVML_ERROR", "the driver does not answer")

    def _begin(self) -> None:
        self._facts = self._gpu.facts()
        self._before = self._gpu.state()
        self._violations.append(self._violation_times())
        self._look()

    def _end(self) -> None:
        self._look()
        self._violations.append(self._violation_times())
        self._after = self._gpu.state()

    def _guarded(self, look: Any) -> None:
        if self.trouble is None:
            try:
                look()
            except NvmlError as failure:
                self.trouble = failure

    def _look(self) -> None:
        device = self._gpu.device
        bits, pids = device.clock_events(), reading(device.compute_pids)
        if bits is not None:
            self._events = (self._events or set()) | set(event_words(bits))
        if pids is None:
            self.processes_told = False
        else:
            self.own_seen |= bool(pids & self._own)
            self.foreign |= pids - self._own
        self._samples += 1

    def _violation_times(self) -> tuple[int | None, int | None]:
        device = self._gpu.device
        return device.violation_ns(POWER_VIOLATION), device.violation_ns(THERMAL_VIOLATION)

    def measurement(self) -> dict[str, Any]:
        """Returns what was seen, as `shared.schemas.GpuWatched`."""
        power_ns, thermal_ns = self._violation_deltas()
        return {
            **self._facts,
            "before": None if self._before is None else asdict(self._before),
            "after": None if self._after is None else asdict(self._after),
            "events": None if self._events is None else sorted(self._events),
            "violation_power_ns": power_ns,
            "violation_thermal_ns": thermal_ns,
            "own_process_seen": self.own_seen if self.processes_told else None,
            "foreign_processes": len(self.foreign) if self.processes_told else None,
            "samples": self._samples,
            "trouble": None if self.trouble is None else self.trouble.energy_code,
        }

    def reasons(self) -> list[str]:
        """Returns the reasons not to rely on a run that was watched, for its verdict.

        Heat, a power brake and the hardware's own slow-down are such reasons. The power cap is not: at full load it is
        what keeps any GPU at its limit, and it is in force for both sides of a comparison. It is recorded, as are sync
        boost and clocks that were set.
        """
        found = []
        thermal_ns = self._violation_deltas()[1]
        if labels.THROTTLES & (self._events or set()) or thermal_ns:
            found.append(labels.GPU_THROTTLED)
        if self.foreign:
            found.append(labels.GPU_SHARED)
        if self.trouble is not None:
            found.append(labels.GPU_UNWATCHED)
        return found

    def _violation_deltas(self) -> tuple[int | None, int | None]:
        """Returns for how long clocks were held down meanwhile, for power and for heat."""
        if len(self._violations) < 2:
            return None, None
        power, thermal = (_increase(*ends) for ends in zip(*self._violations, strict=True))
        return power, thermal


def event_words(bits: int) -> list[str]:
    """Returns the words for what holds clocks down; bits of a newer driver are "other"."""
    words = [word for bit, word in _EVENTS.items() if bits & bit]
    return [*words, "other"] if bits & ~sum(_EVENTS) else words


def _increase(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _thousandth(value: int | None) -> float | None:
    """Returns milliwatts as watts; a power of zero is no reading."""
    return value / 1000 if value else None


def _with_unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:,.0f} {unit}"
