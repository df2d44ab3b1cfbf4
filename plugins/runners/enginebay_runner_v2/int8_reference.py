"""What ``linear`` computes with weights in int8, in plain torch: the meaning of the kernels, bit for bit.

Each output's weights are whole numbers from -127 to 127 times a scale of their own, and so is each row of inputs, by
its own largest absolute value: a row's result never depends on the rows beside it. Sums of products are exact; then
``float(sum) * the output's scale * the row's scale``, and the bias added, in float32, rounded to the dtype once.
A row, or an output's weights, with a number that is not finite gives NaN; one whose numbers are all below 1e-30 counts
as zeros.

Decision: a packed weight is 1-D int8: blocks of 32 outputs (zeros fill the last), in a block first two halves of 16
outputs per tile of 64 inputs, each as 16 rows of 16 outputs times 4 neighbouring inputs, then the block's 32 scales
(float32), then 32 sums of its weights times 128 (int32), for instructions whose one side has no sign. The same on every
processor. A violating change keeps the scales apart: a weight would be two constants, and the graph another one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

__all__ = ["linear_int8", "pack_linear_int8", "packed_length_int8", "quantised", "unpack_linear_int8"]

BLOCK = 32
DEPTH = 64
TAIL = 256
"""Bytes of a block's scales and sums."""
MAX_INPUTS = 2**17
"""As many as an int32 can sum up."""
LEAST = 1e-30


def packed_length_int8(outputs: int, inputs: int) -> int:
    """Bytes of a packed weight."""
    return -(-outputs // BLOCK) * (-(-inputs // DEPTH) * DEPTH * BLOCK + TAIL)


def pack_linear_int8(weight: Tensor) -> Tensor:
    """``weight`` [N, K] in int8, as ``linear`` reads it: 1-D. Raises ``ValueError`` for more than 2^17 inputs."""
    if weight.shape[1] > MAX_INPUTS:
        raise ValueError(f"{weight.shape[1]} inputs are too many for weights in int8: at most {MAX_INPUTS}")
    whole, scales = quantised(weight)
    whole = functional.pad(whole, (0, -whole.shape[1] % DEPTH, 0, -whole.shape[0] % BLOCK))
    scales = functional.pad(scales, (0, -scales.shape[0] % BLOCK))
    sums = whole.sum(1, dtype=torch.int32) * 128
    tiles = whole.view(-1, 2, 16, whole.shape[1] // DEPTH, 16, 4).permute(0, 3, 1, 4, 2, 5)
    parts = (tiles.flatten(1), scales.view(-1, BLOCK).view(torch.int8), sums.view(-1, BLOCK).view(torch.int8))
    return torch.cat(parts, dim=1).flatten()


def unpack_linear_int8(packed: Tensor, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """The whole numbers [N, K] int8 and the scales [N] float32 of a weight that was packed."""
    if packed.numel() != packed_length_int8(outputs, inputs):
        raise ValueError(
            f"{packed.numel()} elements are no packed weight of {outputs} outputs and {inputs} inputs in int8"
        )
    blocks = packed.view(-(-outputs // BLOCK), -1)
    tiles = blocks[:, :-TAIL].reshape(blocks.shape[0], -(-inputs // DEPTH), 2, 16, 16, 4)
    whole = tiles.permute(0, 2, 4, 1, 3, 5).reshape(blocks.shape[0] * BLOCK, -1)
    scales = blocks[:, -TAIL : -TAIL // 2].contiguous().view(torch.float32).flatten()
    return whole[:outputs, :inputs], scales[:outputs]


def linear_int8(x: Tensor, packed: Tensor, bias: Tensor | None, out_features: int, *, float_out: bool) -> Tensor:
    """``linear`` with a weight of ``pack_linear_int8``."""
    weights, scales = unpack_linear_int8(packed, out_features, x.shape[-1])
    whole, row_scales = quantised(x)
    sums = (whole.double() @ weights.double().T).float()  # whole numbers below 2^53: the product is exact
    y = sums * scales * row_scales.unsqueeze(-1)
    if bias is not None:
        y = y + bias.float()
    return y if float_out else y.to(x.dtype)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in int8, and the scale of each row (the last dimension) in float32."""
    wide = x.float()
    reach = wide.abs().amax(-1, keepdim=True) if x.shape[-1] else wide.new_zeros((*x.shape[:-1], 1))
    finite, there = reach.isfinite(), reach >= LEAST  # NaN is neither
    most = torch.full_like(reach, 127.0)  # a number over a tensor would be a product with the reciprocal
    by = torch.where(finite & there, most / reach, 0.0)
    whole = torch.where(finite & there, (wide * by).round(), 0.0).to(torch.int8)
    scales = torch.where(finite, torch.where(there, reach / 127.0, 0.0), torch.nan)
    return whole, scales.squeeze(-1)
