"""Pass ``tensor_parallel``: a rank computes with its part of each layer, and what it has in part is summed or gathered.

transformers' plan of the model, which capture leaves in the graph module's ``meta``, says of which weights a rank has
which rows or columns, and behind which products parts are added up. From there parts are followed through the graph,
and a call of which it is not known that it works on parts is refused, for it would give wrong numbers. With one rank
nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from enginebay.errors import ModelError
from enginebay.interfaces import GraphContext, Parameter
from enginebay.worker.parallel.plan import TensorPlan
from enginebay.worker.parallel.shares import aligned
from enginebay_runner_v2.collectives import TENSOR
from enginebay_runner_v2.passes.editing import call, is_call, value
from enginebay_runner_v2.passes.tensor_parts import Part
from enginebay_runner_v2.passes.tensor_rules import Split, Unsplit, part_of_result

__all__ = ["PLAN", "apply"]

PLAN = "tensor_plan"
"""Under this name the plan is in ``meta``."""
_ATEN = torch.ops.aten
_LINEAR, _EMBEDDING = _ATEN.linear.default, _ATEN.embedding.default
_ATTENTION = torch.ops.enginebay.paged_attention.default


def apply(graph_module: GraphModule, context: GraphContext) -> None:
    """Make the graph this rank's. Raises ``ModelError`` where the plan does not fit the graph."""
    if context.tensor_size > 1:
        plan: TensorPlan = graph_module.meta[PLAN]
        _Splitter(graph_module, context, plan).split()


