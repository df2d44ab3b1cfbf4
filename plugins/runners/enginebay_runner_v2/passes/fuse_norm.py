"""Pass ``fuse_norm``: a root mean square norm is one call, and so is a norm of a sum that goes on beside it.

Three styles are known, by where the weight comes in: after the rounding, from 1 and before it, or before it.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from enginebay.interfaces import GraphContext
from enginebay_runner_v2.passes.editing import call, calls, erase, is_call, value

__all__ = ["apply"]

_ATEN = torch.ops.aten
_MUL, _ADD = _ATEN.mul.Tensor, _ATEN.add.Tensor
_CASTS = (_ATEN.to.dtype, _ATEN._to_copy.default, _ATEN.type_as.default)


class _Norm(NamedTuple):
    """Of ``x``, up to the call ``last``, whose results it gives."""

    x: Node
    weight: Node
    eps: float
    style: int
    last: Node


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Fuse them; in float32 the results are the same, bit for bit."""
    graph = graph_module.graph
    for root in calls(graph, _ATEN.rsqrt.default):
        norm = _norm_of(root)
        if norm is not None:
            _fuse(graph, norm)


def _norm_of(root: Node) -> _Norm | None:
    """The norm whose reciprocal root this is."""
    plus, (mean, eps) = _parts(root.args[0], _ADD)
    if plus is None or not is_call(mean, _ATEN.mean.dim) or not isinstance(eps, float):
        return None
    square, dims = mean.args[0], mean.args[1]
    if mean.args[2:3] != (True,) or not is_call(square, _ATEN.pow.Tensor_Scalar) or square.args[1] != 2:
        return None
    wide = square.args[0]
    if not isinstance(wide, Node) or dims not in ([-1], [value(wide).dim() - 1]):
        return None
    scaled = next((user for user in root.users if is_call(user, _MUL) and wide in user.args), None)
    if scaled is None or len(root.users) != 1:
        return None
    narrow = wide.args[0] if is_call(wide, *_CASTS) else wide
    assert isinstance(narrow, Node), "a cast is of a tensor"
    return _weighted(scaled, narrow, eps)


def _weighted(scaled: Node, x: Node, eps: float) -> _Norm | None:
    """The norm whose result before the weight this is."""
    rounded = _only_user(scaled, *_CASTS)
    normed = rounded if rounded is not None else scaled
    product = _only_user(normed, _MUL)
    if product is None:
        return None
    factor = next((arg for arg in product.args if arg is not normed), None)
    if not isinstance(factor, Node):
        return None
    plus, (shifted, one) = _parts(factor, _ADD)
    weight = _uncast(shifted if plus is not None and one == 1 else factor)
    if not isinstance(weight, Node) or weight.op != "placeholder" or value(weight).shape != value(x).shape[-1:]:
        return None
    from_one = weight is not _uncast(factor)
    dtype = value(x).dtype
    last = product if value(product).dtype == dtype else _only_user(product, *_CASTS)
    if last is None or value(last).dtype != dtype:
        return None
    if value(scaled).dtype == dtype:
        style = 1 if from_one else 0  # nothing is rounded: what the styles differ in
    else:
        style = 0 if rounded is not None else 1 if from_one else 2
        if rounded is not None and (from_one or value(rounded).dtype != dtype):
            return None
    return _Norm(x, weight, eps, style, last)


def _parts(node: Any, target: Any) -> tuple[Node | None, tuple[Any, Any]]:
    """A sum of two, the tensor first."""
    if not is_call(node, target) or node.kwargs:
        return None, (None, None)
    first, second = node.args
    return (node, (first, second)) if isinstance(first, Node) else (node, (second, first))


def _only_user(node: Node, *targets: Any) -> Node | None:
    (user, *more) = [*node.users, None]
    return user if not any(more) and is_call(user, *targets) else None


def _uncast(node: Any) -> Any:
    return node.args[0] if is_call(node, *_CASTS) else node


def _fuse(graph: Graph, norm: _Norm) -> None:
    total = norm.x
    summands = _summands(total)
    with graph.inserting_after(total):
        if summands is None:
            result = call(graph, torch.ops.enginebay.rms_norm.default, *norm[:4])
            norm.last.replace_all_uses_with(result)
            erase(graph, norm.last)
            return
        residual, x = summands
        both = call(graph, torch.ops.enginebay.add_rms_norm.default, x, residual, *norm[1:4])
    with graph.inserting_after(both):
        summed = call(graph, operator.getitem, both, 1)
        result = call(graph, operator.getitem, both, 0)
    norm.last.replace_all_uses_with(result)
    erase(graph, norm.last)
    total.replace_all_uses_with(summed)
    erase(graph, total)
    erase(graph, summed)


def _summands(node: Node) -> tuple[Node, Node] | None:
    """What this is the sum of, if both are of its shape and dtype: a residual and what is added to it."""
    if not is_call(node, _ADD) or node.kwargs:
        return None
    first, second = node.args
    if not isinstance(first, Node) or not isinstance(second, Node):
        return None
    shown = value(node)
    alike = all(value(part).shape == shown.shape and value(part).dtype == shown.dtype for part in (first, second))
    return (first, second) if alike else None
