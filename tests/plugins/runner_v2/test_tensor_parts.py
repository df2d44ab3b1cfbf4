"""A part that is followed through a graph is, behind each call, the slice of what the whole call gives there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import Graph

from enginebay_runner_v2 import ops
from enginebay_runner_v2.passes.tensor_parts import Part, viewed
from enginebay_runner_v2.passes.tensor_rules import Split, Unsplit, part_of_result

ATEN = torch.ops.aten
assert ops.NAMESPACE == "enginebay", "the rules name its operators"


def slice_of(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    return tensor.narrow(part.dim, part.begin, part.size)


@st.composite
def shapes(draw: st.DrawFn, factors: tuple[int, ...] = (2, 2, 2, 3)) -> list[int]:
    """A way to write 24 indexes as dimensions: runs of its factors, with dimensions of 1 between them."""
    sizes = [1]
    for factor in draw(st.permutations(factors)):
        sizes = [*sizes, factor] if draw(st.booleans()) else [*sizes[:-1], sizes[-1] * factor]
    return sizes


@given(st.data())
def test_a_view_of_a_part_is_the_part_of_the_view(data: st.DataObject) -> None:
    """Wherever it is said to be in one dimension; and it is said where a dimension is split in two, or two joined."""
    before, after = data.draw(shapes()), data.draw(shapes())
    dim = data.draw(st.sampled_from([dim for dim, size in enumerate(before) if size > 1]))
    begin = data.draw(st.integers(0, before[dim] - 1))
    part = Part(dim, before[dim], begin, data.draw(st.integers(begin + 1, before[dim])))
    moved = viewed(part, before, after)
    whole = torch.arange(24).view(before)
    if moved is not None:
        sizes = [moved.size if place == moved.dim else size for place, size in enumerate(after)]
        assert torch.equal(slice_of(whole, part).reshape(sizes), slice_of(whole.view(after), moved))


def test_heads_are_taken_apart_and_put_together() -> None:
    part = Part(1, 72, 24, 72)
    assert viewed(part, [5, 72], [5, 9, 8]) == Part(1, 9, 3, 9)
    assert viewed(part, [5, 72], [1, 5, 9, 8]) == Part(2, 9, 3, 9)
    assert viewed(Part(1, 9, 3, 9), [5, 9, 8], [5, 72]) == part
    assert viewed(part, [5, 72], [5, 4, 18]) is None, "half a head"
    assert viewed(Part(2, 8, 0, 4), [5, 9, 8], [5, 72]) is None, "scattered over the result"
    assert viewed(part, [5, 72], [360]) is None


CALLS: list[tuple[Any, list[tuple[int, ...]], tuple[Any, ...], int]] = [
    (ATEN.mul.Tensor, [(3, 4, 6)], (2.5,), 1),
    (ATEN.mul.Tensor, [(3, 4, 6), (3, 4, 6)], (), 1),
    (ATEN.mul.Tensor, [(3, 4, 6), (6,)], (), 1),
    (ATEN.add.Tensor, [(3, 4, 6), (4, 6)], (), 1),
    (ATEN.silu.default, [(3, 4, 6)], (), 2),
    (ATEN.transpose.int, [(3, 4, 6)], (1, -1), 1),
    (ATEN.permute.default, [(3, 4, 6)], ([2, 0, 1],), 1),
    (ATEN.unsqueeze.default, [(3, 4, 6)], (1,), 1),
    (ATEN.unsqueeze.default, [(3, 4, 6)], (-1,), 1),
    (ATEN.squeeze.dim, [(1, 4, 6)], (0,), 1),
    (ATEN.select.int, [(3, 4, 6)], (0, 2), 1),
    (ATEN.select.int, [(3, 4, 6)], (2, 1), 1),
    (ATEN.slice.Tensor, [(3, 4, 6)], (2, 1, 5), 1),
    (ATEN.expand.default, [(1, 4, 6)], ([3, 4, 6],), 1),
    (ATEN.expand.default, [(4, 6)], ([3, 4, 6],), 0),
    (ATEN.reshape.default, [(3, 4, 6)], ([3, 24],), 1),
    (ATEN.unflatten.int, [(3, 24)], (1, [4, 6]), 1),
    (ATEN.flatten.using_ints, [(3, 4, 6)], (1, 2), 1),
    (ATEN.mean.dim, [(3, 4, 6)], ([-1], True), 1),
    (ATEN.mean.dim, [(3, 4, 6)], ([0],), 1),
    (ATEN.sum.dim_IntList, [(3, 4, 6)], ([2],), 1),
    (ATEN.softmax.int, [(3, 4, 6)], (-1,), 1),
    (ATEN.layer_norm.default, [(3, 4, 6)], ([6],), 1),
]
"""Operator, shapes of its tensors, what else it is called with, and the first tensor's dimension that is shared out."""


