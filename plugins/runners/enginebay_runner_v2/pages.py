"""The memory of the KV cache: reserved at once, its pages given by the kernel when blocks are first written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from enginebay.messages import KVCacheSpec
from enginebay.worker.huge_pages import advise_huge_pages
from enginebay.worker.probing.groups import LayerGroup, kv_spec, places
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2.int8_pages import stored_shape

__all__ = ["Pages", "reserve", "spec_of"]

Pages = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""By layer, keys and values ``[num_blocks, block_size, kv_heads, width]``, or of int8 as ``int8_pages.py`` says; layers
of several groups may share them."""


def spec_of(
    shapes: Sequence[LayerShape], groups: Sequence[LayerGroup], *, block_size: int, dtype: torch.dtype
) -> KVCacheSpec:
    """What a block of a cache for these layers takes."""
    return kv_spec(_stored(shapes, dtype), groups, block_size=block_size, element_size=dtype.itemsize)


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
    for place in places(_stored(shapes, dtype), groups):
        keys, values = (
            _pages((num_blocks, block_size, place.shape.kv_heads, width), dtype)
            for width in (place.shape.key_width, place.shape.value_width)
        )
        by_layer |= dict.fromkeys(place.layers, (keys, values))
    return tuple(by_layer[layer] for layer in range(len(shapes)))


def _pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    pages = torch.empty(shape, dtype=dtype)
    advise_huge_pages(pages.data_ptr(), pages.nbytes)
    return pages


def _stored(shapes: Sequence[LayerShape], dtype: torch.dtype) -> list[LayerShape]:
    return [stored_shape(shape) if dtype == torch.int8 else shape for shape in shapes]
