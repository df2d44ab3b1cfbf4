"""Reads a trace file back: OTLP/JSON lines, ours or anybody's, into plain records."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from enginebay.errors import ConfigError
from enginebay.telemetry import _otlp

_log = logging.getLogger(__name__)

_TOLD_BYTES = 1 << 20
"""How much is read between two calls of ``progress``."""

_STATUS: tuple[Literal["unset", "ok", "error"], ...] = ("unset", "ok", "error")
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


@dataclass(frozen=True, kw_only=True)
class SpanEvent:
    """Something that happened at one moment; ``time_ns`` is nanoseconds since 1970."""

    name: str
    time_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SpanLink:
    """A reference to a span of another trace; ids are hex."""

    trace_id: str
    span_id: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SpanRecord:
    """A finished span. Ids are hex (32 and 16 digits), ``parent_id`` is "" for a root; times are ns since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    status: Literal["unset", "ok", "error"] = "unset"
    message: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    resource: dict[str, Any] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float:
        """Milliseconds from start to end."""
        return (self.end_ns - self.start_ns) / 1e6


def read_spans(path: Path, progress: Callable[[int, int], None] | None = None) -> list[SpanRecord]:
    """All spans of a trace file in start order; of several with one id, the first that was written.

    A last line without its end, which a writer was stopped in or is still at, is left out with a warning if it is not
    whole. ``progress`` is called now and then with the bytes that are read, and those of the file. Raises
    ``ConfigError`` when the file cannot be read, or names the first line that is not OTLP/JSON.
    """
    spans: list[SpanRecord] = []
    number, done, told = 0, 0, 0
    line = b""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for number, line in enumerate(file, start=1):  # noqa: B007  # the error below names it
                spans.extend(decode(line))
                done += len(line)
                if progress is not None and done - told >= _TOLD_BYTES:
                    told = done
                    progress(done, max(size, done))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file. A trace file is written by enginebay generate --trace FILE, "
            "or by [telemetry] file in engine.toml."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # msgspec's and Unicode's errors are ValueErrors
        if line.endswith(b"\n") or number == 1:
            raise ConfigError(
                f"{path}: line {number} is damaged, or no line of OTLP JSON: {_reason(error)}."
            ) from error
        _log.warning("%s: the last line is half written, and left out", path)
    return sorted(first_of_each(spans), key=lambda span: span.start_ns)


def decode(line: bytes) -> list[SpanRecord]:
    """The spans of one line; none of an empty one. Raises ``ValueError`` or ``RecursionError``."""
    return _line(_otlp.decode(line)) if line.strip() else []


def first_of_each(spans: Iterable[SpanRecord]) -> list[SpanRecord]:
    """Without those whose id came before: a span that its process could not end may be told of by another as well."""
    found: dict[tuple[str, str], SpanRecord] = {}
    for span in spans:
        found.setdefault((span.trace_id, span.span_id), span)
    return list(found.values())


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return str(error).rstrip(".")


def _line(line: _otlp.Line) -> list[SpanRecord]:
    spans: list[SpanRecord] = []
    for process in line.resource_spans:
        resource = _attributes(process.resource.attributes)
        spans.extend(_span(span, resource) for scope in process.scope_spans for span in scope.spans)
    return spans


def _span(span: _otlp.Span, resource: dict[str, Any]) -> SpanRecord:
    return SpanRecord(
        trace_id=_hex(span.trace_id, 32),
        span_id=_hex(span.span_id, 16),
        parent_id=_hex(span.parent_span_id, 16) if span.parent_span_id else "",
        name=span.name,
        kind=_KINDS[span.kind] if 0 <= span.kind < len(_KINDS) else "unspecified",
        start_ns=_nanoseconds(span.start_time_unix_nano),
        end_ns=_nanoseconds(span.end_time_unix_nano),
        status=_STATUS[span.status.code] if 0 <= span.status.code < len(_STATUS) else "unset",
        message=span.status.message,
        attributes=_attributes(span.attributes),
        events=tuple(
            SpanEvent(name=e.name, time_ns=_nanoseconds(e.time_unix_nano), attributes=_attributes(e.attributes))
            for e in span.events
        ),
        links=tuple(
            SpanLink(trace_id=_hex(k.trace_id, 32), span_id=_hex(k.span_id, 16), attributes=_attributes(k.attributes))
            for k in span.links
        ),
        resource=resource,
    )


def _attributes(pairs: Sequence[_otlp.KeyValue]) -> dict[str, Any]:
    return {pair.key: _otlp.plain(pair.value) for pair in pairs}


def _nanoseconds(value: str | int) -> int:
    number = int(value)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number} is not a time in nanoseconds")
    return number


def _hex(text: str, digits: int) -> str:
    if len(text) != digits or not all(c in "0123456789abcdefABCDEF" for c in text):
        raise ValueError(f"{text[:64]!r} is not an id of {digits} hex digits")
    return text.lower()
