"""Turns an exported step into the step's graph: its inputs in order, attention over pages, constants with origins."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Graph, GraphModule, Node

from enginebay.errors import ModelError
from enginebay.interfaces import Origin, Parameter, Table
from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2 import ops
from enginebay_runner_v2.capture_export import MARKER, PREFIX
from enginebay_runner_v2.capture_writes import writes
from enginebay_runner_v2.passes.editing import call

__all__ = ["step_graph"]

_MAX_VALUES = 1 << 16
"""Numbers of a constant that no file holds: they are written down with the graph."""
_PLAIN = (operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv)
"""Functions that are no operators, and that a record of a graph holds nevertheless."""
_BLOCKS, _BLOCK_SIZE, _REQUESTS = 5, 16, 3
"""Sizes of the stand-ins for caches and tables, by which nothing that is captured goes."""


def step_graph(
    exported: torch.export.ExportedProgram, model: Any, shapes: Sequence[LayerShape], groups: Sequence[LayerGroup]
) -> tuple[GraphModule, dict[str, Origin]]:
    """The graph as ``capture`` describes it, and the origins of its constants."""
    assert ops.NAMESPACE == "enginebay", "the operators are defined by importing them"
    builder = _Builder(exported, model, shapes, groups)
    graph = builder.build()
    if odd := sorted({words for node in graph.nodes if (words := _odd(node))}):
        raise ModelError(f"{type(model).__name__} cannot be captured as a graph: {', '.join(odd)}")
    graph.lint()
    return GraphModule(torch.nn.Module(), graph, "Step"), builder.constants


def _odd(node: Node) -> str | None:
    """What is wrong with a node: a call that no graph of ours holds."""
    if node.op in ("placeholder", "output") or node.target in _PLAIN:
        return None
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", ops.NAMESPACE):
        return f"{node.op} of {target} is no operator of aten"
    if writes(target):
        return f"{target} writes to its argument"
    return None


class _Builder:
    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        model: Any,
        shapes: Sequence[LayerShape],
        groups: Sequence[LayerGroup],
    ) -> None:
        self.source = exported.graph
        self.tensors: dict[str, Any] = {**exported.state_dict, **exported.constants}
        self.specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
        self.model = model
        self.shapes, self.groups = shapes, groups
        self.group_of = {layer: number for number, group in enumerate(groups) for layer in group.layers}
        self.graph = Graph()
        self.new: dict[Node, Node] = {}
        self.inputs: dict[str, Node] = {}
        self.constants: dict[str, Origin] = {}

    def build(self) -> Graph:
        placeholders = [node for node in self.source.nodes if node.op == "placeholder"]
        of_user = {node.name: node for node in placeholders if self.specs[node.name].kind == InputKind.USER_INPUT}
        self._take_inputs(of_user)
        self._take_constants([node for node in placeholders if node.name not in of_user])
        for node in self.source.nodes:
            if node.op == "placeholder":
                continue
            if node.target is MARKER:
                self.new[node] = self._attention(node)
            else:
                self.new[node] = self.graph.node_copy(node, self.new.__getitem__)
                self.new[node].meta = {"val": node.meta["val"]} if "val" in node.meta else {}
        return self.graph

    def _input(self, name: str, value: Any) -> Node:
        self.inputs[name] = node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def _take_inputs(self, of_user: dict[str, Node]) -> None:
        """The placeholders of ``capture`` before the constants."""
        for name in ("input_ids", "positions", "rows"):
            self.new[of_user[name]] = self._input(name, of_user[name].meta["val"])
        tokens = of_user["input_ids"].meta["val"]
        dtype = next(self.model.parameters()).dtype
        with tokens.fake_mode:
            for group in range(len(self.groups)):
                self._input(f"slots_{group}", torch.empty_like(tokens))
                self._input(f"block_tables_{group}", torch.empty((_REQUESTS, _BLOCKS), dtype=torch.int32))
            self._input("query_starts", torch.empty(_REQUESTS + 1, dtype=torch.int32))
            self._input("context_lens", torch.empty(_REQUESTS, dtype=torch.int32))
            for layer, shape in enumerate(self.shapes):
                for what, width in (("key", shape.key_width), ("value", shape.value_width)):
                    pages = torch.empty((_BLOCKS, _BLOCK_SIZE, shape.kv_heads, width), dtype=dtype)
                    self._input(f"{what}_cache_{layer}", pages)

    def _take_constants(self, placeholders: Sequence[Node]) -> None:
        """Weights, tied ones once, and what the model has beside them and no file holds."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        firsts: dict[int, str] = {}
        for name, weight in parameters.items():
            firsts.setdefault(id(weight), name)
        for node in placeholders:
            if not node.users:
                continue
            spec = self.specs[node.name]
            target = str(spec.target).removeprefix(PREFIX)
            if spec.kind == InputKind.PARAMETER:
                target = firsts[id(parameters[target])]
                origin: Origin = Parameter(name=target)
            elif spec.kind == InputKind.BUFFER and spec.persistent:
                origin = Parameter(name=target)
            else:
                origin = self._values(target, spec)
            name = target.replace(".", "_")
            if name not in self.inputs:
                self._input(name, node.meta["val"])
                self.constants[name] = origin
            self.new[node] = self.inputs[name]

    def _values(self, name: str, spec: InputSpec) -> Table:
        tensor = self.tensors[str(spec.target)].detach()
        if tensor.numel() > _MAX_VALUES:
            raise ModelError(
                f"{type(self.model).__name__} cannot be captured as a graph: {name} has {tensor.numel()} numbers that "
                f"no file holds, and at most {_MAX_VALUES} are kept with a graph"
            )
        settings = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        return Table(kind="values", settings={**settings, "values": tensor.flatten().tolist()})

    def _attention(self, node: Node) -> Node:
        """Paged attention where the marker stood, with what it takes and gives turned to tokens first."""
        query, key, value, layer, scale, softcap, sinks = node.args
        assert isinstance(layer, int), "the marker was given one"
        shape, group = self.shapes[layer], self.group_of[layer]
        turned = []
        for part in (query, key, value):
            assert isinstance(part, Node), "the marker was given tensors"
            own = call(self.graph, torch.ops.aten.select.int, self.new[part], 0, 0)
            turned.append(call(self.graph, torch.ops.aten.transpose.int, own, 0, 1))
        pages = [self.inputs[f"{what}_cache_{layer}"] for what in ("key", "value")]
        step = [self.inputs[f"slots_{group}"], self.inputs[f"block_tables_{group}"]]
        step += [self.inputs["query_starts"], self.inputs["context_lens"]]
        window = self.groups[group].window or 0
        sinks = self.new[sinks] if isinstance(sinks, Node) else None
        attended = call(
            self.graph,
            torch.ops.enginebay.paged_attention.default,
            *(*turned, *pages, *step, scale, window, softcap, sinks),
        )
        parted = call(self.graph, torch.ops.aten.unflatten.int, attended, 1, [shape.heads, shape.value_width])
        return call(self.graph, torch.ops.aten.unsqueeze.default, parted, 0)
