"""Where each span is drawn: a process, a lane of it and a depth there, so that nothing lies upon anything else."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from enginebay import tracing
from enginebay.telemetry._forest import RECOVERY, REQUEST, START, STEP, Node, in_order, walk
from enginebay.telemetry._text import one_line

_LANES = {START: "starts", RECOVERY: "starts", STEP: "steps", REQUEST: "requests"}
_ORDER = ("starts", "steps", "requests")


@dataclass(frozen=True, slots=True)
class Place:
    """A node in its lane; ``depth`` counts from 0, and what is deeper lies inside what is above it."""

    node: Node
    depth: int


@dataclass(slots=True)
class Lane:
    """Spans of one process, of which any two are apart, or one within the other. In the order in which they begin."""

    label: str
    places: list[Place] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The depth of the deepest, and one."""
        return 1 + max((place.depth for place in self.places), default=0)


@dataclass(slots=True)
class Process:
    """A process, with its number if it told one."""

    label: str
    pid: int | None
    lanes: list[Lane]


def layout(roots: Sequence[Node]) -> list[Process]:
    """The processes in the order in which their first span began, the engine's before the others."""
    members: dict[tuple[str, ...], list[Node]] = {}
    depths: dict[int, int] = {}
    for root in roots:
        for node in walk(root):
            depths[id(node)] = depths[id(node.parent)] + 1 if node.parent is not None else 0
            members.setdefault(_identity(node.span.resource), []).append(node)
    processes = []
    for nodes in members.values():
        nodes.sort(key=lambda n: (n.span.start_ns, depths[id(n)], in_order(n.span)))
        pid = nodes[0].span.resource.get(tracing.PID)
        processes.append((nodes, Process(_label(nodes), pid if isinstance(pid, int) else None, _lanes(nodes))))
    processes.sort(key=lambda one: (not _is_engine(one[0][0].span.resource), one[0][0].span.start_ns))
    return [process for _, process in processes]


def _identity(resource: dict[str, Any]) -> tuple[str, ...]:
    keys = ("service.name", "host.name", tracing.PID, "service.instance.id")
    return tuple(str(resource.get(key, "")) for key in keys)


def _role(resource: dict[str, Any]) -> str:
    return str(resource.get("enginebay.role", ""))


def _is_engine(resource: dict[str, Any]) -> bool:
    return _role(resource) == "engine"


def _label(nodes: Sequence[Node]) -> str:
    resource = nodes[0].span.resource
    words = [_role(resource) or str(resource.get("service.name", "")) or "process"]
    if not _is_engine(resource):
        for key, word in ((tracing.RANK, "rank"), (tracing.GENERATION, "generation")):
            told = {v for node in nodes if isinstance(v := node.span.attributes.get(key), int)}
            if len(told) == 1:
                words.append(f"{word} {told.pop()}")
    pid = resource.get(tracing.PID)
    return one_line(", ".join([" ".join(words[:2]), *words[2:], *([f"pid {pid}"] if pid is not None else [])]))


def _lanes(nodes: Sequence[Node]) -> list[Lane]:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(_LANES.get(node.kind, node.kind), []).append(node)
    known = [name for name in _ORDER if name in groups]
    lanes = []
    for name in [*known, *sorted(set(groups) - set(known))]:
        made = nested([(node, node.span.start_ns, node.span.end_ns, node.parent) for node in groups[name]])
        for number, places in enumerate(made, start=1):
            label = f"{name} {number}" if len(made) > 1 else name
            lanes.append(Lane(one_line(label), [Place(node, depth) for node, depth in places]))
    return lanes


def nested(spans: Sequence[tuple[Node, int, int, Node | None]]) -> list[list[tuple[Node, int]]]:
    """Lanes for (node, start, end, parent) in start order, parents before children: nodes with their depths.

    A node lies within its parent if that has room for it there: the whole of its time, and none of a sibling's. Else
    it goes to the first lane that is empty then.
    """
    lanes: list[list[tuple[Node, int]]] = []
    open_spans: list[list[tuple[Node, int]]] = []  # of each lane: those that lie within one another, with their ends
    lane_of: dict[int, int] = {}
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for node, start, end, parent in spans:
        end = max(start, end)
        lane = lane_of.get(id(parent)) if parent is not None else None
        if lane is not None:
            stack = open_spans[lane]
            while stack and stack[-1][0] is not parent and stack[-1][1] <= start:
                stack.pop()
            if not stack or stack[-1][0] is not parent or end > stack[-1][1]:
                lane = None
        if lane is None:
            while busy and busy[0][0] <= start:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                lane = heapq.heappop(free)
                open_spans[lane].clear()
            else:
                lane = len(lanes)
                lanes.append([])
                open_spans.append([])
            heapq.heappush(busy, (end, lane))
        lanes[lane].append((node, len(open_spans[lane])))
        open_spans[lane].append((node, end))
        lane_of[id(node)] = lane
    return lanes
