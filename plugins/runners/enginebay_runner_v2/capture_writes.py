"""Rewrites an exported step in which operators write to their arguments into one in which none does.

A model may clamp queries in place, or write keys into halves of an empty tensor. The graph's operators have results and
nothing else: whoever reads the tensor afterwards, or a view of it, or what it is a view of, is given the new one.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

import torch
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, Node

from enginebay.errors import ModelError
from enginebay.worker.loader_build import detail
from enginebay_runner_v2.capture_export import PREFIX

__all__ = ["without_writes", "writes"]

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def without_writes(exported: torch.export.ExportedProgram, name: str) -> torch.export.ExportedProgram:
    """The same step; itself where nothing is written to. ``name`` is the model's, for errors.

    Raises ``ModelError`` where an input, a weight or a buffer is written to, which would be another one in the next
    step, and for writes of which nothing is known.
    """
    if not any(writes(node.target) for node in exported.graph.nodes):
        return exported
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch's own copy of its signature
            made: torch.export.ExportedProgram = exported.run_decompositions({})  # writes alone are taken apart
    except MemoryError:
        raise
    except Exception as error:  # operators of a stranger's code fail in ways of their own
        raise ModelError(f"{name} cannot be captured as a graph: {detail(error)}") from error
    outputs = made.graph_signature.output_specs
    if kept := [str(spec.target).removeprefix(PREFIX) for spec in outputs if spec.kind is not OutputKind.USER_OUTPUT]:
        raise ModelError(f"{name} cannot be captured as a graph: it writes to {', '.join(sorted(kept))}")
    _tidy_views(made.graph)
    return made


def writes(target: Any) -> bool:
    """Whether this is an operator of ATen that writes to an argument."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" and target._schema.is_mutable


def _tidy_views(graph: Graph) -> None:
    """What passes go by is put right again.

    Views are made anew for each reader of what was written to: the same ones become one, for by that it is known that
    two calls read one tensor. A reshape has become a view, of a copy where it must be one; passes that drop the copy
    need the reshape.
    """
    seen: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.target in _VIEWS:
            node.target = torch.ops.aten.reshape.default
        if not _is_view(node.target):
            continue
        first = seen.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _is_view(target: Any) -> bool:
    """Whether its result is a view of its argument, or one of several views."""
    if target is operator.getitem:
        return True
    return isinstance(target, torch._ops.OpOverload) and any(one.alias_info for one in target._schema.returns)
