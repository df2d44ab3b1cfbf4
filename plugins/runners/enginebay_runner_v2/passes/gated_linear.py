"""Pass ``gated_linear``: a product whose outputs are gates and what they gate becomes one call with its gate.

The kernel computes gates while the next products run, and the product itself, twice as wide, never lies in memory.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from enginebay.interfaces import GraphContext
from enginebay_runner_v2.passes.editing import call, calls, is_call

__all__ = ["apply"]


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Fuse them where no one else uses the product; the results are the same, bit for bit."""
    graph = graph_module.graph
    for node in calls(graph, torch.ops.enginebay.gated.default):
        product, activation = node.args
        if not is_call(product, torch.ops.enginebay.linear.default) or len(product.users) > 1 or product.kwargs:
            continue
        with graph.inserting_before(node):
            fused = call(graph, torch.ops.enginebay.gated_linear.default, *product.args, activation)
        node.replace_all_uses_with(fused)
        graph.erase_node(node)
        graph.erase_node(product)
