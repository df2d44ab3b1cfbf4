"""The worker's start span, which is the parent of the spans of every later phase of the start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span

from enginebay import tracing
from enginebay.messages import StartPayload


class StartTrace:
    """Opens ``worker.init`` with the first call and ends it when the worker is warm, has failed, or ends."""

    def __init__(self, payload: StartPayload) -> None:
        self._payload = payload
        self._span: Span | None = None

    @contextmanager
    def first(self, parent: str) -> Iterator[Span]:
        """The block of ``init_worker``: opens ``worker.init``, which stays open afterwards unless the block fails."""
        payload = self._payload
        self.end()
        self._span = tracing.tracer().start_span(
            tracing.WORKER_INIT,
            context=tracing.parse_traceparent(parent or payload.traceparent),
            attributes={
                tracing.RANK: payload.place.rank,
                tracing.LOCAL_RANK: payload.place.local_rank,
                tracing.GENERATION: payload.generation,
                tracing.INCARNATION: payload.incarnation,
                tracing.PID: os.getpid(),
            },
        )
        try:
            yield self._span
        except BaseException as error:
            self._fail(error)
            raise

    @contextmanager
    def phase(self, name: str, parent: str) -> Iterator[Span]:
        """A span for one phase, child of ``worker.init`` (or of ``parent``, when that was never opened)."""
        payload = self._payload
        above = tracing.traceparent(self._span) if self._span is not None else ""
        try:
            with tracing.span(
                name, {tracing.RANK: payload.place.rank, tracing.GENERATION: payload.generation}, parent=above or parent
            ) as span:
                yield span
        except BaseException as error:
            self._fail(error)
            raise

    def note(self, key: str, value: str | int) -> None:
        """Set an attribute on ``worker.init``."""
        if self._span is not None:
            self._span.set_attribute(key, value)

    def end(self) -> None:
        """End ``worker.init``, if it is open."""
        if self._span is not None:
            self._span.end()
            self._span = None

    def _fail(self, error: BaseException) -> None:
        if self._span is not None:
            tracing.fail(self._span, error)
        self.end()
