"""Milliseconds of each native kernel beside torch's own, over the shapes of a model of 30 layers: one JSON line each.

``python -m pytest tests/benchmarks/test_kernels.py -m bench -s``; ``KERNEL_THREADS`` is the number of threads (2).
Layers' weights and caches are each used once per turn, so they come from memory as they do in a step; both sides run
in turn, and a line holds medians and the smallest of each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernel_kinds import ops

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

LAYERS, HEADS, KV_HEADS, SIZE = 30, 9, 3, 64
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
TURNS = 11
mkldnn: Any = torch.ops.mkldnn


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("KERNEL_THREADS", "2")))
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def report(figure: str, sides: dict[str, Callable[[], Any]]) -> None:
    """Time the sides in turn; ``ours`` is one of them, and the ratio is to the fastest of the others."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(TURNS):
        for name, side in sides.items():
            before = time.perf_counter()
            side()
            taken[name].append((time.perf_counter() - before) * 1e3)
    ours, peer = median(taken["ours"]), min(median(taken[name]) for name in sides if name != "ours")
    line = {"figure": figure, "ours": round(ours, 3), "peer": round(peer, 3), "ratio": round(ours / peer, 3)}
    spread = {name: [round(min(times), 3), round(median(times), 3)] for name, times in taken.items()}
    print(json.dumps(line | {"unit": "ms", "threads": torch.get_num_threads(), "sides": spread}))


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 64, 128, 512])
def test_linear_layers(rows: int) -> None:
    weights = [[torch.randn(shape).bfloat16() for shape in SHAPES] for _ in range(LAYERS)]
    packed = [[ops.pack_linear(weight) for weight in layer] for layer in weights]
    ordered = [[mkldnn._reorder_linear_weight(weight, rows) for weight in layer] for layer in weights]
    x = {inputs: torch.randn(rows, inputs).bfloat16() for inputs in (576, 1536)}

    def each(call: Callable[[Tensor, Tensor, int], Any], layers: list[list[Tensor]]) -> None:
        for layer in layers:
            for (outputs, inputs), weight in zip(SHAPES, layer, strict=True):
                call(x[inputs], weight, outputs)

    report(
        f"linear layers, {rows} rows",
        {
            "ours": lambda: each(lambda x, w, n: ops.linear(x, w, None, n), packed),
            "packed by oneDNN": lambda: each(
                lambda x, w, n: mkldnn._linear_pointwise(x, w, None, "none", [], ""), ordered
            ),
            "plain": lambda: each(lambda x, w, n: torch.nn.functional.linear(x, w), weights),
        },
    )


@pytest.mark.parametrize("rows", [1, 64])
def test_head_and_greedy(rows: int) -> None:
    weight, x = torch.randn(49152, 576).bfloat16(), torch.randn(rows, 576).bfloat16()
    packed, ordered = ops.pack_linear(weight), mkldnn._reorder_linear_weight(weight, rows)
    logits = ops.linear(x, packed, None, 49152, float_out=True)
    report(
        f"LM head, {rows} rows",
        {
            "ours": lambda: ops.linear(x, packed, None, 49152, float_out=True),
            "packed by oneDNN": lambda: mkldnn._linear_pointwise(x, ordered, None, "none", [], ""),
        },
    )
    report(f"greedy, {rows} rows", {"ours": lambda: ops.greedy(logits), "argmax": lambda: logits.argmax(-1)})


@pytest.mark.parametrize(("requests", "context", "queries"), [(1, 192, 1), (64, 225, 1), (8, 1024, 1), (1, 512, 512)])
def test_attention(requests: int, context: int, queries: int) -> None:
    """Beside SDPA over keys and values that lie padded and dense already: its gathering is not counted."""
    block = 16
    columns = -(-context // block)
    tables = torch.randperm(requests * columns).view(requests, columns).int()
    at = torch.arange(context - queries, context)
    slots = (tables[:, at // block].long() * block + at % block).flatten()
    shape = (requests * columns, block, KV_HEADS, SIZE)
    caches = [(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()) for _ in range(LAYERS)]
    dense = [
        [cache[tables.long()].flatten(1, 2)[:, :context].transpose(1, 2).contiguous() for cache in pair]
        for pair in caches
    ]
    qkv = torch.randn(requests * queries, (HEADS + 2 * KV_HEADS) * SIZE).bfloat16()
    q = torch.randn(requests, HEADS, queries, SIZE).bfloat16()
    table, positions = torch.randn(context, SIZE), at.repeat(requests)
    starts = (torch.arange(requests + 1) * queries).int()
    lens = torch.full((requests,), context, dtype=torch.int32)

    def ours() -> None:
        for keys, values in caches:
            ops.rotary_attention(
                qkv, positions, table, keys, values, slots, tables, starts, lens, HEADS, KV_HEADS, 0.125, 0, 0.0, None
            )

    def sdpa() -> None:
        for keys, values in dense:
            torch.nn.functional.scaled_dot_product_attention(
                q, keys, values, is_causal=queries == context, enable_gqa=True
            )

    report(f"attention, {requests} x {queries} of {context}", {"ours": ours, "SDPA": sdpa})


@pytest.mark.parametrize("rows", [1, 64, 512])
def test_norm_and_gate(rows: int) -> None:
    x, weight = torch.randn(rows, 576).bfloat16(), torch.randn(576).bfloat16()
    both = torch.randn(rows, 3072).bfloat16()
    report(
        f"add and norm, {rows} rows",
        {
            "ours": lambda: ops.add_rms_norm(x, x, weight, 1e-5, 0),
            "torch": lambda: torch.nn.functional.rms_norm(x + x, (576,), weight, 1e-5),
        },
    )
    report(
        f"gate, {rows} rows",
        {
            "ours": lambda: ops.gated(both, 0),
            "torch": lambda: torch.nn.functional.silu(both[:, :1536]) * both[:, 1536:],
        },
    )


def test_calls_of_a_program() -> None:
    """What a call costs beside its operator: 240 additions of one number, as a program and from Python."""
    nodes = [
        {"name": f"n{i}", "op": "aten::add.Tensor", "args": [{"ref": f"n{i - 1}" if i else "x"}, {"ref": "x"}]}
        for i in range(240)
    ]
    record = {"format": 1, "inputs": ["x"], "constants": [], "nodes": nodes, "outputs": ["n239"]}
    program: Any = torch.classes.enginebay.Program(json.dumps(record))
    x = torch.ones(1)

    def python() -> None:
        y = x
        for _ in range(240):
            y = y + x

    report("240 calls", {"ours": lambda: program.run([x]), "python": python})
