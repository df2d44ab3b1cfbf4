"""Paged attention behind transformers' attention interface: writes the step's keys and values, then attends to history.

transformers calls the registered function for each layer with the attention module; what the function needs beside
its arguments is bound on that module as ``module.eb``, by the probe at load and by the runner for its steps.

No mask function is registered under our name, so transformers builds no mask: causality comes from the layout.
Blocks are not cleared when they change hands. A block is zeroed when its first slot is written, and padding points to
the first block that the row sees, so whatever another request left behind is never read, not even to be multiplied by
zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.interface import register as register_attention
from enginebay_runner_v1.batch import DecodeGroup, Ints, PrefillRow, StepLayout
from enginebay_runner_v1.scores import ScoreRule, attend

__all__ = [
    "ATTENTION",
    "DecodeStep",
    "LayerBinding",
    "PagedCache",
    "PrefillStep",
    "StepAttention",
    "bind_step",
    "register",
]

ATTENTION = "enginebay_paged"
"""The name under which transformers finds the function."""


def register() -> None:
    """Make the function known to transformers, once or again: its own name is all that it takes."""
    register_attention(ATTENTION)


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Rows of one token each, as tensors; see ``DecodeGroup``."""

    tokens: torch.Tensor
    blocks: torch.Tensor
    rows: int
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """A chunk of several tokens, as tensors; see ``PrefillRow``."""

    row: PrefillRow
    blocks: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class StepAttention:
    """One step's layout for the layers of one KV group, as tensors; made once, used by each of these layers."""

    slots: torch.Tensor
    decodes: tuple[DecodeStep, ...]
    prefills: tuple[PrefillStep, ...]


