"""Comparing results before and after a pass: both codes run on the same inputs, each on its own copy of the caches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from enginebay.errors import GraphError, PluginBroken, in_words
from enginebay.graph._run import PassReport, run_passes
from enginebay.interfaces import GraphContext, GraphPass, Origin

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two graphs part. ``result``: "output 0", or an input that they write, such as "key_cache_3"."""

    result: str
    words: str

    def __str__(self) -> str:
        return f"{self.result} {self.words}"


def verify(
    before: GraphModule, after: GraphModule, inputs: Mapping[str, Any], *, tolerance: float = 0.0
) -> Difference | None:
    """The first result in which two graphs differ, or None.

    ``inputs`` has the tensors of all placeholders of both, by name; they are left as they are, for each graph gets
    copies. What a graph writes into them is a result too. ``tolerance``: how far a result may be off, in parts of its
    own largest magnitude; 0 demands the same numbers (NaN in the same places).
    """
    names = set(_placeholders(before)) & set(_placeholders(after))
    return _compare(_results(before, inputs, names), _results(after, inputs, names), tolerance)


def run_verified(
    graph_module: GraphModule,
    passes: Sequence[GraphPass],
    context: GraphContext,
    *,
    inputs: Mapping[str, Any],
    constant: Callable[[Origin], Any],
    only: Collection[str] | None = None,
) -> list[PassReport]:
    """``run_passes``, with results compared before and after each pass.

    ``inputs``: the tensors of the placeholders that are no constants. ``constant`` gives a constant's tensor.
    Raises ``PluginBroken`` that names the first pass that changes results by more than its ``tolerance``, and
    ``GraphError`` when there are none to compare with, for the graph does not run before any pass.
    """
    check = _Check(inputs, constant)
    check.start(graph_module, context)
    return run_passes(
        graph_module, passes, context, only=only, after_each=lambda one: check.after(one, graph_module, context)
    )


@dataclass
class _Check:
    """What the graph gave before the pass that has just run."""

    inputs: Mapping[str, Any]
    constant: Callable[[Origin], Any]
    results: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, tuple[Origin, Any]] = field(default_factory=dict)

    def start(self, graph_module: GraphModule, context: GraphContext) -> None:
        try:
            self.results = self._run(graph_module, context)
        except Exception as error:
            raise GraphError(f"the graph does not run as it was captured: {in_words(error)}") from error

    def after(self, one: GraphPass, graph_module: GraphModule, context: GraphContext) -> None:
        try:
            results = self._run(graph_module, context)
        except Exception as error:
            raise PluginBroken(f"{one.who} left code that does not run: {in_words(error)}") from error
        before = {name: value for name, value in self.results.items() if name in results or name not in self.inputs}
        if different := _compare(before, results, one.tolerance):
            raise PluginBroken(
                f"{one.who} changes results: {different}. It declares a tolerance of {one.tolerance:g}. "
                f"Leave it out, or have it repaired; enginebay graph --pass {one.name} shows what it did."
            )
        self.results = results

    def _run(self, graph_module: GraphModule, context: GraphContext) -> dict[str, Tensor]:
        """Constants that did not change since the last pass are kept; packing makes new ones, and drops others."""
        self.constants = {
            name: (
                origin,
                known[1] if (known := self.constants.get(name)) and known[0] == origin else self.constant(origin),
            )
            for name, origin in context.constants.items()
        }
        constants = {name: value for name, (_, value) in self.constants.items()}
        return _results(graph_module, {**self.inputs, **constants}, self.inputs.keys())


def _placeholders(graph_module: GraphModule) -> list[str]:
    return [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]


def _results(graph_module: GraphModule, inputs: Mapping[str, Any], watched: Collection[str]) -> dict[str, Tensor]:
    """The outputs, and the ``watched`` inputs as they are afterwards."""
    import torch

    names = _placeholders(graph_module)
    if missing := [name for name in names if name not in inputs]:
        raise ValueError(f"nothing says where its placeholder '{missing[0]}' comes from: context.constants should")
    given = {name: inputs[name].clone() if name in watched else inputs[name] for name in names}
    with torch.no_grad():
        outputs = graph_module(*given.values())
    listed = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    results = {f"output {index}": value for index, value in enumerate(listed) if isinstance(value, torch.Tensor)}
    return results | {name: given[name] for name in names if name in watched}


def _compare(before: Mapping[str, Tensor], after: Mapping[str, Tensor], tolerance: float) -> Difference | None:
    import torch

    for name, old in before.items():
        new = after.get(name)
        if new is None:
            return Difference(result=name, words="is gone")
        if old.shape != new.shape or old.dtype != new.dtype:
            return Difference(result=name, words=f"is {_kind(new)}, and was {_kind(old)}")
        if torch.equal(old, new):
            continue
        if not old.is_floating_point():
            return Difference(result=name, words=f"differs in {int((old != new).sum())} of {old.numel()} numbers")
        nan = old.isnan()
        if not torch.equal(nan, new.isnan()):
            return Difference(result=name, words="is not a number (NaN) in other places")
        apart = torch.where(nan | (old == new), 0.0, (old.double() - new.double()).abs())  # inf and inf are not apart
        largest = float(apart.max())
        finite = torch.where(old.isfinite(), old, 0.0).abs().max()
        if largest > tolerance * max(float(finite), torch.finfo(old.dtype).tiny):
            words = f"differs by up to {largest:.3g}, in {int((apart > 0).sum())} of {old.numel()} numbers"
            return Difference(result=name, words=f"{words}, the largest of which is {float(finite):.3g}")
    return None


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
