"""While a group has no workers: its clients are served, and no request waits for longer than it may."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import InvalidStateError
from contextlib import contextmanager

from enginebay.engine.ledger import Row
from enginebay.engine.parts import CoreParts
from enginebay.engine.recovering import Recovery
from enginebay.engine.recovery import Setback
from enginebay.engine.requests import Requests
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import EngineDead
from enginebay.messages import FinishReason

__all__ = ["Meanwhile"]


class Meanwhile:
    """One group's. ``ring`` may come from any thread, all else is the core's own. After it, the look that comes next
    while workers start raises ``EngineDead``: whoever waits for a long load waits no longer.

    ``serve`` returns at the time that it is given, in seconds of the clock, or earlier; whoever drives the core does in
    it what clients ask and no worker is needed for. ``wake`` makes it return at once. ``move`` lets other groups go on
    with requests, if there are any, but for those that ``stay``, by the clients' ids; ``tell`` is how a scheduler that
    may go on hears of ends. ``recovery`` is the trace of the recovery that is under way.
    """

    def __init__(self, parts: CoreParts, requests: Requests) -> None:
        self.serve: Callable[[float], None] = self._wait
        self.wake: Callable[[], None] = lambda: None
        self.move: Callable[[], None] = lambda: None
        self.tell: Callable[[Sequence[str], FinishReason], None] = lambda request_ids, finish: None
        self.stay: set[str] = set()
        self.recovery: Recovery | None = None
        self._parts, self._requests = parts, requests
        self._clock = parts.runtime.clock
        self._bell = self._clock.event()
        self._since, self._why = math.inf, ""
        self._on_purpose = False

    @property
    def is_away(self) -> bool:
        """Whether there are no workers, or others are about to take their place; from any thread."""
        return self._since < math.inf or self._on_purpose

    def ring(self) -> None:
        """The engine is about to end: nobody waits for new workers from now on, nor pauses."""
        try:
            self._bell.set_result(None)
        except InvalidStateError:
            return  # it is not the first time
        self.wake()

    @contextmanager
    def of(self, setback: Setback, recovery: Recovery | None = None) -> Iterator[None]:
        """From the loss of the workers until others stand; whoever waits for these calls the watch's ``meanwhile``."""
        self._since, self._why, self.recovery = self._clock.now(), str(setback.error), recovery
        self.stay.clear()
        watch = self._parts.watch
        watch.meanwhile = lambda: self._look(self._clock.now())
        try:
            yield
        finally:
            watch.meanwhile = lambda: None
            self._since, self._why, self.recovery = math.inf, "", None

    @contextmanager
    def on_purpose(self, watch: WorkerWatch, *, move: bool = True) -> Iterator[None]:
        """While others, whose ``watch`` it is, start for nobody that was lost, or end; requests wait as long as it
        takes, or go on in other groups: at once, if ``move``, else where it does take long. No step is in flight."""
        watch.meanwhile = lambda: self._look(self._clock.now())
        self._on_purpose = True
        self.stay.clear()
        try:
            if move:
                self.move()
            yield
        finally:
            self._on_purpose = False
            watch.meanwhile = lambda: None

    def pause(self, seconds: float) -> None:
        """Let so much time pass; less, once it was rung."""
        until = self._clock.now() + seconds
        while not self._bell.done() and self._clock.now() < until:
            self._look(min(until, self._next_end()))

    def _look(self, until: float) -> None:
        self.serve(until)
        self.move()
        now, now_ns = self._clock.now(), self._clock.now_ns()
        late = self._requests.expired(now)
        for row in late:
            self._requests.end(row, FinishReason.ERROR, now_ns, error="deadline")
        if late and self._on_purpose:  # else a fresh scheduler comes, which hears of those that are left
            self.tell([row.request_id for row in late], FinishReason.ERROR)
        limit = self._parts.recovery_timeout
        error = f"no worker was ready for {limit:g} s ([deadlines] recovery): {self._why}"
        for row in [one for one in self._requests.ledger if now >= max(self._since, one.arrival) + limit]:
            self._requests.end(row, FinishReason.ERROR, now_ns, error=error)
        if self._requests.has_outputs:  # nobody waits for these until the next thing is asked
            self.serve(now)
        if self._bell.done():
            raise EngineDead("the engine is closed; make a new one")

    def _next_end(self) -> float:
        """When the next request ends of waiting."""
        return min((self._end_of(row) for row in self._requests.ledger), default=math.inf)

    def _end_of(self, row: Row) -> float:
        waits = max(self._since, row.arrival) + self._parts.recovery_timeout
        return waits if row.deadline is None else min(waits, row.deadline)

    def _wait(self, until: float) -> None:
        try:
            self._parts.runtime.wait(self._bell, until)
        except TimeoutError:
            return
