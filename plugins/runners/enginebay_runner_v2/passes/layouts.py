"""How a tensor of the graph lies in one of fewer dimensions: which of its dimensions is which of the other's, or none.

A transpose, a dimension of one more or less, only change this; nothing is computed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from enginebay_runner_v2.passes.editing import call, value

__all__ = ["Layout", "arranged", "plain"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor as a view of ``base``: its dimension i is ``base``'s dimension ``axes[i]``, or of size 1 where None.

    Every dimension of ``base`` is there once.
    """

    base: Node
    axes: tuple[int | None, ...]

    def axis(self, dim: Any) -> int | None:
        """The base's dimension that is this one of the tensor's, counted from the end if negative."""
        axis: int | None = self.axes[dim]
        return axis

    @property
    def order(self) -> list[int]:
        """The tensor's dimensions that the base has, in the base's order."""
        there = [(axis, dim) for dim, axis in enumerate(self.axes) if axis is not None]
        return [dim for _, dim in sorted(there)]

    def with_base(self, base: Node) -> Layout:
        """The same dimensions of another base."""
        return Layout(base, self.axes)


def plain(node: Node) -> Layout:
    """A tensor that is its own base, but for a first dimension of 1 that may be left out by the caller."""
    return Layout(node, tuple(range(value(node).dim())))


def arranged(graph: Graph, layout: Layout, dims: Sequence[int | None]) -> Node:
    """The tensor with these of its dimensions, in this order; None puts one of size 1.

    All that the base has are among them.
    """
    axes = [None if dim is None else layout.axes[dim] for dim in dims]
    real = [axis for axis in axes if axis is not None]
    assert sorted(real) == list(range(len(layout.order))), "every dimension of the base is there once"
    node = layout.base
    if real != sorted(real):
        node = call(graph, torch.ops.aten.permute.default, node, real)
    for place, axis in enumerate(axes):
        if axis is None:
            node = call(graph, torch.ops.aten.unsqueeze.default, node, place)
    return node
