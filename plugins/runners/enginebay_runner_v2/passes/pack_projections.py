"""Pass ``pack_projections``: projections of the same input are one product, of their weights one below the other.

Packed are what attention makes its queries, keys and values of, and a gate with what it gates. One large product reads
its input once and keeps more of the processor busy than three small ones.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from enginebay.interfaces import GraphContext, Packed, Parameter
from enginebay_runner_v2.passes.editing import call, calls, constant, dims, is_call, value
from enginebay_runner_v2.passes.gates import gate_of

__all__ = ["apply"]

_ATEN = torch.ops.aten
_LINEAR = _ATEN.linear.default
_ATTENTION = torch.ops.enginebay.paged_attention.default


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Pack what can be; a result differs by how a product of other shape is summed up."""
    graph = graph_module.graph
    by_input: dict[Node, list[Node]] = {}
    for node in calls(graph, _LINEAR):
        if isinstance(node.args[0], Node) and _is_packable(node, context):
            by_input.setdefault(node.args[0], []).append(node)
    for linears in by_input.values():
        attending = [node for node in linears if _attends(node)]
        rest = [node for node in linears if node not in attending]
        for group in (attending, *_gated(rest)):
            for alike in _alike(group):
                if len(alike) > 1:
                    _pack(graph, alike, context)
    graph.eliminate_dead_code()


def _is_packable(node: Node, context: GraphContext) -> bool:
    """Its weight and bias are weights of the file, or rows of them, and no other call's."""
    return all(
        isinstance(part, Node)
        and len(part.users) == 1
        and isinstance(origin := context.constants.get(part.name), Parameter)
        and origin.dim == 0
        for part in node.args[1:]
        if part is not None
    )


def _attends(node: Node) -> bool:
    """Whether it comes to attention by no other product."""
    seen, reached = {node}, [node]
    while reached:
        for user in reached.pop().users:
            if is_call(user, _ATTENTION):
                return True
            if user not in seen and not is_call(user, _LINEAR):
                seen.add(user)
                reached.append(user)
                if len(seen) > _FAR:
                    return False
    return False


_FAR = 64
"""Calls between a projection and its attention; more is another way."""


def _gated(linears: Sequence[Node]) -> list[list[Node]]:
    """Pairs of a gate and what it gates, the gate first."""
    pairs = []
    for node in linears:
        for user in [other for activation in node.users for other in activation.users]:
            found = gate_of(user)
            if found is not None and found.gate is node and found.up in linears:
                pairs.append([node, found.up])
    return pairs


def _alike(group: Sequence[Node]) -> list[list[Node]]:
    """Those with a bias and those without, by dtype."""
    kinds: dict[Any, list[Node]] = {}
    for node in group:
        weight = node.args[1]
        assert isinstance(weight, Node), "a packable weight is a constant"
        biased = len(node.args) > 2 and node.args[2] is not None
        kinds.setdefault((biased, value(weight).dtype), []).append(node)
    return list(kinds.values())


def _pack(graph: Graph, linears: Sequence[Node], context: GraphContext) -> None:
    first = min(linears)  # of those in the graph, the one that runs first
    packed: list[Node | None] = []
    for place in (1, 2):
        parts = [node.args[place] for node in linears if len(node.args) > place and node.args[place] is not None]
        packed.append(_packed(graph, parts, context) if parts else None)
    widths = [dims(node)[-1] for node in linears]
    with graph.inserting_before(first):
        product = call(graph, _LINEAR, first.args[0], *[part for part in packed if part is not None])
        split = call(graph, _ATEN.split_with_sizes.default, product, widths, len(dims(product)) - 1)
        results = [call(graph, operator.getitem, split, number) for number in range(len(linears))]
    for node, part in zip(linears, results, strict=True):
        node.replace_all_uses_with(part)
        graph.erase_node(node)


def _packed(graph: Graph, parts: Sequence[Any], context: GraphContext) -> Node:
    """A constant of these, one below the other."""
    origins = [origin for part in parts if isinstance(origin := context.constants[part.name], Parameter)]
    names = tuple(origin.name for origin in origins)
    ranges = tuple(origin.ranges for origin in origins)
    with value(parts[0]).fake_mode:
        whole = torch.cat([value(part) for part in parts])
    return constant(graph, _name(names), whole, Packed(names=names, ranges=ranges if any(ranges) else ()), context)


def _name(names: Sequence[str]) -> str:
    """Of ``a.q.weight`` and ``a.k.weight``: ``a_q_k_weight``."""
    parents, modules, own = zip(*(name.rsplit(".", 2) for name in names), strict=True)
    return "_".join([parents[0].replace(".", "_"), *modules, own[0]])
