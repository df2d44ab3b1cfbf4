"""Pass ``sampled_rows``: what is wanted for some tokens alone is computed for these alone, back to the last attention.

Logits are wanted of the tokens behind which is drawn. Whatever treats each token by itself and is used for nothing else
can be done after the choice, so the choice moves towards the inputs, until more than the chosen tokens are needed.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from enginebay.interfaces import GraphContext
from enginebay_runner_v2 import ops  # noqa: F401  # the operators that are named below
from enginebay_runner_v2.passes.editing import call, calls, dims, is_call, value
from enginebay_runner_v2.passes.moves import pointwise

__all__ = ["apply"]

_ATEN = torch.ops.aten
_BY_LAST = (
    _ATEN.linear.default,
    _ATEN.layer_norm.default,
    _ATEN.rms_norm.default,
    torch.ops.enginebay.all_reduce.default,
    torch.ops.enginebay.all_gather.default,
)
"""They work on the last dimension of their first argument; ranks all have the same tokens."""
_SPLITS = (_ATEN.split_with_sizes.default, _ATEN.split.Tensor, _ATEN.chunk.default)


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Move the choice of rows; a result differs by how a product of fewer rows is summed up."""
    graph = graph_module.graph
    for chosen in calls(graph, _ATEN.index_select.default):
        source, dim, rows = chosen.args
        if dim == 0 and isinstance(source, Node) and isinstance(rows, Node) and rows.name == "rows":
            _choose_earlier(graph, chosen, source, rows)
    graph.eliminate_dead_code()


def _choose_earlier(graph: Graph, chosen: Node, source: Node, rows: Node) -> None:
    region = _region(source, chosen)
    choices: dict[Node, Node] = {}

    def choice(node: Node) -> Node:
        """The chosen rows of what has tokens, once for all who ask; anything else as it is."""
        if not _has_tokens(node):
            return node
        if node not in choices:
            choices[node] = call(graph, torch.ops.enginebay.select_rows.default, node, rows)
        return choices[node]

    with graph.inserting_before(chosen):
        for node in [node for node in graph.nodes if node in region]:
            choices[node] = graph.node_copy(node, choice)
            choices[node].meta = {}
        chosen.replace_all_uses_with(choice(source))
    graph.erase_node(chosen)


def _region(source: Node, chosen: Node) -> set[Node]:
    """Calls that treat each token by itself, and whose results no one but the choice and these need."""
    region: set[Node] = set()
    waiting = [source]
    while waiting:
        node = waiting.pop(0)
        if node in region or not _by_token(node) or not set(node.users) <= region | {chosen}:
            continue
        region.add(node)
        waiting.extend(node.all_input_nodes)
    return {node for node in region if not is_call(node, operator.getitem) or node.args[0] in region}


def _has_tokens(node: Node) -> bool:
    """Its first dimension is that of tokens: of all inputs these alone differ in number from step to step."""
    shown = value(node)
    if isinstance(shown, list | tuple):
        shown = shown[0]
    return isinstance(shown, torch.Tensor) and shown.dim() > 0 and isinstance(shown.shape[0], torch.SymInt)


def _by_token(node: Node) -> bool:
    if node.op != "call_function" or not _has_tokens(node):
        return False
    args = node.args
    if is_call(node, operator.getitem):
        return is_call(args[0], *_SPLITS)
    rank = len(dims(node.all_input_nodes[0])) if node.target in _SPLITS else len(dims(node))
    if pointwise(node):
        return all(_has_tokens(arg) if len(dims(arg)) == rank else not _has_tokens(arg) for arg in node.all_input_nodes)
    if node.target in _BY_LAST:
        return rank > 1
    if node.target in (_ATEN.mean.dim, _ATEN.sum.dim_IntList):
        return isinstance(args[1], list | tuple) and not any(dim in (0, -rank) for dim in args[1])
    if node.target in (_ATEN.slice.Tensor, _ATEN.cat.default):
        dim: Any = args[1] if len(args) > 1 else 0
        return dim not in (0, -rank)
    if node.target in _SPLITS:
        return len(args) > 2 and args[2] not in (0, -rank)
    return False
