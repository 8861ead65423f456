"""NVML, the management library of NVIDIA's driver: typed, and with one place that says what its return codes mean.

A reading that this GPU, its driver or our account does not give is None, never 0. Whatever else goes wrong is an
`NvmlError`, whose `energy_code` says what is missing in the words that a receipt uses. Calls may come from several
threads: NVML is thread-safe, and pynvml calls it through `ctypes.CDLL`, which lets other Python threads run meanwhile.

The module `pynvml` is that of the package nvidia-ml-py. It is imported when NVML is opened, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from agent.errors import AgentError

T = TypeVar("T")

_NOT_SUPPORTED: Final = 3
_LIBRARY_NOT_FOUND: Final = 12
_FUNCTION_NOT_FOUND: Final = 13

_MEANING: Final[dict[int, tuple[str, str]]] = {
    1: ("NVML_ERROR", "NVML has been closed"),
    2: ("NVML_ERROR", "NVML refuses the question"),
    _NOT_SUPPORTED: ("NOT_SUPPORTED", "this GPU or its driver does not have it"),
    4: ("NO_PERMISSION", "the agent's user may not read it"),
    6: ("NO_GPU", "there is no such GPU"),
    8: ("NVML_ERROR", "the GPU's power cables are not attached"),
    9: ("NO_GPU", "the NVIDIA driver is not loaded"),
    10: ("NVML_ERROR", "the driver did not answer in time"),
    _LIBRARY_NOT_FOUND: ("NO_LIBRARY", "the driver's library libnvidia-ml.so.1 is not installed"),
    _FUNCTION_NOT_FOUND: ("NOT_SUPPORTED", "the driver's library is too old to have it"),
    15: ("GPU_LOST", "the GPU has fallen off the bus or cannot be reached"),
    16: ("GPU_LOST", "the GPU needs a reset"),
    17: ("NVML_ERROR", "the operating system refuses access to the driver"),
    18: ("NVML_ERROR", "driver and library are of different versions, as after an update without a restart"),
    21: ("NOT_SUPPORTED", "the driver has no data on it"),
    25: ("NOT_SUPPORTED", "the driver knows another version of it"),
    26: ("NOT_SUPPORTED", "the driver no longer has it"),
    28: ("GPU_LOST", "the GPU is gone"),
    999: ("NVML_ERROR", "the driver reports an unknown error, as where a container has lost its GPU"),
}
"""Return codes of nvml.h: the code of an UNAVAILABLE energy, and the same for people."""

_ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
}
_COMPUTE_MODES: Final = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}

POWER_VIOLATION: Final = 0
THERMAL_VIOLATION: Final = 1
"""Policies of `NvmlDevice.violation_ns`."""

_UNKNOWN_P_STATE: Final = 32
_POWER_INSTANT: Final = 186  # NVML_FI_DEV_POWER_INSTANT


class NvmlError(AgentError):
    """NVML or what it manages cannot be used; `energy_code` says why energy is UNAVAILABLE then."""

    code = "INTERNAL"
    default_remedy = "see the README on what a GPU's readings need"

    def __init__(self, energy_code: str, cause: str) -> None:
        """Keep the code and what went wrong, as a clause."""
        super().__init__(cause)
        self.energy_code = energy_code


def error(number: int, what: str) -> NvmlError:
    """Returns the error for a return code of NVML; `what` was asked for."""
    code, meaning = _MEANING.get(number, ("NVML_ERROR", f"NVML reports error {number}"))
    return NvmlError(code, f"{what}: {meaning}")


class Memory(NamedTuple):
    """Bytes of the GPU's memory; what the driver reserves is among those used."""

    total: int
    free: int
    used: int


