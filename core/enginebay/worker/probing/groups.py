"""KV groups: which layers have their blocks handed out together, and how layers of several groups share memory.

A block id is of one group at a time, so the layers of a group stand in the memory that those of another stand in under
other ids: the first of each in one place, the second in another. An id then costs as much as the largest group, and
what the others have less of is lost. So the layers of one window are dealt out to several groups where these come out
more even: 22 windowed layers beside 4 that see everything make 6 groups of 4 or fewer, not one of 22.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.messages import KVCacheGroup, KVCacheSpec
from enginebay.worker.probing.shapes import LayerShape

__all__ = ["LayerGroup", "Place", "arrange", "kv_spec", "places"]

MAX_GROUPS = 8
"""Each group costs a table of blocks per request, and their arithmetic in every step."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one window. ``layers`` are this rank's, numbered from its first; a rank may have none of a group."""

    window: int | None
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of one layer's shape, for each block id: ``layers`` have it in turn, no two of them of one group."""

    shape: LayerShape
    layers: tuple[int, ...]


def arrange(windows: Sequence[int | None], own: range) -> tuple[LayerGroup, ...]:
    """Groups of the layers whose windows these are, those of the whole model; a rank has the layers ``own`` of it.

    Those that see everything come first, the others by window. Every rank of the model gets the same groups.
    """
    by_window: dict[int | None, list[int]] = {}
    for layer in sorted(range(len(windows)), key=lambda layer: windows[layer] or 0):
        by_window.setdefault(windows[layer], []).append(layer)
    size = _group_size([len(layers) for layers in by_window.values()])
    groups = []
    for window, layers in by_window.items():
        for begin in range(0, len(layers), size):
            mine = tuple(layer - own.start for layer in layers[begin : begin + size] if layer in own)
            groups.append(LayerGroup(window, mine))
    return tuple(groups)


def _group_size(counts: Sequence[int]) -> int:
    """Layers of a group: what loses the least memory, in the fewest groups; one kind of layers is one group."""

    def cost(size: int) -> tuple[bool, int, int]:
        groups = sum(-(-count // size) for count in counts)
        return groups > max(MAX_GROUPS, len(counts)), groups * size, groups

    return min(range(1, max(counts) + 1), key=cost)


def places(shapes: Sequence[LayerShape], groups: Sequence[LayerGroup]) -> list[Place]:
    """The memory that this rank's layers need: of each shape, as many places as the group with most such layers."""
    layers: dict[tuple[tuple[int, int, int], int], list[int]] = {}
    for group in groups:
        used: Counter[tuple[int, int, int]] = Counter()
        for layer in group.layers:
            shape = shapes[layer]
            key = (shape.kv_heads, shape.key_width, shape.value_width)
            layers.setdefault((key, used[key]), []).append(layer)
            used[key] += 1
    return [Place(shapes[its[0]], tuple(its)) for its in layers.values()]


def kv_spec(
    shapes: Sequence[LayerShape], groups: Sequence[LayerGroup], *, block_size: int, element_size: int, first: int = 0
) -> KVCacheSpec:
    """The KV cache that these layers need; ``element_size`` is bytes of one number in the cache, ``first``
    the number of the first of them in the model."""
    token = [shape.numbers * element_size for shape in shapes]
    shared = block_size * sum(place.shape.numbers for place in places(shapes, groups)) * element_size
    return KVCacheSpec(
        groups=tuple(
            KVCacheGroup(
                layers=tuple(first + layer for layer in group.layers),
                block_size=block_size,
                bytes_per_block=block_size * sum(token[layer] for layer in group.layers),
                kind="full" if group.window is None else "sliding_window",
                window=group.window,
            )
            for group in groups
        ),
        bytes_per_block=None if len(groups) == 1 else shared,
    )
