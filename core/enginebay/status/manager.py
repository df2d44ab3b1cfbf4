"""The book with its sinks: a thread for each, woken by changes, and every ten seconds to look whether all holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final

from enginebay.errors import in_words, is_interrupt
from enginebay.interfaces import StatusSink
from enginebay.runtime import Runtime, Thread
from enginebay.status.book import StatusBook
from enginebay.status.sync import FULL_PASS, SinkHealth, SinkSync

__all__ = ["StatusManager"]

_LOG = logging.getLogger(__name__)
_JITTER: Final = 0.1


class StatusManager:
    """``book`` is where statuses are set. Without ``start`` nothing is written, and all else works."""

    def __init__(self, runtime: Runtime, sinks: Mapping[str, StatusSink[Any]], *, owners: frozenset[str] = frozenset()):
        self._runtime = runtime
        clock = runtime.clock
        self.book = StatusBook(
            now=clock.now,
            wall=lambda: clock.wall_ns() / 1e9,
            lock=runtime.lock(),
            changed=self._wake,
            owners=owners,
            sinks=sinks.keys(),
        )
        self._lines = [_Line(name, sink, self.book, runtime) for name, sink in sinks.items()]

    def start(self) -> None:
        """Begin to write."""
        for line in self._lines:
            line.start()

    def health(self) -> list[SinkHealth]:
        """How each sink does."""
        return [line.sync.health() for line in self._lines]

    def tick(self, *, full: bool = False) -> None:
        """Write to all sinks now, by whoever calls: for a manager that was not started."""
        for line in self._lines:
            line.sync.tick(full=full)

    def stop(self, deadline: float) -> None:
        """Write what is still to be told, as far as sinks take it by ``deadline``, and close them. Idempotent."""
        for line in self._lines:
            line.leave(deadline)
        for line in self._lines:
            line.join(deadline)

    def _wake(self) -> None:
        for line in self._lines:
            line.wake()


class _Line:
    """One sink with its thread. The signal holds one thing, that something has changed: no status is in it."""

    def __init__(self, name: str, sink: StatusSink[Any], book: StatusBook, runtime: Runtime) -> None:
        clock, self._stream = runtime.clock, runtime.entropy.stream(f"status {name}")
        self.sync = SinkSync(name, sink, book, now=clock.now, draw=self._stream.random)
        self._name, self._sink, self._runtime = name, sink, runtime
        self._signal: Future[None] = clock.event()
        self._thread: Thread | None = None
        self._leave_by: float | None = None

    def start(self) -> None:
        self._thread = self._runtime.spawner.thread(f"enginebay-status-{self._name}", self._run)

    def wake(self) -> None:
        try:
            self._signal.set_result(None)
        except InvalidStateError:
            return  # a signal is pending already

    def leave(self, deadline: float) -> None:
        self._leave_by = deadline
        self.wake()

    def join(self, deadline: float) -> None:
        if self._thread is None:
            return
        self._thread.join(max(0.0, deadline - self._runtime.clock.now()))
        if self._thread.is_alive():
            _LOG.warning("status sink %s has not answered by the deadline, and is left behind", self._name)
        self._thread = None

    def _run(self) -> None:
        clock = self._runtime.clock
        next_full = clock.now() + self._between()
        while self._leave_by is None:
            due = self.sync.due()
            self._wait(min(next_full, due) if due is not None else next_full)
            self._signal = clock.event()  # before the look: what changes from here on wakes us again
            full = clock.now() >= next_full
            self.sync.tick(full=full)
            if full:
                next_full = clock.now() + self._between()
        self.sync.tick(full=True, last=True)
        try:
            self._sink.close()
        except BaseException as error:
            if is_interrupt(error):
                raise
            _LOG.warning("status sink %s: close() raised %s", self._name, in_words(error))

    def _wait(self, deadline: float) -> None:
        try:
            self._runtime.wait(self._signal, deadline)
        except TimeoutError:
            return

    def _between(self) -> float:
        return FULL_PASS * (1.0 - _JITTER * self._stream.random())
