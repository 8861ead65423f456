"""Tests of `agent.nvml`: the real pynvml over the stub library, and every way in which NVML can refuse."""

from __future__ import annotations

import sys
from pathlib import Path

import pynvml
import pytest

from agent import gpu
from agent.nvml import THERMAL_VIOLATION, Memory, Nvml, NvmlDevice, NvmlError, reading
from shared import labels
from tests.agent.nvml_stub.stub import NAME, Stub, run_child


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """The stub, in use in this process."""
    made = Stub(tmp_path)
    made.here(monkeypatch)
    return made


@pytest.fixture
def device(stub: Stub) -> NvmlDevice:
    """The stub's first GPU."""
    return Nvml().device(0)


def test_the_library_is_found_by_its_name(tmp_path: Path) -> None:
    """A process of its own finds the library as it finds a driver's: by name."""
    report = Stub(tmp_path, name="NVIDIA L4").meter(blocks=0)
    assert report["found"] == ["", ""]
    assert report["gpu"]["name"] == "NVIDIA L4"


def test_no_library(tmp_path: Path) -> None:
    """Without the driver's library there is no GPU, and the reason names the library; nothing is raised."""
    (tmp_path / NAME).write_text("no library")  # hides one that this machine may have
    report = run_child({**Stub(tmp_path).environ(), "LD_LIBRARY_PATH": str(tmp_path)})
    why = "NVML: the driver's library libnvidia-ml.so.1 is not installed"
    assert report["found"] == ["NO_LIBRARY", why]
    assert (
        report["energy"] == report["probe"] == {"label": "UNAVAILABLE", "code": "NO_LIBRARY", "reason": why}
    )


def test_no_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package there is no GPU either, and the reason names the package."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match="the package nvidia-ml-py is not installed") as caught:
        Nvml()
    assert caught.value.energy_code == "NO_LIBRARY"


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (1, "NVML_ERROR", "has been closed"),
        (2, "NVML_ERROR", "refuses the question"),
        (3, "NOT_SUPPORTED", "does not have it"),
        (4, "NO_PERMISSION", "may not read it"),
        (6, "NO_GPU", "no such GPU"),
        (8, "NVML_ERROR", "power cables"),
        (9, "NO_GPU", "driver is not loaded"),
        (10, "NVML_ERROR", "in time"),
        (12, "NO_LIBRARY", "is not installed"),
        (13, "NOT_SUPPORTED", "too old"),
        (15, "GPU_LOST", "fallen off the bus"),
        (16, "GPU_LOST", "needs a reset"),
        (17, "NVML_ERROR", "operating system"),
        (18, "NVML_ERROR", "different versions"),
        (21, "NOT_SUPPORTED", "no data"),
        (25, "NOT_SUPPORTED", "another version"),
        (26, "NOT_SUPPORTED", "no longer has it"),
        (28, "GPU_LOST", "is gone"),
        (999, "NVML_ERROR", "a container has lost its GPU"),
        (77, "NVML_ERROR", "NVML reports error 77"),
    ],
)
def test_return_codes(stub: Stub, number: int, code: str, words: str) -> None:
    """Every return code of NVML has a code of ours, from the list a receipt knows, and words for the operator."""
    stub.set({"return.nvmlInitWithFlags": number})
    with pytest.raises(NvmlError, match=words) as caught:
        Nvml()
    assert caught.value.energy_code == code
    assert code in labels.ENERGY_CODES
    found = gpu.find_gpu()
    assert (found.gpu, found.code) == (None, code) and words in found.reason


def test_readings(stub: Stub, device: NvmlDevice) -> None:
    """Readings are what the library gives, words where NVML has numbers for them."""
    stub.set(uuid="GPU-1", vbios="95.1", ecc=1, mig=0, persistence=0, compute_mode=3, events="0x48")
    stub.set(memory=1000, memory_used=300, violation_thermal_ns=5, utilization=37)
    assert (device.uuid(), device.name(), device.vbios()) == ("GPU-1", "NVIDIA GeForce RTX 4060 Ti", "95.1")
    assert (device.architecture(), device.pcie_generation(), device.pcie_width()) == ("Ada", 4, 8)
    assert (device.persistence(), device.compute_mode()) == (False, "exclusive_process")
    assert (device.ecc(), device.mig()) == (True, False)
    assert device.memory() == Memory(total=1000, free=700, used=300)
    assert (device.sm_clock(), device.memory_clock(), device.p_state()) == (2535, 9001, 2)
    assert (device.temperature(), device.utilization(), device.clock_events()) == (61, 37, 0x48)
    assert device.violation_ns(THERMAL_VIOLATION) == 5
    assert (device.enforced_power_limit(), device.default_power_limit()) == (165_000, 165_000)
    assert abs(device.power() - 100_000) <= 1 and device.instant_power() == 100_000
    assert (device.nvml.driver_version(), device.nvml.version()) == ("550.54.14", "12.550.54.14")
    assert device.nvml.count() == 1


def test_numbers_without_a_name(stub: Stub, device: NvmlDevice) -> None:
    """An architecture or mode of the future, and an unknown P-state, are no reading."""
    stub.set(architecture=99, compute_mode=9, p_state=32)
    assert (device.architecture(), device.compute_mode(), device.p_state()) == (None, None, None)


