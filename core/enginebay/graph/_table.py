"""A graph as a table, one row for each node, and as the text of its intermediate representation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import GraphModule


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One node. ``opcode`` is torch.fx's: placeholder, get_attr, call_function, call_module, call_method or output;
    ``args`` is what it is called with, in one text, keywords too."""

    opcode: str
    name: str
    target: str
    args: str


def node_rows(graph_module: GraphModule) -> list[NodeRow]:
    """The nodes, in the order in which they run."""
    return [
        NodeRow(opcode=node.op, name=node.name, target=target_in_words(node.target), args=_arguments(node))
        for node in graph_module.graph.nodes
    ]


def ir_text(graph_module: GraphModule) -> str:
    """The intermediate representation, as torch.fx writes it."""
    return str(graph_module.graph).strip() + "\n"


def target_in_words(target: Any) -> str:
    """What a node calls: "aten.add.Tensor", "operator.add", "linear"."""
    if isinstance(target, str):
        return target
    if hasattr(target, "_schema"):  # an operator: it prints as it is called, after torch.ops
        return str(target)
    module = getattr(target, "__module__", None) or ""
    return f"{module.removeprefix('_')}.{getattr(target, '__name__', target)}".lstrip(".")


def _arguments(node: Any) -> str:
    positional = [_value(arg) for arg in node.args]
    return ", ".join([*positional, *(f"{key}={_value(value)}" for key, value in node.kwargs.items())])


def _value(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        inner = ", ".join(_value(one) for one in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return repr(value) if isinstance(value, str) else str(value)
