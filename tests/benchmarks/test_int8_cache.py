"""Milliseconds of a decoding step's attention over a cache in int8 beside bfloat16's, in the shapes of SmolLM2-135M.

``python -m pytest tests/benchmarks/test_int8_cache.py -m bench -s`` prints one JSON line each: processor time of one
thread, the smallest of all turns, which a busy machine changes least; both sides run in turn. Each layer's cache is
read once per turn, so it comes from memory as it does in a step, but for the figure that says otherwise.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import torch

from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2.pages import reserve
from support.kernel_kinds import ops

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

TURNS = 15
BLOCK, HEADS, KV_HEADS, WIDTH = 16, 9, 3, 64


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("rows", "context", "layers", "new"),
    [(64, 225, 30, 1), (64, 2048, 3, 1), (1, 225, 1, 1), (1, 512, 30, 512)],
    ids=["64 rows at 225", "64 rows at 2048", "1 row at 225, from the near cache", "a prompt of 512"],
)
def test_attention(rows: int, context: int, layers: int, new: int, request: pytest.FixtureRequest) -> None:
    columns = -(-context // BLOCK)
    shapes = [LayerShape(HEADS, KV_HEADS, WIDTH, WIDTH, None)] * layers
    groups = [LayerGroup(None, tuple(range(layers)))]
    tables = torch.randperm(rows * columns, dtype=torch.int32).view(rows, columns)
    positions = torch.arange(context - new, context).repeat(rows)
    blocks = tables.repeat_interleave(new, 0).long().gather(1, positions[:, None] // BLOCK)[:, 0]
    slots = blocks * BLOCK + positions % BLOCK
    starts = torch.arange(rows + 1, dtype=torch.int32) * new
    step = (slots, tables, starts, torch.full((rows,), context, dtype=torch.int32))
    qkv = torch.randn(rows * new, (HEADS + 2 * KV_HEADS) * WIDTH).bfloat16()
    table = torch.randn(context, WIDTH)
    sizes = (HEADS, KV_HEADS, WIDTH**-0.5, 0, 0.0, None)
    sides = []
    for dtype in (torch.int8, torch.bfloat16):
        pages = reserve(shapes, groups, num_blocks=rows * columns, block_size=BLOCK, dtype=dtype)
        for keys, values in pages:  # written, so that their pages are there
            keys.zero_()
            values.zero_()
        sides.append(pages)
    least = [float("inf")] * len(sides)
    for _ in range(TURNS):
        for side, pages in enumerate(sides):
            before = time.thread_time()
            for keys, values in pages:
                ops.rotary_attention(qkv, positions, table, keys, values, *step, *sizes)
            least[side] = min(least[side], (time.thread_time() - before) * 1e3)
    ours, peer = least
    line = {"figure": f"attention, int8, {request.node.callspec.id}, {layers} layers", "ours": round(ours, 3)}
    line |= {"peer": round(peer, 3), "ratio": round(ours / peer, 3), "unit": "ms of processor"}
    print(json.dumps(line | {"kind": ops.native_kind()}))
