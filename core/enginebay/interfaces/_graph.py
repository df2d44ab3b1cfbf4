"""Graph passes: how a captured model is rewritten before it runs.

A runner with ``captures_graph`` captures the model's step once as a ``torch.fx`` graph over ATen operators and those
of the namespace ``enginebay``; passes rewrite it in place, one after the other, and what comes out is the code that
runs. A package adds its own by a hook, in the module of a worker extension (which ``[worker] extensions`` names)::

    from enginebay.hookspecs import hookimpl
    from enginebay.interfaces import GraphContext, GraphPass

    def _apply(graph_module, context: GraphContext) -> None:
        import torch                                  # heavy imports belong in here
        minus = torch.ops.aten.neg.default
        for node in graph_module.graph.nodes:
            if node.target is minus and node.args[0].target is minus:
                node.replace_all_uses_with(node.args[0].args[0])

    @hookimpl
    def enginebay_graph_passes() -> list[GraphPass]:
        return [GraphPass(name="fold_minus", summary="minus minus x is x", apply=_apply)]

After each pass the engine removes what nobody uses, checks the graph, and generates its code again.
``enginebay graph`` shows the code before and after each pass; ``--verify-graph`` runs both, and names the first pass
that changes results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.messages import ModelInfo

Ranges = tuple[tuple[int, int], ...]
"""Indexes of one dimension, each range from its first to before its second number; none at all: the whole dimension."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A constant that is one tensor of the checkpoint, ``name`` being its name there (and in the module).

    Of several tensor ranks each may have a part: the ``ranges`` of the dimension ``dim``, one after the other.
    """

    name: str
    dim: int = 0
    ranges: Ranges = ()


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A constant that is several tensors of the checkpoint one after the other, along the dimension ``dim``.

    ``ranges``, if there are any, has for each of ``names`` the part of it that this tensor rank has, in that dimension.
    """

    names: tuple[str, ...]
    dim: int = 0
    ranges: tuple[Ranges, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """A constant that is reckoned, not loaded. ``kind`` says how ("rotary"); ``settings``, plain JSON, from what."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)


Origin = Parameter | Packed | Table
"""Where a constant of the graph comes from; the runner makes it from there at the start and after an update."""


@dataclass(frozen=True, kw_only=True)
class GraphContext:
    """What a pass is told, and the one thing beside the graph that it may change: ``constants``.

    ``dtype`` is "float32" or "bfloat16"; ``block_size`` (tokens) and ``max_model_len`` are the values in force;
    ``tensor_rank`` of ``tensor_size`` is this rank's part. ``model`` is None where the graph is not a model's
    (``enginebay graph package.module:Class``), which only passes with ``any_module`` see.
    ``constants`` maps the placeholders that are constants to where each comes from: a pass that puts a placeholder
    in, or takes one out, says so here.
    """

    dtype: str = "float32"
    block_size: int = 16
    max_model_len: int = 0
    tensor_rank: int = 0
    tensor_size: int = 1
    model: ModelInfo | None = None
    constants: MutableMapping[str, Origin] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CapturedGraph:
    """What ``RunnerPlugin.capture`` returns: a graph before any pass, and what is needed to run it.

    ``graph_module``: a ``torch.fx.GraphModule``. ``modules``: names of modules to import, which bring operators that
    its code calls and torch has not. ``inputs()``: tensors for a step of the runner's choice, by placeholder, KV
    caches too; ``constant(origin)``: the tensor that comes from there. These two read weights and may take long; they
    are called to compare results before and after a pass, and a runner without them cannot be asked to.
    """

    graph_module: Any
    modules: tuple[str, ...] = ()
    inputs: Callable[[], Mapping[str, Any]] | None = None
    constant: Callable[[Origin], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class GraphPass:
    """One rewriting of the graph. ``name`` is an identifier and unique among all that are loaded.

    ``apply`` edits the graph of a ``torch.fx.GraphModule`` in place; what it raises stops the start and names the pass.
    ``after`` and ``before`` name passes that must be loaded too; where they leave it open, the built-in passes come
    first, in their own order. ``version`` changes with what the pass does: a compiled graph is kept under it.
    ``tolerance``: by how much results in float32 may change, in parts of the largest magnitude of a result; 0 demands
    the same bits. ``any_module``: it makes sense for graphs of other modules too.
    ``package`` ("enginebay-fold 0.1.0") is filled in by the host: leave it.
    """

    name: str
    summary: str
    apply: Callable[[Any, GraphContext], None]
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    version: str = "1"
    tolerance: float = 0.0
    any_module: bool = False
    package: str = ""

    @property
    def who(self) -> str:
        """How it is named in an error: "graph pass 'fold' of enginebay-fold 0.1.0"."""
        return f"graph pass '{self.name}'" + (f" of {self.package}" if self.package else "")
