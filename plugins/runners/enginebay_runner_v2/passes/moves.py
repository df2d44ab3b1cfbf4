"""How single operators are moved over to tensors whose tokens come first: the rules of pass ``two_dimensions``.

A rule gives the result's layout, or None where it does not apply: then the call is copied over arguments as they were.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from enginebay_runner_v2.passes.editing import call
from enginebay_runner_v2.passes.layouts import Layout
from enginebay_runner_v2.passes.moves_views import VIEWS

if TYPE_CHECKING:
    from enginebay_runner_v2.passes.two_dimensions import Mover

__all__ = ["MOVES", "pointwise"]

_ATEN = torch.ops.aten
_ALSO_POINTWISE = {_ATEN.to.dtype, _ATEN.to.dtype_layout, _ATEN._to_copy.default, _ATEN.type_as.default}
"""They give each number what they make of it, and do not say so."""
Rule = Callable[["Mover", Node], Any]


def pointwise(node: Node) -> bool:
    """Whether each number of the result is made of one number of each argument."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags or target in _ALSO_POINTWISE


def _pointwise(mover: Mover, node: Node) -> Layout | None:
    found = [mover.layout(arg) for arg in node.args if isinstance(arg, Node)]
    layouts = [layout for layout in found if layout is not None]
    if not layouts or len(layouts) < len(found) or any(isinstance(arg, Node) for arg in node.kwargs.values()):
        return None
    rank = max(len(layout.axes) for layout in layouts)
    order = _common_order(layouts, rank)
    args = []
    for arg in node.args:
        layout = mover.layout(arg)
        if layout is None:
            args.append(arg)
            continue
        offset = rank - len(layout.axes)
        dims = [dim - offset if dim >= offset and layout.axes[dim - offset] is not None else None for dim in order]
        while dims and dims[0] is None:
            dims.pop(0)
        args.append(mover.arranged(layout, tuple(dims)))
    base = call(mover.graph, node.target, *args, **node.kwargs)
    return Layout(base, tuple(order.index(dim) if dim in order else None for dim in range(rank)))


def _common_order(layouts: Sequence[Layout], rank: int) -> list[int]:
    """The result's dimensions that any argument has: in the order of the one with most, the others by number."""
    leader = max(layouts, key=lambda layout: len(layout.order))
    order = [dim + rank - len(leader.axes) for dim in leader.order]
    rest = {dim + rank - len(layout.axes) for layout in layouts for dim in layout.order} - set(order)
    for dim in sorted(rest):
        place = next((place for place, other in enumerate(order) if other > dim), len(order))
        order.insert(place, dim)
    return order


def _split(mover: Mover, node: Node) -> Any:
    layout, sizes, dim = mover.layout(node.args[0]), node.args[1], node.args[2] if len(node.args) > 2 else 0
    if layout is None or (axis := layout.axis(dim)) is None:
        return None
    return [layout.with_base(call(mover.graph, node.target, layout.base, sizes, axis))]


def _getitem(mover: Mover, node: Node) -> Layout | None:
    split = mover.others.get(node.args[0])  # type: ignore[arg-type]  # a call, since something is taken of it
    if not isinstance(split, list):
        return None
    (layout,) = split
    return Layout(call(mover.graph, node.target, layout.base, node.args[1]), layout.axes)


def _cat(mover: Mover, node: Node) -> Layout | None:
    parts: Any = node.args[0]
    dim: Any = node.args[1] if len(node.args) > 1 else 0
    layouts = [mover.layout(part) for part in parts]
    first = layouts[0]
    if first is None or first.axis(dim) is None:
        return None
    if any(layout is None or set(layout.order) != set(first.order) for layout in layouts):
        return None
    nodes = [mover.arranged(layout, tuple(first.order)) for layout in layouts if layout is not None]
    return first.with_base(call(mover.graph, node.target, nodes, first.axis(dim)))


def _reduce(mover: Mover, node: Node) -> Layout | None:
    layout, dims = mover.layout(node.args[0]), node.args[1] if len(node.args) > 1 else None
    keeps = len(node.args) > 2 and node.args[2] is True
    if layout is None or not isinstance(dims, list | tuple) or not dims:
        return None
    numbers = {dim % len(layout.axes) for dim in dims if isinstance(dim, int)}
    axes = [axis for dim in sorted(numbers) if (axis := layout.axes[dim]) is not None]
    if len(axes) != len(dims):
        return None
    if keeps:
        return layout.with_base(call(mover.graph, node.target, layout.base, axes, True, *node.args[3:], **node.kwargs))
    base = call(mover.graph, node.target, layout.base, axes, False, *node.args[3:], **node.kwargs)
    rest = [axis for dim, axis in enumerate(layout.axes) if dim not in numbers]
    return Layout(base, tuple(None if a is None else a - sum(gone < a for gone in axes) for a in rest))


def _linear(mover: Mover, node: Node) -> Layout | None:
    layout = mover.layout(node.args[0])
    if layout is None or layout.axes[-1] != len(layout.order) - 1 or layout.axes[-1] is None:
        return None
    rest = [mover.as_it_was(arg) if isinstance(arg, Node) else arg for arg in node.args[1:]]
    return layout.with_base(call(mover.graph, node.target, layout.base, *rest))


def _norm(mover: Mover, node: Node) -> Layout | None:
    """Over the last dimension."""
    layout, sizes = mover.layout(node.args[0]), node.args[1]
    if layout is None or not isinstance(sizes, list | tuple) or len(sizes) != 1:
        return None
    return _linear(mover, node)


def _along(mover: Mover, node: Node) -> Layout | None:
    """Over one dimension, which stays."""
    layout, dim = mover.layout(node.args[0]), node.args[1]
    if layout is None or (axis := layout.axis(dim)) is None:
        return None
    return layout.with_base(call(mover.graph, node.target, layout.base, axis, *node.args[2:], **node.kwargs))


def _embedding(mover: Mover, node: Node) -> Layout | None:
    layout = mover.layout(node.args[1])
    if layout is None or layout.order != sorted(layout.order):
        return None
    weight = mover.as_it_was(node.args[0])  # type: ignore[arg-type]  # a constant
    base = call(mover.graph, node.target, weight, layout.base)
    return Layout(base, (*layout.axes, len(layout.order)))


MOVES: dict[Any, Rule] = {
    **VIEWS,
    "pointwise": _pointwise,
    _ATEN.split.Tensor: _split,
    _ATEN.split_with_sizes.default: _split,
    _ATEN.chunk.default: _split,
    _ATEN.cat.default: _cat,
    _ATEN.mean.dim: _reduce,
    _ATEN.sum.dim_IntList: _reduce,
    _ATEN.linear.default: _linear,
    _ATEN.layer_norm.default: _norm,
    _ATEN.rms_norm.default: _norm,
    _ATEN.softmax.int: _along,
    _ATEN.embedding.default: _embedding,
    operator.getitem: _getitem,
}
"""Operator → its rule."""
