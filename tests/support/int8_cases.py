"""The cases of ``attention_cases`` over a cache in int8."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from enginebay_runner_v2 import int8_pages
from support.attention_cases import Case

__all__ = ["in_int8"]


def in_int8(case: Case) -> Case:
    """The same step, with a cache that holds the case's numbers, rounded."""
    return replace(
        case,
        key_cache=_rounded(case.key_cache, 32, keys=True),
        value_cache=_rounded(case.value_cache, 16, keys=False),
    )


def _rounded(cache: Tensor, depth: int, *, keys: bool) -> Tensor:
    blocks, block_size, heads, width = cache.shape
    made = torch.zeros(blocks, block_size, heads, -(-width // depth) * depth + 4, dtype=torch.int8)
    int8_pages.put(made, torch.arange(blocks * block_size), cache.flatten(0, 1), keys=keys)
    return made
