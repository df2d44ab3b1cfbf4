"""The deltas of one request, for a program without an event loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Self

from enginebay.engine.collector import Collector
from enginebay.engine.front.answers import Completion, completion
from enginebay.engine.front.front import Request
from enginebay.engine.port import EnginePort
from enginebay.engine.sinks import PendingDelta
from enginebay.errors import UnknownRequest
from enginebay.messages import RequestOutput

__all__ = ["Stream"]


class Stream(Iterator[RequestOutput]):
    """The deltas of one request, as they come; a slow reader gets fewer and longer ones, and no gap.

    Those of several choices come one after the other, each with its ``choice``; each ends with a ``finish_reason``.

    It has one reader at a time, and may be closed from any thread, which ends the reader's loop.
    It keeps its engine from being forgotten, so ``LLM(…).stream(…)`` can be read to its end.
    """

    def __init__(self, owner: object, client: EnginePort, request: Request) -> None:
        self._owner = owner
        self._client = client
        self._request = request
        self._collector = Collector()
        self._arrived: deque[RequestOutput] = deque()
        self._read: dict[int, PendingDelta] = {}
        self._reading = threading.Lock()
        self._num_ended = 0
        self._ended = False
        client.add_request(request.ask, self._collector, operation=request.operation, validated=True)

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._request.ask.request_id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RequestOutput:
        if self._ended:
            raise StopIteration
        if not self._reading.acquire(blocking=False):
            raise RuntimeError(f"the stream of request {self.request_id!r} is being read already: it has one reader")
        try:
            return self._next()
        finally:
            self._reading.release()

    def _next(self) -> RequestOutput:
        try:
            if not self._arrived:
                self._arrived.extend(self._collector.wait(self._client))
        except BaseException:
            self.close()
            raise
        if self._ended:  # closed by another thread meanwhile
            raise StopIteration
        output = self._arrived.popleft()
        self._read.setdefault(output.choice, PendingDelta()).add(output)
        self._num_ended += output.finish_reason is not None
        if self._num_ended == self._request.ask.params.n:
            self._ended = True
        return output

    def completion(self) -> Completion:
        """The whole answer: what was read, and what is left, which is waited for.

        Raises ``UnknownRequest`` when the stream was closed before its end.
        """
        for _ in self:
            pass
        outputs = [read.whole() for read in self._read.values()]
        if len([output for output in outputs if output.finish_reason is not None]) < self._request.ask.params.n:
            raise UnknownRequest(f"the stream of request {self.request_id!r} was closed before its end")
        return completion(self._request.ask, self._request.prompt, outputs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if "_ended" in self.__dict__:
            self.close()

    def close(self) -> None:
        """Abort the request, if it has not ended."""
        if not self._ended:
            self._ended = True
            self._client.abort_quietly(self.request_id, self._collector)
