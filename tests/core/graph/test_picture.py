"""The picture: which layer, data downwards, nothing on top of anything else, and text that stays text."""

from __future__ import annotations

import operator
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule

from enginebay.errors import GraphError
from enginebay.graph import picture_of, svg_text
from enginebay.graph._layers import Box, Picture
from enginebay.graph._layout import Extent, lay_out
from enginebay.interfaces import Origin, Packed, Parameter, Table
from support.graphs import aten


def layered(layers: int) -> tuple[GraphModule, dict[str, Origin]]:
    """A chain of layers, each a product, a part of two halves, and a sum with what came in."""
    graph = Graph()
    x, table = graph.placeholder("x"), graph.placeholder("table")
    origins: dict[str, Origin] = {"table": Table(kind="rotary")}
    placeholders = []
    for layer in range(layers):
        name = f"w_{layer}"
        origins[name] = Packed(names=(f"m.layers.{layer}.a.q.weight", f"m.layers.{layer}.a.k.weight"))
        placeholders.append((graph.placeholder(f"key_cache_{layer}"), graph.placeholder(name)))
    flow = graph.call_function(aten.mul.Tensor, (x, table))
    for cache, weight in placeholders:
        product = graph.call_function(aten.linear.default, (flow, weight))
        halves = graph.call_function(aten.split.Tensor, (product, 1, 1))
        first = graph.call_function(operator.getitem, (halves, 0))
        flow = graph.call_function(aten.add.Tensor, (flow, graph.call_function(aten.mul.Tensor, (first, cache))))
    graph.output((flow,))
    return GraphModule(torch.nn.Module(), graph), origins


def flat() -> tuple[GraphModule, dict[str, Origin]]:
    """One product, in no layer."""
    graph = Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("a_weight")
    graph.output((graph.call_function(aten.linear.default, (x, weight)),))
    return GraphModule(torch.nn.Module(), graph), {"a_weight": Parameter(name="a.weight")}


def test_a_layer_has_its_own_nodes_and_what_flows_in_and_out() -> None:
    picture = picture_of(*layered(3))
    assert picture.title == "layer 1 of 0 to 2"
    assert {name: (box.kind, box.label) for name, box in picture.boxes.items()} == {
        "add_tensor": ("flow", "add_tensor, from before"),
        "linear_default_1": ("operator", "linear"),
        "split_tensor_1": ("operator", "split"),
        "mul_tensor_2": ("operator", "mul"),
        "add_tensor_1": ("operator", "add"),
        "add_tensor_1 ": ("flow", "to layer 2"),
    }
    assert picture.edges == [
        ("add_tensor", "linear_default_1"),
        ("linear_default_1", "split_tensor_1"),
        ("split_tensor_1", "mul_tensor_2"),  # through the part that is taken
        ("add_tensor", "add_tensor_1"),
        ("mul_tensor_2", "add_tensor_1"),
        ("add_tensor_1", "add_tensor_1 "),
    ]
    assert [box.label for box in picture.left["linear_default_1"]] == ["a.q + k"]
    assert [(box.kind, box.label) for box in picture.right["mul_tensor_2"]] == [("cache", "key_cache_1")]


def test_the_last_layer_ends_in_the_output() -> None:
    picture = picture_of(*layered(3), layer=2)
    assert ("flow", "output") in {(box.kind, box.label) for box in picture.boxes.values()}


def test_a_graph_without_layers_is_drawn_whole() -> None:
    picture = picture_of(*flat())
    assert picture.title == "the whole graph"
    assert picture.edges == [("x", "linear_default"), ("linear_default", "output ")]
    assert [box.label for box in picture.left["linear_default"]] == ["a.weight"]


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.up(x)) @ x


class _Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(_Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](x))


def test_a_traced_module_is_drawn_with_its_modules_and_their_weights() -> None:
    picture = picture_of(torch.fx.symbolic_trace(_Blocks()), {})
    assert picture.title == "layer 1 of 0 to 1"
    assert [(box.kind, box.label, box.detail) for box in picture.boxes.values()] == [
        ("operator", "Linear", "up"),
        ("flow", "matmul, from before", ""),
        ("operator", "gelu", ""),
        ("operator", "matmul", ""),
        ("flow", "output", ""),
    ]
    weights = [(box.label, box.detail) for box in picture.left["layers_1_up"]]
    assert weights == [("up.weight", "[4, 2]"), ("up.bias", "[4]")]


def test_a_layer_that_there_is_not_is_refused() -> None:
    with pytest.raises(GraphError, match=r"^there is no layer 3: they are 0 to 2$"):
        picture_of(*layered(3), layer=3)
    with pytest.raises(GraphError, match=r"^there is no layer 0: it has no layers$"):
        picture_of(*flat(), layer=0)


def test_too_much_for_a_picture_is_refused() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    for _ in range(400):
        x = graph.call_function(aten.relu.default, (x,))
    graph.output(x)
    with pytest.raises(GraphError, match=r"^402 nodes are too many for a picture; 400 can be drawn$"):
        picture_of(GraphModule(torch.nn.Module(), graph), {})


def test_the_file_is_xml_in_which_everything_is_text() -> None:
    evil = '</text><script>alert("1")</script>\x00\x1b[31m\u202e&'
    picture = Picture(
        title=evil,
        boxes={"a": Box(kind="flow", label=evil), "b": Box(kind="fused", label=evil, detail=evil, tip=evil)},
        edges=[("a", "b")],
        left={"b": [Box(kind="weight", label=evil, detail=evil)]},
        right={"b": [Box(kind="cache", label=evil), Box(kind="input", label=evil)]},
    )
    root = ET.fromstring(svg_text(picture, evil))
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    texts = [node.text or "" for node in root.iter() if node.tag.endswith(("}text", "}title"))]
    assert sum('<script>alert("1")' in text for text in texts) == 10
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", "".join(texts))


def test_every_box_has_its_colour_and_every_edge_its_line() -> None:
    root = ET.fromstring(svg_text(picture_of(*layered(3)), "model"))
    kinds = [node.get("class") for node in root.iter() if node.tag.endswith("}rect") and node.get("class")]
    legend = ["operator", "weight", "cache", "flow"]
    assert sorted(kinds) == sorted([*legend, *["operator"] * 4, *["flow"] * 2, "weight", "cache"])
    lines = [node.get("d") for node in root.iter() if node.tag.endswith("}path")]
    assert len(lines) == 1 + 6 + 2, "the arrow's tip, the edges, and the lines to what stands beside"


@given(st.data())
def test_edges_go_down_and_no_box_touches_another(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 14))
    sizes = st.builds(Extent, st.floats(5, 200), st.floats(5, 200), st.floats(10, 150))
    extents = {f"n{index}": data.draw(sizes) for index in range(count)}
    pairs = [(f"n{a}", f"n{b}") for b in range(count) for a in range(b)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    layout = lay_out(extents, edges)
    for source, target in edges:
        assert layout.y[source] < layout.y[target]
        passed = [height for _, *both in layout.bends[source, target] for height in both]
        assert passed == sorted(passed)
    boxes = [
        (layout.x[n] - e.left, layout.x[n] + e.right, layout.y[n] - e.height / 2, layout.y[n] + e.height / 2)
        for n, e in extents.items()
    ]
    for index, (left, right, top, bottom) in enumerate(boxes):
        assert left > -0.01
        assert right < layout.width + 0.01
        assert bottom < layout.height + 0.01
        for other_left, other_right, other_top, other_bottom in boxes[:index]:
            aside = right < other_left + 0.01 or other_right < left + 0.01
            assert aside or bottom < other_top + 0.01 or other_bottom < top + 0.01
