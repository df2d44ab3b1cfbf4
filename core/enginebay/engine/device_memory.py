"""Whether a dead worker's memory on its device is free again: by the driver's list of the processes that hold any.

Free bytes prove nothing where others share the device, so pids are compared. A list that did not show the worker while
it lived (another pid namespace, MPS, a driver that hides it) cannot show that it is gone either: that is unknown.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from enginebay.errors import in_words, is_interrupt
from enginebay.messages import WorkerInfo
from enginebay.runtime import Runtime
from enginebay.status.reclaim import Finding, Reclaim

__all__ = ["DeviceMemory", "Holders", "holders_by_nvml"]

Holders = Callable[[], frozenset[int]]
"""The pids that hold memory on any device of this host. Raises what keeps it from knowing."""

_WHAT: Final = "device memory"
_PATIENCE: Final = 2.0
_ON_HOST: Final = ("", "cpu")


def holders_by_nvml() -> frozenset[int]:
    """As NVIDIA's driver lists them; its bindings (``pynvml``) are looked for when it is called."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()  # it counts, and the first one is kept for the life of this process
    found = set()
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        found |= {one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(device)}
    return frozenset(found)


class DeviceMemory:
    """Of one engine's workers, by incarnation; from any thread. A driver that does not answer has a moment for it."""

    def __init__(self, runtime: Runtime, holders: Holders = holders_by_nvml) -> None:
        self._runtime, self._holders = runtime, holders
        self._taken: dict[str, tuple[int, str]] = {}

    def taken(self, incarnation: str, worker: WorkerInfo) -> None:
        """It has a context on its device. What lies in this host's memory goes with its process, and is no matter."""
        kind, why = worker.device.partition(":")[0], ""
        if kind in _ON_HOST:
            return
        if kind != "cuda":
            why = f"nobody here can say who holds memory on {worker.device}"
        elif worker.host != socket.gethostname():
            why = f"{worker.device} is of another host"
        elif worker.pid == os.getpid():
            why = f"the worker was a thread of this process, which goes on with {worker.device}"
        else:
            listed, why = self._list()
            if not why and worker.pid not in listed:
                why = f"the driver did not list pid {worker.pid} while it lived"
        self._taken[incarnation] = worker.pid, why

    def findings(self, incarnation: str) -> list[Finding]:
        """Of a worker that was stopped; none: it has taken nothing."""
        if incarnation not in self._taken:
            return []
        pid, why = self._taken[incarnation]
        listed: frozenset[int] = frozenset()
        if not why:
            listed, why = self._list()
        if why:
            return [Finding(what=_WHAT, verdict=Reclaim.UNKNOWN, reason=why)]
        if pid in listed:
            return [Finding(what=_WHAT, verdict=Reclaim.PENDING, reason=f"pid {pid} holds some")]
        return [Finding(what=_WHAT, verdict=Reclaim.RECLAIMED)]

    def forget(self, incarnation: str) -> None:
        """Nobody asks for it any more."""
        self._taken.pop(incarnation, None)

    def _list(self) -> tuple[frozenset[int], str]:
        """The pids, or why they are not known: a driver can hang with its device."""
        answer: Future[frozenset[int]] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._holders())
            except BaseException as error:
                answer.set_exception(error)

        self._runtime.spawner.thread("enginebay-device-memory", ask)
        try:
            return self._runtime.wait(answer, self._runtime.clock.now() + _PATIENCE), ""
        except TimeoutError:
            return frozenset(), f"the driver has not answered within {_PATIENCE:g} s"
        except BaseException as error:
            if is_interrupt(error):
                raise
            return frozenset(), f"the driver's list of processes cannot be had: {in_words(error)}"
