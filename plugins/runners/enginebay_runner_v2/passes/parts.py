"""Recognises columns: that a tensor is some of the last dimension of another, in whatever way it was taken."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from enginebay_runner_v2.passes.editing import dims, is_call, value

__all__ = ["Columns", "columns_of", "halves_of", "without_view"]

_ATEN = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns ``begin`` to ``end`` of the last dimension of ``whole``."""

    whole: Node
    begin: int
    end: int


def columns_of(node: Node) -> Columns:
    """Of what these are the columns; of itself where nothing is taken."""
    rank, width = value(node).dim(), dims(node)[-1]
    if is_call(node, _ATEN.slice.Tensor):
        source, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
        begin: Any = node.args[2] if len(node.args) > 2 else 0
        if isinstance(source, Node) and dim in (rank - 1, -1) and isinstance(begin, int) and len(node.args) < 5:
            begin = begin if begin >= 0 else dims(source)[-1] + begin
            return Columns(source, begin, begin + width)
    if is_call(node, operator.getitem):
        split, number = node.args
        if is_call(split, _ATEN.split_with_sizes.default, _ATEN.split.Tensor, _ATEN.chunk.default):
            source, dim = split.args[0], split.args[2] if len(split.args) > 2 else 0
            if isinstance(source, Node) and dim in (rank - 1, -1) and isinstance(number, int):
                widths = [part.shape[-1] for part in value(split)]
                begin = sum(widths[:number])
                return Columns(source, begin, begin + width)
    return Columns(node, 0, width)


def halves_of(first: Node, second: Node) -> Node | None:
    """The tensor of whose last dimension these are the two halves, or None."""
    a, b = columns_of(first), columns_of(second)
    whole = a.whole is b.whole and a.begin == 0 and a.end == b.begin and a.end - a.begin == b.end - b.begin
    return a.whole if whole and b.end == dims(a.whole)[-1] else None


def without_view(node: Node) -> Node:
    """The tensor that this is a view of, token for token: with a token's numbers in the same order."""
    while isinstance(source := node.args[0] if node.args else None, Node):
        put_in = is_call(node, _ATEN.unsqueeze.default) and node.args[1] != 0
        if not put_in and not is_call(node, _ATEN.reshape.default, _ATEN.view.default):
            break
        node = source
    return node
