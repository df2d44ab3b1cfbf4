"""Pass ``drop``: removes what inference has no use for: checks, casts to the same dtype, dropout and copies."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from enginebay.interfaces import GraphContext
from enginebay_runner_v2.passes.editing import value

__all__ = ["apply"]

_ATEN = torch.ops.aten
_CHECKS = (
    _ATEN._assert_tensor_metadata.default,
    _ATEN._assert_async.msg,
    _ATEN._assert_scalar.default,
    _ATEN.sym_constrain_range_for_size.default,
    _ATEN.sym_constrain_range.default,
)
_CASTS = (
    _ATEN.to.dtype,
    _ATEN.to.device,
    _ATEN.to.dtype_layout,
    _ATEN.to.other,
    _ATEN._to_copy.default,
    _ATEN.type_as.default,
)
_SAME = (
    _ATEN.alias.default,
    _ATEN.detach.default,
    _ATEN.detach_.default,
    _ATEN.clone.default,
    _ATEN.contiguous.default,
    _ATEN.lift_fresh_copy.default,
)
"""Their result is equal to their argument, and nothing in the graph writes to either."""


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Remove them; the results are the same, bit for bit."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _CHECKS:
            graph.erase_node(node)
        elif isinstance(same := _argument_that_equals(node), Node):
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _argument_that_equals(node: Node) -> Any:
    """The argument that the call's result equals, or None."""
    args = node.args
    if node.target in _SAME:
        return args[0]
    if node.target in _CASTS:
        return args[0] if _is_like(node, args[0]) else None
    if node.target is _ATEN.dropout.default:
        return args[0] if args[2] is False else None
    if node.target is _ATEN.mul.Tensor:
        return args[0] if _is_number(args[1], 1) and _is_like(node, args[0]) else None
    if node.target in (_ATEN.expand.default, _ATEN.reshape.default, _ATEN.view.default):
        return args[0] if isinstance(args[0], Node) and _same_shape(node, args[0]) else None
    if node.target is _ATEN.slice.Tensor:
        return args[0] if _same_shape(node, args[0]) and (len(args) < 5 or args[4] == 1) else None
    return None


def _is_number(argument: object, number: int) -> bool:
    return isinstance(argument, int | float) and argument == number


def _is_like(node: Node, argument: Any) -> bool:
    """Of the same shape, dtype and device."""
    if not isinstance(argument, Node):
        return False
    mine, its = value(node), value(argument)
    return mine.dtype == its.dtype and mine.device == its.device and _same_shape(node, argument)


def _same_shape(node: Node, argument: Any) -> bool:
    mine, its = value(node).shape, value(argument).shape
    return len(mine) == len(its) and all(str(a) == str(b) for a, b in zip(mine, its, strict=True))