class Nvml:
    """NVML, opened; its devices are good until it is closed."""

    def __init__(self) -> None:
        """Opens NVML.

        Raises:
            NvmlError: If it is not installed, not permitted, or does not work.
        """
        try:
            import pynvml
        except ImportError:
            raise NvmlError("NO_LIBRARY", "the package nvidia-ml-py is not installed") from None
        self._pynvml: Any = pynvml
        self.call("NVML", "nvmlInit")

    def call(self, what: str, function: str, *args: Any) -> Any:
        """Calls a function of pynvml.

        Raises:
            NvmlError: If NVML answers with an error, or pynvml or the library does not have the function.
        """
        called = getattr(self._pynvml, function, None)
        if called is None:
            raise error(_FUNCTION_NOT_FOUND, what)
        try:
            return called(*args)
        except self._pynvml.NVMLError as failure:
            raise error(int(failure.value), what) from None
        except UnicodeDecodeError:
            raise NvmlError("NVML_ERROR", f"{what}: NVML's answer is no text") from None

    def driver_version(self) -> str | None:
        """Returns the driver's version."""
        return reading(lambda: str(self.call("the driver's version", "nvmlSystemGetDriverVersion")))

    def version(self) -> str | None:
        """Returns NVML's own version."""
        return reading(lambda: str(self.call("NVML's version", "nvmlSystemGetNVMLVersion")))

    def count(self) -> int:
        """Returns how many GPUs there are, those that cannot be reached included.

        Raises:
            NvmlError: If NVML does not tell.
        """
        return int(self.call("the GPUs", "nvmlDeviceGetCount"))

    def device(self, index: int) -> NvmlDevice:
        """Returns a GPU by NVML's index, which is its order on the PCI bus.

        Raises:
            NvmlError: If it cannot be reached.
        """
        return NvmlDevice(self, index, self.call("the GPU", "nvmlDeviceGetHandleByIndex", index))

    def close(self) -> None:
        """Closes NVML; whatever state it is in."""
        with suppress(NvmlError):
            self.call("NVML", "nvmlShutdown")


def reading(ask: Callable[[], T]) -> T | None:
    """Returns what `ask` returns, None where there is no such reading.

    Raises:
        NvmlError: If the GPU is lost: then no reading means anything.
    """
    try:
        return ask()
    except NvmlError as failure:
        if failure.energy_code == "GPU_LOST":
            raise
        return None


