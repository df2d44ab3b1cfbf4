"""The rewriting: of two calls that are the same and the second of which changes nothing, the second goes."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

_NAMES = ("abs", "ceil", "detach", "floor", "relu", "round")
"""f(f(x)) is f(x), to the last bit."""
_FUNCTIONS = frozenset(
    [getattr(torch.ops.aten, name).default for name in _NAMES]
    + [getattr(torch, name) for name in _NAMES]
    + [torch.nn.functional.relu]
)


def fold_repeats(graph: Graph) -> int:
    """Edit the graph in place; how many calls nobody needs any more. The engine removes them."""
    folded = 0
    for node in graph.nodes:
        before = node.args[0] if node.args else None
        if isinstance(before, Node) and _once_is_enough(node) and _same_call(node, before):
            node.replace_all_uses_with(before)
            folded += 1
    return folded


def _once_is_enough(node: Node) -> bool:
    if node.op == "call_method":
        return node.target in _NAMES
    return node.op == "call_function" and node.target in _FUNCTIONS


def _same_call(node: Node, before: Node) -> bool:
    same = (node.op, node.target) == (before.op, before.target)
    return same and node.args[1:] == before.args[1:] and node.kwargs == before.kwargs
