"""The record: what comes back is what was written, and nothing damaged is taken, or executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import GraphError
from enginebay.graph import (
    Record,
    RecordNode,
    check_record,
    code_text,
    dump_record,
    from_record,
    load_record,
    read_record,
    to_record,
)
from enginebay.interfaces import Origin, Packed, Parameter, Table
from support.graphs import constant, run, step_graph, step_inputs

ALLOWED = "allowed: aten::…, enginebay::…, int:add, int:sub, int:mul, int:floordiv, getitem"
INT_AND_ITEM = ("int:add", "int:sub", "int:mul", "int:floordiv", "getitem")


def step_record() -> Record:
    graph_module, context = step_graph()
    return to_record(graph_module, context.constants)


def as_json(**changed: Any) -> bytes:
    return json.dumps(json.loads(dump_record(step_record())) | changed).encode()


def nodes(**node: Any) -> bytes:
    """The record with one node more, which takes the input ``x``."""
    more = {"name": "more", "op": "aten::relu", "args": [{"ref": "x"}], "kwargs": {}} | node
    return as_json(nodes=[*json.loads(as_json())["nodes"], more])


def refusal(data: bytes) -> str:
    with pytest.raises(GraphError) as caught:
        load_record(data, "step.json")
    text = str(caught.value)
    head, tail = "step.json: not a record of a graph: ", ". Delete it: it is made anew."
    assert text.startswith(head)
    assert text.endswith(tail)
    return text[len(head) : -len(tail)]


def test_a_record_comes_back_and_its_graph_gives_the_same() -> None:
    graph_module, context = step_graph()
    record = to_record(graph_module, context.constants)
    assert record.inputs == ["x", "key_cache_0"]
    assert record.constants == ["a_weight", "b_weight"]
    assert record.origin("a_weight") == Parameter(name="a.weight")
    loaded = load_record(dump_record(record))
    assert loaded == record
    again = from_record(loaded)
    assert code_text(again) == code_text(graph_module)
    given = step_inputs() | {name: constant(origin) for name, origin in context.constants.items()}
    assert torch.equal(run(again, given)[0], run(graph_module, given)[0])


def test_the_layout_on_disk_is_the_one_that_other_readers_know() -> None:
    assert json.loads(dump_record(step_record())) == {
        "format": 1,
        "inputs": ["x", "key_cache_0"],
        "constants": ["a_weight", "b_weight"],
        "nodes": [
            {"name": "linear_default", "op": "aten::linear", "args": [{"ref": "x"}, {"ref": "a_weight"}], "kwargs": {}},
            {
                "name": "linear_default_1",
                "op": "aten::linear",
                "args": [{"ref": "x"}, {"ref": "b_weight"}],
                "kwargs": {},
            },
            {"name": "mul_tensor", "op": "aten::mul.Tensor", "args": [{"ref": "linear_default"}, 1.0], "kwargs": {}},
            {"name": "add__tensor", "op": "aten::add_.Tensor", "args": [{"ref": "key_cache_0"}, 1], "kwargs": {}},
            {
                "name": "add_tensor",
                "op": "aten::add.Tensor",
                "args": [{"ref": "mul_tensor"}, {"ref": "linear_default_1"}],
                "kwargs": {},
            },
        ],
        "outputs": ["add_tensor"],
        "origins": {"a_weight": {"parameter": "a.weight"}, "b_weight": {"parameter": "b.weight"}},
    }


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -(2**63), 2**63 - 1, 1.0, -2.5, 1e300, float("inf"), -float("inf")),
        *("sum", [1, [2, 3]], [True, 1, 1.0], torch.float32, torch.bool, torch.device("cuda:1"), torch.strided),
        torch.contiguous_format,
    ],
    ids=str,
)
def test_every_kind_of_argument_comes_back_with_its_type(value: Any) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.ops.aten.clone.default, (x,), {"memory_format": value})
    graph.output((node,))
    record = to_record(torch.fx.GraphModule(torch.nn.Module(), graph), {})
    again = from_record(load_record(dump_record(record)))
    [found] = [node.kwargs["memory_format"] for node in again.graph.nodes if node.op == "call_function"]
    assert found == value
    assert repr(found) == repr(value), "1, 1.0 and True are equal, and not the same"


@pytest.mark.parametrize(
    "origin",
    [
        Parameter(name="a.b"),
        Parameter(name="a.b", dim=1, ranges=((3, 9), (12, 18))),
        Packed(names=("q", "k", "v"), dim=1),
        Packed(names=("q", "k"), ranges=(((0, 6),), ((2, 4),))),
        Table(kind="rotary", settings={"base": 1e4, "n": [1]}),
    ],
    ids=repr,
)
def test_every_origin_comes_back(origin: Origin) -> None:
    graph_module, context = step_graph()
    record = load_record(dump_record(to_record(graph_module, context.constants | {"a_weight": origin})))
    assert record.origin("a_weight") == origin


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"format":1', "Input data was truncated"),
        (as_json(format=2), "its format is 2, and this version reads 1"),
        (as_json(surprise=1), "Object contains unknown field `surprise`"),
        (as_json(outputs=["nothing"]), "its output 'nothing' is made by no node"),
        (as_json(inputs=["x", "x"]), "two values are named 'x'"),
        (as_json(inputs=["x", "key_cache_0", "class"]), "'class' cannot be the name of a value"),
        (as_json(inputs=["x", "key_cache_0", "x=1\nimport os"]), r"'x=1\nimport os' cannot be the name of a value"),
        (as_json(inputs=["x", "key_cache_0", "torch"]), "'torch' cannot be the name of a value"),
        (as_json(origins={"x": {"parameter": "x"}}), "it has an origin of 'x', which is no constant"),
        (as_json(origins={"a_weight": 1}), "Expected `object`, got `int` - at `$.origins[...]`"),
        (nodes(name="os.system"), "'os.system' cannot be the name of a value"),
        (nodes(name="x"), "two values are named 'x'"),
        (nodes(op="int:pow"), f"node 'more': operator 'int:pow' is not allowed; {ALLOWED}"),
        (nodes(op="int:add", args=[1]), "node 'more': int:add takes two numbers"),
        (nodes(op="getitem", args=[{"ref": "x"}, {"ref": "x"}]), "node 'more': getitem takes a value and a number"),
        (nodes(args=[{"ref": "later"}]), "node 'more' uses 'later', which nothing before it makes"),
        (nodes(args=[{"ref": "more"}]), "node 'more' uses 'more', which nothing before it makes"),
        (nodes(args=[{"ref": "x", "dtype": "x"}]), "node 'more': \"{'ref': 'x', 'dtype': 'x'}\" is no argument"),
        (nodes(args=[{"dtype": "load"}]), "node 'more': 'dtype' 'load' is not known"),
        (nodes(args=[{"module": "os"}]), "node 'more': 'module' 'os' is not known"),
        (nodes(args=[{"device": "cpu; x"}]), "node 'more': 'cpu; x' is no device"),
        (nodes(args=[2**63]), "node 'more': a whole number beyond 64 bits"),
        (nodes(args=["a" * 201]), "node 'more': a text of 201 characters is too long, or not plain"),
        (nodes(args=[[[[[[1]]]]]]), "node 'more': a list of 1 values, 5 deep, is too much"),
        (nodes(args=[[0] * 10_001]), "node 'more': a list of 10001 values, 1 deep, is too much"),
        (nodes(kwargs={"class": 1}), "node 'more': 'class' cannot be an argument's name"),
        (nodes(kwargs={"a b": 1}), "node 'more': 'a b' cannot be an argument's name"),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_damaged_is_refused_with_its_place(data: bytes, said: str) -> None:
    assert refusal(data).partition(" (byte")[0] == said


@pytest.mark.parametrize(
    "origin",
    [
        *({}, {"file": "x"}, {"parameter": ""}, {"parameter": "a", "dim": 0}, {"packed": []}, {"packed": ["a"]}),
        *({"packed": ["a", 1], "dim": 0}, {"packed": ["a"], "dim": -1}, {"table": 1}, {"parameter": "a\n"}),
        *({"parameter": "a", "dim": 0, "ranges": ranges} for ranges in ([], [[0]], [[3, 3]], [[-1, 2]], [[0, 2.0]], 1)),
        *({"packed": ["a"], "dim": 0, "ranges": ranges} for ranges in ([], [[]], [[0, 2]], [[[0, 2]], [[0, 2]]], 1)),
    ],
    ids=str,
)
def test_an_origin_that_is_none_is_refused(origin: dict[str, Any]) -> None:
    said = f"constant 'a_weight': {str(origin)!r:.80} does not say where it comes from"
    assert refusal(as_json(origins={"a_weight": origin})) == said


@pytest.mark.parametrize(
    "op",
    [
        "os::system",
        "prim::Print",
        "aten::from_file",
        "aten::__import__('os')",
        "torch.load",
        "builtins::eval",
        "",
        "aten::",
    ],
)
def test_no_other_operator_is_named(op: str) -> None:
    assert "is not allowed" in refusal(nodes(op=op))


def test_depth_and_size_are_bounded() -> None:
    assert "recursion" in refusal(nodes(args="@").replace(b'"@"', b"[" * 100_000 + b"]" * 100_000)).lower()
    assert refusal(b" " * (64 * 2**20 + 1)) == "it has 67108865 bytes, and at most 67108864 are read"


def test_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_bytes(dump_record(step_record()))
    assert read_record(file) == step_record()
    file.write_bytes(b"{")
    with pytest.raises(GraphError, match=rf"^{file}: not a record of a graph: "):
        read_record(file)


@given(st.data())
def test_a_damaged_byte_is_an_error_or_another_valid_record(data: st.DataObject) -> None:
    text = bytearray(as_json())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        record = load_record(bytes(text))
    except GraphError:
        return
    assert load_record(dump_record(record)) == record
    assert {node.op.partition("::")[0] for node in record.nodes} <= {"aten", "enginebay"} | set(INT_AND_ITEM)


def test_a_number_that_json_lacks_is_no_number_of_a_record() -> None:
    node = RecordNode(name="more", op="aten::relu", args=[float("inf")])
    with pytest.raises(GraphError, match=r"^node 'more': inf must be written as a word: JSON has no such number$"):
        check_record(Record(format=1, inputs=[], constants=[], nodes=[node], outputs=[]))


def test_a_name_that_code_cannot_have_is_refused_before_there_is_code() -> None:
    with pytest.raises(GraphError, match=r"^'print' cannot be the name of a value$"):
        from_record(load_record(nodes(name="print")))


def test_an_operator_that_torch_does_not_know_is_told() -> None:
    record = load_record(nodes(op="enginebay::not_built"))
    with pytest.raises(GraphError) as caught:
        from_record(record)
    assert str(caught.value) == (
        "node 'more': torch knows no operator enginebay::not_built; was the library that brings the operators of "
        "enginebay loaded, and in this version?"
    )


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def test_what_a_record_cannot_hold_is_told() -> None:
    with pytest.raises(
        GraphError, match=r"^node 'linear' is a call_module, and a record holds calls of operators alone$"
    ):
        to_record(torch.fx.symbolic_trace(_Net()), {})
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.relu, (graph.placeholder("x"),)),))
    with pytest.raises(GraphError, match=r"^node 'relu' calls <built-in .*, and a record holds operators of aten and"):
        to_record(torch.fx.GraphModule(torch.nn.Module(), graph), {})
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.relu.default, (slice(1),)),))
    with pytest.raises(
        GraphError, match=r"^node 'relu_default': a record cannot hold the argument slice\(.*\) \(slice\)$"
    ):
        to_record(torch.fx.GraphModule(torch.nn.Module(), graph), {})
