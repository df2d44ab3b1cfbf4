"""How single operators do their work on a tensor rank's part: the rules of pass ``tensor_parallel``.

A rule is told the call and the parts of its arguments, sets right the sizes that the call names, and gives the part
that its result is. Where a call would need what other ranks have, it raises ``Unsplit``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from enginebay_runner_v2.passes.moves import pointwise
from enginebay_runner_v2.passes.tensor_parts import Part, viewed

__all__ = ["Split", "Unsplit", "part_of_result"]

_ATEN = torch.ops.aten


class Unsplit(Exception):
    """A call works on what ranks have parts of, and these parts are not known to be enough."""


@dataclass(frozen=True, slots=True)
class Split:
    """``parts``: of the values that a rank has a part of; ``shapes``: of all values as they are on one rank alone."""

    parts: Mapping[Node, Part]
    shapes: Mapping[Node, Sequence[Any]]

    def source(self, node: Node) -> tuple[Part, Sequence[Any]]:
        """Of the first argument, which is what is looked at or reduced."""
        source = node.args[0]
        if not isinstance(source, Node) or source not in self.parts:
            raise Unsplit("its first argument is whole")
        return self.parts[source], self.shapes[source]

    def heads(self, node: Node) -> Part:
        """Of ``[T, heads, width]``; all heads where every rank has the same ones."""
        count = int(self.shapes[node][1])
        return self.parts.get(node) or Part(1, count, 0, count)


Rule = Callable[[Split, Node], Part]


def part_of_result(split: Split, node: Node) -> Part:
    """The part that the call's result is, its sizes being set right."""
    rule = _RULES.get(node.target)
    if rule is None and pointwise(node):
        rule = _pointwise
    if rule is None:
        raise Unsplit("it is not known how it works on parts")
    return rule(split, node)


def _pointwise(split: Split, node: Node) -> Part:
    rank = len(split.shapes[node])
    found: Part | None = None
    for arg in node.all_input_nodes:
        if arg in split.parts:
            own = split.parts[arg].at(split.parts[arg].dim + rank - len(split.shapes[arg]))
            if found is not None and own != found:
                raise Unsplit(f"its arguments are other parts: {found.words()}, and {own.words()}")
            found = own
    assert found is not None, "a call without parts is not looked at"
    for arg in node.all_input_nodes:
        dim = found.dim - rank + len(split.shapes[arg])
        if arg not in split.parts and dim >= 0 and split.shapes[arg][dim] != 1:
            raise Unsplit(f"{arg.name} is whole, and the other argument is {found.words()}")
    return found


def _cat(split: Split, node: Node) -> Part:
    """Also of ``stack``, whose result has a dimension more."""
    arguments: Any = node.args[0]
    dim: Any = node.args[1] if len(node.args) > 1 else 0
    dim, stacks = dim % len(split.shapes[node]), node.target is _ATEN.stack.default
    found = {split.parts.get(arg) for arg in arguments}
    part = found.pop()
    if found or part is None or (dim == part.dim and not stacks):
        raise Unsplit("it puts side by side what are not the same parts")
    return part.at(part.dim + 1) if stacks and dim <= part.dim else part


def _view(split: Split, node: Node) -> Part:
    part, before = split.source(node)
    after = split.shapes[node]
    moved = viewed(part, before, after)
    if moved is None:
        raise Unsplit(f"{part.words()} are in no one dimension of its result")
    if node.target is _ATEN.flatten.using_ints:
        return moved
    place = 2 if node.target is _ATEN.unflatten.int else 1
    sizes: Any = node.args[place]
    first = _dim(split, node, 1, node.args[0]) if place == 2 else 0
    if 0 <= moved.dim - first < len(sizes) and sizes[moved.dim - first] != -1:
        changed = [*sizes]
        changed[moved.dim - first] = moved.size
        node.update_arg(place, changed)
    return moved


def _expand(split: Split, node: Node) -> Part:
    part, before = split.source(node)
    after = split.shapes[node]
    moved = part.at(part.dim + len(after) - len(before))
    sizes: Any = node.args[1]
    node.update_arg(1, [-1 if dim == moved.dim else size for dim, size in enumerate(sizes)])
    return moved


