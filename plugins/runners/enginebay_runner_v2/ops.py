"""The operators of a captured step, ``torch.ops.enginebay.*``: schemas, and what their results look like to a tracer.

Importing this module defines them with references in plain torch (``references.py``), good on any device and dtype.
``native.load()`` puts C++ kernels before the references on the CPU; nobody who calls an operator sees which one ran.

Shapes: T tokens of the step, R requests, K inputs and N outputs of a linear layer, D and V the sizes of a head's key
and value. Norms, ``gated``, ``linear`` take any number of leading dimensions; the rest is as ``SCHEMAS`` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from enginebay_runner_v2 import references
from enginebay_runner_v2.int8_reference import packed_length_int8

__all__ = ["ACTIVATIONS", "NAMESPACE", "NORM_STYLES", "SCHEMAS"]

NAMESPACE = "enginebay"
ACTIVATIONS = ("silu", "gelu_tanh", "gelu")
"""``gated``'s ``activation`` is an index into this."""
NORM_STYLES = ("llama", "gemma", "float")
"""The norms' ``style`` is an index into this."""

_PAGES = (
    "Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slots, Tensor block_tables, Tensor query_starts, "
    "Tensor context_lens"
)
SCHEMAS = {
    # x [..., H], weight [H] → [..., H]
    "rms_norm": "(Tensor x, Tensor weight, float eps, int style) -> Tensor",
    # → (norm(x + residual), x + residual); the sum is rounded to the dtype before the norm
    "add_rms_norm": "(Tensor x, Tensor residual, Tensor weight, float eps, int style) -> (Tensor, Tensor)",
    # [..., 2I] → act(first half) * second half, [..., I]; computed in float32, rounded once
    "gated": "(Tensor gate_up, int activation) -> Tensor",
    # [N, K] → 1-D, opaque: see references.pack_linear
    "pack_linear": "(Tensor weight) -> Tensor",
    # [N, K] → 1-D int8, opaque: see int8_reference.py
    "pack_linear_int8": "(Tensor weight) -> Tensor",
    # x [..., K]; weight [N, K], or 1-D as pack_linear or pack_linear_int8 made it → [..., N] in its dtype, or float32
    "linear": "(Tensor x, Tensor weight, Tensor? bias, int out_features, *, bool float_out=False) -> Tensor",
    # gated(linear(x, weight, bias, out_features), activation), bit for bit, [..., out_features / 2]
    "gated_linear": "(Tensor x, Tensor weight, Tensor? bias, int out_features, int activation) -> Tensor",
    # rows of a packed [outputs, inputs], ids [...] int64 → [..., inputs]: a tied embedding needs no second copy
    "packed_rows": "(Tensor packed, Tensor ids, int outputs, int inputs) -> Tensor",
    # qkv [T, (heads + 2 kv_heads) D]; table [positions, rotary dims] float32: cos half | sin half → [T, heads D]
    "rotary_attention": f"(Tensor qkv, Tensor positions, Tensor table, {_PAGES}, int heads, int kv_heads, float scale, "
    "int window, float softcap, Tensor? sinks) -> Tensor",
    # q [T, heads, D], k [T, kv_heads, D], v [T, kv_heads, V], rotated already → [T, heads V]
    "paged_attention": f"(Tensor q, Tensor k, Tensor v, {_PAGES}, float scale, int window, float softcap, "
    "Tensor? sinks) -> Tensor",
    # x [T, ...], rows [S] int64 → [S, ...]
    "select_rows": "(Tensor x, Tensor rows) -> Tensor",
    # x of any shape → the sum of all ranks' in the group of that name
    "all_reduce": "(Tensor x, str group) -> Tensor",
    # x [..., sizes[rank]] → all ranks' side by side, [..., sum(sizes)]
    "all_gather": "(Tensor x, int[] sizes, str group) -> Tensor",
    # logits [S, N] → ids [S] int64 (the lowest among equals; NaN is the largest), values [S] float32
    "greedy": "(Tensor logits) -> (Tensor, Tensor)",
    # x [S, K] → linear(x, weight, bias, out_features, float_out=True), and greedy of it
    "linear_greedy": "(Tensor x, Tensor weight, Tensor? bias, int out_features) -> (Tensor, Tensor, Tensor)",
}
"""Operator → schema. Results never alias arguments; the two caches of attention are written at ``slots``."""


def _fake_rms_norm(x: Tensor, weight: Tensor, eps: float, style: int) -> Tensor:
    return x.new_empty(x.shape)


def _fake_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, style: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _fake_gated(gate_up: Tensor, activation: int) -> Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


def _fake_pack_linear(weight: Tensor) -> Tensor:
    outputs, inputs = weight.shape
    return weight.new_empty(references.packed_length(outputs, inputs, weight.dtype))


def _fake_pack_linear_int8(weight: Tensor) -> Tensor:
    return weight.new_empty(packed_length_int8(*weight.shape), dtype=torch.int8)


def _fake_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int, *, float_out: bool = False
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features), dtype=torch.float32 if float_out else x.dtype)


def _fake_gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int, activation: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features // 2))


def _fake_packed_rows(packed: Tensor, ids: Tensor, outputs: int, inputs: int) -> Tensor:
    return packed.new_empty((*ids.shape, inputs))


def _fake_rotary_attention(
    qkv: Tensor,
    positions: Tensor,
    table: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    return qkv.new_empty((qkv.shape[0], heads * (qkv.shape[1] // (heads + 2 * kv_heads))))


def _fake_paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1] * v.shape[2]))


def _fake_select_rows(x: Tensor, rows: Tensor) -> Tensor:
    return x.new_empty((rows.shape[0], *x.shape[1:]))


def _fake_all_reduce(x: Tensor, group: str) -> Tensor:
    return x.new_empty(x.shape)


def _fake_all_gather(x: Tensor, sizes: list[int], group: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], sum(sizes)))


def _fake_greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty((logits.shape[0],), dtype=torch.int64), logits.new_empty(
        (logits.shape[0],), dtype=torch.float32
    )


def _fake_linear_greedy(
    x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int
) -> tuple[Tensor, Tensor, Tensor]:
    logits = _fake_linear(x, weight, bias, out_features, float_out=True)
    return logits, *_fake_greedy(logits)


_FAKES: dict[str, Callable[..., Any]] = {
    "rms_norm": _fake_rms_norm,
    "add_rms_norm": _fake_add_rms_norm,
    "gated": _fake_gated,
    "pack_linear": _fake_pack_linear,
    "pack_linear_int8": _fake_pack_linear_int8,
    "linear": _fake_linear,
    "gated_linear": _fake_gated_linear,
    "packed_rows": _fake_packed_rows,
    "rotary_attention": _fake_rotary_attention,
    "paged_attention": _fake_paged_attention,
    "select_rows": _fake_select_rows,
    "all_reduce": _fake_all_reduce,
    "all_gather": _fake_all_gather,
    "greedy": _fake_greedy,
    "linear_greedy": _fake_linear_greedy,
}
_library: Any = torch.library  # its functions have no annotations
_LIBRARY = _library.Library(NAMESPACE, "FRAGMENT")
"""Kept for the life of the process: the operators go when it goes."""

for _name, _schema in SCHEMAS.items():
    _LIBRARY.define(_name + _schema)
    _LIBRARY.impl(_name, getattr(references, _name), "CompositeExplicitAutograd")
    _library.register_fake(f"{NAMESPACE}::{_name}", _FAKES[_name])