def called(target: Any, shapes: list[tuple[int, ...]], rest: tuple[Any, ...], dim: int) -> tuple[Any, ...]:
    """The call on the whole and on the second half of that dimension; and where its rule says that the half is."""
    graph, parts = Graph(), {}
    wholes = [torch.randn(shape) for shape in shapes]
    places = [graph.placeholder(f"x{index}") for index in range(len(wholes))]
    owns = list(wholes)
    for index, whole in enumerate(wholes):
        own = dim - len(shapes[0]) + whole.dim()
        if own >= 0 and whole.shape[own] == shapes[0][dim]:
            parts[places[index]] = Part(own, whole.shape[own], whole.shape[own] // 2, whole.shape[own])
            owns[index] = slice_of(whole, parts[places[index]])
    node = graph.call_function(target, (*places, *rest))
    expected = target(*wholes, *rest)
    known = {**dict(zip(places, shapes, strict=True)), node: expected.shape}
    part = part_of_result(Split(parts, known), node)
    return expected, target(*owns, *node.args[len(owns) :]), part


@pytest.mark.parametrize(
    ("target", "dim", "expected"),
    [(ATEN.cat.default, 0, 1), (ATEN.cat.default, -1, 1), (ATEN.stack.default, 0, 2), (ATEN.stack.default, -1, 1)],
)
def test_what_is_put_side_by_side_is_the_same_part(target: Any, dim: int, expected: int) -> None:
    graph, wholes = Graph(), [torch.randn(3, 4, 6) for _ in range(2)]
    x, y = graph.placeholder("x"), graph.placeholder("y")
    node = graph.call_function(target, ([x, y], dim))
    whole, own = target(wholes, dim), target([one[:, 2:] for one in wholes], dim)
    half, known = Part(1, 4, 2, 4), {x: (3, 4, 6), y: (3, 4, 6), node: whole.shape}
    part = part_of_result(Split({x: half, y: half}, known), node)
    assert part == half.at(expected)
    assert torch.equal(own, slice_of(whole, part))
    with pytest.raises(Unsplit, match="it puts side by side what are not the same parts"):
        part_of_result(Split({x: half}, known), node)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]}-{call[1]}-{call[2]}")
def test_a_call_on_parts_gives_the_part_of_the_whole_result(call: Any) -> None:
    whole, own, part = called(*call)
    assert torch.allclose(own, slice_of(whole, part))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ((ATEN.cumsum.default, [(3, 4)], (1,), 1), "it is not known how it works on parts"),
        ((ATEN.softmax.int, [(3, 4)], (-1,), 1), "it works along dimension 1, of which there is a part here"),
        ((ATEN.mean.dim, [(3, 4)], ([-1],), 1), "it sums up dimension 1, of which there is a part here"),
        ((ATEN.layer_norm.default, [(3, 4)], ([4],), 1), "it is a norm over numbers of which there is a part here"),
        ((ATEN.reshape.default, [(3, 4)], ([4, 3],), 1), "2 to 4 of 4 in dimension 1 are in no one dimension of its"),
    ],
    ids=str,
)
def test_a_call_that_needs_other_parts_is_refused(call: Any, why: str) -> None:
    with pytest.raises(Unsplit) as caught:
        called(*call)
    assert str(caught.value).startswith(why)


def test_parts_that_are_not_the_same_are_refused() -> None:
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    node = graph.call_function(ATEN.add.Tensor, (a, b))
    shapes = {a: [3, 8], b: [3, 8], node: [3, 8]}
    first, second = Part(1, 8, 0, 4), Part(1, 8, 4, 8)
    for parts, why in (
        ({a: first, b: second}, "its arguments are other parts: 0 to 4 of 8 in dimension 1, and 4 to 8 of 8 in"),
        ({a: first}, "b is whole, and the other argument is 0 to 4 of 8 in dimension 1"),
    ):
        with pytest.raises(Unsplit) as caught:
            part_of_result(Split(parts, shapes), node)
        assert str(caught.value).startswith(why)
