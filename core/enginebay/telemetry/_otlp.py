"""One line of a trace file: the OTLP/JSON form of an ``ExportTraceServiceRequest``, as structs for both directions.

Source: the OpenTelemetry protocol specification, "JSON Protobuf Encoding": ids are hex, 64-bit integers are strings,
enums are numbers, keys are lowerCamelCase, unknown keys are ignored by readers.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.json import Decoder, Encoder

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200  # of opentelemetry.proto.trace.v1.SpanFlags


class _Message(Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    """What all of them share."""


class Value(_Message, frozen=True):
    """An AnyValue: exactly one field is set."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: str | int | None = None
    double_value: float | str | None = None
    array_value: Array | None = None
    bytes_value: str | None = None


class Array(_Message, frozen=True):
    """An ArrayValue."""

    values: list[Value] = []


class KeyValue(_Message, frozen=True):
    """One attribute."""

    key: str
    value: Value = Value()


class Event(_Message, frozen=True):
    """An event of a span."""

    time_unix_nano: str | int = "0"
    name: str = ""
    attributes: list[KeyValue] = []


class Link(_Message, frozen=True):
    """A link to a span of another trace."""

    trace_id: str
    span_id: str
    attributes: list[KeyValue] = []
    flags: int = 0


class Status(_Message, frozen=True):
    """``code``: 0 unset, 1 ok, 2 error."""

    code: int = 0
    message: str = ""


class Span(_Message, frozen=True):
    """A span; ``kind`` counts from 1 (internal)."""

    trace_id: str
    span_id: str
    parent_span_id: str = ""
    flags: int = 0
    name: str = ""
    kind: int = 0
    start_time_unix_nano: str | int = "0"
    end_time_unix_nano: str | int = "0"
    attributes: list[KeyValue] = []
    dropped_attributes_count: int = 0
    events: list[Event] = []
    dropped_events_count: int = 0
    links: list[Link] = []
    dropped_links_count: int = 0
    status: Status = Status()


class Scope(_Message, frozen=True):
    """What emitted the spans."""

    name: str = ""
    version: str = ""


class ScopeSpans(_Message, frozen=True):
    """Spans of one scope."""

    scope: Scope = Scope()
    spans: list[Span] = []


class Resource(_Message, frozen=True):
    """The process."""

    attributes: list[KeyValue] = []


class ResourceSpans(_Message, frozen=True):
    """Spans of one process."""

    resource: Resource = Resource()
    scope_spans: list[ScopeSpans] = []


class Line(_Message, frozen=True):
    """An ExportTraceServiceRequest."""

    resource_spans: list[ResourceSpans] = []


_encoder = Encoder()
_decoder = Decoder(Line)


def encode(spans: Sequence[ReadableSpan]) -> bytes:
    """One line (with its newline) that holds these finished spans of one process."""
    scopes: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        scope = span.instrumentation_scope
        key = (scope.name, scope.version or "") if scope is not None else ("", "")
        scopes.setdefault(key, []).append(_span(span))
    resource = Resource(attributes=_attributes(spans[0].resource.attributes)) if spans else Resource()
    scope_spans = [ScopeSpans(scope=Scope(name=n, version=v), spans=s) for (n, v), s in scopes.items()]
    return _encoder.encode(Line(resource_spans=[ResourceSpans(resource=resource, scope_spans=scope_spans)])) + b"\n"


def decode(line: bytes) -> Line:
    """The line's message; raises ``msgspec.DecodeError``, ``UnicodeDecodeError`` or ``RecursionError``."""
    return _decoder.decode(line)


def plain(value: Value) -> Any:
    """The value as Python has it; raises ``ValueError`` when a number or the base64 is not one."""
    if value.array_value is not None:
        return tuple(plain(v) for v in value.array_value.values)
    if value.int_value is not None:
        return int(value.int_value)
    if value.double_value is not None:
        return float(value.double_value)
    if value.bytes_value is not None:
        return base64.b64decode(value.bytes_value, validate=True)
    return value.bool_value if value.bool_value is not None else value.string_value


def _span(span: ReadableSpan) -> Span:
    context = span.get_span_context()
    assert context is not None, "a recorded span has a context"
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_span_id=f"{span.parent.span_id:016x}" if span.parent is not None else "",
        flags=_flags(context.trace_flags, span.parent),
        name=_text(span.name),
        kind=span.kind.value + 1,
        start_time_unix_nano=str(span.start_time or 0),
        end_time_unix_nano=str(span.end_time or 0),
        attributes=_attributes(span.attributes),
        dropped_attributes_count=span.dropped_attributes,
        events=[
            Event(time_unix_nano=str(e.timestamp), name=_text(e.name), attributes=_attributes(e.attributes))
            for e in span.events
        ],
        dropped_events_count=span.dropped_events,
        links=[
            Link(
                trace_id=f"{link.context.trace_id:032x}",
                span_id=f"{link.context.span_id:016x}",
                attributes=_attributes(link.attributes),
                flags=_flags(link.context.trace_flags, link.context),
            )
            for link in span.links
        ],
        dropped_links_count=span.dropped_links,
        status=Status(code=span.status.status_code.value, message=_text(span.status.description or "")),
    )


def _flags(trace_flags: int, where_from: SpanContext | None) -> int:
    remote = _IS_REMOTE if where_from is not None and where_from.is_remote else 0
    return trace_flags | _HAS_IS_REMOTE | remote


def _attributes(attributes: Mapping[str, Any] | None) -> list[KeyValue]:
    return [KeyValue(key=_text(key), value=_value(value)) for key, value in (attributes or {}).items()]


def _value(value: object) -> Value:
    if isinstance(value, bool):  # before int: a bool is one
        return Value(bool_value=value)
    if isinstance(value, int):
        return Value(int_value=str(value))
    if isinstance(value, float):
        return Value(double_value=value if math.isfinite(value) else _NOT_FINITE[str(value)])
    if isinstance(value, bytes):
        return Value(bytes_value=base64.b64encode(value).decode("ascii"))
    if isinstance(value, Iterable) and not isinstance(value, str):
        return Value(array_value=Array(values=[_value(v) for v in value]))
    return Value(string_value=_text(str(value)))


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _text(text: str) -> str:
    """The text with lone surrogates escaped: they have no UTF-8 form."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