READINGS = {
    "name": "nvmlDeviceGetName",
    "vbios": "nvmlDeviceGetVbiosVersion",
    "architecture": "nvmlDeviceGetArchitecture",
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "persistence": "nvmlDeviceGetPersistenceMode",
    "compute_mode": "nvmlDeviceGetComputeMode",
    "ecc": "nvmlDeviceGetEccMode",
    "mig": "nvmlDeviceGetMigMode",
    "memory": "nvmlDeviceGetMemoryInfo",
    "sm_clock": "nvmlDeviceGetClockInfo",
    "memory_clock": "nvmlDeviceGetClockInfo",
    "p_state": "nvmlDeviceGetPerformanceState",
    "temperature": "nvmlDeviceGetTemperature",
    "utilization": "nvmlDeviceGetUtilizationRates",
    "enforced_power_limit": "nvmlDeviceGetEnforcedPowerLimit",
    "default_power_limit": "nvmlDeviceGetPowerManagementDefaultLimit",
}


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("number", [3, 4, 999])
def test_what_is_missing_is_none(stub: Stub, device: NvmlDevice, name: str, number: int) -> None:
    """A reading that is not supported, not permitted or fails for itself is None, not 0 and not an error."""
    stub.set({f"return.{READINGS[name]}": number})
    assert getattr(device, name)() is None


@pytest.mark.parametrize("name", READINGS)
def test_a_lost_gpu_has_no_readings(stub: Stub, device: NvmlDevice, name: str) -> None:
    """Once the GPU is lost, no reading is None as if the GPU did not have it: that is an error."""
    stub.set(lost=1)
    with pytest.raises(NvmlError, match="fallen off the bus") as caught:
        getattr(device, name)()
    assert caught.value.energy_code == "GPU_LOST"


@pytest.mark.parametrize(
    ("ask", "function"),
    [
        (NvmlDevice.uuid, "nvmlDeviceGetUUID"),
        (NvmlDevice.energy, "nvmlDeviceGetTotalEnergyConsumption"),
        (NvmlDevice.power, "nvmlDeviceGetPowerUsage"),
        (NvmlDevice.instant_power, "nvmlDeviceGetFieldValues"),
        (NvmlDevice.compute_pids, "nvmlDeviceGetComputeRunningProcesses_v3"),
        (NvmlDevice.graphics_pids, "nvmlDeviceGetGraphicsRunningProcesses_v3"),
    ],
)
def test_what_cannot_be_done_without(stub: Stub, device: NvmlDevice, ask: object, function: str) -> None:
    """What a rule rests on is an error where it is missing, with the reason."""
    assert callable(ask)
    stub.set({f"return.{function}": 4})
    with pytest.raises(NvmlError, match="may not read it") as caught:
        ask(device)
    assert caught.value.energy_code == "NO_PERMISSION"


def test_a_field_may_fail_by_itself(stub: Stub, device: NvmlDevice) -> None:
    """A field whose own result is an error gives that error, though the call as a whole succeeds."""
    stub.set(instant_result=3)
    with pytest.raises(NvmlError, match="instantaneous power: this GPU or its driver does not have it"):
        device.instant_power()


def test_a_function_missing_in_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver too old for a function: older ones take its place where there are any, else it is not supported."""
    newer = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetCurrentClocksEventReasons")
    stub = Stub(
        tmp_path, without=(*newer, "nvmlDeviceGetTotalEnergyConsumption"), compute_pids="7,9", events="0x4"
    )
    stub.here(monkeypatch)
    device = Nvml().device(0)
    assert device.compute_pids() == {7, 9}
    assert device.clock_events() == 4
    with pytest.raises(
        NvmlError, match="the total-energy counter: the driver's library is too old"
    ) as caught:
        device.energy()
    assert caught.value.energy_code == "NOT_SUPPORTED"


def test_a_function_missing_in_pynvml(device: NvmlDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pynvml too old for a function is treated as a library too old for it."""
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption")
    with pytest.raises(NvmlError) as caught:
        device.energy()
    assert caught.value.energy_code == "NOT_SUPPORTED"


def test_text_that_is_none(stub: Stub, device: NvmlDevice) -> None:
    """A name that is no UTF-8 is no name."""
    stub.scenario.write_bytes(b"name=\xff\xfe\n")
    assert device.name() is None


def test_process_ids(stub: Stub, device: NvmlDevice) -> None:
    """Processes are told by id, each once, whether they compute or draw; none is an answer too."""
    stub.set(compute_pids="41,42,41", graphics_pids="7")
    assert device.compute_pids() == {41, 42} and device.graphics_pids() == {7}
    stub.set(compute_pids="", graphics_pids="")
    assert device.compute_pids() == set() == device.graphics_pids()


def test_closing(stub: Stub) -> None:
    """NVML is closed whatever state it is in."""
    nvml = Nvml()
    stub.set({"return.nvmlShutdown": 1})
    nvml.close()


def test_reading() -> None:
    """Only a lost GPU gets through `reading`."""

    def fail(code: str) -> int:
        raise NvmlError(code, "x")

    assert reading(lambda: 0) == 0
    assert reading(lambda: fail("NVML_ERROR")) is None
    with pytest.raises(NvmlError):
        reading(lambda: fail("GPU_LOST"))