class NvmlDevice:
    """One GPU's readings, in NVML's units unless a name says otherwise."""

    def __init__(self, nvml: Nvml, index: int, handle: Any) -> None:
        """Reads through a handle of pynvml's."""
        self.nvml, self.index, self._handle = nvml, index, handle

    def _ask(self, what: str, function: str, *args: Any) -> Any:
        return self.nvml.call(what, function, self._handle, *args)

    def _number(self, function: str, *args: Any) -> int | None:
        return reading(lambda: int(self._ask(function, function, *args)))

    def uuid(self) -> str:
        """Returns the GPU's UUID.

        Raises:
            NvmlError: If it cannot be read.
        """
        return str(self._ask("the GPU's UUID", "nvmlDeviceGetUUID"))

    def name(self) -> str | None:
        """Returns the product's name."""
        return reading(lambda: str(self._ask("the GPU's name", "nvmlDeviceGetName")))

    def vbios(self) -> str | None:
        """Returns the version of the video BIOS."""
        return reading(lambda: str(self._ask("the VBIOS", "nvmlDeviceGetVbiosVersion")))

    def architecture(self) -> str | None:
        """Returns the architecture's name; None also for one not known here."""
        number = self._number("nvmlDeviceGetArchitecture")
        return None if number is None else _ARCHITECTURES.get(number)

    def pcie_generation(self) -> int | None:
        """Returns the generation of the PCIe link as it runs now."""
        return self._number("nvmlDeviceGetCurrPcieLinkGeneration")

    def pcie_width(self) -> int | None:
        """Returns the lanes of the PCIe link as it runs now."""
        return self._number("nvmlDeviceGetCurrPcieLinkWidth")

    def persistence(self) -> bool | None:
        """Whether the driver stays loaded with nobody using the GPU."""
        mode = self._number("nvmlDeviceGetPersistenceMode")
        return None if mode is None else mode == 1

    def compute_mode(self) -> str | None:
        """Returns who may compute here."""
        mode = self._number("nvmlDeviceGetComputeMode")
        return None if mode is None else _COMPUTE_MODES.get(mode)

    def ecc(self) -> bool | None:
        """Whether memory errors are corrected; None where the memory has no such thing."""
        modes = reading(lambda: self._ask("ECC", "nvmlDeviceGetEccMode"))
        return None if modes is None else modes[0] == 1

    def mig(self) -> bool | None:
        """Whether the GPU is partitioned into instances; None where it cannot be."""
        modes = reading(lambda: self._ask("MIG", "nvmlDeviceGetMigMode"))
        return None if modes is None else modes[0] == 1

    def memory(self) -> Memory | None:
        """Returns the GPU's memory, None where it has none of its own."""
        info = reading(lambda: self._ask("memory", "nvmlDeviceGetMemoryInfo"))
        return None if info is None else Memory(int(info.total), int(info.free), int(info.used))

    def sm_clock(self) -> int | None:
        """Returns the clock of the processors, MHz."""
        return self._number("nvmlDeviceGetClockInfo", 1)

    def memory_clock(self) -> int | None:
        """Returns the clock of the memory, MHz."""
        return self._number("nvmlDeviceGetClockInfo", 2)

    def p_state(self) -> int | None:
        """Returns the performance state, 0 (fastest) to 15."""
        state = self._number("nvmlDeviceGetPerformanceState")
        return None if state == _UNKNOWN_P_STATE else state

    def temperature(self) -> int | None:
        """Returns the temperature of the chip, degrees Celsius."""
        return self._number("nvmlDeviceGetTemperature", 0)

    def utilization(self) -> int | None:
        """Returns the share of the last sampling period (up to 1 s) in which something ran, percent."""
        rates = reading(lambda: self._ask("utilisation", "nvmlDeviceGetUtilizationRates"))
        return None if rates is None else int(rates.gpu)

    def clock_events(self) -> int | None:
        """Returns the bits that say what holds the clocks down now (nvml.h, clocks event reasons)."""
        bits = self._number("nvmlDeviceGetCurrentClocksEventReasons")
        return self._number("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits

    def violation_ns(self, policy: int) -> int | None:
        """Returns for how long the clocks have been held down for a policy's sake since the driver was loaded, ns."""
        status = reading(lambda: self._ask("violations", "nvmlDeviceGetViolationStatus", policy))
        return None if status is None else int(status.violationTime)

    def enforced_power_limit(self) -> int | None:
        """Returns the power limit in force, mW: the least of all there are."""
        return self._number("nvmlDeviceGetEnforcedPowerLimit")

    def default_power_limit(self) -> int | None:
        """Returns the power limit that the GPU comes with, mW."""
        return self._number("nvmlDeviceGetPowerManagementDefaultLimit")

    def energy(self) -> int:
        """Returns the energy used since the driver was loaded, mJ.

        Raises:
            NvmlError: If there is no such counter here, or it cannot be read.
        """
        return int(self._ask("the total-energy counter", "nvmlDeviceGetTotalEnergyConsumption"))

    def power(self) -> int:
        """Returns the power, mW: the mean of the last second on Ampere and newer, GA100 excepted.

        Raises:
            NvmlError: If there is no such reading here.
        """
        return int(self._ask("power", "nvmlDeviceGetPowerUsage"))

    def instant_power(self) -> int:
        """Returns the power now, not averaged, mW.

        Raises:
            NvmlError: If there is no such reading here.
        """
        what = "instantaneous power"
        (field,) = self._ask(what, "nvmlDeviceGetFieldValues", [_POWER_INSTANT])
        if field.nvmlReturn != 0:
            raise error(int(field.nvmlReturn), what)
        return int(field.value.uiVal)

    def compute_pids(self) -> frozenset[int]:
        """Returns the processes that compute here, by process id.

        Raises:
            NvmlError: If NVML does not tell.
        """
        return self._pids("Compute")

    def graphics_pids(self) -> frozenset[int]:
        """Returns the processes that draw here, by process id.

        Raises:
            NvmlError: If NVML does not tell.
        """
        return self._pids("Graphics")

    def _pids(self, kind: str) -> frozenset[int]:
        what, function = f"the {kind.lower()} processes", f"nvmlDeviceGet{kind}RunningProcesses"
        try:
            # By version: for the plain name, pynvml has an error of its own where the driver's library is older.
            processes = self._ask(what, f"{function}_v3")
        except NvmlError as failure:
            if failure.energy_code != "NOT_SUPPORTED":
                raise
            processes = self._ask(what, f"{function}_v2")  # drivers before 510 have no newer one
        return frozenset(int(process.pid) for process in processes)
