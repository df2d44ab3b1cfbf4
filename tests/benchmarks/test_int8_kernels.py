"""Milliseconds of products with weights in int8 beside bfloat16's, over the shapes of a model of 30 layers.

``python -m pytest tests/benchmarks/test_int8_kernels.py -m bench -s`` prints one JSON line each: processor time of one
thread, the smallest of all turns, which a busy machine changes least; both sides run in turn. Each weight is used once
per turn, so it comes from memory as it does in a step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from benchmarks.test_kernels import LAYERS, SHAPES
from support.kernel_kinds import ops

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

TURNS = 15
VOCABULARY = 49152


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def compare(figure: str, weights: list[Tensor], rows: int, *, float_out: bool) -> None:
    """Time a turn through all weights, in int8 and in bfloat16."""
    x = {inputs: torch.randn(rows, inputs).bfloat16() for inputs in {weight.shape[1] for weight in weights}}
    packs: tuple[Callable[[Tensor], Tensor], ...] = (ops.pack_linear_int8, ops.pack_linear)
    sides = [[(weight.shape, pack(weight)) for weight in weights] for pack in packs]
    least = [float("inf")] * len(sides)
    for _ in range(TURNS):
        for side, packed in enumerate(sides):
            before = time.thread_time()
            for (outputs, inputs), weight in packed:
                ops.linear(x[inputs], weight, None, outputs, float_out=float_out)
            least[side] = min(least[side], (time.thread_time() - before) * 1e3)
    ours, peer = least
    line = {"figure": f"{figure}, int8, {rows} rows", "ours": round(ours, 2), "peer": round(peer, 2)}
    print(json.dumps(line | {"ratio": round(ours / peer, 3), "unit": "ms of processor", "kind": ops.native_kind()}))


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32, 64, 128, 512])
def test_linear_layers(rows: int) -> None:
    weights = [torch.randn(shape).bfloat16() for _ in range(LAYERS) for shape in SHAPES]
    compare("linear layers", weights, rows, float_out=False)


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_head(rows: int) -> None:
    compare("head", [torch.randn(VOCABULARY, 576).bfloat16()], rows, float_out=True)
