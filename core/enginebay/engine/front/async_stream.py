"""The deltas of one request, for a program with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from enginebay.engine.collector import LOOK_SECONDS
from enginebay.engine.front.front import Request
from enginebay.engine.port import EnginePort
from enginebay.engine.sinks import PendingDelta
from enginebay.errors import EnginebayError
from enginebay.messages import RequestOutput

__all__ = ["AsyncStream"]


class AsyncStream(AsyncIterator[RequestOutput]):
    """The deltas of one request. A slow reader gets fewer and longer ones: at most one per choice is pending, no gap.

    It has one reader at a time, and may be closed by any task, which ends the reader's loop.

    It keeps its engine from being forgotten.
    """

    def __init__(self, owner: object, client: EnginePort, make: Callable[[], Request]) -> None:
        self._owner = owner
        self._client = client
        self._make = make
        self._request: Request | None = None
        self._sink: _AsyncSink | None = None
        self._reading = False
        self._ended = False
        self._num_ended = 0

    @property
    def request_id(self) -> str | None:
        """The request's id, once the iteration has begun."""
        return None if self._request is None else self._request.ask.request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._ended:
            raise StopAsyncIteration
        if self._reading:
            raise RuntimeError("the stream is being read by another task already: it has one reader")
        self._reading = True
        try:
            sink = self._sink or await self._begin()
            output = await sink.next(self._client)
        except BaseException:
            self._abort()
            raise
        finally:
            self._reading = False
        if self._ended:  # closed meanwhile
            raise StopAsyncIteration
        assert self._request is not None, "what was asked comes before its answer"
        self._num_ended += output.finish_reason is not None
        self._ended = self._num_ended == self._request.ask.params.n
        return output

    def __del__(self) -> None:
        if "_ended" in self.__dict__:
            self._abort()

    async def aclose(self) -> None:
        """Abort the request, if it has not ended."""
        self._abort()

    async def _begin(self) -> _AsyncSink:
        request = self._request = await asyncio.to_thread(self._make)  # tokenizing a long text takes a while
        if self._ended:  # closed meanwhile: nothing is sent
            raise StopAsyncIteration
        sink = self._sink = _AsyncSink(asyncio.get_running_loop())
        self._client.add_request(request.ask, sink, operation=request.operation, validated=True)
        return sink

    def _abort(self) -> None:
        if not self._ended:
            self._ended = True
            if self._sink is not None and self._request is not None:
                self._client.abort_quietly(self._request.ask.request_id, self._sink)


class _AsyncSink:
    """Carries outputs from the engine's thread to the event loop: one wake-up per delta that is taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived = asyncio.Event()
        self._pending: dict[int, PendingDelta] = {}
        self._error: EnginebayError | None = None

    def put(self, output: RequestOutput) -> None:
        """Called by the engine's thread."""
        self._call(self._add, output)

    def fail(self, error: EnginebayError) -> None:
        """Called by the engine's thread."""
        self._call(self._set_error, error)

    async def next(self, client: EnginePort) -> RequestOutput:
        """The merged delta, once there is one; raises the engine's end after everything that came before it."""
        while not self._arrived.is_set():
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                await asyncio.sleep(0)  # what it told last may be on its way
                if not self._arrived.is_set():
                    client.check_alive()
        if not self._pending:
            assert self._error is not None
            raise self._error
        output = self._pending.pop(next(iter(self._pending))).take()
        if not self._pending and self._error is None:
            self._arrived.clear()
        return output

    def _call(self, method: Callable[[Any], None], argument: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(method, argument)
        except RuntimeError:
            return  # the event loop is closed: nobody waits any more

    def _add(self, output: RequestOutput) -> None:
        self._pending.setdefault(output.choice, PendingDelta()).add(output)
        self._arrived.set()

    def _set_error(self, error: EnginebayError) -> None:
        self._error = error
        self._arrived.set()
