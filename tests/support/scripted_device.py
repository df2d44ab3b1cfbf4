"""A device that writes down every verb it is told, and whose memory goes by a script: a co-tenant, a leak, a limit."""

from __future__ import annotations

from collections.abc import Callable

from enginebay.interfaces import Device
from enginebay.messages import DeviceMemory

GIB = 1 << 30


class ScriptedDevice(Device):
    """``memories`` answers each ``memory()`` in turn, and the last one again from then on."""

    def __init__(
        self,
        kind: str = "cuda",
        *,
        devices: int = 1,
        memories: tuple[DeviceMemory, ...] = (DeviceMemory(total=10 * GIB, free=10 * GIB),),
        dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16"),
        unavailable: str | None = None,
        log: list[str] | None = None,
        on_memory: Callable[[], None] = lambda: None,
    ) -> None:
        self.kind = kind
        self.log: list[str] = [] if log is None else log
        self._devices = devices
        self._memories = list(memories)
        self._dtypes = dtypes
        self._unavailable = unavailable
        self._on_memory = on_memory
        self._index = 0

    def name(self) -> str:
        return f"{self.kind}:{self._index}"

    def count(self) -> int:
        self.log.append("count")
        return self._devices

    def unavailable_reason(self) -> str | None:
        self.log.append("unavailable_reason")
        return self._unavailable

    def set_current(self, index: int) -> None:
        self.log.append(f"set_current {index}")
        self._index = index

    def memory(self) -> DeviceMemory:
        self.log.append("memory")
        self._on_memory()
        return self._memories.pop(0) if len(self._memories) > 1 else self._memories[0]

    def empty_cache(self) -> None:
        self.log.append("empty_cache")

    def reset_peak(self) -> None:
        self.log.append("reset_peak")

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def seed(self, seed: int) -> None:
        self.log.append(f"seed {seed}")

    def touch_math_library(self) -> None:
        self.log.append("touch_math_library")

    def supports_dtype(self, dtype: str) -> bool:
        self.log.append(f"supports_dtype {dtype}")
        return dtype in self._dtypes

    def collective_backend(self) -> str:
        return "nccl" if self.kind == "cuda" else ""

    def visible_env(self) -> str:
        return "CUDA_VISIBLE_DEVICES" if self.kind == "cuda" else ""

    def set_threads(self, threads: int) -> None:
        self.log.append(f"set_threads {threads}")
