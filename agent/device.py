"""Where a pair is decoded: on the GPU or on the processor, decided once per worker and said aloud.

Nothing falls back in silence. A machine that has a GPU decodes on it or fails with what is missing; the processor is
used where there is no GPU, where the operator asks for it, or for the embedded pair, and the receipt says which it was
and why.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agent.errors import LoadFailed

_ABSENT = {"NO_LIBRARY", "NO_GPU"}
"""Codes of a GPU that is not there; any other is of one that is, and does not work."""

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"

_NO_SUPPORT = "the llama.cpp installed here is built without support for it"
_BUILD_ONE = (
    "install llama-cpp-python with CUDA (see the README), or choose the processor: SPECDEC_DEVICE=cpu"
)
_MEND = "mend the driver (nvidia-smi tells more), or choose the processor: SPECDEC_DEVICE=cpu"


@dataclass(frozen=True)
class Device:
    """What decodes.

    Attributes:
        kind: "gpu" or "cpu".
        reason: Why that one, in words for an operator and a receipt.
        uuid: The GPU as NVML names it; None on the processor, or where NVML does not know it.
    """

    kind: str
    reason: str
    uuid: str | None = None

    @property
    def gpu_layers(self) -> int:
        """Layers for llama.cpp to offload: all of them (-1), or none."""
        return -1 if self.kind == "gpu" else 0


def choose_device(setting: str = "auto", gpu: str | None = None, *, embedded: bool = False) -> Device:
    """Decides where to decode, and hides every other GPU from llama.cpp, whatever CUDA_VISIBLE_DEVICES was before.

    Must come before llama.cpp starts, as CUDA looks at its environment only once: the GPU that decodes must be the
    one whose meter is read.

    Args:
        setting: "auto", "gpu" or "cpu".
        gpu: UUID or index of the GPU; None takes the one with most memory.
        embedded: Whether it is for the embedded pair, which does not need a GPU.

    Raises:
        LoadFailed: If there is a GPU that cannot be used, or none where one was asked for.
    """
    from agent.gpu import find_gpu

    if setting == "cpu":
        return _processor("the operator chose the processor")
    found = find_gpu(gpu)
    if found.gpu is not None:
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = found.gpu.uuid
    elif gpu is not None:
        raise LoadFailed(f"the GPU asked for cannot be used: {found.reason}", "name another with SPECDEC_GPU")
    broken = found.gpu is None and (found.code not in _ABSENT or _has_nvidia_card())
    if _offloads() and not broken:
        uuid = found.gpu.uuid if found.gpu else None
        return Device("gpu", "llama.cpp and a GPU are there", uuid)
    trouble = _NO_SUPPORT if found.gpu else found.reason
    if setting == "gpu":
        raise LoadFailed(f"a GPU was asked for, and {trouble}", _MEND if broken else _BUILD_ONE)
    if found.gpu is None and not broken:
        return _processor(f"no GPU: {found.reason}")
    if embedded:
        return _processor(f"the embedded pair needs no GPU, and {trouble}")
    raise LoadFailed(f"this machine has a GPU, and {trouble}", _MEND if broken else _BUILD_ONE)


def _processor(reason: str) -> Device:
    """Returns the processor, with every GPU hidden: a llama.cpp with CUDA would read long prompts there anyway."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return Device("cpu", reason)


def _has_nvidia_card() -> bool:
    """Tells whether a graphics card of NVIDIA's is in the machine, whatever its driver says."""

    def read(path: Path) -> str:
        try:
            return path.read_text().strip()
        except OSError:
            return ""

    try:
        cards = list(_PCI.iterdir())
    except OSError:
        return False
    return any(
        read(card / "vendor") == _NVIDIA and read(card / "class").startswith(_DISPLAY) for card in cards
    )


def _offloads() -> bool:
    import llama_cpp

    return bool(llama_cpp.llama_supports_gpu_offload())
