"""Fake time: it moves only from event to event, and a wait without a deadline is a failure of the core."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from heapq import heappop, heappush
from typing import TypeVar

from enginebay.runtime import Clock

T = TypeVar("T")


class SimFuture(Future[T]):
    """A future for one thread: the real one's locks are a fifth of a schedule's time, and here nobody contends."""

    def __init__(self) -> None:
        self._value: tuple[T, ...] = ()
        self._callbacks: tuple[Callable[[Future[T]], object], ...] = ()

    def done(self) -> bool:
        return bool(self._value)

    def set_result(self, result: T) -> None:
        if self._value:
            raise InvalidStateError("it is done")
        self._value = (result,)
        for callback in self._callbacks:
            callback(self)

    def result(self, timeout: float | None = None) -> T:
        return self._value[0]

    def exception(self, timeout: float | None = None) -> None:
        return None

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        if self._value:
            fn(self)
        else:
            self._callbacks = (*self._callbacks, fn)


class SimClock(Clock):
    """Seconds from 1 on, and the events to come. Events at one time happen in the order in which they were set."""

    def __init__(self) -> None:
        self.time = 1.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def now(self) -> float:
        return self.time

    def now_ns(self) -> int:
        return int(self.time * 1e9)

    def wall_ns(self) -> int:
        return int(self.time * 1e9)

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Let this happen at that time."""
        self._count += 1
        heappush(self._events, (max(time, self.time), self._count, event))

    def event(self) -> Future[None]:
        return SimFuture()

    def wait_future(self, future: Future[T], deadline: float | None) -> T:
        assert deadline is not None, "a wait without a deadline"
        events, done = self._events, future.done
        while not done():
            if not events or events[0][0] > deadline:
                self.time = max(self.time, deadline)
                raise TimeoutError
            self.time, _, event = heappop(events)
            event()
        return future.result()

    def turn(self, until: float) -> bool:
        """Let the next event happen, if it comes by then; whether one did."""
        if not self._events or self._events[0][0] > until:
            return False
        self.time, _, event = heappop(self._events)
        event()
        return True

    def sleep(self, seconds: float) -> None:
        """Let so much time pass, with all that happens in it."""
        until = self.time + seconds
        while self.turn(until):
            pass
        self.time = max(self.time, until)
