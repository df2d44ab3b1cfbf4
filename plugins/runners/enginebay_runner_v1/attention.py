"""Paged attention behind transformers' attention interface: writes the step's keys and values, then attends to history.

transformers calls the registered function for each layer with the attention module; what the function needs beside
its arguments is bound on that module as ``module.eb``, by the probe at load and by the runner for its steps.

No mask function is registered under our name, so transformers builds no mask: causality comes from the layout.
Blocks are not cleared when they change hands. A block is zeroed when its first slot is written, and padding points to
the row's own first block, so whatever another request left behind is never read, not even to be multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from enginebay_runner_v1.batch import DecodeGroup, PrefillRow, StepLayout

__all__ = ["ATTENTION", "LayerBinding", "PagedCache", "StepAttention", "bind_step", "causal_attention", "register"]

ATTENTION = "enginebay_paged"
"""The name under which transformers finds the function."""


class Attends(Protocol):
    """What is bound on an attention module."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Query ``[1, heads, T, D]``, key and value ``[1, kv_heads, T, D]`` → ``[1, T, heads, D]``."""


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    bound: Attends = module.eb  # type: ignore[assignment]  # torch types every attribute of a module as a tensor
    return bound.attend(query, key, value, attention_mask, options), None


def register() -> None:
    """Make the function known to transformers, once or again: its own name is all that it takes."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)


@dataclass(frozen=True, slots=True)
class _Decode:
    tokens: torch.Tensor
    blocks: torch.Tensor
    rows: int
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Prefill:
    row: PrefillRow
    blocks: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class StepAttention:
    """One step's layout for the layers of one window, as tensors; made once, used by each of these layers."""

    slots: torch.Tensor
    decodes: tuple[_Decode, ...]
    prefills: tuple[_Prefill, ...]


