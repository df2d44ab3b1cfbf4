"""What waits for a request's outputs: the caller's collector, and the client's own note of each request."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

from enginebay.engine.admission.admit import Ask
from enginebay.engine.loop import Sink
from enginebay.engine.port import EnginePort
from enginebay.engine.sinks import PendingDelta
from enginebay.errors import EnginebayError, EngineBusy
from enginebay.messages import RequestOutput

__all__ = ["LOOK_SECONDS", "Collector", "Tracked"]

LOOK_SECONDS = 5.0
"""How long one who waits for the engine sleeps before looking whether it is there at all."""


class Tracked:
    """The sink that the loop has in place of the caller's: it tells when all choices of the request have ended."""

    def __init__(self, ask: Ask, sink: Sink, on_end: Callable[[Tracked], None]) -> None:
        """``on_end`` is called with it, in the loop's thread, before the sink has the last of it."""
        self.request_id, self.sink = ask.request_id, sink
        self._on_end = on_end
        self._unfinished = ask.params.n

    def put(self, output: RequestOutput) -> None:
        if output.finish_reason is not None:
            self._unfinished -= 1
            if not self._unfinished:
                self._on_end(self)
        self.sink.put(output)

    def fail(self, error: EnginebayError) -> None:
        self._on_end(self)
        self.sink.fail(error)


class Collector:
    """Collects the outputs of some requests for one thread that waits for them.

    ``only_ends``: the thread is woken when a choice of a request has ended, not at each delta.
    """

    def __init__(self, *, only_ends: bool = False) -> None:
        self._only_ends = only_ends
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._pending: dict[tuple[str, int], PendingDelta] = {}
        self._ready: list[tuple[str, int]] = []
        self._lost: dict[str, EnginebayError] = {}
        self._error: EnginebayError | None = None

    def put(self, output: RequestOutput) -> None:
        """Called by the loop."""
        with self._lock:  # the condition's own, which it would enter by a call of Python's
            key = output.request_id, output.choice
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = PendingDelta()
            is_news = (not pending and not self._only_ends) or (self._only_ends and output.finish_reason is not None)
            pending.add(output)
            if is_news:
                self._ready.append(key)
                self._condition.notify()

    def fail(self, error: EnginebayError) -> None:
        """Called by the loop; the first error is the one that is told."""
        with self._condition:
            self._error = self._error or error
            self._condition.notify()

    def apart(self, request_id: str) -> Sink:
        """A sink for this request alone: its loss ends no other's wait, and ``wait_for_each`` tells it."""
        return _Apart(self, request_id)

    def lose(self, request_id: str, error: EnginebayError) -> None:
        """Called by the loop: nothing more comes of this request."""
        with self._condition:
            self._lost[request_id] = error
            self._condition.notify()

    def wait(self, client: EnginePort) -> list[RequestOutput]:
        """What has come since the last time, one merged delta per choice; waits until there is something.

        Raises the engine's end once everything that came before it was taken.
        """
        return self.wait_for_each(client)[0]

    def wait_for_each(self, client: EnginePort) -> tuple[list[RequestOutput], dict[str, EnginebayError]]:
        """The same, and which of the requests with a sink ``apart`` were lost since, after all that came of them."""
        if not client.is_of_this_process:  # the lock may belong to a thread that was not forked along
            client.check_alive()
        with self._condition:
            while not self._ready and not self._lost and self._error is None:
                client.check_alive()
                self._condition.wait(LOOK_SECONDS)
            if not self._ready and not self._lost:
                assert self._error is not None
                raise copy.copy(self._error)  # one of its own for each that waits, without the traceback
            ready, self._ready = self._ready, []
            lost, self._lost = self._lost, {}
            return [self._pending.pop(key).take() for key in ready], lost


class _Apart:
    """One request's sink, whose loss is its own."""

    def __init__(self, collector: Collector, request_id: str) -> None:
        self._collector, self._request_id = collector, request_id

    def put(self, output: RequestOutput) -> None:
        self._collector.put(output)

    def fail(self, error: EnginebayError) -> None:
        """What refuses any request, as an engine that drains does, is told of all of them at once."""
        if isinstance(error, EngineBusy):
            self._collector.fail(error)
        else:
            self._collector.lose(self._request_id, error)
