"""In which order passes run: as ``after`` and ``before`` demand, and else as they were offered."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from enginebay.errors import PluginBroken, did_you_mean
from enginebay.interfaces import GraphPass


def order_passes(passes: Sequence[GraphPass]) -> list[GraphPass]:
    """The passes in the order in which they run; of those that may come next, the one that was offered first.

    Raises ``PluginBroken`` for two of one name, for a name that is not loaded, and for a circle.
    """
    at = _positions(passes)
    waits: list[set[int]] = [set() for _ in passes]
    for index, one in enumerate(passes):
        waits[index].update(_find(name, one, at, "after") for name in one.after)
        for name in one.before:
            waits[_find(name, one, at, "before")].add(index)
    ready = [index for index, others in enumerate(waits) if not others]
    ordered: list[GraphPass] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(passes[index])
        for other, others in enumerate(waits):
            if index in others:
                others.remove(index)
                if not others:
                    heapq.heappush(ready, other)
    if len(ordered) < len(passes):
        raise PluginBroken(f"graph passes wait for each other in a circle: {_circle(passes, waits)}.")
    return ordered


def _positions(passes: Sequence[GraphPass]) -> dict[str, int]:
    at: dict[str, int] = {}
    for index, one in enumerate(passes):
        if (other := at.setdefault(one.name, index)) != index:
            packages = " and ".join(dict.fromkeys(p.package or "?" for p in (passes[other], one)))
            raise PluginBroken(f"graph pass '{one.name}' is offered twice, by {packages}: load one of them.")
    return at


def _find(name: str, one: GraphPass, at: dict[str, int], which: str) -> int:
    if name not in at:
        raise PluginBroken(
            f"{one.who} says it runs {which} '{name}', and no such pass is loaded."
            f"{did_you_mean(name, at)} Loaded: {', '.join(at)}"
        )
    return at[name]


def _circle(passes: Sequence[GraphPass], waits: Sequence[set[int]]) -> str:
    at = next(index for index, others in enumerate(waits) if others)
    path = [at]
    while (at := min(waits[at])) not in path:
        path.append(at)
    around = [*path[path.index(at) :], at]
    return " after ".join(f"'{passes[index].name}'" for index in around)
