"""What passes do with a graph: add a call, know what a node's value looks like, recognise an operator.

Each node carries the value it has at capture as a tensor without numbers (``meta["val"]``): its dtype and its shape, in
which a dimension that differs from step to step is a symbol. A node that a pass adds gets one when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, TypeGuard

import torch
from torch.fx import Graph, Node

from enginebay.interfaces import GraphContext, Origin

__all__ = ["call", "calls", "constant", "dims", "erase", "is_call", "value"]


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Add a call of this operator where the graph is being written."""
    return graph.call_function(target, args, kwargs)


def erase(graph: Graph, node: Node) -> None:
    """Remove a call that nobody uses, and what nobody uses then."""
    if node.op != "call_function" or node.users or node._erased:
        return
    inputs = node.all_input_nodes
    graph.erase_node(node)
    for other in inputs:
        erase(graph, other)


def is_call(node: Any, *targets: Any) -> TypeGuard[Node]:
    """Whether this argument is the result of a call of one of these operators."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def calls(graph: Graph, *targets: Any) -> Iterator[Node]:
    """The calls of these operators, in the order in which they run; what is added meanwhile is not among them."""
    return iter([node for node in graph.nodes if is_call(node, *targets)])


def constant(graph: Graph, name: str, shown: torch.Tensor, origin: Origin, context: GraphContext) -> Node:
    """Add a constant behind the others, under a name that is not taken; ``shown`` is what it looks like."""
    *_, last = (node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(last):
        node = graph.placeholder(name)
    node.target = node.name  # the name that was free
    node.meta["val"] = shown
    context.constants[node.name] = origin
    return node


def value(node: Node) -> Any:
    """What the node's value looks like."""
    if "val" not in node.meta:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value)
        assert callable(node.target), "inputs and constants have had a value since capture"
        with next((mode for mode in map(_mode, _tensors(args)) if mode is not None), nullcontext()):
            node.meta["val"] = node.target(*args, **kwargs)
    return node.meta["val"]


def dims(node: Node) -> list[Any]:
    """The shape of the node's tensor; a symbol where it differs from step to step."""
    return list(value(node).shape)


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    if isinstance(args, torch.Tensor):
        yield args
    elif isinstance(args, tuple | list):
        for arg in args:
            yield from _tensors(arg)


def _mode(tensor: torch.Tensor) -> Any:
    return getattr(tensor, "fake_mode", None)
