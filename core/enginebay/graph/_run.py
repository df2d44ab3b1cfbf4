"""Running passes over a graph, with the code before and after each, and a name for whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enginebay.errors import PluginBroken, in_words
from enginebay.graph._code import code_text
from enginebay.interfaces import GraphContext, GraphPass
from enginebay.plugins import order_passes

if TYPE_CHECKING:
    from torch.fx import GraphModule


@dataclass(frozen=True, kw_only=True)
class PassReport:
    """What one pass did: the generated code and the number of nodes, before and after it."""

    name: str
    package: str
    code_before: str
    code_after: str
    nodes_before: int
    nodes_after: int

    @property
    def changed(self) -> bool:
        """Whether the code is another."""
        return self.code_before != self.code_after


def run_passes(
    graph_module: GraphModule,
    passes: Sequence[GraphPass],
    context: GraphContext,
    *,
    only: Collection[str] | None = None,
    after_each: Callable[[GraphPass], None] | None = None,
) -> list[PassReport]:
    """Rewrite the graph in place, pass by pass, in the order that they declare; one report for each.

    After each pass, nodes and constants that nobody uses are removed, the graph is checked, its code is made anew, and
    ``after_each`` is called. ``only``: the names of those to run; the others keep their place in the order.
    Raises ``PluginBroken`` that names the pass and its package: for one that raises, or leaves a graph that is none.
    """
    reports = []
    code, nodes = code_text(graph_module), len(graph_module.graph.nodes)
    for one in order_passes(passes):
        if only is not None and one.name not in only:
            continue
        _apply(one, graph_module, context)
        before, code = code, code_text(graph_module)
        nodes_before, nodes = nodes, len(graph_module.graph.nodes)
        reports.append(
            PassReport(
                name=one.name,
                package=one.package,
                code_before=before,
                code_after=code,
                nodes_before=nodes_before,
                nodes_after=nodes,
            )
        )
        if after_each is not None:
            after_each(one)
    return reports


def _apply(one: GraphPass, graph_module: GraphModule, context: GraphContext) -> None:
    try:
        one.apply(graph_module, context)
    except Exception as error:
        raise PluginBroken(f"{one.who} raised {in_words(error)}") from error
    try:
        graph_module.graph.eliminate_dead_code()
        _drop_unused_constants(graph_module, context)
        graph_module.graph.lint()
        graph_module.recompile()
    except Exception as error:
        raise PluginBroken(f"{one.who} left a graph that is none: {in_words(error)}") from error


def _drop_unused_constants(graph_module: GraphModule, context: GraphContext) -> None:
    """Weights that no node reads are not loaded; inputs stay, for they come at every step."""
    placeholders = {node.name: node for node in graph_module.graph.nodes if node.op == "placeholder"}
    for name in list(context.constants):
        node = placeholders.get(name)
        if node is not None and node.users:
            continue
        del context.constants[name]
        if node is not None:
            graph_module.graph.erase_node(node)
