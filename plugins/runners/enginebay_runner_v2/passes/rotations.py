"""Recognises rotary embedding: of which tensor a head is the rotation, and by which cosines and sines.

Known is the rotation of halves: ``x * cos + cat(-second half, first half) * sin``, of all numbers of a head or of its
first ones, the others going on as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import torch
from torch.fx import Node

from enginebay_runner_v2.passes.editing import dims, is_call, value
from enginebay_runner_v2.passes.parts import Columns, columns_of

__all__ = ["Rotation", "rotation_of", "uncast"]

_ATEN = torch.ops.aten
_MUL, _ADD = _ATEN.mul.Tensor, _ATEN.add.Tensor
_CASTS = (_ATEN.to.dtype, _ATEN._to_copy.default, _ATEN.type_as.default)


class Rotation(NamedTuple):
    """``source`` ``[T, heads, D]``, or ``[T, D]`` of one head, of which the first ``width`` numbers of each head are
    rotated by ``cos`` and ``sin``, ``[T, width]``."""

    source: Node
    cos: Node
    sin: Node
    width: int


def rotation_of(node: Node) -> Rotation | None:
    """The rotation that this is the result of, or None."""
    node = uncast(node)
    if is_call(node, _ATEN.unsqueeze.default) and node.args[1] == 1:
        node = uncast(node.args[0])
    if _is_cat_of_two(node):
        parts: Any = node.args[0]
        rotation, passed = _of_all(uncast(parts[0])), columns_of(parts[1])
        if rotation is None:
            return None
        turned = columns_of(rotation.source)
        rest = Columns(turned.whole, turned.end, dims(turned.whole)[-1])
        return rotation._replace(source=turned.whole) if turned.begin == 0 and passed == rest else None
    return _of_all(node)


def _of_all(node: Any) -> Rotation | None:
    """Where all numbers of the source are rotated."""
    if not is_call(node, _ADD) or node.kwargs:
        return None
    for straight, crossed in (node.args, reversed(node.args)):
        if not is_call(straight, _MUL) or not is_call(crossed, _MUL):
            continue
        for source, cos in (straight.args, reversed(straight.args)):
            for turned, sin in (crossed.args, reversed(crossed.args)):
                if not isinstance(source, Node) or not _is_turned(turned, source):
                    continue
                rows = [_by_token(part) for part in (cos, sin)]
                if rows[0] is not None and rows[1] is not None:
                    return Rotation(uncast(source), rows[0], rows[1], dims(source)[-1])
    return None


def _is_cat_of_two(node: Any) -> TypeGuard[Node]:
    """Of two tensors, along their last dimension."""
    if not is_call(node, _ATEN.cat.default) or len(node.args) < 2:
        return False
    parts: Any = node.args[0]
    return len(parts) == 2 and node.args[1] in (-1, len(dims(node)) - 1)


def _is_turned(node: Any, source: Node) -> bool:
    """Whether this is ``cat(-second half, first half)`` of the source."""
    if not _is_cat_of_two(node):
        return False
    parts: Any = node.args[0]
    if not is_call(parts[0], _ATEN.neg.default):
        return False
    width = dims(source)[-1]
    first = columns_of(parts[1])
    second = columns_of(parts[0].args[0])  # type: ignore[arg-type]  # what is negated is a tensor
    source_columns = columns_of(source)
    ways = [Columns(source, 0, width), source_columns]
    for way in ways:
        half = way.begin + width // 2
        if first == Columns(way.whole, way.begin, half) and second == Columns(way.whole, half, way.end):
            return True
    return False


def _by_token(node: Any) -> Node | None:
    """``[T, width]`` where this is that, or has a dimension for the heads put in."""
    if isinstance(node, Node) and value(node).dim() == 2:
        return node
    if is_call(node, _ATEN.unsqueeze.default) and node.args[1] in (1, -2) and isinstance(node.args[0], Node):
        return node.args[0] if value(node.args[0]).dim() == 2 else None
    return None


def uncast(node: Any) -> Any:
    """What this is a cast of, or itself."""
    while is_call(node, *_CASTS):
        node = node.args[0]
    return node
