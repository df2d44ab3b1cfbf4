"""A trace for Perfetto and chrome://tracing: the Trace Event Format, as JSON.

Source: "Trace Event Format", the Chromium project's document. Times are microseconds from the first span's start: a
double has not room enough for nanoseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec.json import Encoder

from enginebay.telemetry._forest import Node
from enginebay.telemetry._layout import Place, Process, layout
from enginebay.telemetry._text import plain_attributes

BEGIN: Final = b'{"displayTimeUnit":"ms","otherData":{"by":"enginebay"'
"""How each such file of ours begins."""

_NO_PID: Final = 1 << 22
"""Numbers from here on are no process's: Linux gives none out."""

_Event = dict[str, Any]


class _Drawn(NamedTuple):
    """A span where it is drawn; ``order`` is its place in the file."""

    order: int
    pid: int
    tid: int
    place: Place


class _Arrow(NamedTuple):
    """From the span that began first to the other."""

    number: int
    name: str
    first: _Drawn
    last: _Drawn


def perfetto(roots: Sequence[Node]) -> bytes:
    """The file: a process for each process, a thread for each lane, and arrows for links and across processes."""
    processes = layout(roots)
    begin = min((root.span.start_ns for root in roots), default=0)
    names, drawn = _drawn(processes)
    starts: dict[int, list[_Arrow]] = {}
    for arrow in _arrows(drawn):
        for end in (arrow.first, arrow.last):
            starts.setdefault(end.order, []).append(arrow)
    events = names
    for one in drawn:
        events.append(_slice(one, begin))
        # right behind its slice, to which a reader then binds it
        events.extend(_end(arrow, one, begin) for arrow in starts.get(one.order, ()))
        events.extend(_instants(one, begin))
    other = {"by": "enginebay", "begin_unix_ns": str(begin)}
    return Encoder().encode({"displayTimeUnit": "ms", "otherData": other, "traceEvents": events})


def _drawn(processes: Sequence[Process]) -> tuple[list[_Event], list[_Drawn]]:
    names: list[_Event] = []
    found: list[tuple[int, int, Place]] = []
    tid = 0
    for index, (process, pid) in enumerate(zip(processes, _pids(processes), strict=True)):
        names.append(_meta("process_name", pid, 0, name=process.label))
        names.append(_meta("process_sort_index", pid, 0, sort_index=index))
        for number, lane in enumerate(process.lanes):
            tid += 1
            names.append(_meta("thread_name", pid, tid, name=lane.label))
            names.append(_meta("thread_sort_index", pid, tid, sort_index=number))
            found.extend((pid, tid, place) for place in lane.places)
    # readers sort by time alone: of two that begin at once the outer one comes first
    found.sort(key=lambda one: (one[2].node.span.start_ns, one[2].depth))
    return names, [_Drawn(index, *one) for index, one in enumerate(found)]


def _pids(processes: Sequence[Process]) -> list[int]:
    """Their own numbers, or others where two hosts have one number."""
    taken: set[int] = {0}
    numbers = []
    for index, process in enumerate(processes):
        pid = process.pid if process.pid is not None and process.pid not in taken else _NO_PID + index
        taken.add(pid)
        numbers.append(pid)
    return numbers


def _meta(what: str, pid: int, tid: int, **args: str | int) -> _Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _slice(one: _Drawn, begin: int) -> _Event:
    span = one.place.node.span
    told = plain_attributes(span.attributes)
    told |= {"trace_id": span.trace_id, "span_id": span.span_id, "status": span.status}
    if span.message:
        told["message"] = span.message
    return {
        "ph": "X",
        "name": span.name,
        "cat": one.place.node.kind,
        "ts": (span.start_ns - begin) / 1e3,
        "dur": max(0, span.end_ns - span.start_ns) / 1e3,
        "pid": one.pid,
        "tid": one.tid,
        "args": told,
    }


def _instants(one: _Drawn, begin: int) -> list[_Event]:
    return [
        {
            "ph": "i",
            "s": "t",
            "name": event.name,
            "cat": "event",
            "ts": (event.time_ns - begin) / 1e3,
            "pid": one.pid,
            "tid": one.tid,
            "args": plain_attributes(event.attributes),
        }
        for event in one.place.node.span.events
    ]


def _arrows(drawn: Sequence[_Drawn]) -> list[_Arrow]:
    at: dict[tuple[str, str], _Drawn] = {}
    for one in drawn:
        at.setdefault((one.place.node.span.trace_id, one.place.node.span.span_id), one)
    pairs: dict[tuple[int, int, str], tuple[_Drawn, _Drawn]] = {}
    for one in drawn:
        parent = one.place.node.parent
        others = [("link", at.get((link.trace_id, link.span_id))) for link in one.place.node.span.links]
        if parent is not None:
            above = at.get((parent.span.trace_id, parent.span.span_id))
            if above is not None and above.pid != one.pid:
                others.append(("child", above))
        for name, other in others:
            if other is not None and other is not one:
                first, last = sorted((one, other), key=lambda end: end.order)
                pairs.setdefault((first.order, last.order, name), (first, last))
    return [_Arrow(number, key[2], *pair) for number, (key, pair) in enumerate(sorted(pairs.items()), start=1)]


def _end(arrow: _Arrow, one: _Drawn, begin: int) -> _Event:
    end: _Event = {"ph": "s"} if one is arrow.first else {"ph": "f", "bp": "e"}
    ts = (one.place.node.span.start_ns - begin) / 1e3
    return end | {"name": arrow.name, "cat": arrow.name, "id": arrow.number, "ts": ts, "pid": one.pid, "tid": one.tid}
