"""Graphs for tests: a small step with weights as placeholders and a cache that it writes, and passes over it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from enginebay.interfaces import GraphContext, GraphPass, Origin, Packed, Parameter

aten = torch.ops.aten
WEIGHTS = {"a.weight": torch.arange(12.0).reshape(4, 3) / 7, "b.weight": torch.ones(4, 3)}


def step_graph() -> tuple[GraphModule, GraphContext]:
    """Two products with one input, multiplied by 1, added; the cache counts the steps. Two constants."""
    graph = Graph()
    x, cache = graph.placeholder("x"), graph.placeholder("key_cache_0")
    a, b = graph.placeholder("a_weight"), graph.placeholder("b_weight")
    left = graph.call_function(aten.linear.default, (x, a))
    right = graph.call_function(aten.linear.default, (x, b))
    once = graph.call_function(aten.mul.Tensor, (left, 1.0))
    graph.call_function(aten.add_.Tensor, (cache, 1))
    graph.output((graph.call_function(aten.add.Tensor, (once, right)),))
    context = GraphContext(
        constants={"a_weight": Parameter(name="a.weight"), "b_weight": Parameter(name="b.weight")},
    )
    return GraphModule(torch.nn.Module(), graph), context


def step_inputs() -> dict[str, Any]:
    """What a step of ``step_graph`` brings."""
    return {"x": torch.arange(6.0).reshape(2, 3), "key_cache_0": torch.zeros(5)}


def constant(origin: Origin) -> torch.Tensor:
    """The constant that comes from there."""
    match origin:
        case Parameter(name=name):
            return WEIGHTS[name]
        case Packed(names=names, dim=dim):
            return torch.cat([WEIGHTS[name] for name in names], dim)
    raise AssertionError(origin)


def a_pass(
    name: str, apply: Callable[[Any, GraphContext], None] = lambda graph, context: None, **more: Any
) -> GraphPass:
    """A pass, by default one that does nothing."""
    return GraphPass(name=name, summary=f"what {name} does", apply=apply, **more)


def call_of(graph_module: GraphModule, target: Any) -> Any:
    """The first call of this operator."""
    return next(node for node in graph_module.graph.nodes if node.target is target)


def fold_ones(graph_module: GraphModule, context: GraphContext) -> None:
    """Right: a product with 1 is what it was."""
    node = call_of(graph_module, aten.mul.Tensor)
    node.replace_all_uses_with(node.args[0])


def doubled(graph_module: GraphModule, context: GraphContext) -> None:
    """Wrong: a product with 1 becomes one with 2."""
    node = call_of(graph_module, aten.mul.Tensor)
    node.args = (node.args[0], 2.0)


def packed(graph_module: GraphModule, context: GraphContext) -> None:
    """Right: the two products are one, over weights that stand one after the other."""
    graph = graph_module.graph
    left, right = [node for node in graph.nodes if node.target is aten.linear.default]
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "call_function")):
        both = graph.placeholder("a_b_weight")
    context.constants["a_b_weight"] = Packed(names=("a.weight", "b.weight"))
    with graph.inserting_before(left):
        product = graph.call_function(aten.linear.default, (left.args[0], both))
        halves = graph.call_function(aten.split.Tensor, (product, 4, 1))
        for index, node in enumerate((left, right)):
            node.replace_all_uses_with(graph.call_function(operator.getitem, (halves, index)))


def run(graph_module: GraphModule, inputs: Mapping[str, Any]) -> Any:
    """The graph's outputs from inputs by name."""
    return graph_module(*(inputs[node.name] for node in graph_module.graph.nodes if node.op == "placeholder"))