@dataclass(slots=True)
class PagedCache:
    """The keys and values of all layers, and the step that runs on them, as the layers of each KV group see it.

    ``pages``: by layer, its keys ``[num_blocks, block_size, kv_heads, D]`` and its values, whose width may be another;
    layers of different ``groups`` may have the same ones, under different block ids. Two ``scratch`` buffers take the
    gathered history of one layer: fresh memory for each gather costs more than the copy.
    """

    pages: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    groups: tuple[LayerGroup, ...]
    steps: tuple[StepAttention, ...] = ()
    scratch: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.pages[0][0].shape[1]

    @property
    def num_blocks(self) -> int:
        """Blocks of each layer."""
        return self.pages[0][0].shape[0]

    @property
    def device(self) -> torch.device:
        """Where the pages lie."""
        return self.pages[0][0].device

    def gather(self, which: int, blocks: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """Pages ``[num_blocks, n]`` of these block ids, in a scratch buffer that the next gather overwrites."""
        shape = (len(blocks), pages.shape[1])
        needed = shape[0] * shape[1]
        if which not in self.scratch or self.scratch[which].numel() < needed:
            self.scratch[which] = pages.new_empty(needed)
        out = self.scratch[which][:needed].view(shape)
        return torch.index_select(pages, 0, blocks, out=out)


def bind_step(
    cache: PagedCache, layouts: Mapping[int | None, StepLayout], tables: Sequence[Ints], dtype: torch.dtype
) -> None:
    """Turn the layouts into tensors on the cache's device, and clear what the entered blocks held before.

    ``layouts``: by window, over numbered blocks; ``tables``: for each group, its block ids by these numbers.
    """
    device, size = cache.device, cache.block_size
    masks = {window: _masks(layout, size, window, dtype, device) for window, layout in layouts.items()}
    steps = []
    for group, table in zip(cache.groups, tables, strict=True):
        layout, (decodes, prefills) = layouts[group.window], masks[group.window]
        slots = table[layout.slots // size] * size + layout.slots % size
        steps.append(
            StepAttention(
                slots=torch.from_numpy(slots).to(device),
                decodes=tuple(
                    DecodeStep(
                        tokens=torch.from_numpy(part.tokens).to(device),
                        blocks=torch.from_numpy(table[part.blocks.reshape(-1)]).to(device),
                        rows=len(part.blocks),
                        mask=mask,
                    )
                    for part, mask in zip(layout.decodes, decodes, strict=True)
                ),
                prefills=tuple(
                    PrefillStep(row=row, blocks=torch.from_numpy(table[row.blocks]).to(device), mask=mask)
                    for row, mask in zip(layout.prefills, prefills, strict=True)
                ),
            )
        )
        if len(layout.entered):
            blocks = torch.from_numpy(table[layout.entered]).to(device)
            for layer in group.layers:
                for pages in cache.pages[layer]:
                    pages.index_fill_(0, blocks, 0)
    cache.steps = tuple(steps)


def _masks(
    layout: StepLayout, block_size: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """What is added to the scores of each decode group and of each prefill row."""
    return (
        [_decode_mask(part, block_size, window, dtype, device) for part in layout.decodes],
        [_prefill_mask(row, block_size, window, dtype, device) for row in layout.prefills],
    )


def _decode_mask(
    part: DecodeGroup, block_size: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    rows, width = part.blocks.shape
    seen = torch.from_numpy(part.first).unsqueeze(1) + torch.arange(width * block_size)
    stops = torch.from_numpy(part.stops).unsqueeze(1)
    hidden = seen >= stops
    if window is not None:
        hidden |= seen < stops - window
    return _mask(hidden, dtype, device).view(rows, 1, 1, -1)


def _prefill_mask(
    row: PrefillRow, block_size: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    if not (row.tiled or row.start > 0 or (window is not None and row.stop > window)):
        return None
    own = torch.arange(row.start, row.stop).unsqueeze(1)
    end = row.first + len(row.blocks) * block_size if row.tiled else row.stop
    seen = torch.arange(row.first, end).unsqueeze(0)
    hidden = seen > own
    if window is not None:
        hidden |= seen <= own - window
    return _mask(hidden, dtype, device)


def _mask(hidden: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What is added to the scores. Made once a step: of a boolean mask each layer would make this again."""
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf")).to(device)


@dataclass(slots=True)
class LayerBinding:
    """Bound on one attention module: the cache, and the layer's place and KV group in it."""

    cache: PagedCache
    layer: int
    group: int

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
        step, rule = self.cache.steps[self.group], ScoreRule.of(options)
        _, heads, tokens, _ = query.shape
        for pages, new in zip(self.cache.pages[self.layer], (key, value), strict=True):
            pages.flatten(0, 1).index_copy_(0, step.slots, new[0].transpose(0, 1).to(pages.dtype))
        out = query.new_empty((tokens, heads, value.shape[-1]))
        for prefill in step.prefills:
            own = slice(prefill.row.begin, prefill.row.end)
            out[own] = self._attend_prefill(prefill, query[0, :, own], key[0, :, own], value[0, :, own], rule)
        for decode in step.decodes:
            queries = query[0].index_select(1, decode.tokens).transpose(0, 1)
            out.index_copy_(0, decode.tokens, self._attend_decode(decode, queries, rule))
        return out.unsqueeze(0)

    def _history(self, blocks: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
        """Keys and values ``[len(blocks) * block_size, kv_heads, width]``, gathered."""
        return [
            self.cache.gather(i, blocks, pages.flatten(1)).view(-1, *pages.shape[2:]).to(dtype)
            for i, pages in enumerate(self.cache.pages[self.layer])
        ]

    def _attend_prefill(
        self, part: PrefillStep, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: ScoreRule
    ) -> torch.Tensor:
        """Query ``[heads, T, D]`` → ``[T, heads, V]``. A request's beginning has its keys and values at hand."""
        if part.row.start > 0:
            seen = part.row.stop - part.row.first
            key, value = (history[:seen].transpose(0, 1) for history in self._history(part.blocks, query.dtype))
        return attend(query, key, value, part.mask, rule).transpose(0, 1)

    def _attend_decode(self, part: DecodeStep, queries: torch.Tensor, rule: ScoreRule) -> torch.Tensor:
        """Queries ``[R, heads, D]`` → ``[R, heads, V]``."""
        keys, values = (
            history.view(part.rows, -1, *history.shape[1:]).transpose(1, 2)
            for history in self._history(part.blocks, queries.dtype)
        )
        return attend(queries.unsqueeze(2), keys, values, part.mask, rule).squeeze(2)
