"""Pass ``rotary_table``: cosines and sines are looked up in one table, and rotating becomes part of attention.

The table is made once, of a frequency per pair of numbers, and holds a row for every position that a request can reach.
It is used where it gives what the model computes, bit for bit in float32; where it does not, or where heads are rotated
in another way than by halves, the model's own calls stay.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from enginebay.interfaces import GraphContext, Table
from enginebay_runner_v2.passes.editing import call, calls, constant, dims, erase, is_call, value
from enginebay_runner_v2.passes.origins import constant_tensor, rotary_table
from enginebay_runner_v2.passes.parts import columns_of, without_view
from enginebay_runner_v2.passes.rotations import rotation_of, uncast

__all__ = ["apply"]

_ATEN = torch.ops.aten


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Join rotations with attention; in float32 the results are the same, bit for bit."""
    graph = graph_module.graph
    tables: dict[tuple[Node, Node], Node | None] = {}
    for node in calls(graph, torch.ops.enginebay.paged_attention.default):
        query, key, val = (part for part in node.args[:3] if isinstance(part, Node))
        turned = [rotation_of(part) for part in (query, key)]
        q, k = turned
        if q is None or k is None or q[1:] != k[1:] or len({dims(part)[-1] for part in (q.source, k.source, val)}) > 1:
            continue
        pair = (q.cos, q.sin)
        if pair not in tables:
            tables[pair] = _table(graph, pair, context)
        table = tables[pair]
        if table is None:
            continue
        heads, kv_heads = dims(query)[1], dims(key)[1]
        with graph.inserting_before(node):
            packed = _packed(graph, [q.source, k.source, val])
            positions = next(other for other in graph.nodes if other.op == "placeholder" and other.name == "positions")
            args = (packed, positions, table, *node.args[3:9], heads, kv_heads, *node.args[9:])
            joined = call(graph, torch.ops.enginebay.rotary_attention.default, *args)
        node.replace_all_uses_with(joined)
        graph.erase_node(node)
        for part in (query, key, val):
            erase(graph, part)
    graph.eliminate_dead_code()


def _packed(graph: Graph, parts: list[Node]) -> Node:
    """``[T, n]`` with these side by side: what they were taken from, or put together."""
    flat = [without_view(part) for part in parts]
    taken = [columns_of(part) for part in flat]
    begin = 0
    for columns in taken:
        if columns.whole is not taken[0].whole or columns.begin != begin:
            break
        begin = columns.end
    else:
        if begin == dims(taken[0].whole)[-1] and value(taken[0].whole).dim() == 2:
            return taken[0].whole
    rows = []
    for part, source in zip(parts, flat, strict=True):
        width = prod(dims(part)[1:])
        whole = value(source).dim() == 2 and dims(source)[-1] == width
        rows.append(source if whole else call(graph, _ATEN.reshape.default, part, [-1, width]))
    return call(graph, _ATEN.cat.default, rows, 1)


class _Angles(NamedTuple):
    """``angles`` ``[T, width]``, of which the cosine or sine is scaled."""

    angles: Node
    scale: float


def _table(graph: Graph, pair: tuple[Node, Node], context: GraphContext) -> Node | None:
    """A constant with the table of these cosines and sines, or None where they follow another rule."""
    cos, sin = (
        _scaled(node, target) for node, target in zip(pair, (_ATEN.cos.default, _ATEN.sin.default), strict=True)
    )
    if cos is None or sin is None or cos != sin:
        return None
    known = _Reckoner(context)
    count = context.max_model_len
    sample = known.reckon(cos.angles, torch.tensor([0, 1]))
    if sample is None or sample.dim() != 2 or sample.shape[1] % 2:
        return None
    frequencies = sample[1, : sample.shape[1] // 2].clone()
    ours = rotary_table(frequencies, cos.scale, count)
    theirs = [known.reckon(uncast(node), torch.arange(count)) for node in pair]
    for whole, half in zip(theirs, ours.chunk(2, dim=1), strict=True):
        if whole is None or not torch.equal(whole, torch.cat((half, half), dim=1)):
            return None
    settings = {"frequencies": frequencies.tolist(), "scale": cos.scale, "positions": count}
    with value(pair[0]).fake_mode:
        shown = torch.empty(ours.shape)
    return constant(graph, "rotary_table", shown, Table(kind="rotary", settings=settings), context)


def _scaled(node: Node, target: Any) -> _Angles | None:
    node, scale = uncast(node), 1.0
    if is_call(node, _ATEN.mul.Tensor) and isinstance(factor := node.args[1], int | float):
        node, scale = uncast(node.args[0]), float(factor)
    return _Angles(node.args[0], scale) if is_call(node, target) and isinstance(node.args[0], Node) else None


class _Reckoner:
    """Computes what follows from positions and reckoned constants alone."""

    def __init__(self, context: GraphContext) -> None:
        self._constants = context.constants

    def reckon(self, node: Node, positions: torch.Tensor) -> torch.Tensor | None:
        """The node's value at these positions; None where it needs another input."""
        known: dict[Node, Any] = {}
        try:
            reckoned: torch.Tensor = self._value(node, positions, known)
        except _Unknown:
            return None
        return reckoned

    def _value(self, node: Node, positions: torch.Tensor, known: dict[Node, Any]) -> Any:
        if node not in known:
            known[node] = self._fresh(node, positions, known)
        return known[node]

    def _fresh(self, node: Node, positions: torch.Tensor, known: dict[Node, Any]) -> Any:
        if node.op == "placeholder":
            origin = self._constants.get(node.name)
            if node.name == "positions":
                return positions
            if isinstance(origin, Table):
                return constant_tensor(origin, {})
            raise _Unknown
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda a: self._value(a, positions, known))
        assert callable(node.target), "placeholders apart, nodes are calls"
        return node.target(*args, **kwargs)


class _Unknown(Exception):
    """A value depends on an input of the step."""
