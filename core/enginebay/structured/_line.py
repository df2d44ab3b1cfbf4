"""A thread that does one thing after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from enginebay.runtime import Channel, Runtime, Thread

__all__ = ["Line"]


class Line:
    """Does what is put into it, in order, in a thread that starts with the first of it. Thread-safe.

    A job raises nothing. Those that are left at its end are done all the same: whoever ends it lets them be short.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime, self._name = runtime, name
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._bell: Channel | None = None
        self._thread: Thread | None = None
        self._closed = False

    def put(self, job: Callable[[], None]) -> None:
        """Have it done; after ``close`` the caller does it."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._jobs.append(job)
                if self._bell is None:
                    self._bell, ear = self._runtime.transport.pair(self._name)
                    self._thread = self._runtime.spawner.thread(f"enginebay-{self._name}", lambda: self._run(ear))
                self._bell.send(b"")
        if closed:
            job()

    def close(self, seconds: float) -> None:
        """Let it come to its end, and wait for it for so long. Idempotent."""
        with self._lock:
            self._closed = True
            bell, thread = self._bell, self._thread
        if bell is not None and thread is not None:
            bell.close()
            thread.join(seconds)

    def _run(self, ear: Channel) -> None:
        while not self._closed:
            ear.receive(None)
            self._do_all()
        self._do_all()

    def _do_all(self) -> None:
        while self._jobs:
            self._jobs.popleft()()
