"""The worker extension ``faults``: its runner's steps become slower, or run out of memory."""

from __future__ import annotations

import contextlib
import mmap
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, msgpack

from enginebay.interfaces import NoOptions, WorkerExtensionContext

__all__ = ["InWorker", "Order", "exhaust"]

_CHUNK: Final = 1 << 20
_PAGE: Final = mmap.PAGESIZE


class Order(Struct, frozen=True, kw_only=True):
    """What the engine's half asks for."""

    seconds: float = 0.0
    bytes: int = 0


class InWorker:
    """Stands in front of the runner's ``execute_model``. Its methods take an ``Order`` as msgpack."""

    def __init__(self, context: WorkerExtensionContext[NoOptions]) -> None:
        self._seconds = 0.0
        self._bytes = 0
        runner: Any = context.runner
        runner.execute_model = self._before(runner.execute_model)

    def slow(self, payload: bytes) -> None:
        """Each step takes so much longer from now on."""
        self._seconds = msgpack.decode(payload, type=Order).seconds

    def exhaust_memory(self, payload: bytes) -> None:
        """The next step runs out of memory, with so many bytes more than this process has now."""
        self._bytes = msgpack.decode(payload, type=Order).bytes

    def _before(self, execute_model: Callable[..., Any]) -> Callable[..., Any]:
        def execute(*arguments: Any, **named: Any) -> Any:
            if self._seconds:
                time.sleep(self._seconds)
            if self._bytes:
                limit, self._bytes = self._bytes, 0
                exhaust(limit)
            return execute_model(*arguments, **named)

        return execute


def exhaust(limit: int) -> None:
    """Take memory until there is no more, ``limit`` bytes later at the latest, and raise ``MemoryError``.

    The process's own address space is limited meanwhile, not the machine's memory. All of it is given back.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken: list[mmap.mmap] = []
    now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * _PAGE
    bounds = [one for one in (now + limit, soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        with contextlib.suppress(OSError):  # which says that there is no more, as wanted
            while len(taken) * _CHUNK < limit:
                chunk = mmap.mmap(-1, _CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                taken.append(chunk)
                for page in range(0, _CHUNK, _PAGE):
                    chunk[page] = 1
    finally:
        for chunk in taken:
            chunk.close()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    raise MemoryError(f"the extension 'faults' has taken {len(taken)} MiB, and there is no more")
