"""Pass ``two_dimensions``: a step has no batch dimension; its tokens come first, then their heads, then numbers.

transformers' modules work on ``[1, T, hidden]`` and ``[1, heads, T, width]``. Here each tensor is known by the one that
has its numbers in order of tokens, and by which dimension is which (``layouts``). Operators are moved over to that one,
so that what only turned dimensions around goes; one that is not known here gets its arguments as they were.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule, Node

from enginebay.interfaces import GraphContext
from enginebay_runner_v2.passes.editing import value
from enginebay_runner_v2.passes.layouts import Layout, arranged, plain
from enginebay_runner_v2.passes.moves import MOVES, pointwise

__all__ = ["apply"]


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Rewrite the graph; the results are the same, bit for bit, but for products that see fewer dimensions."""
    graph = Mover(graph_module.graph).move()
    graph_module.graph = graph


class Mover:
    """Writes the new graph, call by call."""

    def __init__(self, source: Graph) -> None:
        self.source = source
        self.graph = Graph()
        self.layouts: dict[Node, Layout] = {}
        self.others: dict[Node, Any] = {}
        self._whole: dict[tuple[Node, tuple[int | None, ...]], Node] = {}

    def move(self) -> Graph:
        """The new graph."""
        for node in self.source.nodes:
            if node.op == "placeholder":
                copy = self.graph.node_copy(node)
                self.layouts[node] = plain(copy)
            elif node.op == "output":
                self.graph.node_copy(node, self.as_it_was)
            else:
                self._move_call(node)
        return self.graph

    def _move_call(self, node: Node) -> None:
        rule = MOVES.get(node.target)
        if rule is None and pointwise(node):
            rule = MOVES["pointwise"]
        moved = rule(self, node) if rule is not None else None
        if moved is None:
            self._copy(node)
        elif isinstance(moved, Layout):
            self.layouts[node] = moved
        else:
            self.others[node] = moved

    def _copy(self, node: Node) -> None:
        """As it was, over arguments as they were; a batch dimension of its result is left out from there on."""
        copy = self.graph.node_copy(node, self.as_it_was)
        shown = node.meta.get("val")
        if not hasattr(shown, "shape"):
            self.others[node] = copy
            return
        self.layouts[node] = plain(copy)

    def as_it_was(self, node: Node) -> Any:
        """The value of a node of the old graph, with its own dimensions."""
        if node in self.others:
            return self.others[node]
        return self.arranged(self.layouts[node], tuple(range(len(self.layouts[node].axes))))

    def arranged(self, layout: Layout, dims: tuple[int | None, ...]) -> Node:
        """See ``layouts.arranged``; written once for all who ask."""
        dims = tuple(None if dim is None or layout.axes[dim] is None else dim for dim in dims)
        key = (layout.base, tuple(None if dim is None else layout.axes[dim] for dim in dims))
        if key not in self._whole:
            self._whole[key] = arranged(self.graph, layout, dims)
        return self._whole[key]

    def layout(self, argument: Any) -> Layout | None:
        """Of a tensor; None for anything else."""
        return self.layouts.get(argument) if isinstance(argument, Node) else None

    def shape(self, node: Node) -> list[Any]:
        """Of a node of either graph."""
        return list(value(node).shape)
