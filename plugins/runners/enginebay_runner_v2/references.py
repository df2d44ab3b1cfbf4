"""What each operator computes, in plain torch: the meaning of the C++ kernels, and what runs where there are none.

Norms, gates and softmax are computed in float32 whatever the dtype, and rounded to it once at the end.

Decision: a packed weight is a 1-D tensor whose layout depends on its shape and dtype alone: blocks of 32 outputs
(zeros fill the last), and in a block first two halves of 16 outputs per tile of ``depth`` inputs, each stored as
``depth / pair`` rows of 16 outputs times ``pair`` neighbouring inputs. bfloat16: depth 32, pair 2, which is what both
AVX512-BF16 dot products and AMX tiles read; float32: depth 1, pair 1. One layout serves every number of rows, so there
is one copy of each weight. A violating change makes the layout depend on the processor, or keeps a second copy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from enginebay_runner_v2.attention_reference import paged_attention, rotary_attention
from enginebay_runner_v2.collectives import all_gather, all_reduce
from enginebay_runner_v2.int8_reference import linear_int8, pack_linear_int8

__all__ = [
    "add_rms_norm",
    "all_gather",
    "all_reduce",
    "gated",
    "gated_linear",
    "greedy",
    "linear",
    "linear_greedy",
    "pack_linear",
    "pack_linear_int8",
    "packed_length",
    "packed_rows",
    "paged_attention",
    "rms_norm",
    "rotary_attention",
    "select_rows",
    "unpack_linear",
]

BLOCK = 32
"""Outputs of a block of a packed weight."""
_ROWS_AT_ONCE = 512
_TILES = {torch.bfloat16: (32, 2), torch.float32: (1, 1)}
"""dtype → (inputs of a tile, neighbouring inputs that lie together)."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, style: int) -> Tensor:
    """``x / sqrt(mean(x²) + eps) * weight``; ``style`` says where the rounding is and whether ``weight`` is from 1."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if style == 0:
        return wide.to(x.dtype) * weight
    if style == 1:
        return (wide * (1.0 + weight.float())).to(x.dtype)
    if style == 2:
        return (wide * weight.float()).to(x.dtype)
    raise ValueError(f"style must be 0, 1 or 2, and is {style}")


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, style: int) -> tuple[Tensor, Tensor]:
    """(norm of the sum, the sum)."""
    total = x + residual
    return rms_norm(total, weight, eps, style), total


def gated(gate_up: Tensor, activation: int) -> Tensor:
    """``activation(first half) * second half``."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if activation == 0:
        gate = functional.silu(gate)
    elif activation in (1, 2):
        gate = functional.gelu(gate, approximate="tanh" if activation == 1 else "none")
    else:
        raise ValueError(f"activation must be 0, 1 or 2, and is {activation}")
    return (gate * up).to(gate_up.dtype)


def packed_length(outputs: int, inputs: int, dtype: torch.dtype) -> int:
    """Elements of a packed weight."""
    depth, _ = _tile(dtype)
    return -(-outputs // BLOCK) * BLOCK * -(-inputs // depth) * depth


def pack_linear(weight: Tensor) -> Tensor:
    """``weight`` [N, K] as ``linear`` reads it fastest (see above): 1-D, a new tensor."""
    outputs, inputs = weight.shape
    depth, pair = _tile(weight.dtype)
    padded = functional.pad(weight, (0, -inputs % depth, 0, -outputs % BLOCK))
    tiles = padded.view(-1, 2, 16, padded.shape[1] // depth, depth // pair, pair)  # block, half, 16, tile, row, pair
    return tiles.permute(0, 3, 1, 4, 2, 5).contiguous().flatten()


def unpack_linear(packed: Tensor, outputs: int, inputs: int) -> Tensor:
    """The [N, K] weight that was packed."""
    depth, pair = _tile(packed.dtype)
    if packed.numel() != packed_length(outputs, inputs, packed.dtype):
        raise ValueError(f"{packed.numel()} elements are no packed weight of {outputs} outputs and {inputs} inputs")
    tiles = packed.view(-(-outputs // BLOCK), -(-inputs // depth), 2, depth // pair, 16, pair)
    padded = tiles.permute(0, 2, 4, 1, 3, 5).reshape(-(-outputs // BLOCK) * BLOCK, -1)
    return padded[:outputs, :inputs]


def packed_rows(packed: Tensor, ids: Tensor, outputs: int, inputs: int) -> Tensor:
    """The rows ``ids`` of the weight that was packed, as an embedding's."""
    depth, pair = _tile(packed.dtype)
    if packed.numel() != packed_length(outputs, inputs, packed.dtype):
        raise ValueError(f"{packed.numel()} elements are no packed weight of {outputs} outputs and {inputs} inputs")
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= outputs):
        raise IndexError(f"a row is not one of {outputs}")
    tiles = packed.view(-(-outputs // BLOCK), -(-inputs // depth), 2, depth // pair, 16, pair)
    rows = tiles[ids // BLOCK, :, ids // 16 % 2, :, ids % 16]
    return rows.flatten(ids.dim())[..., :inputs].contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int, *, float_out: bool = False) -> Tensor:
    """``x @ weight.T + bias``."""
    if weight.dtype == torch.int8:
        return linear_int8(x, weight, bias, out_features, float_out=float_out)
    if weight.dim() == 1:
        weight = unpack_linear(weight, out_features, x.shape[-1])
    if weight.shape[0] != out_features:
        raise ValueError(f"the weight has {weight.shape[0]} outputs, and out_features is {out_features}")
    if not float_out or x.dtype == torch.float32:
        return functional.linear(x, weight, bias)
    wide = x.float()  # the weight a piece at a time: a vocabulary's in float32 would go through memory twice
    made = torch.cat([functional.linear(wide, piece.float()) for piece in torch.split(weight, _ROWS_AT_ONCE)], dim=-1)
    return made if bias is None else made + bias.float()


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int, activation: int) -> Tensor:
    """A product, the first half of whose outputs are gates of the second half."""
    return gated(linear(x, weight, bias, out_features), activation)


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of ``x`` by index."""
    return x.index_select(0, rows)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(ids, values) of each row's largest logit."""
    ids = logits.argmax(dim=-1)  # torch promises the first among equals only for the CPU
    return ids, logits.gather(1, ids.unsqueeze(1)).squeeze(1).float()


def linear_greedy(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits in float32, and their ``greedy``."""
    logits = linear(x, weight, bias, out_features, float_out=True)
    return logits, *greedy(logits)


def _tile(dtype: torch.dtype) -> tuple[int, int]:
    if dtype not in _TILES:
        raise TypeError(f"a packed weight is bfloat16 or float32, and this is {str(dtype).removeprefix('torch.')}")
    return _TILES[dtype]
