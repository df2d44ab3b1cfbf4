"""Spans as trees: who is below whom, of which kind each is, and which part of its tree's time each has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from enginebay import tracing
from enginebay.telemetry._read import SpanRecord

START: Final = "start"
STEP: Final = "step"
REQUEST: Final = "request"
RECOVERY: Final = "recovery"
_KIND_OF: Final = {
    tracing.ENGINE_START: START,
    tracing.ENGINE_STEP: STEP,
    tracing.ENGINE_RECOVER: RECOVERY,
}


@dataclass(slots=True, eq=False)
class Node:
    """A span in its tree. Children are in start order; ``kind`` is what the tree, or this part of it, is about."""

    span: SpanRecord
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    kind: str = ""

    @property
    def is_head(self) -> bool:
        """Whether something of a kind begins here: a request, say, also where a client's own span is above it."""
        return self.parent is None or self.parent.kind != self.kind

    def own_ns(self) -> int:
        """Nanoseconds of the span in which none of its children ran; what sticks out of it counts for nothing."""
        own, covered = 0, self.span.start_ns
        for child in self.children:
            own += max(0, min(child.span.start_ns, self.span.end_ns) - covered)
            covered = max(covered, child.span.end_ns)
        return own + max(0, self.span.end_ns - covered)


def forest(spans: Sequence[SpanRecord]) -> list[Node]:
    """The roots, in start order: spans whose parent is not among ``spans`` in their trace.

    Of a ring of parents, which only a damaged file has, the member that starts first is the root. Of two spans of one
    id the first of ``spans`` has the children.
    """
    nodes = [Node(span) for span in sorted(spans, key=in_order)]
    by_id: dict[tuple[str, str], Node] = {}
    first: dict[tuple[str, str], int] = {}
    for span in spans:
        first.setdefault((span.trace_id, span.span_id), id(span))
    for node in nodes:
        key = (node.span.trace_id, node.span.span_id)
        if first[key] == id(node.span):
            by_id.setdefault(key, node)
    roots = []
    for node in nodes:
        parent = by_id.get((node.span.trace_id, node.span.parent_id)) if node.span.parent_id else None
        if parent is None or parent is node:
            roots.append(node)
        else:
            node.parent = parent
            parent.children.append(node)
    known = {id(node) for root in roots for node in walk(root)}
    for node in nodes:
        if id(node) not in known:
            assert node.parent is not None, "only a ring has no root"
            node.parent.children.remove(node)
            node.parent = None
            roots.append(node)
            known.update(id(below) for below in walk(node))
    for root in roots:
        for node in walk(root):
            node.kind = _own_kind(node.span) or (node.span.name if node.parent is None else node.parent.kind)
    return sorted(roots, key=lambda node: node.span.start_ns)


def in_order(span: SpanRecord) -> tuple[int, bool, int]:
    """The order of siblings: by start, and of those that start at once first what takes no time, then the longest."""
    return span.start_ns, span.end_ns > span.start_ns, -span.end_ns


def walk(root: Node) -> Iterator[Node]:
    """The tree, parents before children, siblings in start order; whatever its depth."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _own_kind(span: SpanRecord) -> str:
    if tracing.GEN_AI_OPERATION in span.attributes and tracing.REQUEST_ID in span.attributes:
        return REQUEST
    return _KIND_OF.get(span.name, "")


def shares(root: Node) -> dict[int, float]:
    """Nanoseconds of the root's time that fall to each node, by its ``id``; together they are the root's time.

    A moment falls to the deepest span that runs in it. Where several children of one span run at once, such as ranks,
    they have equal parts of it. What of a child sticks out of its parent counts for nothing.
    """
    start, end = root.span.start_ns, max(root.span.start_ns, root.span.end_ns)
    found: dict[int, float] = {}
    stack = [(root, start, end, _Growth([start, end], [0.0, float(end - start)]))]
    while stack:
        node, start, end, growth = stack.pop()
        inside = [(max(start, c.span.start_ns), min(end, c.span.end_ns), c) for c in node.children]
        own, below = growth.shared_out(start, end, [(a, b) for a, b, _ in inside if a < b])
        found[id(node)] = own
        stack.extend((child, a, max(a, b), below) for a, b, child in inside)
    return found


@dataclass(slots=True)
class _Growth:
    """How much time has been given out up to a moment, straight lines between the moments."""

    moments: list[int]
    given: list[float]

    def at(self, moment: int) -> float:
        right = bisect_right(self.moments, moment)
        if right == 0:
            return self.given[0]
        if right == len(self.moments):
            return self.given[-1]
        a, b = self.moments[right - 1], self.moments[right]
        return self.given[right - 1] + (self.given[right] - self.given[right - 1]) * ((moment - a) / (b - a))

    def shared_out(self, start: int, end: int, spans: Sequence[tuple[int, int]]) -> tuple[float, _Growth]:
        """What of the time from ``start`` to ``end`` no span has, and how it grows for each that runs."""
        if not spans:
            return self.at(end) - self.at(start), self
        change: dict[int, int] = {start: 0, end: 0}
        for a, b in spans:
            change[a] = change.get(a, 0) + 1
            change[b] = change.get(b, 0) - 1
        for moment in self.moments[bisect_right(self.moments, start) : bisect_right(self.moments, end)]:
            change.setdefault(moment, 0)
        moments = sorted(change)
        own, total, running = 0.0, 0.0, change[start]
        given, before = [0.0], self.at(start)
        for moment in moments[1:]:
            now = self.at(moment)
            if running:
                total += (now - before) / running
            else:
                own += now - before
            given.append(total)
            before = now
            running += change[moment]
        return own, _Growth(moments, given)
