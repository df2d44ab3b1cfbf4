"""A record is cut at its rows: both parts together are the whole, and the head alone runs over any rows again."""

from __future__ import annotations

import pytest

from enginebay.errors import GraphError
from enginebay.graph import Record, RecordNode, check_record
from enginebay_runner_v2.cut import cut, refs


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


def record(*nodes: RecordNode, outputs: list[str], constants: tuple[str, ...] = ("w", "v")) -> Record:
    made = Record(
        format=1,
        inputs=["x", "rows", "y"],
        constants=list(constants),
        nodes=list(nodes),
        outputs=outputs,
        origins={name: {"parameter": f"model.{name}"} for name in constants},
    )
    check_record(made)
    return made


def node(name: str, op: str, *args: object) -> RecordNode:
    return RecordNode(name=name, op=op, args=list(args))


BODY = (
    node("a", "aten::mul.Tensor", ref("x"), ref("w")),
    node("b", "aten::add.Tensor", ref("a"), ref("y")),
)
HEAD = (
    node("picked", "enginebay::select_rows", ref("b"), ref("rows")),
    node("other", "enginebay::select_rows", ref("a"), ref("rows")),
    node("sum", "aten::add.Tensor", ref("picked"), ref("other")),
    node("out", "aten::mul.Tensor", ref("sum"), ref("v")),
)


def test_the_parts_are_the_whole() -> None:
    body, head = cut(record(*BODY, *HEAD, outputs=["out"]))
    check_record(body)
    check_record(head)
    assert body.inputs == ["x", "y"]
    assert body.constants == ["w"]
    assert body.outputs == ["b", "a"]
    assert [one.name for one in body.nodes] == ["a", "b"]
    assert head.inputs == ["rows", "b", "a"]
    assert head.constants == ["v"]
    assert head.outputs == ["out"]
    assert head.origins == {"v": {"parameter": "model.v"}}


def test_a_constant_that_both_need_is_of_both() -> None:
    nodes = (*BODY, HEAD[0], node("out", "aten::mul.Tensor", ref("picked"), ref("w")))
    body, head = cut(record(*nodes, outputs=["out"]))
    assert body.constants == head.constants == ["w"]


@pytest.mark.parametrize(
    ("nodes", "output", "words"),
    [
        (BODY, "b", "the output 'b' is no choice of rows: this step cannot be cut at its head"),
        (
            (*BODY, HEAD[0], node("out", "aten::add.Tensor", ref("picked"), ref("y"))),
            "out",
            "the head reads the input 'y': this step cannot be cut there",
        ),
        (
            (
                *BODY,
                node("n", "aten::sym_size.int", ref("x"), 0),
                HEAD[0],
                node("out", "aten::view", ref("picked"), [ref("n"), 1]),
            ),
            "out",
            "the head needs the number 'n' of the body: this step cannot be cut there",
        ),
    ],
)
def test_what_cannot_be_cut_is_said(nodes: tuple[RecordNode, ...], output: str, words: str) -> None:
    with pytest.raises(GraphError) as caught:
        cut(record(*nodes, outputs=[output]))
    assert str(caught.value) == words


def test_references_stand_in_lists_and_keywords_too() -> None:
    one = RecordNode(name="n", op="aten::cat", args=[[ref("a"), ref("b")], 0], kwargs={"out": ref("c")})
    assert list(refs(one)) == ["a", "b", "c"]
