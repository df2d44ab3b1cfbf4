"""Traces as records: those of a recovery, and whether one holds together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from enginebay import tracing
from enginebay.telemetry import SpanRecord
from enginebay.telemetry._file import FileExporter
from enginebay.telemetry._read import read_spans
from support.spans import Spans

__all__ = ["Trace", "recoveries", "written"]


def written(spans: Spans, path: Path) -> list[SpanRecord]:
    """What was collected in memory, as a trace file has it."""
    path.unlink(missing_ok=True)
    exporter = FileExporter(path)
    exporter.export(spans.all())
    exporter.shutdown()
    return read_spans(path)


class Trace:
    """The spans of one trace, which hold together: one root, a parent for each other span, and children inside it."""

    def __init__(self, spans: Iterable[SpanRecord]) -> None:
        self.spans = sorted(spans, key=lambda span: span.start_ns)
        by_id = {span.span_id: span for span in self.spans}
        assert len(by_id) == len(self.spans), "two spans have one id"
        roots = [span for span in self.spans if not span.parent_id]
        assert len(roots) == 1, [span.name for span in roots]
        self.root = roots[0]
        for span in self.spans:
            assert span.start_ns <= span.end_ns, span.name
            if span is self.root:
                continue
            assert span.parent_id in by_id, f"{span.name} has lost its parent"
            parent = by_id[span.parent_id]
            assert parent.start_ns <= span.start_ns, f"{span.name} began before {parent.name}"
            assert span.end_ns <= parent.end_ns, f"{span.name} ended after {parent.name}"

    def below(self, span: SpanRecord) -> list[SpanRecord]:
        """A span's children, by their start."""
        return [one for one in self.spans if one.parent_id == span.span_id]

    def names(self, span: SpanRecord) -> list[str]:
        """Their names."""
        return [one.name for one in self.below(span)]

    def one(self, name: str) -> SpanRecord:
        """The only span of that name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def events(self) -> list[str]:
        """The names of the root's events."""
        return [event.name for event in self.root.events]


def recoveries(spans: Sequence[SpanRecord]) -> list[Trace]:
    """The traces of recoveries, in their order, each of which holds together; their links are to spans that exist."""
    ids = [span.trace_id for span in spans if span.name == tracing.ENGINE_RECOVER]
    assert len(set(ids)) == len(ids), "two recoveries in one trace"
    traces = [Trace(span for span in spans if span.trace_id == one) for one in ids]
    known = {(span.trace_id, span.span_id) for span in spans}
    for trace in traces:
        assert trace.root.name == tracing.ENGINE_RECOVER
        assert {(link.trace_id, link.span_id) for link in trace.root.links} <= known, "a link leads nowhere"
    return traces
