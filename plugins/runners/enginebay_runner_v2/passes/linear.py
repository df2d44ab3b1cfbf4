"""Pass ``linear``: products with a weight go through an operator of ours, which takes packed weights too.

Logits stay in float32, as they were summed up: in bfloat16, whose steps are 1/16 between 8 and 16, many would be equal.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from enginebay.interfaces import GraphContext
from enginebay_runner_v2.passes.editing import call, calls, dims, is_call

__all__ = ["apply"]


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Put it in the place of ATen's; in float32 the results are the same, bit for bit."""
    graph = graph_module.graph
    for node in calls(graph, torch.ops.aten.linear.default):
        x, weight, bias = (*node.args, None)[:3]
        if not isinstance(weight, Node) or weight.name not in context.constants:
            continue
        logits = {"float_out": True} if all(map(_is_result, node.users)) else {}
        with graph.inserting_before(node):
            product = call(graph, torch.ops.enginebay.linear.default, x, weight, bias, dims(weight)[0], **logits)
        node.replace_all_uses_with(product)
        graph.erase_node(node)


def _is_result(user: Node) -> bool:
    """Whether this is the step's result, or gathers the ranks' parts for it."""
    gathers = is_call(user, torch.ops.enginebay.all_gather.default)
    return user.op == "output" or (gathers and all(one.op == "output" for one in user.users))
