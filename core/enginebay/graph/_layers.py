"""What a picture of one layer shows: which nodes belong to it, what flows in and out, what stands at their sides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from enginebay.errors import GraphError
from enginebay.graph._table import node_rows, target_in_words
from enginebay.interfaces import Origin, Packed, Parameter

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node
    from torch.nn import Module

_MOST: Final = 400
"""Boxes; a picture of more is no picture."""
_CACHE: Final = re.compile(r"(?:key|value)_cache_(\d+)")


@dataclass(frozen=True, kw_only=True)
class Box:
    """``kind`` is "operator", "fused", "flow" (what comes in and goes out), "weight", "input" or "cache"."""

    kind: str
    label: str
    detail: str = ""
    tip: str = ""


@dataclass
class Picture:
    """Boxes by name; ``edges`` (source, target) flow downwards, ``left`` and ``right`` stand beside an operator."""

    title: str
    boxes: dict[str, Box] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)
    left: dict[str, list[Box]] = field(default_factory=dict)
    right: dict[str, list[Box]] = field(default_factory=dict)


def picture_of(graph_module: GraphModule, constants: Mapping[str, Origin], layer: int | None = None) -> Picture:
    """One layer of a model's graph, by default the second, which is like most; or all of a graph without layers.

    A node belongs to the last layer whose weights or cache it depends on. Raises ``GraphError`` for a layer that there
    is not, and for more nodes than can be looked at.
    """
    nodes = list(graph_module.graph.nodes)
    layers = _layers(nodes, constants)
    last = max(layers.values(), default=-1)
    if layer is not None and not 0 <= layer <= last:
        raise GraphError(
            f"there is no layer {layer}: " + (f"they are 0 to {last}" if last >= 0 else "it has no layers")
        )
    shown = min(1, last) if layer is None else layer
    drawn = {node: layers[node] == shown for node in nodes}
    if sum(drawn.values()) > _MOST:
        raise GraphError(f"{sum(drawn.values())} nodes are too many for a picture; {_MOST} can be drawn")
    picture = Picture(title=f"layer {shown} of 0 to {last}" if last >= 0 else "the whole graph")
    tips = {row.name: f"{row.name} = {row.target}({row.args})" for row in node_rows(graph_module)}
    for node in nodes:
        if drawn[node] and _is_operator(node):
            _add(picture, node, drawn, constants, whole=last < 0, tip=tips[node.name])
    _add_ends(picture, nodes, drawn, layers, shown)
    return picture


def _layers(nodes: list[Node], constants: Mapping[str, Origin]) -> dict[Node, int]:
    """Each node's layer; -1 for what depends on none."""
    layers: dict[Node, int] = {}
    for node in nodes:
        before = [layers[source] for source in node.all_input_nodes]
        layers[node] = max([_number(node, constants), *before])
    return layers


def _number(node: Node, constants: Mapping[str, Origin]) -> int:
    if cache := _CACHE.fullmatch(node.name):
        return int(cache[1])
    match constants.get(node.name) if node.op == "placeholder" else node.target:
        case Parameter(name=str(path)) | Packed(names=(str(path), *_)):
            pass
        case str(path) if node.op in ("get_attr", "call_module"):
            pass
        case _:
            return -1
    return next((int(part) for part in path.split(".") if part.isdecimal()), -1)


def _is_operator(node: Node) -> bool:
    return node.op in ("call_function", "call_module", "call_method") and not _is_part(node)


def _is_part(node: Any) -> bool:
    """A result taken from several: the line goes on through it."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _sources(node: Node) -> Iterator[Node]:
    for source in node.all_input_nodes:
        if _is_part(source):
            yield from _sources(source)
        else:
            yield source


def _add(
    picture: Picture, node: Node, drawn: Mapping[Node, bool], constants: Mapping[str, Origin], *, whole: bool, tip: str
) -> None:
    picture.boxes[node.name] = _operator(node, tip)
    if weights := _own_weights(node):
        picture.left[node.name] = weights
    for source in dict.fromkeys(_sources(node)):
        if source.op == "get_attr" or source.name in constants:
            picture.left.setdefault(node.name, []).append(_weight(source, constants))
        elif source.op == "placeholder" and not whole:
            cache = _CACHE.fullmatch(source.name)
            box = Box(kind="cache" if cache else "input", label=source.name)
            picture.right.setdefault(node.name, []).append(box)
        else:
            if source.name not in picture.boxes:  # an input of the whole, or what comes from another layer
                told = source.name if source.op == "placeholder" else f"{source.name}, from before"
                picture.boxes[source.name] = Box(kind="flow", label=told, detail=_shape(source))
            picture.edges.append((source.name, node.name))


def _add_ends(
    picture: Picture, nodes: list[Node], drawn: Mapping[Node, bool], layers: Mapping[Node, int], shown: int
) -> None:
    for node in nodes:
        for source in dict.fromkeys(_sources(node)):
            if source.name not in picture.boxes or not drawn[source] or not _is_operator(source):
                continue
            if node.op == "output":
                end, told = "output ", "output"
            elif _is_operator(node) and layers[node] > shown:
                end, told = f"{source.name} ", f"to layer {layers[node]}"
            else:
                continue
            picture.boxes.setdefault(end, Box(kind="flow", label=told))  # no node's name has a space
            if (source.name, end) not in picture.edges:
                picture.edges.append((source.name, end))


def _operator(node: Node, tip: str) -> Box:
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        namespace, _, name = schema.name.partition("::")
        return Box(kind="operator" if namespace == "aten" else "fused", label=name, detail=_shape(node), tip=tip)
    if node.op == "call_module":
        path = str(node.target)
        return Box(kind="operator", label=type(_module(node)).__name__, detail=_short(path), tip=tip)
    label = target_in_words(node.target).rpartition(".")[2]
    return Box(kind="operator", label=label, detail=_shape(node), tip=tip)


def _module(node: Node) -> Module:
    owner = node.graph.owning_module
    assert owner is not None, "a graph that calls modules has them"
    return owner.get_submodule(str(node.target))


def _own_weights(node: Node) -> list[Box]:
    """Those of a module that is called whole."""
    if node.op != "call_module":
        return []
    return [
        Box(kind="weight", label=_short(f"{node.target}.{name}"), detail=str(list(parameter.shape)))
        for name, parameter in _module(node).named_parameters()
    ]


def _weight(node: Node, constants: Mapping[str, Origin]) -> Box:
    match constants.get(node.name, node.target):
        case Parameter(name=name):
            label = _short(name)
        case Packed(names=names):
            first, *others = (_short(name).removesuffix(".weight") for name in names)
            label = " + ".join([first, *(name.rpartition(".")[2] for name in others)])
        case str(name):
            label = _short(name)
        case _:
            label = node.name
    return Box(kind="weight", label=label, detail=_shape(node), tip=node.name)


def _short(name: str) -> str:
    """Without the path to the layer: "self_attn.q_proj.weight"."""
    parts = name.split(".")
    digits = [index for index, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[digits[0] + 1 :]) if digits and digits[0] + 1 < len(parts) else name


def _shape(node: Node) -> str:
    """As in [n, 576], where n differs from step to step; nothing where capture has not said."""
    shape = getattr(node.meta.get("val"), "shape", None)
    return "" if shape is None else "[" + ", ".join(str(size) if type(size) is int else "n" for size in shape) + "]"
