"""Steps over a paged cache, drawn by hypothesis: shuffled blocks, requests of all lengths, chunks with a history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

__all__ = ["Case", "Fixed", "cases", "make"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The arguments of ``paged_attention``; ``whole_q`` and the like hold every token of every request."""

    q: Tensor
    k: Tensor
    v: Tensor
    key_cache: Tensor
    value_cache: Tensor
    slots: Tensor
    block_tables: Tensor
    query_starts: Tensor
    context_lens: Tensor
    scale: float
    window: int
    softcap: float
    sinks: Tensor | None

    def args(self) -> list[Any]:
        """Fresh copies of the caches, so that a case can be run twice."""
        fresh = replace(self, key_cache=self.key_cache.clone(), value_cache=self.value_cache.clone())
        return [getattr(fresh, name) for name in Case.__dataclass_fields__]


@st.composite
def cases(draw: Any, dtype: torch.dtype, *, max_length: int = 600) -> Case:
    """Any step of up to 4 requests."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    block = draw(st.sampled_from([1, 3, 8, 16, 32]))
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 4), (3, 3)]))
    size = draw(st.sampled_from([32, 64, 80, 128, 256]))
    value_size = draw(st.sampled_from([size, 48]))
    lengths = draw(st.lists(st.integers(1, max_length), min_size=0, max_size=4))
    counts = [min(length, draw(st.sampled_from([1, 1, 7, 40, length]))) for length in lengths]
    return make(block, kv_heads, group, size, value_size, lengths, counts, dtype, draw)


def make(
    block: int,
    kv_heads: int,
    group: int,
    size: int,
    value_size: int,
    lengths: list[int],
    counts: list[int],
    dtype: torch.dtype,
    draw: Any,
) -> Case:
    """A case of these sizes; window, softcap and sinks are drawn."""
    needed = [-(-length // block) for length in lengths]
    total, tokens = sum(needed) + 2, sum(counts)
    free = iter(torch.randperm(total).tolist())
    tables = torch.zeros(len(lengths), max(needed, default=0), dtype=torch.int32)
    slots: list[int] = []
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        for column in range(needed[row]):
            tables[row, column] = next(free)
        slots += [int(tables[row, at // block]) * block + at % block for at in range(length - count, length)]
    heads = kv_heads * group
    return Case(
        q=torch.randn(tokens, heads, size).to(dtype),
        k=torch.randn(tokens, kv_heads, size).to(dtype),
        v=torch.randn(tokens, kv_heads, value_size).to(dtype),
        key_cache=torch.randn(total, block, kv_heads, size).to(dtype),
        value_cache=torch.randn(total, block, kv_heads, value_size).to(dtype),
        slots=torch.tensor(slots, dtype=torch.int64),
        block_tables=tables,
        query_starts=torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        scale=size**-0.5,
        window=draw(st.sampled_from([0, 0, 1, 16, 100])),
        softcap=draw(st.sampled_from([0.0, 0.0, 20.0])),
        sinks=draw(st.sampled_from([None, torch.randn(heads)])),
    )


class Fixed:
    """Draws, for ``make``, the window, softcap and sinks that it was told."""

    def __init__(self, *values: Any) -> None:
        self._values = list(values)

    def __call__(self, _: Any) -> Any:
        return self._values.pop(0)
