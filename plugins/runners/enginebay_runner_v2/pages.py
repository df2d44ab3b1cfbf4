"""The memory of the KV cache: reserved at once, its pages given by the kernel when blocks are first written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from enginebay.worker.probing.groups import LayerGroup, places
from enginebay.worker.probing.shapes import LayerShape

__all__ = ["Pages", "reserve"]

Pages = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""By layer, keys and values ``[num_blocks, block_size, kv_heads, width]``; layers of several groups may share them."""


def reserve(
    shapes: Sequence[LayerShape],
    groups: Sequence[LayerGroup],
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
) -> Pages:
    """A cache of that many blocks for these layers; what is in it is anything."""
    by_layer: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for place in places(shapes, groups):
        keys, values = (
            torch.empty((num_blocks, block_size, place.shape.kv_heads, width), dtype=dtype)
            for width in (place.shape.key_width, place.shape.value_width)
        )
        by_layer |= dict.fromkeys(place.layers, (keys, values))
    return tuple(by_layer[layer] for layer in range(len(shapes)))
