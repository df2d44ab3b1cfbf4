"""One HTML page of a trace: a timeline by process. It needs no network, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from msgspec.json import Encoder

from enginebay.telemetry._forest import Node
from enginebay.telemetry._layout import layout
from enginebay.telemetry._slowest import slowest
from enginebay.telemetry._summary import summary
from enginebay.telemetry._text import plain_attributes

BEGIN: Final = b"<!doctype html><!-- a trace of enginebay -->"
"""How each page of ours begins."""

_SCRIPTS: Final = ("model.js", "draw.js", "panel.js", "control.js")
_STATUS: Final = ("unset", "ok", "error")


def page(roots: Sequence[Node], *, title: str) -> bytes:
    """The page; ``title`` is what it calls the trace. What comes from spans can be no markup in it."""
    folder = resources.files("enginebay.telemetry") / "_page_files"
    style = (folder / "page.css").read_text("utf-8")
    script = '"use strict";\n' + "".join((folder / name).read_text("utf-8") for name in _SCRIPTS)
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    parts = {
        "POLICY": policy,
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _escaped(Encoder().encode(page_data(roots, title)).decode()),
    }
    text = (folder / "page.html").read_text("utf-8")
    pieces = text.split("@@")  # text and names of parts in turn; no part is looked into
    return BEGIN + "".join(piece if n % 2 == 0 else parts[piece] for n, piece in enumerate(pieces)).encode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _escaped(json: str) -> str:
    """The same JSON, in which nothing can end the element that it stands in."""
    return json.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(roots: Sequence[Node], title: str) -> dict[str, Any]:
    """What the page's script reads. Times are microseconds from the first span's start; spans are in start order."""
    processes = layout(roots)
    begin = min((root.span.start_ns for root in roots), default=0)
    placed = sorted(
        (
            (place, p, number)
            for p, process in enumerate(processes)
            for number, lane in enumerate(process.lanes)
            for place in lane.places
        ),
        key=lambda one: (one[0].node.span.start_ns, one[0].depth),
    )
    index = {id(place.node): n for n, (place, _, _) in enumerate(placed)}
    by_id: dict[tuple[str, str], int] = {}
    for n, (place, _, _) in enumerate(placed):
        by_id.setdefault((place.node.span.trace_id, place.node.span.span_id), n)
    names = {name: n for n, name in enumerate(dict.fromkeys(place.node.span.name for place, _, _ in placed))}
    traces = {trace: n for n, trace in enumerate(dict.fromkeys(place.node.span.trace_id for place, _, _ in placed))}
    kinds = {kind: n for n, kind in enumerate(dict.fromkeys(place.node.kind for place, _, _ in placed))}
    spans, details = [], []
    for place, process_number, lane_number in placed:
        node, span = place.node, place.node.span
        spans.append(
            [
                process_number,
                lane_number,
                place.depth,
                names[span.name],
                (span.start_ns - begin) / 1e3,
                max(0, span.end_ns - span.start_ns) / 1e3,
                index[id(node.parent)] if node.parent is not None else -1,
                kinds[node.kind],
                traces[span.trace_id],
                _STATUS.index(span.status),
            ]
        )
        details.append(
            {
                "id": span.span_id,
                "own": node.own_ns() / 1e3,
                "m": span.message,
                "a": plain_attributes(span.attributes),
                "e": [[e.name, (e.time_ns - begin) / 1e3, plain_attributes(e.attributes)] for e in span.events],
                "l": [
                    [by_id.get((k.trace_id, k.span_id), -1), k.trace_id, k.span_id, plain_attributes(k.attributes)]
                    for k in span.links
                ],
            }
        )
    return {
        "title": title,
        "begin": _moment(begin),
        "names": list(names),
        "kinds": list(kinds),
        "traces": list(traces),
        "processes": [
            {"label": one.label, "lanes": [[lane.label, lane.rows] for lane in one.lanes]} for one in processes
        ],
        "spans": spans,
        "details": details,
        "slowest": [[kind, [index[id(node)] for node in nodes]] for kind, nodes in slowest(roots).items()],
        "summary": [
            [
                group.kind,
                group.count,
                group.total,
                [[r.name, r.count, r.median, r.p99, r.own, r.share, r.failed] for r in group.rows],
            ]
            for group in summary(roots)
        ],
    }


def _moment(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest // 10**6:03d} UTC"
