"""Two ceilings of this machine with torch: memory bandwidth and GEMM rate. One JSON line."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from common import THREADS
from torch.nn.functional import linear

COLD_BYTES = 400 * 2**20
"""So many bytes of different weights do not all sit in the caches."""
SHAPES = [
    (1, 576, 1536),
    (8, 576, 1536),
    (64, 576, 1536),
    (512, 576, 1536),
    (1, 576, 49152),
    (64, 576, 49152),
]
"""Rows, inputs and outputs."""


def seconds(call: Callable[[], object], repeats: int = 5, inner: int = 1) -> float:
    """The median time of one call."""
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(inner):
            call()
        times.append((time.perf_counter() - begin) / inner)
    return statistics.median(times)


def bandwidth() -> dict[str, float]:
    """GB/s of sums and copies."""
    large = torch.ones(2 * 2**30 // 4)
    half = large.numel() // 2
    small = torch.ones(16 * 2**20 // 4)
    return {
        "read_GBps_2GB_sum": large.numel() * 4 / seconds(large.sum) / 1e9,
        "copy_GBps_1GB_read+write": half * 8 / seconds(lambda: large[half:].copy_(large[:half])) / 1e9,
        "read_GBps_16MB_sum_in_L3": small.numel() * 4 / seconds(small.sum, inner=50) / 1e9,
    }


def products(rows: int, k: int, n: int, dtype: torch.dtype) -> dict[str, float]:
    """One linear layer: with weights from memory, from the cache, and in oneDNN's own (prepacked) layout."""
    count = max(2, COLD_BYTES // (n * k * dtype.itemsize))
    weights = [torch.randn(n, k).to(dtype) for _ in range(count)]
    values = torch.randn(rows, k).to(dtype)
    with torch.inference_mode():
        cold = seconds(lambda: [linear(values, weight) for weight in weights]) / count
        hot = seconds(lambda: linear(values, weights[0]), inner=20)
        weights = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
        product = torch.ops.mkldnn._linear_pointwise
        packed = seconds(lambda: [product(values, weight, None, "none", [], "") for weight in weights]) / count
    flops, size = 2 * rows * k * n, n * k * dtype.itemsize
    return {
        "us_cold": cold * 1e6,
        "GFLOPs_cold": flops / cold / 1e9,
        "weight_GBps_cold": size / cold / 1e9,
        "us_hot": hot * 1e6,
        "GFLOPs_hot": flops / hot / 1e9,
        "us_cold_packed": packed * 1e6,
        "GFLOPs_cold_packed": flops / packed / 1e9,
        "weight_GBps_cold_packed": size / packed / 1e9,
    }


def square(dtype: torch.dtype) -> float:
    """GFLOP/s of a product of two matrices of 2048 rows and columns."""
    matrix = torch.randn(2048, 2048).to(dtype)
    return 2 * 2048**3 / seconds(lambda: torch.mm(matrix, matrix)) / 1e9


def main() -> None:
    """Measure."""
    torch.set_num_threads(THREADS)
    out: dict[str, object] = {"peer": "ceilings", "torch": torch.__version__, "threads": THREADS, **bandwidth()}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        out[f"mm2048_{name}_GFLOPs"] = square(dtype)
        for rows, k, n in SHAPES:
            out[f"linear_{rows}x{k}x{n}_{name}"] = products(rows, k, n, dtype)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
