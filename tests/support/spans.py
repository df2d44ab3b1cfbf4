"""What the engine's spans say, collected in memory on a provider of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from enginebay import tracing


class Spans:
    """The spans that ended so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        """In the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of that name."""
        return [span for span in self.all() if span.name == name]

    def children(self, parent: ReadableSpan) -> list[str]:
        """The names of a span's children, by their start."""
        assert parent.context is not None
        found = [s for s in self.all() if s.parent is not None and s.parent.span_id == parent.context.span_id]
        return [span.name for span in sorted(found, key=lambda span: span.start_time or 0)]


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Collect what ``enginebay.tracing`` emits in the block."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("test"))
    yield Spans(exporter)
    provider.shutdown()
