"""What is to be done at a time, in one thread that is there while there is anything to do."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from enginebay.runtime import Runtime

__all__ = ["Alarms"]

_LOG = logging.getLogger("enginebay.faults")
_Entry = tuple[float, int, Callable[[], object]]


class Alarms:
    """Thread-safe. ``close`` ends it: what was due later is done at once, so that nothing stays as a fault has left it.

    A time is seconds of the runtime's clock.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.RLock()  # the collector of garbage may close it wherever memory is taken
        self._entries: list[_Entry] = []
        self._numbers = itertools.count()
        self._woken: Future[None] = runtime.clock.event()
        self._runs = False

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Call ``act`` at that time, or soon when it has passed."""
        with self._lock:
            heapq.heappush(self._entries, (when, next(self._numbers), act))
            woken = self._woken
            starts, self._runs = not self._runs, True
        if starts:
            self._runtime.spawner.thread("enginebay-faults", self._run)
        else:
            _set(woken)

    def close(self) -> None:
        """Do all of it now, in this thread; the other one ends."""
        with self._lock:
            entries, self._entries = sorted(self._entries), []
            woken = self._woken
        _set(woken)
        for _, _, act in entries:
            _guarded(act)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._entries:
                    self._runs = False
                    return
                when = self._entries[0][0]
                due = when <= self._runtime.clock.now()
                act = heapq.heappop(self._entries)[2] if due else None
                woken = self._woken = self._runtime.clock.event()
            if act is not None:
                _guarded(act)
                continue
            try:
                self._runtime.wait(woken, when)
            except TimeoutError:
                continue


def _guarded(act: Callable[[], object]) -> None:
    """One that fails must not keep the others from their turn."""
    try:
        act()
    except Exception:
        _LOG.exception("a fault could not be injected, or undone")


def _set(event: Future[None]) -> None:
    try:
        event.set_result(None)
    except InvalidStateError:
        return  # it is awake
