"""The memory of the KV cache: reserved at once, its pages given by the kernel when blocks are first written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from enginebay.worker.huge_pages import advise_huge_pages
from enginebay.worker.probing.groups import LayerGroup, places
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v1.attention import PagedCache

__all__ = ["reserve"]


def reserve(
    shapes: Sequence[LayerShape],
    groups: Sequence[LayerGroup],
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> PagedCache:
    """A cache of that many blocks for these layers; what is in it is anything."""

    def pages(kv_heads: int, width: int) -> torch.Tensor:
        made = torch.empty((num_blocks, block_size, kv_heads, width), dtype=dtype, device=device)
        if device.type == "cpu":
            advise_huge_pages(made.data_ptr(), made.nbytes)
        return made

    by_layer: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for place in places(shapes, groups):
        shape = place.shape
        both = pages(shape.kv_heads, shape.key_width), pages(shape.kv_heads, shape.value_width)
        by_layer |= dict.fromkeys(place.layers, both)
    return PagedCache(tuple(by_layer[layer] for layer in range(len(shapes))), tuple(groups))
