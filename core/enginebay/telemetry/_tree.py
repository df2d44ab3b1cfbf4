"""Spans as text: a tree per trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from enginebay.telemetry._read import SpanEvent, SpanRecord
from enginebay.telemetry._text import one_line

_MAX_VALUE = 80
_LONG = frozenset({"exception.stacktrace", "exception.escaped"})


def render_tree(spans: Sequence[SpanRecord], *, columns: int | None = 120) -> str:
    """A tree per trace, traces and siblings in start order.

    A line has the name, milliseconds, percent of the parent, the status when it is an error, and attributes (as many
    as fit into ``columns`` characters, None for all; ``enginebay.`` is left out of their names); events stand below
    with the time since the span's start, and theirs. A span whose parent is not among ``spans`` is a root of its trace.
    """
    traces: dict[str, list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda s: s.start_ns):
        traces.setdefault(span.trace_id, []).append(span)
    blocks = []
    for trace_id, members in traces.items():
        rows = list(_rows(members))
        width = max(len(head) for head, _, _ in rows)
        room = None if columns is None else columns - width - 2
        lines = [f"trace {trace_id}"]
        for head, row, parent in rows:
            text = _event(row, parent, room) if isinstance(row, SpanEvent) else _figures(row, parent, room)
            lines.append(f"{head.ljust(width)}  {text}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


_Row = tuple[str, SpanRecord | SpanEvent, SpanRecord | None]


def _rows(members: Sequence[SpanRecord]) -> Iterator[_Row]:
    """(indented name, span or event, parent) of one trace, depth first; without recursion, whatever its depth."""
    by_id = {span.span_id: span for span in members}
    children: dict[str, list[SpanRecord]] = {}
    roots: list[SpanRecord] = []
    for span in members:
        if span.parent_id in by_id and span.parent_id != span.span_id:
            children.setdefault(span.parent_id, []).append(span)
        else:
            roots.append(span)
    seen: set[int] = set()
    # what no root reaches is a ring of parents, which only a damaged file has: it is shown all the same
    for root in [*roots, *members]:
        stack: list[tuple[SpanRecord, SpanRecord | None, str, str]] = [(root, None, "", "")]
        while stack:
            span, parent, mark, indent = stack.pop()
            if id(span) in seen:
                continue
            seen.add(id(span))
            yield mark + one_line(span.name), span, parent
            below = [c for c in children.get(span.span_id, ()) if id(c) not in seen]
            bar = "│ " if below else "  "
            for event in span.events:
                yield f"{indent}{bar}· {one_line(event.name)}", event, span
            branches = [("├─ ", "│  ")] * (len(below) - 1) + [("└─ ", "   ")]
            for child, (branch, gap) in reversed(list(zip(below, branches, strict=False))):
                stack.append((child, span, indent + branch, indent + gap))


def _figures(span: SpanRecord, parent: SpanRecord | None, room: int | None) -> str:
    text = f"{span.duration_ms:>10.2f} ms"
    if parent is not None and parent.end_ns > parent.start_ns:
        text += f" {100 * span.duration_ms / parent.duration_ms:>3.0f}%"
    else:
        text += "     "
    if span.status == "error":
        text += f"  ERROR {one_line(span.message)}".rstrip()
    if span.links:
        text += f"  → {len(span.links)} link{'s' if len(span.links) > 1 else ''}"
    return _with(text, span.attributes, room)


def _with(text: str, attributes: Mapping[str, Any], room: int | None) -> str:
    """The text and behind it as many attributes as there is room for."""
    pairs = [f"  {one_line(key.removeprefix('enginebay.'))}={_value(value)}" for key, value in attributes.items()]
    for shown, pair in enumerate(pairs):
        left = len(pairs) - shown
        more = f"  … {left} more"
        if room is not None and len(text) + len(pair) + (len(more) if left > 1 else 0) > room:
            return text + more
        text += pair
    return text


def _event(event: SpanEvent, span: SpanRecord | None, room: int | None) -> str:
    since = f"{(event.time_ns - span.start_ns) / 1e6:>+10.2f} ms     " if span is not None else ""
    return _with(since, {key: value for key, value in event.attributes.items() if key not in _LONG}, room)


def _value(value: Any) -> str:
    text = one_line(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"
