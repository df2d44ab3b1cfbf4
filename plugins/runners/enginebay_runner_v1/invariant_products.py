"""Matrix products and functions of single numbers whose results do not depend on what else is in the batch.

A product runs in the pieces of its ``Rule``. A function such as silu is computed by vector instructions, and by others
for what is left over at a tensor's end or at the end of a thread's share, with other bits: here nothing is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from enginebay_runner_v1.invariant_rules import SIZES, Rule, find_rule

__all__ = [
    "elementwise",
    "elementwise_is_safe",
    "find_attention_products",
    "find_product",
    "product",
    "relaid",
]

ELEMENTS = 1_000_000
"""Numbers that a self-test compares, at least."""
_LARGE = 1 << 24
"""Weights with more elements are tried with fewer rows: their test would take seconds, and many rows gain nothing."""
_LARGE_ROWS = 64
_VECTOR = 64
"""A multiple of the numbers that one step of any vector loop takes."""
_SHARE = 32768
"""torch gives a thread at least so many numbers of an elementwise function; fewer are not shared out."""
_SCALE = 3.0

Function = Callable[..., torch.Tensor]


def product(rule: Rule, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows ``[M, K]`` times weight ``[N, K]`` transposed → ``[M, N]``, contiguous, in the pieces of the rule."""
    count = rows.shape[0]
    rows = rows.contiguous()
    if rule.padded(count) == count:
        return _run(rule.way, rows, weight).contiguous()
    out = rows.new_empty((count, weight.shape[0]))
    begin = 0
    for size in rule.pieces(count):
        piece = rows[begin : begin + size]
        if len(piece) < size:
            piece = torch.cat((piece, piece.new_zeros((size - len(piece), rows.shape[1]))))
        out[begin : begin + size] = _run(rule.way, piece, weight)[: count - begin]
        begin += size
    return out


def _run(way: str, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if way in ("rows", "relaid"):
        return torch.mm(rows, weight.t())
    turned = rows.t() if way == "columns" else rows.t().contiguous()
    return torch.mm(weight, turned).t()


def relaid(weight: torch.Tensor) -> torch.Tensor:
    """The same ``[N, K]`` numbers, column after column in memory."""
    return weight.t().contiguous().t()


def find_product(weights: Sequence[torch.Tensor], *, movable: bool) -> Rule:
    """The rule for weights ``[N, K]`` of one shape, stride and dtype; raises ``NoRule``.

    Several are given when they lie differently in memory. ``movable``: the way "relaid" may be chosen, for which the
    weight is to be replaced by ``relaid(weight)``. The order of the ways is that of their speed where sizes are equal:
    one row after another with the weight as the right factor in float32, the other way round in half precision.
    """
    weight = weights[0]
    sizes = SIZES if weight.numel() <= _LARGE else tuple(size for size in SIZES if size <= _LARGE_ROWS)
    least = -(-ELEMENTS // (len(sizes) * weight.shape[0]))
    total = max(sizes[-1] + 1, least)
    rows = _sample((total, weight.shape[1]), weight)

    def run(way: str) -> Callable[[int, int], list[bytes]]:
        tried = [relaid(weight)] if way == "relaid" else weights
        return lambda begin, end: _bytes(torch.cat([_run(way, rows[begin:end], each) for each in tried], dim=1))

    single = weight.dtype is torch.float32
    names = ("relaid", "rows", "columns", "packed") if single else ("packed", "rows", "columns")
    return find_rule({name: run(name) for name in names if movable or name != "relaid"}, sizes, total, least)


def _sample(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Numbers as they come in a model: many small ones, a few large."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(shape, generator=generator)
    return (numbers * (1 + numbers.abs().pow(_SCALE))).to(dtype=like.dtype, device=like.device)


def _bytes(out: torch.Tensor) -> list[bytes]:
    """The bits of each row of the first dimension."""
    flat = out.reshape(out.shape[0], -1).contiguous().cpu().view(torch.uint8).numpy()
    return [np.ascontiguousarray(row).tobytes() for row in flat]


def find_attention_products(tile: int, widths: Sequence[tuple[int, int]], device: torch.device) -> Rule:
    """The rule of attention's batches of products, one for each tile, with keys and values of these widths.

    Batches of 1, 3 and 48 must agree too. Raises ``NoRule``.
    """
    like = torch.empty(0, device=device)
    total = SIZES[-1] + 1
    cases = []
    for key_width, value_width in dict.fromkeys(widths):
        cases.append((_sample((total, key_width), like), _sample((48, tile, key_width), like).transpose(1, 2)))
        cases.append((_sample((total, tile), like).abs(), _sample((48, tile, value_width), like)))

    def run(begin: int, end: int) -> list[bytes]:
        parts = []
        for rows, right in cases:
            left = rows[begin:end].expand(len(right), -1, -1).contiguous()
            many = torch.bmm(left, right)
            if not all(_equal(torch.bmm(left[:few], right[:few]), many[:few]) for few in (1, 3)):
                return [b"of rows %d to %d" % (begin, end)] * (end - begin)  # agrees with no other, nor with itself
            parts.append(many.transpose(0, 1).reshape(end - begin, -1))
        return _bytes(torch.cat(parts, dim=1))

    least = -(-ELEMENTS // (len(SIZES) * tile * 48))
    return find_rule({"batch": run}, SIZES, total, least)


def elementwise(function: Function, numbers: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """``function`` of each number, every one of them by whole vectors."""
    count = numbers.numel()
    if count == 0 or (numbers.is_contiguous() and _splits_evenly(count)):
        return function(numbers, *args, **options)
    flat = numbers.reshape(-1)
    if count % _VECTOR:
        flat = torch.cat((flat, flat.new_ones(-count % _VECTOR)))
    if _splits_evenly(len(flat)):
        out = function(flat, *args, **options)
    else:
        most = _SHARE - _VECTOR
        out = torch.cat([function(part, *args, **options) for part in torch.split(flat, most)])
    return out[:count].view(numbers.shape)


def _splits_evenly(count: int) -> bool:
    """Whether each thread gets whole vectors of so many numbers."""
    threads = max(1, min(torch.get_num_threads(), -(-count // _SHARE)))
    return count % _VECTOR == 0 and -(-count // threads) % _VECTOR == 0


def elementwise_is_safe(function: Function, numbers: torch.Tensor) -> bool:
    """Whether a few numbers alone give the bits that they give among many, over at least ``ELEMENTS`` numbers.

    ``numbers``: an example, for dtype and device.
    """
    sample = _sample((ELEMENTS // _VECTOR + 1, _VECTOR), numbers).reshape(-1)
    whole = function(sample)
    for few, step in ((1, 997), (7, 211), (_VECTOR - 1, _VECTOR - 1)):
        for begin in range(0, len(sample) - few, step):
            if not _equal(function(sample[begin : begin + few].clone()), whole[begin : begin + few]):
                return False
    return True


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bits."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
