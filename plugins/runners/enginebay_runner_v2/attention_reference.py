"""Attention over paged keys and values, request by request, in plain torch: the meaning of the C++ kernels.

Request i owns the tokens ``query_starts[i]`` up to ``query_starts[i + 1]`` of the step, the last ``n`` of its
``context_lens[i]`` tokens. A query at position p sees the keys at ``max(0, p - window + 1)`` to p (``window`` 0: all).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["paged_attention", "rotary_attention", "rotate"]


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
    where = (slots // block_size, slots % block_size)
    key_cache.index_put_(where, k.to(key_cache.dtype))
    value_cache.index_put_(where, v.to(value_cache.dtype))
    out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
    starts, lengths = query_starts.tolist(), context_lens.tolist()
    if starts[-1] != q.shape[0]:
        raise ValueError(f"query_starts go from {starts[0]} to {starts[-1]}, and there are {q.shape[0]} tokens")
    for row, length in enumerate(lengths):
        first, end = starts[row], starts[row + 1]
        if first == end:
            continue
        blocks = block_tables[row, : -(-length // block_size)].long()
        keys = key_cache.index_select(0, blocks).flatten(0, 1)[:length]
        values = value_cache.index_select(0, blocks).flatten(0, 1)[:length]
        out[first:end] = _attend(q[first:end], keys, values, scale, window, softcap, sinks)
    return out.flatten(1)


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
