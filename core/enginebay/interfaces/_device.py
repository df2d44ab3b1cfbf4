"""The device as the worker sees it: the verbs in which the worker's exact order of start is written."""

from __future__ import annotations

from abc import ABC, abstractmethod

from enginebay.messages import DeviceMemory


class Device(ABC):
    """One kind of device on this host, and, after ``set_current``, one device of it.

    The built-in ``TorchDevice`` drives CPU, CUDA and whatever else ``torch.accelerator`` knows; a test passes a
    scripted one. Memory is in bytes, indices count from 0 among the devices that this process may see.
    """

    kind: str
    """"cpu", "cuda", …"""

    @abstractmethod
    def count(self) -> int:
        """How many devices of this kind this process may see."""

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """None when the kind can be used here, else a sentence that says why not."""

    @abstractmethod
    def set_current(self, index: int) -> None:
        """Make this the device of the calling thread and of all that it allocates from now on."""

    @abstractmethod
    def memory(self) -> DeviceMemory:
        """The current device's memory now."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Give back what the allocator holds and nobody uses."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Start the count of peak memory anew."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seed the framework's own generators. Token draws do not use them: they are keyed."""

    @abstractmethod
    def touch_math_library(self) -> None:
        """Create the matrix library's handles and workspaces, so that they belong to the memory baseline."""

    @abstractmethod
    def supports_dtype(self, dtype: str) -> bool:
        """Whether the device computes in "float32", "bfloat16", "float16"."""

    @abstractmethod
    def collective_backend(self) -> str:
        """The name of the backend that joins processes on this kind of device: "gloo", "nccl"; "" for none."""

    @abstractmethod
    def visible_env(self) -> str:
        """The environment variable that limits what a process may see ("CUDA_VISIBLE_DEVICES"); "" for none."""

    def set_threads(self, threads: int) -> None:  # noqa: B027  # optional: only devices that compute on the host care
        """Compute with this many host threads from now on. Optional."""

    def name(self) -> str:
        """The current device as people write it: "cpu", "cuda:1"."""
        return self.kind
