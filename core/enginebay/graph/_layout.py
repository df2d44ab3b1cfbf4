"""Where the boxes of a picture stand: rows from top to bottom, few crossings, lines as straight as can be.

The layered way of drawing (Sugiyama, Tagawa and Toda, 1981): the longest path gives the row, a line that passes rows
gets a place in each of them, rows are ordered by where their neighbours stand, and then moved towards these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

_SWEEPS: Final = 12


@dataclass(frozen=True)
class Extent:
    """How far a box reaches from its middle, in pixels, with what stands beside it; and how high it is."""

    left: float
    right: float
    height: float


@dataclass
class Layout:
    """Middles of boxes by name; of each edge the rows that it passes: where, from which height, to which."""

    x: dict[str, float] = field(default_factory=dict)
    y: dict[str, float] = field(default_factory=dict)
    bends: dict[tuple[str, str], list[tuple[float, float, float]]] = field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0


def lay_out(
    extents: Mapping[str, Extent], edges: Sequence[tuple[str, str]], *, gap: float = 36.0, row_gap: float = 44.0
) -> Layout:
    """Place boxes so that each edge goes downwards. The edges have no circle. Sizes are in pixels."""
    rows, chains = _rows_with_lanes(extents, edges)
    sizes = dict(extents) | {lane: Extent(4, 4, 0) for row in rows for lane in row if lane not in extents}
    above, below = _neighbours(rows, chains)
    _order(rows, above, below)
    x = _columns(rows, sizes, above, below, gap)
    layout = Layout()
    top = 0.0
    spans: dict[str, tuple[float, float]] = {}
    for row in rows:
        height = max(sizes[name].height for name in row)
        spans |= dict.fromkeys(row, (top, top + height))
        top += height + row_gap
    leftmost = min((x[name] - sizes[name].left for name in x), default=0.0)
    layout.x = {name: x[name] - leftmost for name in extents}
    layout.y = {name: sum(spans[name]) / 2 for name in extents}
    layout.bends = {
        edge: [(x[lane] - leftmost, *spans[lane]) for lane in chain[1:-1]] for edge, chain in chains.items()
    }
    layout.width = max((x[name] - leftmost + sizes[name].right for name in x), default=0.0)
    layout.height = max(top - row_gap, 0.0)
    return layout


def _rows_with_lanes(
    extents: Mapping[str, Extent], edges: Sequence[tuple[str, str]]
) -> tuple[list[list[str]], dict[tuple[str, str], list[str]]]:
    """The boxes by row, lanes of passing edges among them; and each edge as the chain of what it passes."""
    depth = dict.fromkeys(extents, 0)
    for _ in extents:  # at most as often as the longest path is long
        moved = False
        for source, target in edges:
            if depth[target] <= depth[source]:
                depth[target], moved = depth[source] + 1, True
        if not moved:
            break
    for name in extents:  # what only flows in stands right above its first reader
        readers = [depth[target] for source, target in edges if source == name]
        if readers and not any(target == name for _, target in edges):
            depth[name] = min(readers) - 1
    rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in extents:
        rows[depth[name]].append(name)
    chains: dict[tuple[str, str], list[str]] = {}
    for number, (source, target) in enumerate(edges):
        lanes = [f"lane {number} {row}" for row in range(depth[source] + 1, depth[target])]
        for lane, row in zip(lanes, range(depth[source] + 1, depth[target]), strict=True):
            rows[row].append(lane)
        chains[source, target] = [source, *lanes, target]
    return rows, chains


def _neighbours(
    rows: Sequence[Sequence[str]], chains: Mapping[tuple[str, str], Sequence[str]]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    above: dict[str, list[str]] = {name: [] for row in rows for name in row}
    below: dict[str, list[str]] = {name: [] for row in rows for name in row}
    for chain in chains.values():
        for upper, lower in pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _order(rows: list[list[str]], above: Mapping[str, list[str]], below: Mapping[str, list[str]]) -> None:
    """Sort each row by the middle of its neighbours in the row before, downwards and upwards in turn."""
    at = {name: float(index) for row in rows for index, name in enumerate(row)}
    for sweep in range(_SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            places = {name: _mean([at[n] for n in near[name]], at[name]) for name in row}
            row.sort(key=places.__getitem__)
            at |= {name: float(index) for index, name in enumerate(row)}


def _columns(
    rows: Sequence[Sequence[str]],
    sizes: Mapping[str, Extent],
    above: Mapping[str, list[str]],
    below: Mapping[str, list[str]],
    gap: float,
) -> dict[str, float]:
    """Move each row towards its neighbours, in its order and without touching, several times."""
    x: dict[str, float] = {}
    for row in rows:
        x |= dict(zip(row, _apart([0.0] * len(row), row, sizes, gap), strict=True))
    for sweep in range(2 * _SWEEPS):
        near = (above, below) if sweep % 2 == 0 else (below, above)
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean([x[n] for n in near[0][name] or near[1][name]], x[name]) for name in row]
            x |= dict(zip(row, _apart(wanted, row, sizes, gap), strict=True))
    return x


def _apart(wanted: Sequence[float], row: Sequence[str], sizes: Mapping[str, Extent], gap: float) -> list[float]:
    """The places nearest to the wanted ones (least squares) at which the boxes of a row do not touch.

    With the room that each needs taken off, the places must not fall: pool those that do until none does.
    """
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + sizes[left].right + gap + sizes[right].left)
    pools: list[tuple[float, int]] = []  # (mean, how many)
    for place, offset in zip(wanted, offsets, strict=False):
        pools.append((place - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (mean, count), (other, more) = pools.pop(), pools.pop()
            pools.append(((mean * count + other * more) / (count + more), count + more))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [place + offset for place, offset in zip(flat, offsets, strict=False)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