class _Splitter:
    def __init__(self, graph_module: GraphModule, context: GraphContext, plan: TensorPlan) -> None:
        self.graph = graph_module.graph
        self.context = context
        self.plan = plan
        self.parts: dict[Node, Part] = {}
        self.shapes = {node: _shape(value(node)) for node in self.graph.nodes if node.op != "output"}

    def split(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "placeholder":
                self._take_part(node)
            elif any(arg in self.parts for arg in node.all_input_nodes):
                try:
                    self._call(node)
                except Unsplit as error:
                    raise ModelError(
                        f"tensor_parallel_size = {self.plan.size}: '{node.name}' ({node.target}) cannot be split: "
                        f"{error}; set it to 1 in [parallel]"
                    ) from error
        self.graph.eliminate_dead_code()

    def _take_part(self, node: Node) -> None:
        """Of a weight, as the plan says."""
        origin = self.context.constants.get(node.name)
        if not isinstance(origin, Parameter) or (cut := self.plan.cuts.get(origin.name)) is None:
            return
        whole = self.shapes[node]
        dim = cut.dim + len(whole)
        if len(cut.ranges) != 1:
            raise ModelError(f"{origin.name} is cut in {len(cut.ranges)} places, for which the graph has no operators")
        (own,) = cut.ranges
        if len(own) == whole[dim]:
            return  # every rank has all of it
        self.parts[node] = Part(dim, int(whole[dim]), own.start, own.stop)
        self.context.constants[node.name] = Parameter(name=origin.name, dim=dim, ranges=((own.start, own.stop),))
        node.meta["val"] = _resized(value(node), dim, len(own))

    def _call(self, node: Node) -> None:
        if node.op == "output":
            raise Unsplit("it is the result")
        if is_call(node, _LINEAR):
            self._product(node)
        elif is_call(node, _EMBEDDING):
            self._look_up(node)
        else:
            self._settle(node, part_of_result(Split(self.parts, self.shapes), node))

    def _settle(self, node: Node, part: Part) -> None:
        """The call's result is this part."""
        if is_call(node, _ATTENTION):
            for cache, arg in zip(node.args[3:5], node.args[1:3], strict=True):
                assert isinstance(cache, Node)
                assert isinstance(arg, Node)
                cache.meta["val"] = _resized(value(cache), 2, _shape(value(arg))[1])
        node.meta.pop("val")
        expected = [*self.shapes[node]]
        expected[part.dim] = part.size
        if list(map(str, _shape(value(node)))) != list(map(str, expected)):
            raise Unsplit(f"it gives {_shape(value(node))} on this rank, and not {expected}")
        self.parts[node] = part

    # ---- products, and what makes their results whole

    def _product(self, node: Node) -> None:
        x, weight, bias = (*node.args, None)[:3]
        assert isinstance(x, Node)
        assert isinstance(weight, Node)
        part, rank = self.parts.get(weight), len(self.shapes[x])
        if part is None:
            raise Unsplit("its weight is whole, and what it is multiplied with is not")
        module = self._module(weight)
        if part.dim == 0:
            if x in self.parts or (isinstance(bias, Node) and self.parts.get(bias) != part):
                raise Unsplit("the rows of its weight are a part, and so must its bias be, and not what it multiplies")
            self._settle(node, part.at(rank - 1))
            if sizes := self._joined(module, part.whole):
                self._replace(node, torch.ops.enginebay.all_gather.default, list(sizes), TENSOR)
            return
        if x not in self.parts and module in self.plan.fed:
            with self.graph.inserting_before(node):
                x = call(self.graph, _ATEN.slice.Tensor, x, rank - 1, part.begin, part.end)
            node.update_arg(0, x)
        elif self.parts.get(x) != part.at(rank - 1):
            raise Unsplit("what it multiplies is no part that fits its columns")
        if module not in self.plan.summed:
            raise Unsplit("the plan does not say that its parts are to be summed")
        if isinstance(bias, Node) and self.plan.rank > 0:
            node.args = (x, weight)  # the first rank adds it
        self._replace(node, torch.ops.enginebay.all_reduce.default, TENSOR)

    def _module(self, weight: Node) -> str:
        origin = self.context.constants[weight.name]
        assert isinstance(origin, Parameter), "only parameters are cut"
        return origin.name.removesuffix(".weight")

    def _joined(self, module: str, whole: int) -> Sequence[int] | None:
        """The columns of each rank, where they are to be put side by side; a tied head has the embedding's name."""
        if self.plan.embedding is not None and module == self.plan.embedding[0]:
            return [len(part) for part in aligned(whole, self.plan.size)]
        return self.plan.joined.get(module)

    def _look_up(self, node: Node) -> None:
        """Rows of other ranks are looked up as one of ours, and are zero before the ranks' rows are summed."""
        weight, ids = node.args[:2]
        assert isinstance(weight, Node)
        part = self.parts.get(weight)
        if part is None or part.dim != 0 or ids in self.parts:
            raise Unsplit("an embedding is split by its rows")
        with self.graph.inserting_before(node):
            own = call(self.graph, _ATEN.sub.Tensor, ids, part.begin)
            inside = call(self.graph, _ATEN.clamp.default, own, 0, part.size - 1)
            is_own = call(self.graph, _ATEN.unsqueeze.default, call(self.graph, _ATEN.eq.Tensor, own, inside), -1)
            rows = call(self.graph, _EMBEDDING, weight, inside)
            kept = call(self.graph, _ATEN.where.ScalarOther, is_own, rows, 0.0)
        self._replace(node, torch.ops.enginebay.all_reduce.default, TENSOR, instead=kept)

    def _replace(self, node: Node, collective: Any, *args: Any, instead: Node | None = None) -> None:
        """The collective of the call, or of what stands for it, where the call's result was used."""
        source = node if instead is None else instead
        if instead is None:
            node.meta.pop("val")
        with self.graph.inserting_after(source):
            whole = call(self.graph, collective, source, *args)
        node.replace_all_uses_with(whole, lambda user: user is not whole)
        self.parts.pop(node, None)
        self.shapes[whole] = self.shapes[node]
        if list(map(str, _shape(value(whole)))) != list(map(str, self.shapes[node])):
            raise Unsplit(f"its result has {_shape(value(whole))} on all ranks, and not {self.shapes[node]}")


def _shape(shown: Any) -> list[Any]:
    """Of a tensor; of the first of several; of a number none."""
    if isinstance(shown, list | tuple):
        return _shape(shown[0])
    return list(shown.shape) if isinstance(shown, torch.Tensor) else []


def _resized(shown: Any, dim: int, size: int) -> torch.Tensor:
    """What it looks like when a dimension has another size."""
    shape = [*shown.shape]
    shape[dim] = size
    resized: torch.Tensor = shown.new_empty(shape)
    return resized
