"""The workers of one start as processes of this machine: signalled by descriptors, so that no other can be hit."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Sequence

from enginebay.errors import ConfigError
from enginebay.messages import WorkerInfo

__all__ = ["Victims"]


class Victims:
    """Made of workers that stand. Raises ``ConfigError`` when one is not a process of its own, on this machine."""

    def __init__(self, workers: Sequence[WorkerInfo]) -> None:
        for worker in workers:
            if worker.pid == os.getpid() or worker.host != socket.gethostname():
                where = "in the engine's process" if worker.host == socket.gethostname() else f"on host {worker.host}"
                raise ConfigError(
                    f"[extensions.faults] harms processes of this machine, and rank {worker.rank} runs {where}: take "
                    "the kinds kill, stop and exhaust_memory out, or set [executor] use to one with worker processes "
                    "on this machine"
                )
        self._lock = threading.Lock()
        self._descriptors: dict[int, int] = {}
        for worker in workers:
            try:
                self._descriptors[worker.rank] = os.pidfd_open(worker.pid)
            except ProcessLookupError:
                continue  # it has ended since it said HELLO

    def kill(self, rank: int) -> bool:
        """End it; whether it was there."""
        return self._signal(rank, signal.SIGKILL)

    def stop(self, rank: int) -> bool:
        """Stop it where it stands; whether it was there."""
        return self._signal(rank, signal.SIGSTOP)

    def go_on(self, rank: int) -> bool:
        """Let it go on; whether it was there."""
        return self._signal(rank, signal.SIGCONT)

    def close(self) -> None:
        """Give the descriptors back. Idempotent."""
        with self._lock:
            descriptors, self._descriptors = self._descriptors, {}
        for descriptor in descriptors.values():
            os.close(descriptor)

    def _signal(self, rank: int, number: signal.Signals) -> bool:
        with self._lock:  # a descriptor that is closed meanwhile could be another's number by then
            descriptor = self._descriptors.get(rank)
            if descriptor is None:
                return False
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return False
            return True
