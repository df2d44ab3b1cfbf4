"""One thread with one ``poll`` for everything that comes from the workers: replies, first words, lines, deaths."""

from __future__ import annotations

import logging
import select
import threading
from collections import deque
from collections.abc import Callable

from enginebay.runtime import Runtime, Thread
from enginebay.transport.doorbell import Bell

__all__ = ["Monitor"]

_LOG = logging.getLogger("enginebay.mp")


class Monitor:
    """Calls a handler when its descriptor has something, and tasks that other threads post.

    ``tick`` is called after every round, and answers in how many seconds it must be called again (None: whenever
    something comes), or raises ``StopIteration`` when all is over. ``at_end`` is called last, in this thread.
    Handlers are changed in this thread, or before ``start``.
    """

    def __init__(self, runtime: Runtime, name: str, *, tick: Callable[[], float | None], at_end: Callable[[], None]):
        self._runtime = runtime
        self._name = name
        self._tick = tick
        self._at_end = at_end
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = Bell()
        self._poll.register(self._wake.fileno(), select.POLLIN)
        self._thread: Thread | None = None
        self._ident = 0

    def watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever the descriptor is readable or its other end is gone."""
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """No more; harmless when it is not watched."""
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def start(self) -> None:
        """Start the thread."""
        self._thread = self._runtime.spawner.thread(self._name, self._run)

    def post(self, task: Callable[[], None]) -> None:
        """Run ``task`` in the thread, soon. Once the thread has ended, nothing happens."""
        self._posted.append(task)
        self._wake.ring()

    def is_here(self) -> bool:
        """Whether the caller is this thread."""
        return threading.get_ident() == self._ident

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end; whether it has ended (or never began)."""
        if self._thread is None:
            return True
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def close(self) -> None:
        """Give the thread's own descriptor back; what the thread does at its end, and who never started it."""
        self._wake.close()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        try:
            self._loop()
        finally:
            self._at_end()
            self.close()

    def _loop(self) -> None:
        while True:
            try:
                left = self._tick()
            except StopIteration:
                return
            for descriptor, _ in self._poll.poll(None if left is None else max(0.0, left) * 1e3):
                if descriptor == self._wake.fileno():
                    self._wake.clear()
                elif (handler := self._handlers.get(descriptor)) is not None:  # else an earlier one took it away
                    self._guarded(handler)
            while self._posted:
                self._guarded(self._posted.popleft())

    def _guarded(self, act: Callable[[], None]) -> None:
        """One handler's fault must not keep the others' workers from being heard."""
        try:
            act()
        except Exception:
            _LOG.exception("executor 'mp': a handler failed")
