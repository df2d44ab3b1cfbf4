"""Pass ``fuse_gate``: a gate and what it gates, side by side in one tensor, become one call."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from enginebay.interfaces import GraphContext
from enginebay_runner_v2.passes.editing import call, calls
from enginebay_runner_v2.passes.gates import gate_of
from enginebay_runner_v2.passes.parts import halves_of

__all__ = ["apply"]


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Fuse them; in float32 the results are the same, bit for bit."""
    graph = graph_module.graph
    for node in calls(graph, torch.ops.aten.mul.Tensor):
        found = gate_of(node)
        if found is None or (whole := halves_of(found.gate, found.up)) is None:
            continue
        with graph.inserting_before(node):
            fused = call(graph, torch.ops.enginebay.gated.default, whole, found.activation)
        node.replace_all_uses_with(fused)
        graph.erase_node(node)
    graph.eliminate_dead_code()
