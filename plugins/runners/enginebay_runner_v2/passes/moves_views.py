"""Rules for operators that only look at a tensor in another way: most of them change its layout, and call nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from enginebay_runner_v2.passes.editing import call, is_call, value
from enginebay_runner_v2.passes.layouts import Layout

if TYPE_CHECKING:
    from enginebay_runner_v2.passes.two_dimensions import Mover

__all__ = ["VIEWS"]

_ATEN = torch.ops.aten


def _unsqueeze(mover: Mover, node: Node) -> Layout | None:
    layout, dim = mover.layout(node.args[0]), node.args[1]
    if layout is None or not isinstance(dim, int):
        return None
    dim = dim % (len(layout.axes) + 1)
    return Layout(layout.base, (*layout.axes[:dim], None, *layout.axes[dim:]))


def _squeeze(mover: Mover, node: Node) -> Layout | None:
    layout, dim = mover.layout(node.args[0]), node.args[1]
    if layout is None or not isinstance(dim, int) or layout.axis(dim) is not None:
        return None
    dim = dim % len(layout.axes)
    return Layout(layout.base, (*layout.axes[:dim], *layout.axes[dim + 1 :]))


def _select(mover: Mover, node: Node) -> Layout | None:
    layout, dim, index = mover.layout(node.args[0]), *node.args[1:]
    if layout is None or not isinstance(dim, int):
        return None
    dim = dim % len(layout.axes)
    axis, rest = layout.axes[dim], (*layout.axes[:dim], *layout.axes[dim + 1 :])
    if axis is None:
        return Layout(layout.base, rest)
    base = call(mover.graph, _ATEN.select.int, layout.base, axis, index)
    return Layout(base, tuple(other - 1 if other is not None and other > axis else other for other in rest))


def _permute(mover: Mover, node: Node) -> Layout | None:
    layout = mover.layout(node.args[0])
    if layout is None:
        return None
    dims = list(range(len(layout.axes)))
    if node.target is _ATEN.permute.default:
        order: Any = node.args[1]
        dims = [dim % len(dims) for dim in order]
    else:
        first, second = (dim for dim in node.args[1:] if isinstance(dim, int))
        dims[first], dims[second] = dims[second], dims[first]
    return Layout(layout.base, tuple(layout.axes[dim] for dim in dims))


def _slice(mover: Mover, node: Node) -> Layout | None:
    layout, dim = mover.layout(node.args[0]), node.args[1] if len(node.args) > 1 else 0
    if layout is None or (axis := layout.axis(dim)) is None:
        return None
    bounds = node.args[2:]
    if any(isinstance(bound, Node) for bound in bounds):
        return None
    return layout.with_base(call(mover.graph, node.target, layout.base, axis, *bounds))


def _view(mover: Mover, node: Node) -> Layout | None:
    """Dimensions of 1 are left out of what is viewed; the one that differs from step to step is the rest."""
    layout = mover.layout(node.args[0])
    if layout is None:
        return None
    before, after = mover.shape(node.args[0]), mover.shape(node)  # type: ignore[arg-type]  # a tensor, it has a layout
    there = tuple(dim for dim, axis in enumerate(layout.axes) if axis is not None)
    ordered, have = mover.arranged(layout, there), [before[dim] for dim in there]
    wanted = [size for size in after if _is_more_than_one(size)]
    places = iter(range(len(wanted)))
    axes = tuple(next(places) if _is_more_than_one(size) else None for size in after)
    if _words(have) == _words(wanted):
        return Layout(ordered, axes)
    if _words(filter(_is_more_than_one, have)) == _words(wanted):
        for dim in reversed(range(len(have))):
            if not _is_more_than_one(have[dim]):
                ordered = call(mover.graph, _ATEN.squeeze.dim, ordered, dim)
        return Layout(ordered, axes)
    if sum(map(_is_symbol, wanted)) > 1:
        return None
    whole = _viewed_from(ordered, wanted)
    sizes = [-1 if _is_symbol(size) else size for size in wanted]
    return Layout(call(mover.graph, _ATEN.reshape.default, ordered, sizes) if whole is None else whole, axes)


def _words(sizes: Iterable[Any]) -> list[str]:
    """To compare sizes by: comparing symbols themselves would ask what they stand for."""
    return [str(size) for size in sizes]


def _is_more_than_one(size: Any) -> bool:
    return _is_symbol(size) or size != 1


def _viewed_from(node: Node, wanted: Sequence[Any]) -> Node | None:
    """What this is a view of, where that has the wanted shape."""
    while is_call(node, _ATEN.reshape.default, _ATEN.view.default):
        source = node.args[0]
        assert isinstance(source, Node), "what is viewed is a tensor"
        node = source
        if _words(value(node).shape) == _words(wanted):
            return node
    return None


def _is_symbol(size: Any) -> bool:
    return isinstance(size, torch.SymInt)


def _expand(mover: Mover, node: Node) -> Layout | None:
    """Where it changes nothing."""
    layout = mover.layout(node.args[0])
    if layout is None:
        return None
    source = node.args[0]
    assert isinstance(source, Node), "what has a layout is a tensor"
    return layout if _words(mover.shape(source)) == _words(mover.shape(node)) else None


def _size(mover: Mover, node: Node) -> Any:
    """A size that is known is a number; the number of tokens is asked of the base."""
    source, dim = node.args
    layout = mover.layout(source)
    assert layout is not None, "sizes are of tensors"
    axis = layout.axis(dim)
    return 1 if axis is None else call(mover.graph, node.target, layout.base, axis)


VIEWS = {
    _ATEN.unsqueeze.default: _unsqueeze,
    _ATEN.squeeze.dim: _squeeze,
    _ATEN.select.int: _select,
    _ATEN.permute.default: _permute,
    _ATEN.transpose.int: _permute,
    _ATEN.slice.Tensor: _slice,
    _ATEN.view.default: _view,
    _ATEN.reshape.default: _view,
    _ATEN.unflatten.int: _view,
    _ATEN.flatten.using_ints: _view,
    _ATEN.expand.default: _expand,
    _ATEN.sym_size.int: _size,
}
"""Operator → its rule, as in ``moves``."""
