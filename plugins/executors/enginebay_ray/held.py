"""The actors' processes on this machine, held from their HELLO on, so that they end where Ray does not end them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from enginebay.messages import WorkerInfo
from enginebay.runtime import pid_space

__all__ = ["HeldProcesses"]

_TITLE = b"ray::RayWorker"
"""How Ray names the process of one of our actors; what has another name is not signalled, whatever a worker says."""


class HeldProcesses:
    """Descriptors, so that no process is meant but the one that was there at HELLO."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def take(self, worker: WorkerInfo) -> None:
        """Hold the worker's process, if its pid means the same here as there."""
        if not worker.space or worker.space != pid_space():
            return
        try:
            descriptor = os.pidfd_open(worker.pid)
        except OSError:
            return  # it has ended; or an old kernel has no such descriptors
        self._descriptors.append(descriptor)
        if not _is_actor(worker.pid):
            os.close(self._descriptors.pop())

    def kill(self) -> None:
        """SIGKILL to those that have not ended, and let go of all. Idempotent."""
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            with contextlib.suppress(OSError):  # it has ended
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


def _is_actor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_TITLE)
    except OSError:
        return False  # it has ended
