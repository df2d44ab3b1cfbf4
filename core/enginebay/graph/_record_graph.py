"""From a graph to its record and back: the calls, and nothing else, so that neither way executes anything."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from enginebay.errors import GraphError
from enginebay.graph._origins import origin_to_json
from enginebay.graph._record import FORMAT, GETITEM, Record, RecordNode, check_record
from enginebay.interfaces import Origin

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_PLAIN: Final[Mapping[str, Callable[..., Any]]] = {
    "int:add": operator.add,
    "int:sub": operator.sub,
    "int:mul": operator.mul,
    "int:floordiv": operator.floordiv,
    GETITEM: operator.getitem,
}
_PLAIN_NAMES: Final = {function: name for name, function in _PLAIN.items()}


def to_record(graph_module: GraphModule, origins: Mapping[str, Origin]) -> Record:
    """The record of a graph whose placeholders in ``origins`` are constants, and whose others are inputs.

    Raises ``GraphError`` for a node that a record cannot hold: a call of a module or a method, an attribute, a
    function that is no operator.
    """
    placeholders: list[str] = []
    nodes: list[RecordNode] = []
    outputs: list[str] = []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            placeholders.append(node.name)
        elif node.op == "output":
            outputs = _outputs(node)
        elif node.op == "call_function":
            args = [_to_value(arg, node) for arg in node.args]
            kwargs = {key: _to_value(value, node) for key, value in node.kwargs.items()}
            nodes.append(RecordNode(name=node.name, op=_operator_name(node), args=args, kwargs=kwargs))
        else:
            raise GraphError(f"node '{node.name}' is a {node.op}, and a record holds calls of operators alone")
    constants = [name for name in placeholders if name in origins]
    record = Record(
        format=FORMAT,
        inputs=[name for name in placeholders if name not in origins],
        constants=constants,
        nodes=nodes,
        outputs=outputs,
        origins={name: origin_to_json(origins[name]) for name in constants},
    )
    check_record(record)
    return record


def from_record(record: Record) -> GraphModule:
    """The graph of a record, with its placeholders in the record's order: inputs, then constants.

    The record is checked first. Raises ``GraphError`` for an operator that torch does not know: the library that
    brings those of the namespace ``enginebay`` must be loaded before.
    """
    import torch.fx

    check_record(record)
    graph = torch.fx.Graph()
    values: dict[str, Node] = {}
    for name in (*record.inputs, *record.constants):
        values[name] = _named(graph.placeholder(name), name)
    for one in record.nodes:
        args = tuple(_from_value(value, values) for value in one.args)
        kwargs = {key: _from_value(value, values) for key, value in one.kwargs.items()}
        node = graph.create_node("call_function", _operator(one), args, kwargs, name=one.name)
        values[one.name] = _named(node, one.name)
    graph.output(tuple(values[name] for name in record.outputs))
    graph.lint()
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _named(node: Node, name: str) -> Node:
    if node.name != name:  # torch.fx renames what it could not generate code with
        raise GraphError(f"{name!r} cannot be the name of a value")
    return node


def _operator_name(node: Node) -> str:
    import torch

    if isinstance(node.target, torch._ops.OpOverload):
        overload = node.target._overloadname
        return node.target._schema.name + (f".{overload}" if overload != "default" else "")
    if callable(node.target) and (name := _PLAIN_NAMES.get(node.target)):
        return name
    raise GraphError(f"node '{node.name}' calls {node.target}, and a record holds operators of aten and enginebay")


def _operator(node: RecordNode) -> Callable[..., Any]:
    import torch

    if node.op in _PLAIN:
        return _PLAIN[node.op]
    namespace, _, name = node.op.partition("::")
    name, _, overload = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    found: Any = None if packet is None else getattr(packet, overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise GraphError(
            f"node '{node.name}': torch knows no operator {node.op}; "
            f"was the library that brings the operators of {namespace} loaded, and in this version?"
        )
    return found


def _outputs(node: Node) -> list[str]:
    import torch.fx

    values = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
    if not all(isinstance(value, torch.fx.Node) for value in values):
        raise GraphError("an output of the graph is no value of it")
    return [value.name for value in values if isinstance(value, torch.fx.Node)]


def _to_value(value: Any, node: Node) -> Any:
    import torch.fx

    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case tuple() | list():
            return [_to_value(one, node) for one in value]
        case torch.fx.Node():
            return {"ref": value.name}
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": str(value)}
        case torch.layout():
            return {"layout": str(value).removeprefix("torch.")}
        case torch.memory_format():
            return {"memory_format": str(value).removeprefix("torch.")}
    raise GraphError(f"node '{node.name}': a record cannot hold the argument {value!r:.80} ({type(value).__name__})")


def _from_value(value: Any, values: Mapping[str, Node]) -> Any:
    import torch

    if isinstance(value, list):
        return [_from_value(one, values) for one in value]
    if not isinstance(value, dict):
        return value
    [(kind, word)] = value.items()
    match kind:
        case "ref":
            return values[word]
        case "device":
            return torch.device(word)
        case "float":
            return float(word)
    return getattr(torch, word)  # of the words that check_record lets through
