"""Spans as records: from numbers, at random, and in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from enginebay.telemetry import SpanRecord, _otlp

MS = 1_000_000


def span(number: int, name: str, start: float, end: float, parent: int = 0, trace: int = 1, **more: Any) -> SpanRecord:
    """A record with times in ms and ids from numbers."""
    return SpanRecord(
        trace_id=f"{trace:032x}",
        span_id=f"{number:016x}",
        parent_id=f"{parent:016x}" if parent else "",
        name=name,
        kind="internal",
        start_ns=round(start * MS),
        end_ns=round(end * MS),
        **more,
    )


@st.composite
def traces(draw: st.DrawFn, *, inside: bool = False) -> list[SpanRecord]:
    """One tree over one to three processes; ``inside``: children lie within their parents, else where they like."""
    made = [span(1, "root", 0, 60, resource={"process.pid": 1})]
    for number in range(2, draw(st.integers(1, 14)) + 1):
        parent = draw(st.sampled_from(made))
        low, high = (parent.start_ns // MS, parent.end_ns // MS) if inside else (0, 80)
        start = draw(st.integers(low, high))
        end = draw(st.integers(start, high))
        pid = draw(st.integers(1, 3))
        name = draw(st.sampled_from("abc"))
        above = int(parent.span_id, 16)
        made.append(span(number, name, start, end, above, resource={"process.pid": pid}))
    return made


def line(records: Iterable[SpanRecord]) -> bytes:
    """The records as one line of a trace file, without its end."""
    processes = []
    for one in records:
        made = _otlp.Span(
            trace_id=one.trace_id,
            span_id=one.span_id,
            parent_span_id=one.parent_id,
            name=one.name,
            start_time_unix_nano=str(one.start_ns),
            end_time_unix_nano=str(one.end_ns),
            attributes=[_otlp.KeyValue(key=k, value=_otlp._value(v)) for k, v in one.attributes.items()],
            events=[_otlp.Event(time_unix_nano=str(e.time_ns), name=e.name) for e in one.events],
            status=_otlp.Status(code=["unset", "ok", "error"].index(one.status), message=one.message),
        )
        resource = _otlp.Resource(
            attributes=[_otlp.KeyValue(key=k, value=_otlp._value(v)) for k, v in one.resource.items()]
        )
        scopes = [_otlp.ScopeSpans(spans=[made])]
        processes.append(_otlp.ResourceSpans(resource=resource, scope_spans=scopes))
    return _otlp._encoder.encode(_otlp.Line(resource_spans=processes))


def write(path: Path, records: Iterable[SpanRecord]) -> None:
    """The records as a trace file, one line each."""
    path.write_bytes(b"".join(line([one]) + b"\n" for one in records))
