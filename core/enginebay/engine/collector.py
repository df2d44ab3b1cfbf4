"""What waits for a request's outputs: the caller's collector, and the client's own note of each request."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from enginebay.engine.admission.admit import Ask
from enginebay.engine.loop import Sink
from enginebay.engine.parts import EngineStats
from enginebay.engine.port import EnginePort
from enginebay.engine.sinks import PendingDelta
from enginebay.errors import DuplicateRequest, EnginebayError, EngineBusy
from enginebay.messages import RequestOutput
from enginebay.runtime import Runtime

__all__ = ["LOOK_SECONDS", "Collector", "Tracked", "TrackedRequests", "stats_of"]

LOOK_SECONDS = 5.0
"""How long one who waits for the engine sleeps before looking whether it is there at all."""


class Tracked:
    """The sink that the loop has in place of the caller's: it tells when all choices of the request have ended."""

    def __init__(self, ask: Ask, sink: Sink, on_end: Callable[[Tracked], None]) -> None:
        """``on_end`` is called with it, in the loop's thread, before the sink has the last of it.

        ``aborted``: that was asked for where the request was not, or not yet.
        """
        self.request_id, self.sink = ask.request_id, sink
        self.on_end = on_end
        self.aborted = False
        self._unfinished = ask.params.n

    def put(self, output: RequestOutput) -> None:
        if output.finish_reason is not None:
            self._unfinished -= 1
            if not self._unfinished:
                self.on_end(self)
        self.sink.put(output)

    def fail(self, error: EnginebayError) -> None:
        self.on_end(self)
        self.sink.fail(error)


class TrackedRequests:
    """The unfinished requests of one client by id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a dropped stream may abort from within any allocation
        self._live: dict[str, Tracked] = {}

    def __contains__(self, request_id: object) -> bool:
        with self._lock:
            return request_id in self._live

    def get(self, request_id: str) -> Tracked | None:
        """The one that has this id."""
        with self._lock:
            return self._live.get(request_id)

    def all(self) -> list[Tracked]:
        """Each of them."""
        with self._lock:
            return list(self._live.values())

    def open(self, asks: Sequence[tuple[Ask, Sink]], on_end: Callable[[Tracked], None]) -> list[Tracked]:
        """Take these, or raise ``DuplicateRequest``, and then none of them."""
        with self._lock:
            seen: set[str] = set()
            for ask, _ in asks:
                if ask.request_id in self._live or ask.request_id in seen:
                    raise DuplicateRequest(
                        f"request id {ask.request_id!r} is in use by an unfinished request: choose another, or abort "
                        "that one",
                        param="request_id",
                    )
                seen.add(ask.request_id)
            tracked = [Tracked(ask, sink, on_end) for ask, sink in asks]
            self._live.update((one.request_id, one) for one in tracked)
        return tracked

    def add(self, tracked: Tracked) -> None:
        """Take over one of another client; its id is free here."""
        with self._lock:
            self._live[tracked.request_id] = tracked

    def remove(self, tracked: Tracked) -> bool:
        """This one has ended, or is another client's now; whether it was here."""
        with self._lock:
            if self._live.get(tracked.request_id) is not tracked:
                return False
            del self._live[tracked.request_id]
        return True


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


class _Stands(Protocol):
    def ask_stats(self) -> Future[EngineStats]: ...

    def check_patience(self, answer: Future[EngineStats], asked: float) -> None: ...


def stats_of(port: _Stands, runtime: Runtime) -> EngineStats:
    """How the engine stands; waits for the steps that run. Raises the engine's end, or ``WorkerHung``."""
    answer, asked = port.ask_stats(), runtime.clock.now()
    while True:
        try:
            return runtime.wait(answer, runtime.clock.now() + LOOK_SECONDS)
        except TimeoutError:
            port.check_patience(answer, asked)
