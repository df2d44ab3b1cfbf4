"""Attention over paged keys and values, request by request, in plain torch: the meaning of the C++ kernels.

Request i owns the tokens ``query_starts[i]`` up to ``query_starts[i + 1]`` of the step, the last ``n`` of its
``context_lens[i]`` tokens. A query at position p sees the keys at ``max(0, p - window + 1)`` to p (``window`` 0: all).

Decision: keys and values of bfloat16 lie inside a block as the kernels' products read them (``by_token``), here too, so
that an engine may go over from these functions to the kernels with a full cache. A violating change lets the layout
depend on who writes, or on anything but dtype, sizes and strides. Caches of int8 are ``int8_pages.py``'s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from enginebay_runner_v2 import int8_pages

__all__ = ["by_token", "paged_attention", "rotary_attention", "rotate"]


def rotate(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """``x`` [T, heads, D] with its first ``table.shape[1]`` dimensions turned, halves as pairs; in ``x``'s dtype."""
    half = table.shape[1] // 2
    angles = table.index_select(0, positions)
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return torch.cat((turned, x[..., 2 * half :]), dim=-1)


def rotary_attention(
    qkv: Tensor,
    positions: Tensor,
    table: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Split ``qkv``, turn queries and keys, and attend."""
    parts = heads + 2 * kv_heads
    q, k, v = qkv.view(qkv.shape[0], parts, qkv.shape[1] // parts).tensor_split((heads, heads + kv_heads), dim=1)
    q, k = rotate(q, positions, table), rotate(k, positions, table)
    pages = (key_cache, value_cache, slots, block_tables, query_starts, context_lens)
    return paged_attention(q, k, v, *pages, scale, window, softcap, sinks)


def paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Write ``k`` and ``v`` into the caches at ``slots``, then attend."""
    block_size = key_cache.shape[1]
    if key_cache.dtype == torch.int8:
        int8_pages.put(key_cache, slots, k, keys=True)
        int8_pages.put(value_cache, slots, v, keys=False)
    else:
        for pages, new in zip(by_token(key_cache, value_cache), (k, v), strict=True):
            _put(pages, slots, new.to(pages.dtype))
    out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
    starts, lengths = query_starts.tolist(), context_lens.tolist()
    if starts[-1] != q.shape[0]:
        raise ValueError(f"query_starts go from {starts[0]} to {starts[-1]}, and there are {q.shape[0]} tokens")
    for row, length in enumerate(lengths):
        first, end = starts[row], starts[row + 1]
        if first == end:
            continue
        blocks = block_tables[row, : -(-length // block_size)].long()
        queries = q[first:end]
        if key_cache.dtype == torch.int8:
            queries = int8_pages.rounded_queries(queries)
            keys = int8_pages.get(key_cache, blocks, k.shape[2], keys=True)
            values = int8_pages.get(value_cache, blocks, v.shape[2], keys=False)
        else:
            keys, values = (_get(pages, blocks) for pages in by_token(key_cache, value_cache))
        out[first:end] = _attend(queries, keys[:length], values[:length], scale, window, softcap, sinks)
    return out.flatten(1)


def by_token(key_cache: Tensor, value_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of caches ``[blocks, block size, kv_heads, width]`` in the order of tokens, heads and dimensions.

    Where blocks are packed, block size and width are two dimensions or three: keys ``[blocks, groups, 16, kv_heads,
    width / 2, 2]``, values ``[blocks, units, pairs, 2, kv_heads, width / 16, 16]``. In memory a block is

        keys    [kv_heads][groups][width / 2][16 tokens][2 dimensions]
        values  [kv_heads][units][width / 16][pairs][16 dimensions][2 tokens]

    with 16 pairs to a unit where 32 divides the block size, else 8. Other blocks lie as their shape says.
    """
    if not _packed(key_cache, value_cache):
        return key_cache, value_cache
    blocks, size, heads, width = key_cache.shape
    keys = key_cache.flatten(1).view(blocks, heads, size // 16, width // 2, 16, 2)
    pairs, width = 16 if size % 32 == 0 else 8, value_cache.shape[3]
    values = value_cache.flatten(1).view(blocks, heads, size // (2 * pairs), width // 16, pairs, 16, 2)
    return keys.permute(0, 2, 4, 1, 3, 5), values.permute(0, 2, 4, 6, 1, 3, 5)


def _packed(key_cache: Tensor, value_cache: Tensor) -> bool:
    whole = all(
        cache.stride()[1:] == (cache.shape[2] * cache.shape[3], cache.shape[3], 1) for cache in (key_cache, value_cache)
    )
    fits = key_cache.shape[1] % 16 == 0 and key_cache.shape[3] % 32 == 0 and value_cache.shape[3] % 16 == 0
    return whole and fits and key_cache.dtype == torch.bfloat16


def _put(pages: Tensor, slots: Tensor, new: Tensor) -> None:
    """Write ``new`` [T, kv_heads, width] at ``slots`` of a view that ``by_token`` made."""
    inside = pages.shape[1 : pages.ndim - {4: 2, 6: 3, 7: 3}[pages.ndim]]
    where: list[Tensor] = []
    for extent in reversed(inside):
        where.insert(0, slots % extent)
        slots = slots // extent
    pages.index_put_((slots, *where), new.view(new.shape[0], *pages.shape[1 + len(inside) :]))


def _get(pages: Tensor, blocks: Tensor) -> Tensor:
    """Those blocks' tokens [n, kv_heads, width], out of a view that ``by_token`` made."""
    chosen = pages.index_select(0, blocks)
    heads = chosen.ndim - {4: 2, 6: 3, 7: 3}[chosen.ndim]
    return chosen.flatten(heads + 1).flatten(0, heads - 1)


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int, softcap: float, sinks: Tensor | None
) -> Tensor:
    """One request: q [n, heads, D] over keys [L, kv_heads, D] and values [L, kv_heads, V] → [n, heads, V]."""
    count, heads, length = q.shape[0], q.shape[1], keys.shape[0]
    group = heads // keys.shape[1]
    wide_keys = keys.float().repeat_interleave(group, dim=1)
    wide_values = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), wide_keys) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    at = torch.arange(length - count, length, device=q.device)[:, None]
    key_at = torch.arange(length, device=q.device)[None, :]
    hidden = key_at > at
    if window:
        hidden = hidden | (key_at <= at - window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().view(heads, 1, 1).expand(heads, count, 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., :length]
    return torch.einsum("hqk,khd->qhd", weights, wide_values).to(q.dtype)
