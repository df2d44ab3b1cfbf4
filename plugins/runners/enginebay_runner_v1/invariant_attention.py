"""Attention whose bits depend on the query and its history alone: the cache is read in tiles at fixed positions.

Scores and mixtures are batches of small products, one for each tile, in sizes that the self-test found safe. What is
hidden gets a weight of exactly zero, so more tiles, before or behind, change nothing; the softmax of a row is made by
itself; the mixtures of the tiles are added in the order of their positions. All of it in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import torch

from enginebay_runner_v1.attention import DecodeStep, LayerBinding, PrefillStep
from enginebay_runner_v1.invariant_products import elementwise
from enginebay_runner_v1.invariant_rules import Rule
from enginebay_runner_v1.scores import ScoreRule

__all__ = ["InvariantBinding", "attend_in_tiles", "tile_size"]

_TILE = 64
_AT_ONCE = 1 << 20
"""Scores that exist at one time, about; and keys of decoding requests."""


def tile_size(block_size: int) -> int:
    """Positions of a tile: whole blocks, and a multiple of 64, so that no vector of a row is half full."""
    return lcm(_TILE, block_size)


def attend_in_tiles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    rule: ScoreRule,
    products: Rule,
    tile: int,
    reach: int,
) -> torch.Tensor:
    """Query ``[B, T, heads, D]`` over key ``[B, S, kv_heads, D]``, value ``[B, S, kv_heads, V]`` →
    ``[B, T, heads, V]``; S is a whole number of tiles.

    ``mask`` ``[B, T, S]`` in float32 is added to the scores. ``reach``: no first token sees more than so many
    positions, and each of the others one more.
    """
    batch, tokens, heads, _ = query.shape
    kv_heads = key.shape[2]
    shared = heads // kv_heads
    rows = tokens * shared
    queries = query.float() * rule.scale
    queries = queries.view(batch, tokens, kv_heads, shared, -1).transpose(1, 2).reshape(batch, kv_heads, rows, -1)
    keys, values = _tiles(key, tile), _tiles(value, tile)
    out = queries.new_empty((batch, kv_heads, rows, value.shape[-1]))
    step = _rows_at_once(products, batch * kv_heads * key.shape[1])
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        index = torch.arange(begin, begin + products.padded(count), device=query.device).clamp_(max=rows - 1)
        hidden = mask.index_select(1, index // shared)
        tiles = min(keys.shape[2], -(-(reach + int(index[-1]) // shared) // tile))
        out[:, :, begin : begin + count] = _attend(
            queries.index_select(2, index),
            keys[:, :, :tiles],
            values[:, :, :tiles],
            hidden[..., : tiles * tile],
            rule,
            index % shared,
            tile,
        )[:, :, :count]
    return out.view(batch, kv_heads, tokens, shared, -1).transpose(1, 2).reshape(batch, tokens, heads, -1)


def _rows_at_once(products: Rule, width: int) -> int:
    """The largest size that keeps scores of this many columns, over all heads, near ``_AT_ONCE``."""
    return max((size for size in products.sizes if size * width <= _AT_ONCE), default=products.sizes[0])


def _tiles(history: torch.Tensor, tile: int) -> torch.Tensor:
    """``[B, S, kv_heads, W]`` → ``[B, kv_heads, tiles, tile, W]`` in float32, contiguous."""
    batch, length, kv_heads, width = history.shape
    out = torch.empty((batch, kv_heads, length // tile, tile, width), dtype=torch.float32, device=history.device)
    return out.copy_(history.view(batch, -1, tile, kv_heads, width).permute(0, 3, 1, 2, 4))


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    rule: ScoreRule,
    head: torch.Tensor,
    tile: int,
) -> torch.Tensor:
    """Queries ``[B, kv_heads, M, D]`` over tiles ``[B, kv_heads, tiles, tile, D]`` → ``[B, kv_heads, M, V]``."""
    batch, kv_heads, rows, width = queries.shape
    tiles = keys.shape[2]
    left = queries.unsqueeze(2).expand(-1, -1, tiles, -1, -1).reshape(-1, rows, width)
    scores = torch.bmm(left, keys.reshape(-1, tile, width).transpose(1, 2))
    if rule.softcap is not None:
        scores = elementwise(torch.tanh, scores / rule.softcap) * rule.softcap
    by_row = scores.new_empty((batch, kv_heads, rows, tiles, tile))
    scores = scores.view(batch, kv_heads, tiles, rows, tile).transpose(2, 3)
    torch.add(scores, mask.view(batch, 1, rows, tiles, tile), out=by_row)  # one pass, which also brings rows together
    shares = _softmax(by_row.flatten(3), rule, head)
    shares = shares.view(batch, kv_heads, rows, tiles, tile).transpose(2, 3).reshape(-1, rows, tile)
    mixed = torch.bmm(shares, values.reshape(-1, tile, values.shape[-1])).view(batch, kv_heads, tiles, rows, -1)
    out = mixed[:, :, 0]
    for index in range(1, tiles):
        out += mixed[:, :, index]
    return out


def _softmax(scores: torch.Tensor, rule: ScoreRule, head: torch.Tensor) -> torch.Tensor:
    """Over the last dimension, row by row; a sink takes its share from a column of its own in front."""
    if rule.sinks is None:
        return torch.softmax(scores, dim=-1)
    batch, kv_heads, rows, _ = scores.shape
    front = scores.new_full((batch, kv_heads, rows, _TILE), float("-inf"))
    front[..., 0] = rule.sinks.float().view(kv_heads, -1).index_select(1, head)
    return torch.softmax(torch.cat((front, scores), dim=-1), dim=-1)[..., _TILE:].contiguous()


@dataclass(slots=True)
class InvariantBinding(LayerBinding):
    """What is bound on a layer with the mode on; a chunk's own keys and values come from the cache like all others."""

    products: Rule
    tile: int

    def _attend_prefill(
        self, part: PrefillStep, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: ScoreRule
    ) -> torch.Tensor:
        """Query ``[heads, T, D]`` → ``[T, heads, V]``."""
        keys, values = (history.unsqueeze(0) for history in self._history(part.blocks, query.dtype))
        assert part.mask is not None, "a layout in tiles has a mask"
        mask = part.mask.unsqueeze(0)
        queries, reach = query.transpose(0, 1).unsqueeze(0), part.row.start - part.row.first + 1
        out = attend_in_tiles(queries, keys, values, mask, rule, self.products, self.tile, reach)
        return out[0].to(query.dtype)

    def _attend_decode(self, part: DecodeStep, queries: torch.Tensor, rule: ScoreRule) -> torch.Tensor:
        """Queries ``[R, heads, D]`` → ``[R, heads, V]``."""
        outs = []
        blocks, mask = part.blocks.view(part.rows, -1), part.mask.view(part.rows, 1, -1)
        reach = mask.shape[-1]
        step = max(1, _AT_ONCE // (reach * self.cache.pages[self.layer][0][0, 0].numel()))
        for begin in range(0, part.rows, step):
            own = slice(begin, begin + step)
            query = queries[own].unsqueeze(1)
            keys, values = (
                h.view(len(query), -1, *h.shape[1:]) for h in self._history(blocks[own].flatten(), query.dtype)
            )
            outs.append(attend_in_tiles(query, keys, values, mask[own], rule, self.products, self.tile, reach))
        return torch.cat(outs).squeeze(1).to(queries.dtype)
