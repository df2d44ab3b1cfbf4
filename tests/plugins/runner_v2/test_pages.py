"""The cache's memory is asked for in huge pages: a worker that is killed has then ended at once."""

from __future__ import annotations

import pytest
import torch

from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2.pages import reserve
from support.huge_pages import is_advised, kernel_has_huge_pages

SHAPES = (LayerShape(4, 2, 64, 32, None),) * 2
GROUPS = (LayerGroup(None, (0, 1)),)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_huge_pages_are_asked_for_before_blocks_are_written(dtype: torch.dtype) -> None:
    cache = reserve(SHAPES, GROUPS, num_blocks=4096, block_size=16, dtype=dtype)
    for pages in [one for both in cache for one in both]:
        assert is_advised(pages.data_ptr() + pages.nbytes // 2) is kernel_has_huge_pages()
