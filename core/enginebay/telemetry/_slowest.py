"""Where the time of the slowest start, request, step and recovery went: a chain from each to what it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginebay import tracing
from enginebay.telemetry._forest import RECOVERY, REQUEST, START, STEP, Node, walk
from enginebay.telemetry._text import one_line

_KINDS: Final = (START, REQUEST, STEP, RECOVERY)

_WORTH: Final = 0.05
"""A path ends where no child has this part of its span's time: that time is the span's own."""


def slowest(roots: Sequence[Node]) -> dict[str, list[Node]]:
    """For each kind that there is, the slowest and its path: each node is a child of the one before it.

    Spans of an engine come first; where there are none, the slowest trace of each other kind is shown.
    """
    longest: dict[str, Node] = {}
    for root in roots:
        for node in walk(root):
            best = longest.get(node.kind)
            if node.is_head and (best is None or _took(node) > _took(best)):
                longest[node.kind] = node
    kinds: list[str] = [kind for kind in _KINDS if kind in longest] or sorted(longest)
    return {kind: path(longest[kind]) for kind in kinds}


def path(head: Node) -> list[Node]:
    """From ``head`` down: of the children on the critical path always the longest, if it is worth telling of.

    A span waits for the child that ends last, which began when the one that ended last before it was done, and so on
    back to the span's start. Those are its critical path; what ran beside them made nobody wait.
    """
    found = [head]
    while on_it := critical(found[-1]):
        longest = max(on_it, key=_took)
        if _took(longest) < _WORTH * _took(found[-1]):
            break
        found.append(longest)
    return found


def critical(node: Node) -> list[Node]:
    """The children of a span that it waits for, the last first; no two of them run at once, each takes some time."""
    waited: list[Node] = []
    until = node.span.end_ns
    for child in sorted(node.children, key=lambda c: (-c.span.end_ns, c.span.start_ns)):
        end = child.span.end_ns if waited else min(child.span.end_ns, until)
        if node.span.start_ns <= child.span.start_ns < end <= until:
            waited.append(child)
            until = child.span.start_ns
    return waited


def _took(node: Node) -> int:
    return node.span.end_ns - node.span.start_ns


def render_slowest(paths: dict[str, list[Node]]) -> str:
    """A block for each path: milliseconds, percent of the whole, and milliseconds in which nothing below ran."""
    blocks = []
    for kind, nodes in paths.items():
        names = [f"{'  ' * depth}{one_line(node.span.name)}{_rank(node)}" for depth, node in enumerate(nodes)]
        width = max(len(name) for name in names)
        lines = [f"slowest {one_line(kind)}, trace {nodes[0].span.trace_id}"]
        whole = max(1, _took(nodes[0]))
        lines.extend(
            f"  {name.ljust(width)}  {node.span.duration_ms:>10.2f} ms {100 * _took(node) / whole:>3.0f}%"
            f"  own {node.own_ns() / 1e6:>10.2f} ms{'  ERROR' if node.span.status == 'error' else ''}"
            for name, node in zip(names, nodes, strict=True)
        )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _rank(node: Node) -> str:
    rank = node.span.attributes.get(tracing.RANK)
    return f" (rank {rank})" if isinstance(rank, int) and node.span.name.startswith("worker.") else ""
