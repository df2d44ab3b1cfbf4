"""The client of a core in the same process: checks requests in the caller's thread, and collects what comes back."""

from __future__ import annotations

import contextlib
import threading

from enginebay.engine.admission import Ask, check_id, validate
from enginebay.engine.core import EngineCore
from enginebay.engine.loop import Abort, Add, EngineLoop, ReadStats, Sink, Stop
from enginebay.engine.parts import EngineStats
from enginebay.engine.sinks import PendingDelta
from enginebay.engine.spans import TEXT_COMPLETION
from enginebay.errors import DuplicateRequest, EnginebayError, EngineDead, UnknownRequest
from enginebay.messages import RequestOutput

__all__ = ["Collector", "InProcessClient"]

_LOOK_SECONDS = 5.0


class InProcessClient:
    """Talks to one core through its loop. Thread-safe; every error is the caller's own."""

    def __init__(self, core: EngineCore, *, stop_timeout: float) -> None:
        self._core = core
        self._loop = EngineLoop(core)
        self._stop_timeout = stop_timeout
        self._lock = threading.RLock()  # a dropped stream may abort from within any allocation
        self._live: set[str] = set()
        self._stopped = False

    def start(self) -> None:
        """Start the loop."""
        self._loop.start()

    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._loop.is_alive()

    def validate(self, ask: Ask) -> None:
        """Raise what is wrong with the request, in the caller's thread; nothing is sent."""
        validate(ask, self._core.limits)

    def add_request(self, ask: Ask, sink: Sink, *, operation: str = TEXT_COMPLETION, validated: bool = False) -> None:
        """Send a request; its outputs go to ``sink``. Raises what is wrong with it, or the engine's end."""
        if not validated:
            self.validate(ask)
        with self._lock:
            if ask.request_id in self._live:
                raise DuplicateRequest(
                    f"request id {ask.request_id!r} is in use by an unfinished request: "
                    "choose another, or abort that one",
                    param="request_id",
                )
            self._live.add(ask.request_id)
        try:
            self._loop.send(Add(ask=ask, sink=_Tracked(self, ask.request_id, sink), operation=operation))
        except BaseException:
            self.forget(ask.request_id)
            raise

    def abort(self, request_id: str) -> None:
        """End a request of this client; its last output has the finish reason "abort".

        Raises ``UnknownRequest`` for an id that no unfinished request has.
        """
        check_id(request_id)
        with self._lock:
            known = request_id in self._live
        if not known:
            raise UnknownRequest(f"no unfinished request has the id {request_id!r}", param="request_id")
        self._loop.send(Abort(request_id=request_id))

    def abort_quietly(self, request_id: str) -> None:
        """The same for one that may have ended by now, in an engine that may have ended too."""
        try:
            self.abort(request_id)
        except EnginebayError:
            return

    def stats(self) -> EngineStats:
        """How the engine stands."""
        command = ReadStats()
        self._loop.send(command)
        runtime = self._core.runtime
        return runtime.wait(command.answer, runtime.clock.now() + self._stop_timeout)

    def forget(self, request_id: str) -> None:
        """The request has ended; its id is free."""
        with self._lock:
            self._live.discard(request_id)

    def stop(self) -> None:
        """End the engine and its thread. Bounded, also when a worker hangs; idempotent."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        with contextlib.suppress(EnginebayError):  # the loop may have ended by itself
            self._loop.send(Stop())
        if not self._loop.join(self._stop_timeout):
            self._core.cut()
            self._loop.join(self._stop_timeout)


class _Tracked:
    """A sink that gives the id back to the client when the request has ended."""

    def __init__(self, client: InProcessClient, request_id: str, sink: Sink) -> None:
        self._client, self._request_id, self._sink = client, request_id, sink

    def put(self, output: RequestOutput) -> None:
        if output.finish_reason is not None:
            self._client.forget(self._request_id)
        self._sink.put(output)

    def fail(self, error: EnginebayError) -> None:
        self._client.forget(self._request_id)
        self._sink.fail(error)


class Collector:
    """Collects the outputs of some requests for one thread that waits for them.

    ``only_ends``: the thread is woken when a request has ended, not at each delta.
    """

    def __init__(self, *, only_ends: bool = False) -> None:
        self._only_ends = only_ends
        self._condition = threading.Condition()
        self._pending: dict[str, PendingDelta] = {}
        self._ready: list[str] = []
        self._error: EnginebayError | None = None

    def put(self, output: RequestOutput) -> None:
        """Called by the loop."""
        with self._condition:
            pending = self._pending.setdefault(output.request_id, PendingDelta())
            is_news = (not pending and not self._only_ends) or (self._only_ends and output.finish_reason is not None)
            pending.add(output)
            if is_news:
                self._ready.append(output.request_id)
                self._condition.notify()

    def fail(self, error: EnginebayError) -> None:
        """Called by the loop; the first error is the one that is told."""
        with self._condition:
            self._error = self._error or error
            self._condition.notify()

    def wait(self, client: InProcessClient) -> list[RequestOutput]:
        """What has come since the last time, one merged delta per request; waits until there is something.

        Raises the engine's end once everything that came before it was taken.
        """
        with self._condition:
            while not self._ready and self._error is None:
                if not self._condition.wait(_LOOK_SECONDS) and not client.is_alive():
                    raise EngineDead("the engine stopped: its thread has ended")
            if not self._ready:
                assert self._error is not None
                raise type(self._error)(str(self._error))
            ready, self._ready = self._ready, []
            return [self._pending.pop(request_id).take() for request_id in ready]
