"""Tests of agent.device: on what a pair is decoded, and that nothing falls back in silence."""

import os
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import pytest

from agent import device, gpu
from agent.device import Device, choose_device
from agent.errors import LoadFailed

NO_SUPPORT = "the llama.cpp installed here is built without support for it"
ADVICE = "install llama-cpp-python with CUDA (see the README), or choose the processor: SPECDEC_DEVICE=cpu"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A machine with or without a GPU and a llama.cpp that can use one."""
    here = SimpleNamespace(uuid="GPU-1", offloads=True, asked=[], code="NO_LIBRARY", pci=tmp_path / "pci")

    def find(name: str | None) -> SimpleNamespace:
        here.asked.append(name)
        found = SimpleNamespace(uuid=here.uuid) if here.uuid else None
        return SimpleNamespace(gpu=found, code=here.code, reason="NVML is not installed")

    monkeypatch.setattr(gpu, "find_gpu", find)
    monkeypatch.setattr(device, "_PCI", here.pci)
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: here.offloads)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "before")  # so that what is set is taken back
    return here


def test_gpu(machine: SimpleNamespace) -> None:
    """Where there are a GPU and a llama.cpp for it, that very GPU decodes, by its UUID, with all layers."""
    chosen = choose_device("auto", "1")
    assert chosen == Device("gpu", "llama.cpp and a GPU are there", "GPU-1")
    assert chosen.gpu_layers == -1
    assert machine.asked == ["1"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_gpu_without_nvml(machine: SimpleNamespace) -> None:
    """A GPU that NVML does not know decodes too, and nothing is said of its meter."""
    machine.uuid = None
    assert choose_device() == Device("gpu", "llama.cpp and a GPU are there", None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


@pytest.mark.parametrize("setting", ["auto", "gpu"])
def test_gpu_without_support(machine: SimpleNamespace, setting: str) -> None:
    """A GPU that llama.cpp cannot use fails with what to install, and does not become the processor."""
    machine.offloads = False
    with pytest.raises(LoadFailed) as failure:
        choose_device(setting)
    cause = "this machine has a GPU, and" if setting == "auto" else "a GPU was asked for, and"
    assert str(failure.value) == f"{cause} {NO_SUPPORT}; {ADVICE}"


def test_no_gpu(machine: SimpleNamespace) -> None:
    """Without a GPU the processor decodes and says why; where a GPU is asked for, nothing does."""
    machine.uuid, machine.offloads = None, False
    chosen = choose_device()
    assert chosen == Device("cpu", "no GPU: NVML is not installed")
    assert chosen.gpu_layers == 0
    with pytest.raises(LoadFailed, match="^a GPU was asked for, and NVML is not installed; "):
        choose_device("gpu")


def test_processor_by_choice(machine: SimpleNamespace) -> None:
    """The operator may choose the processor though there is a GPU, which is then not even looked at."""
    assert choose_device("cpu") == Device("cpu", "the operator chose the processor")
    assert machine.asked == []
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_embedded_pair(machine: SimpleNamespace) -> None:
    """The embedded pair runs on a GPU where llama.cpp has one, and needs none."""
    assert choose_device(embedded=True).kind == "gpu"
    machine.offloads = False
    assert choose_device(embedded=True) == Device("cpu", f"the embedded pair needs no GPU, and {NO_SUPPORT}")


@pytest.mark.parametrize("setting", ["auto", "gpu"])
def test_named_gpu_that_is_absent(machine: SimpleNamespace, setting: str) -> None:
    """A GPU that is named and not there is not replaced by another, nor by the processor."""
    machine.uuid = None
    with pytest.raises(LoadFailed) as failure:
        choose_device(setting, "GPU-9")
    assert str(failure.value) == (
        "the GPU asked for cannot be used: NVML is not installed; name another with SPECDEC_GPU"
    )


MEND = "mend the driver (nvidia-smi tells more), or choose the processor: SPECDEC_DEVICE=cpu"


@pytest.mark.parametrize("code", ["GPU_LOST", "NVML_ERROR", "NO_PERMISSION"])
@pytest.mark.parametrize("offloads", [True, False])
def test_gpu_that_does_not_work(machine: SimpleNamespace, code: str, offloads: bool) -> None:
    """A GPU that is there and does not work fails with what to mend, and does not become the processor."""
    machine.uuid, machine.code, machine.offloads = None, code, offloads
    with pytest.raises(LoadFailed) as failure:
        choose_device()
    assert str(failure.value) == f"this machine has a GPU, and NVML is not installed; {MEND}"
    with pytest.raises(LoadFailed, match="^a GPU was asked for, and "):
        choose_device("gpu")
    assert choose_device(embedded=True).kind == "cpu"


@pytest.mark.parametrize(
    ("vendor", "kind", "is_one"),
    [
        ("0x10de", "0x030000", True),
        ("0x10de", "0x030200", True),
        ("0x10de", "0x040300", False),
        ("0x1002", "0x030000", False),
    ],
)
def test_card_without_a_driver(machine: SimpleNamespace, vendor: str, kind: str, is_one: bool) -> None:
    """A graphics card of NVIDIA's whose driver is not installed is a GPU that does not work; its sound is none."""
    machine.uuid, machine.offloads = None, False
    card = machine.pci / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "class").write_text(f"{kind}\n")
    if not is_one:
        assert choose_device().kind == "cpu"
        return
    with pytest.raises(LoadFailed, match="^this machine has a GPU, and NVML is not installed; "):
        choose_device()
