"""The native kernels for tests: loaded once, and each kind of product that this processor has, in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from enginebay_runner_v2 import native

__all__ = ["KINDS", "ops", "product_kind", "tolerance"]

native.load()
ops = torch.ops.enginebay
KINDS = range(int(ops.native_kind()) + 1)
"""0 plain vectors, 1 AVX512-BF16, 2 AMX: all up to the best one."""


@contextmanager
def product_kind(kind: int) -> Iterator[None]:
    """Products of bfloat16 are computed so meanwhile."""
    before = int(ops.native_kind())
    assert ops.use_native_kind(kind)
    try:
        yield
    finally:
        ops.use_native_kind(before)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """What rounding of sums of normal numbers may differ."""
    return {"rtol": 1e-5, "atol": 3e-5} if dtype == torch.float32 else {"rtol": 1.6e-2, "atol": 1e-2}