@dataclass(slots=True)
class PagedCache:
    """The keys and values of all layers, and the step that runs on them, as layers of each window see it.

    ``pages`` ``[layers, 2, num_blocks, block_size, kv_heads, head_dim]``, keys then values. Two
    ``scratch`` buffers take the gathered history of one layer: fresh memory for each gather costs more than the copy.
    """

    pages: torch.Tensor
    steps: dict[int | None, StepAttention] = field(default_factory=dict)
    scratch: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.pages.shape[3]

    def gather(self, which: int, blocks: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """Pages ``[num_blocks, n]`` of these block ids, in a scratch buffer that the next gather overwrites."""
        shape = (len(blocks), pages.shape[1])
        needed = shape[0] * shape[1]
        if which not in self.scratch or self.scratch[which].numel() < needed:
            self.scratch[which] = pages.new_empty(needed)
        out = self.scratch[which][:needed].view(shape)
        return torch.index_select(pages, 0, blocks, out=out)


def bind_step(cache: PagedCache, layouts: Mapping[int | None, StepLayout], dtype: torch.dtype) -> None:
    """Turn each window's layout into tensors on the cache's device, and clear what the entered blocks held before."""
    device, size = cache.pages.device, cache.block_size
    cache.steps = {
        window: StepAttention(
            slots=torch.from_numpy(layout.slots).to(device),
            decodes=tuple(_decode(part, size, window, dtype, device) for part in layout.decodes),
            prefills=tuple(_prefill(part, window, dtype, device) for part in layout.prefills),
        )
        for window, layout in layouts.items()
    }
    entered = next(iter(layouts.values())).entered
    if len(entered):
        cache.pages.index_fill_(2, torch.from_numpy(entered).to(device), 0)


def _decode(
    part: DecodeGroup, block_size: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> _Decode:
    rows, width = part.blocks.shape
    seen = torch.from_numpy(part.first).unsqueeze(1) + torch.arange(width * block_size)
    stops = torch.from_numpy(part.stops).unsqueeze(1)
    hidden = seen >= stops
    if window is not None:
        hidden |= seen < stops - window
    return _Decode(
        tokens=torch.from_numpy(part.tokens).to(device),
        blocks=torch.from_numpy(part.blocks.reshape(-1)).to(device),
        rows=rows,
        mask=_mask(hidden, dtype, device).view(rows, 1, 1, -1),
    )


def _prefill(row: PrefillRow, window: int | None, dtype: torch.dtype, device: torch.device) -> _Prefill:
    mask = None
    if row.start > 0 or (window is not None and row.stop > window):
        own = torch.arange(row.start, row.stop).unsqueeze(1)
        seen = torch.arange(row.first, row.stop).unsqueeze(0)
        hidden = seen > own
        if window is not None:
            hidden |= seen <= own - window
        mask = _mask(hidden, dtype, device)
    return _Prefill(row=row, blocks=torch.from_numpy(row.blocks).to(device), mask=mask)


def _mask(hidden: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What is added to the scores. Made once a step: of a boolean mask each layer would make this again."""
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf")).to(device)


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Query ``[heads, T, D]`` over key, value ``[kv_heads, S, D]`` → ``[heads, T, D]``; no mask: causal, S = T.

    Query heads that share a KV head see it by a stride of 0: nothing is repeated in memory.
    """
    kv_heads = key.shape[0]
    shared = query.shape[0] // kv_heads
    grouped = query.view(kv_heads, shared, *query.shape[1:])
    keys = key.unsqueeze(1).expand(-1, shared, -1, -1)
    values = value.unsqueeze(1).expand(-1, shared, -1, -1)
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale)
    return attended.flatten(0, 1)


@dataclass(slots=True)
class LayerBinding:
    """Bound on one attention module: the cache, the layer's place in it, and the window that the probe saw."""

    cache: PagedCache
    layer: int
    window: int | None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Write the step's keys and values, then attend."""
        assert mask is None, "transformers built a mask of its own"
        assert options.get("sliding_window") == self.window, "the layer's window is not the one that was probed"
        step, scale = self.cache.steps[self.window], float(options["scaling"])
        _, heads, tokens, width = query.shape
        for pages, new in zip(self.cache.pages[self.layer], (key, value), strict=True):
            pages.flatten(0, 1).index_copy_(0, step.slots, new[0].transpose(0, 1).to(pages.dtype))
        out = query.new_empty((tokens, heads, width))
        for prefill in step.prefills:
            own = slice(prefill.row.begin, prefill.row.end)
            out[own] = self._attend_prefill(prefill, query[0, :, own], key[0, :, own], value[0, :, own], scale)
        for decode in step.decodes:
            queries = query[0].index_select(1, decode.tokens).transpose(0, 1)
            out.index_copy_(0, decode.tokens, self._attend_decode(decode, queries, scale))
        return out.unsqueeze(0)

    def _history(self, blocks: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
        """Keys and values ``[len(blocks) * block_size, kv_heads, D]``, gathered."""
        kv_heads, width = self.cache.pages.shape[4:]
        gathered = [
            self.cache.gather(i, blocks, pages.flatten(1)) for i, pages in enumerate(self.cache.pages[self.layer])
        ]
        return [part.view(-1, kv_heads, width).to(dtype) for part in gathered]

    def _attend_prefill(
        self, part: _Prefill, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Query ``[heads, T, D]`` → ``[T, heads, D]``. A request's beginning has its keys and values at hand."""
        if part.row.start > 0:
            seen = part.row.stop - part.row.first
            key, value = (history[:seen].transpose(0, 1) for history in self._history(part.blocks, query.dtype))
        return causal_attention(query, key, value, part.mask, scale).transpose(0, 1)

    def _attend_decode(self, part: _Decode, queries: torch.Tensor, scale: float) -> torch.Tensor:
        """Queries ``[R, heads, D]`` → the same; the query heads of a KV head stand as its rows."""
        rows, heads, width = queries.shape
        keys, values = (
            history.view(rows, -1, *history.shape[1:]).transpose(1, 2)
            for history in self._history(part.blocks, queries.dtype)
        )
        packed = queries.reshape(rows, keys.shape[1], heads // keys.shape[1], width)
        attended = scaled_dot_product_attention(packed, keys, values, attn_mask=part.mask, scale=scale)
        return attended.reshape(rows, heads, width)