def _apart(split: Split, node: Node, place: int) -> tuple[Part, int, int]:
    """The part, the other dimension that the call works along, and how many the tensor has."""
    part, before = split.source(node)
    dim = _dim(split, node, place, node.args[0])
    if dim == part.dim:
        raise Unsplit(f"it works along dimension {dim}, of which there is a part here")
    return part, dim, len(before)


def _dim(split: Split, node: Node, place: int, source: Any) -> int:
    dim: Any = node.args[place] if len(node.args) > place else 0
    return int(dim) % len(split.shapes[source])


def _along(place: int) -> Rule:
    return lambda split, node: _apart(split, node, place)[0]


def _select(split: Split, node: Node) -> Part:
    part, dim, _ = _apart(split, node, 1)
    return part.at(part.dim - (dim < part.dim))


def _unsqueeze(split: Split, node: Node) -> Part:
    part, before = split.source(node)
    dim: Any = node.args[1]
    return part.at(part.dim + (dim % (len(before) + 1) <= part.dim))


def _permute(split: Split, node: Node) -> Part:
    part, before = split.source(node)
    dims = list(range(len(before)))
    if node.target is _ATEN.permute.default:
        order: Any = node.args[1]
        dims = [dim % len(dims) for dim in order]
    else:
        first, second = (_dim(split, node, place, node.args[0]) for place in (1, 2))
        dims[first], dims[second] = dims[second], dims[first]
    return part.at(dims.index(part.dim))


def _reduce(split: Split, node: Node) -> Part:
    part, before = split.source(node)
    dims: Any = node.args[1] if len(node.args) > 1 else None
    along = {dim % len(before) for dim in dims} if dims else set(range(len(before)))
    if part.dim in along:
        raise Unsplit(f"it sums up dimension {part.dim}, of which there is a part here")
    keeps = len(node.args) > 2 and node.args[2] is True
    return part if keeps else part.at(part.dim - sum(dim < part.dim for dim in along))


def _norm(split: Split, node: Node) -> Part:
    part, before = split.source(node)
    sizes: Any = node.args[1]
    if part.dim >= len(before) - len(sizes) or any(arg in split.parts for arg in node.all_input_nodes[1:]):
        raise Unsplit("it is a norm over numbers of which there is a part here")
    return part


def _item(split: Split, node: Node) -> Part:
    return split.source(node)[0]


def _attention(split: Split, node: Node) -> Part:
    """Heads of queries beside the KV heads that they attend to."""
    query, key, value, *rest = node.args
    q, k, v = (split.heads(arg) for arg in (query, key, value) if isinstance(arg, Node))
    if {q.dim, k.dim, v.dim} != {1} or k != v:
        raise Unsplit("its queries, keys and values are not split by heads")
    group = q.whole // k.whole
    if (k.begin, k.end) != (q.begin // group, -(-q.end // group)) or q.size % k.size:
        raise Unsplit(f"query heads {q.words()} do not attend to KV heads {k.words()} alone")
    sinks = rest[-1]
    if isinstance(sinks, Node) and split.parts.get(sinks) != q.at(0):
        raise Unsplit("its sinks are not split by heads")
    part = q.of(1, int(split.shapes[node][1]))
    assert part is not None, "each head has as many numbers as another"
    return part


_RULES: dict[Any, Rule] = {
    torch.ops.enginebay.paged_attention.default: _attention,
    operator.getitem: _item,
    _ATEN.cat.default: _cat,
    _ATEN.stack.default: _cat,
    _ATEN.view.default: _view,
    _ATEN.reshape.default: _view,
    _ATEN.unflatten.int: _view,
    _ATEN.flatten.using_ints: _view,
    _ATEN.expand.default: _expand,
    _ATEN.slice.Tensor: _along(1),
    _ATEN.split.Tensor: _along(2),
    _ATEN.split_with_sizes.default: _along(2),
    _ATEN.chunk.default: _along(2),
    _ATEN.softmax.int: _along(1),
    _ATEN.select.int: _select,
    _ATEN.squeeze.dim: _select,
    _ATEN.unsqueeze.default: _unsqueeze,
    _ATEN.permute.default: _permute,
    _ATEN.transpose.int: _permute,
    _ATEN.mean.dim: _reduce,
    _ATEN.sum.dim_IntList: _reduce,
    _ATEN.layer_norm.default: _norm,
    _ATEN.rms_norm.default: _norm,
}
"""Operator → its rule; each number by itself apart (``moves.pointwise``)."""
