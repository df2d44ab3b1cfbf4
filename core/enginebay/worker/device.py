"""``TorchDevice``: CPU, CUDA and whatever else torch drives. Nothing else calls ``torch.accelerator``."""

from __future__ import annotations

from typing import Final

import torch

from enginebay.errors import CapabilityError
from enginebay.interfaces import Device
from enginebay.messages import DeviceMemory
from enginebay.worker.host import HostMemory

_BACKENDS: Final = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "npu": "hccl"}
_VISIBLE: Final = {"cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}


def current_accelerator() -> str | None:
    """The kind of accelerator that works on this machine, as torch sees it; None when there is none."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None else str(found.type)


class TorchDevice(Device):
    """One kind of device through torch. On "cpu" no ``torch.accelerator`` function is called: they raise there."""

    def __init__(self, kind: str, host: HostMemory | None = None) -> None:
        self.kind = kind
        self._index = 0
        self._on_host = kind == "cpu"
        self._host = host or HostMemory()

    @property
    def torch_device(self) -> torch.device:
        """The current device, for tensors."""
        return torch.device("cpu") if self._on_host else torch.device(self.kind, self._index)

    def name(self) -> str:
        return self.kind if self._on_host else f"{self.kind}:{self._index}"

    def count(self) -> int:
        return 1 if self._on_host else torch.accelerator.device_count()

    def unavailable_reason(self) -> str | None:
        if self._on_host:
            return None
        found = current_accelerator()
        if found is None:
            return f"torch {torch.__version__} finds no accelerator on this machine"
        if found != self.kind:
            return f"torch {torch.__version__} drives {found!r} on this machine, not {self.kind!r}"
        return None

    def set_current(self, index: int) -> None:
        self._index = index
        if self._on_host:
            if index != 0:
                raise CapabilityError(f"there is one cpu device, index 0, not {index}")
        else:
            torch.accelerator.set_device_index(index)

    def memory(self) -> DeviceMemory:
        if self._on_host:
            return self._host.read()
        free, total = torch.accelerator.get_memory_info(self._index)
        reserved = torch.accelerator.memory_reserved(self._index)
        return DeviceMemory(
            total=total,
            free=free,
            allocated=torch.accelerator.memory_allocated(self._index),
            reserved=reserved,
            peak=torch.accelerator.max_memory_allocated(self._index),
            process=reserved,  # what torch took; the driver tells no more without a library of its own
        )

    def empty_cache(self) -> None:
        if self._on_host:
            self._host.give_back()
        else:
            torch.accelerator.empty_cache()

    def reset_peak(self) -> None:
        if self._on_host:
            self._host.reset_peak()
        else:
            torch.accelerator.reset_peak_memory_stats(self._index)

    def synchronize(self) -> None:
        if not self._on_host:
            torch.accelerator.synchronize(self._index)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def touch_math_library(self) -> None:
        if self._on_host:
            return
        # one plain product and one with a bias: two libraries, each with a handle and a workspace
        square = torch.ones((16, 16), device=self.torch_device)
        torch.nn.functional.linear(square @ square, square, square[0])
        self.synchronize()

    def supports_dtype(self, dtype: str) -> bool:
        if dtype not in ("float32", "bfloat16", "float16"):
            return False
        if self.kind == "cuda" and dtype == "bfloat16":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        return True

    def collective_backend(self) -> str:
        return _BACKENDS.get(self.kind, "")

    def visible_env(self) -> str:
        if self.kind == "cuda" and torch.version.hip is not None:
            return "HIP_VISIBLE_DEVICES"
        return _VISIBLE.get(self.kind, "")

    def set_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)
