"""The built-in graph passes, in the order in which they run. Their modules, which need torch, are imported to run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from enginebay.interfaces import GraphContext, GraphPass

__all__ = ["built_in_passes"]

_SUMMED_OTHERWISE = 1e-4
"""What a product may differ by, in parts of the largest result, when it is summed up in another order: float32 has 1e-7
for a number, and a model adds up thousands of them, layer after layer. Our operators sum in the order of ATen's where
they run as references, and then their passes change no bit; as kernels they have an order of their own."""
_PASSES = (
    ("drop", "drop checks, casts to the same dtype, dropout and copies", 0.0),
    ("two_dimensions", "put tokens first and leave out the batch dimension, so that nothing turns tensors around", 0.0),
    ("tensor_parallel", "take this tensor rank's part of each layer, and sum or gather what it has in part",
     _SUMMED_OTHERWISE),
    ("sampled_rows", "compute what follows the last attention for the tokens that draw alone", _SUMMED_OTHERWISE),
    ("pack_projections", "make one product of those of queries, keys and values, and of a gate and what it gates",
     _SUMMED_OTHERWISE),
    ("rotary_table", "look cosines and sines up in a table, and rotate within attention", _SUMMED_OTHERWISE),
    ("fuse_norm", "make one call of a norm, and of the sum before it", _SUMMED_OTHERWISE),
    ("fuse_gate", "make one call of a gate and what it gates", _SUMMED_OTHERWISE),
    ("linear", "put products with weights through an operator that takes packed weights", _SUMMED_OTHERWISE),
    ("gated_linear", "make one call of a product of gates and what they gate, and of the gate", _SUMMED_OTHERWISE),
)  # fmt: skip


def built_in_passes() -> list[GraphPass]:
    """All of them, for the hook ``enginebay_graph_passes``."""
    return [
        GraphPass(name=name, summary=summary, apply=_late(name), tolerance=tolerance)
        for name, summary, tolerance in _PASSES
    ]


def _late(name: str) -> Callable[[Any, GraphContext], None]:
    def apply(graph_module: Any, context: GraphContext) -> None:
        import_module(f"{__name__}.{name}").apply(graph_module, context)

    return apply
