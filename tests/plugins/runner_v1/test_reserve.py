"""The cache's memory is asked for in huge pages: a worker that is killed has then ended at once."""

from __future__ import annotations

import torch

from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v1.reserve import reserve
from support.huge_pages import is_advised, kernel_has_huge_pages

SHAPES = (LayerShape(4, 2, 64, 32, None),) * 2
GROUPS = (LayerGroup(None, (0, 1)),)


def test_huge_pages_are_asked_for_before_blocks_are_written() -> None:
    dtype, device = torch.float32, torch.device("cpu")
    cache = reserve(SHAPES, GROUPS, num_blocks=2048, block_size=16, dtype=dtype, device=device)
    for pages in [one for both in cache.pages for one in both]:
        assert is_advised(pages.data_ptr() + pages.nbytes // 2) is kernel_has_huge_pages()
