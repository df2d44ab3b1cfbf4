"""Keys and values of the cache in int8, in plain torch: the meaning of the kernels, bit for bit.

Each token's key of a head, and each value, is whole numbers from -127 to 127 times a scale of its own, made as
``int8_reference.quantised`` makes them. So what is kept of a token depends on that token alone.

Decision: a cache is ``[blocks, block size, kv_heads, stored + 4]`` in int8, whatever the dtype of the model; ``stored``
is the width, filled up with zeros to a multiple of 32 for keys and of 16 for values. In memory a block is

    [kv_heads][block size / G] groups of the numbers of G tokens, then their G scales (float32)
    keys    [stored / 4][16 tokens][4 dimensions]
    values  [stored / 16][4][16 dimensions][4 tokens]

with G = 16 where 16 divides the block size, else G = block size and the numbers ``[G tokens][stored]``. A violating
change keeps scales apart: a block would be two pieces of memory, and a copy of one of them garbage.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as functional
from torch import Tensor

from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2.int8_reference import LEAST, quantised

__all__ = ["get", "put", "rounded_queries", "stored_shape", "views"]

GROUP = 16
SCALE = 4
"""Bytes of a scale."""
KEY_DEPTH, VALUE_DEPTH = 32, 16
QUERY_MOST = 16256.0


def stored_shape(shape: LayerShape) -> LayerShape:
    """The shape whose widths are bytes of the cache."""
    key, value = _filled(shape.key_width, KEY_DEPTH), _filled(shape.value_width, VALUE_DEPTH)
    return replace(shape, key_width=key + SCALE, value_width=value + SCALE)


def views(cache: Tensor, *, keys: bool) -> tuple[Tensor, Tensor]:
    """Numbers and scales of a cache in the order of tokens: ``[blocks, …, kv_heads, …]``, and the same with one float32
    a head."""
    blocks, block_size, heads, width = cache.shape
    stored, size = width - SCALE, GROUP if block_size % GROUP == 0 else block_size
    count = block_size // size
    groups = cache.view(blocks, heads, count, size * width)
    scales = groups[..., size * stored :].view(torch.float32).permute(0, 2, 3, 1)
    numbers = groups[..., : size * stored]
    if size != GROUP:
        numbers = numbers.view(blocks, heads, size, stored).permute(0, 2, 1, 3)
    elif keys:
        numbers = numbers.view(blocks, heads, count, stored // 4, GROUP, 4).permute(0, 2, 4, 1, 3, 5)
    else:
        numbers = numbers.view(blocks, heads, count, stored // 16, GROUP // 4, 16, 4).permute(0, 2, 4, 6, 1, 3, 5)
    return numbers, scales


def put(cache: Tensor, slots: Tensor, new: Tensor, *, keys: bool) -> None:
    """Write ``new`` [T, kv_heads, width] at ``slots``."""
    numbers, scales = views(cache, keys=keys)
    whole, each = quantised(new)
    whole = functional.pad(whole, (0, cache.shape[3] - SCALE - whole.shape[2]))
    for view, value in ((numbers, whole), (scales, each)):
        inside = view.shape[1 : _heads(view)]
        where: list[Tensor] = []
        at = slots
        for extent in reversed(inside):
            where.insert(0, at % extent)
            at = at // extent
        view.index_put_((at, *where), value.reshape(value.shape[0], *view.shape[1 + len(inside) :]))


def get(cache: Tensor, blocks: Tensor, width: int, *, keys: bool) -> Tensor:
    """Those blocks' tokens [n, kv_heads, width] in float32."""
    numbers, scales = (view.index_select(0, blocks) for view in views(cache, keys=keys))
    heads = _heads(numbers)
    whole = numbers.flatten(heads + 1).flatten(0, heads - 1)[..., :width]
    return whole.float() * scales.flatten(0, 2).unsqueeze(-1)


def rounded_queries(q: Tensor) -> Tensor:
    """Each head's query in whole numbers up to 16256, as the kernels multiply it with keys, times their scale."""
    reach = q.float().abs().amax(-1, keepdim=True)
    there = reach >= LEAST  # also where it is not finite, which gives NaN
    whole = (q.float() * torch.where(there, torch.full_like(reach, QUERY_MOST) / reach, 0.0)).round()
    return whole * (reach / QUERY_MOST)


def _heads(view: Tensor) -> int:
    """Which dimension of a view are the heads."""
    return {4: 3 if view.dtype == torch.float32 else 2, 6: 3, 7: 4}[view.ndim]


def _filled(width: int, depth: int) -> int:
    return -(-width // depth) * depth
